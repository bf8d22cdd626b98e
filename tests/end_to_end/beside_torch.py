"""Trains with molen, and the same in PyTorch from the same first weights on the same samples: loss, gradient norm and rate of every step.

What PyTorch gets comes from the settings that molen was given and from the documented defaults, the samples from the shards
(oracle/sample_order.py): nothing that molen resolved. Every setting counts: without it PyTorch's course must differ.
"""
import json

import numpy
import torch

import sample_order
import torch_model
from effects import TINY_MODEL, all_close
from harness import work

torch.set_num_threads(1)
TRAIN = "data/train"
# The keys of tiny.toml; all others have molen's defaults.
GIVEN = {**{f"model.{k}": v for k, v in TINY_MODEL.items()}, "optimizer.lr": 1e-2, "schedule.warmup": "2 steps", "data.train": [{"path": TRAIN}], "data.sequence_length": 16, "batch.global": 4}
COURSE = {"optimizer.lr": "lr", "schedule.kind": "kind", "schedule.min_lr": "min_lr", "schedule.warmup": "warmup", "schedule.decay": "decay"}
OPTIMIZER = {f"optimizer.{k}": k for k in ("kind", "momentum", "match_adamw", "beta1", "beta2", "eps", "weight_decay", "clip", "beta2_decay", "eps1", "eps2", "update_clip")}


def steps_in(value):
    """ "7 steps" as 7; what is no length stays."""
    return int(value.split()[0]) if isinstance(value, str) and value.endswith(" steps") else value


def end_of_text(folder=TRAIN):
    return json.loads((work / folder / "manifest.json").read_text())["tokenizer"]["end_of_text"]


def samples_of(settings, steps):
    """[steps, global batch, S + 1]."""
    entries, length, size = settings["data.train"], settings["data.sequence_length"], settings["batch.global"]
    circles = [sample_order.tokens_of(work / e["path"], e.get("languages")) for e in entries]
    rows = sample_order.samples(circles, [e.get("weight", 1) for e in entries], settings.get("data.seed", 0), length, steps * size)
    return rows.reshape(steps, size, length + 1)


def peer(ran, sets, steps, dtype=torch.float64):
    """Trains with these settings in PyTorch. Returns [(loss, norm, rate)] and the trained model."""
    s = {**GIVEN, **sets}
    keys = {k.split(".")[1]: v for k, v in s.items() if k.startswith("model.")}
    model = torch_model.Model(keys, torch_model.weights_of(ran.checkpoint(0), dtype))
    course = {name: steps_in(s[key]) for key, name in COURSE.items() if key in s}
    options = {name: s[key] for key, name in OPTIMIZER.items() if key in s}
    if "optimizer.rest_lr" in s:
        options["rest"] = s["optimizer.rest_lr"] / s["optimizer.lr"]
    ends = end_of_text(s["data.train"][0]["path"]) if s.get("data.document_mask") else None
    rates = lambda step: torch_model.learning_rate(step, steps, **course)
    return list(torch_model.train(model, samples_of(s, steps), rates, end_of_text=ends, **options)), model


COURSES = {}


def beside(case, sets=None, steps=4, ranks=1, words=(), bound=1e-10, counts=(), more=None):
    """`counts`: settings without which PyTorch's course must be another (those that change a tensor's shape show in the shapes).
    `more`: settings that must not change the course."""
    sets = sets or {}
    until = {} if "train.until" in sets else {"train.until": f"{steps} steps"}
    ran = case.train({**until, **sets, **(more or {})}, "--save-initial", "--ranks", ranks, *words)
    # Every layout starts from the same bits, so that one course of PyTorch's serves all layouts of the same settings.
    key = json.dumps([GIVEN, sets, steps, words], sort_keys=True)
    if key not in COURSES:
        # Several ranks share the writing of a checkpoint.
        first = ran if ranks == 1 else case.train({**until, **sets, "train.stop_after": "1 steps"}, "--save-initial")
        COURSES[key] = first, *peer(first, sets, steps)
    first, theirs, model = COURSES[key]
    for i, column in enumerate(("loss", "grad_norm", "lr")):
        all_close(f"{sets}: {column}", ran.column(column), [t[i] for t in theirs], bound)
    for key in counts:
        without, _ = peer(first, {k: v for k, v in sets.items() if k != key}, steps)
        far = max(abs(a[0] - b[0]) / b[0] for a, b in zip(theirs, without))
        assert far > 1e4 * bound, f"{key} = {sets[key]} cannot be seen: without it losses are {far} apart"
    return ran, model, theirs


def weights_agree(ran, model, step, bound=1e-9):
    """The stored weights are PyTorch's. Where a gradient is zero but for rounding AdamW makes steps of the rounding: a softmax does not feel
    what is added to all keys."""
    stored, _ = torch_model.read_safetensors(ran.checkpoint(step) / "rank-00000.safetensors")
    for name, w in model.w.items():
        if name.endswith("k_proj.bias"):
            continue
        off = numpy.abs(stored[name] - w.detach().numpy()).max()
        assert off <= bound * numpy.abs(stored[name]).max(), f"{name} is {off} away"
