"""Rows of [data], [batch], [optimizer], [schedule] and [train]."""
import json
import math
import shutil
import statistics
import time

import numpy
import torch

import sample_order
import torch_model
from beside_torch import GIVEN, TRAIN, beside, end_of_text, samples_of, weights_agree
from effects import TINY_MODEL, all_close, close, equal, row
from harness import run, work

# Data whose tokens tell where they come from, in two languages: what is held out too.
for split, folder in (("train", "two"), ("heldout", "two")):
    for language, words in (("nl", ["wind", "water"]), ("en", ["grain", "land"])):
        rows = [{"text": " ".join(words[(i * j) % 2] for j in range(1, 90 + i))} for i in range(1, 61 if split == "train" else 9)]
        (work / f"{language}-{split}.jsonl").write_text("".join(json.dumps({**r, "language": language}) + "\n" for r in rows))
    (work / f"two-{split}.jsonl").write_text((work / f"nl-{split}.jsonl").read_text() + (work / f"en-{split}.jsonl").read_text())
    run("data", "prepare", f"two-{split}.jsonl", "--licence", "CC0-1.0", "--split", split, "--output", folder if split == "train" else "two-held", "--tokenizer", "tok.json")
TWO, HELD, TWO_HELD = "two/train", "held/heldout", "two-held/heldout"
END = end_of_text()


def batches(case, *sets, steps=4, length=16, size=4):
    """The samples of the first steps, as molen reads them: [steps, size, length + 1]."""
    out = work / f"{case.name}-{len(list(work.glob(case.name + '-*.bin')))}.bin"
    case.molen("data", "batches", "tiny.toml", *sets, "--steps", steps, "--output", out)
    return numpy.fromfile(out, "<i4").reshape(steps, size, length + 1)


# --- the optimizer: what PyTorch's AdamW does with the same numbers ---------------------------------------------------------------
@row("optimizer.kind")
def kinds(case):
    beside(case, {"optimizer.kind": "lion", "optimizer.lr": 1e-3}, counts=["optimizer.kind"])
    case.refused("train", "tiny.toml", {"optimizer.kind": "lio"}, says=["optimizer.kind", "did you mean 'lion'?"])


@row("optimizer.kind")
def kinds_on_other_ranks(case):
    """Programs of each kind, layouts that are verified, and a run that goes on in another layout with the same states."""
    for kind, lr in (("lion", 1e-3), ("muon", 1e-2), ("adafactor", 0.1)):
        sets = {"optimizer.kind": kind, "optimizer.lr": lr, "batch.micro": 1}
        program = case.program(sets, {"parallel.zero": 1}, "--ranks", 2)
        written = {x.split("kind=")[1].split()[0] for x in program.text.splitlines() if " optimizer_step " in x}
        equal("the program says whose update it is", (written, program.setting["optimizer"]), ({kind}, kind))
        found = json.loads(case.molen("verify", "tiny.toml", sets, {} if kind == "muon" else {"parallel.offload": ["optimizer"]}, "--ranks", 4, "--static", "--cover", "pairs", "--format", "json").stdout)
        assert len(found) > 20 and all(r["findings"] == [] for r in found), (kind, len(found), [r for r in found if r["findings"]][:2])
        whole = case.train(sets, {"checkpoint.every": "2 steps", "checkpoint.keep": 0})
        digest = json.loads(case.molen("checkpoint", "verify", whole.checkpoint(2), "--digest", "--format", "json").stdout)["digest"]
        for ranks, more in ((2, {"parallel.zero": 1}), (4, {"parallel.zero": 3, "parallel.tensor": 2}), (2, {"parallel.pipeline": 2}), (3, {"parallel.zero": 2})):
            name = f"{kind}-on-{ranks}-{'-'.join(more).replace('parallel.', '')}"
            shutil.copytree(whole.checkpoint(2), work / f"runs/{name}/checkpoints/step-000000002")
            ran = case.train(sets, more, "--ranks", ranks, name=name)
            equal(f"{name}: what is loaded is what was saved", ran.events("resume")[-1]["state_hash"], digest)
            all_close(f"{name}: losses", ran.column("loss"), whole.column("loss")[2:], 1e-9)


@row("optimizer.momentum", "optimizer.match_adamw", "optimizer.rest_lr")
def muon(case):
    sets = {"optimizer.kind": "muon", "optimizer.momentum": 0.8, "optimizer.rest_lr": 3e-3, "optimizer.match_adamw": False}
    beside(case, sets, counts=sets)
    beside(case, {"optimizer.kind": "muon"})


@row("optimizer.beta2_decay", "optimizer.eps1", "optimizer.eps2", "optimizer.update_clip")
def adafactor(case):
    # Each alone: an update that is clipped hides what its size follows from.
    kind = {"optimizer.kind": "adafactor", "optimizer.lr": 0.1}
    beside(case, kind)
    for key, value in (("beta2_decay", -0.3), ("eps1", 0.05), ("eps2", 0.5), ("update_clip", 1.05)):
        sets = {**kind, f"optimizer.{key}": value}
        beside(case, sets, counts=[f"optimizer.{key}"])
    for key, value, says in (("beta2_decay", 0.8, "0 or less"), ("eps1", 0, "positive number"), ("eps2", -1, "0 or more"), ("update_clip", 0.5, "1 or more")):
        case.refused("train", "tiny.toml", {**kind, f"optimizer.{key}": value}, says=[f"optimizer.{key}", says])
    case.refused("train", "tiny.toml", {**kind, "parallel.offload": ["optimizer"], "parallel.tensor": 2}, "--ranks", 2, says=["optimizer.kind", "parallel.tensor = 1"])


@row("optimizer.lr", "optimizer.beta1", "optimizer.beta2", "optimizer.eps", "optimizer.weight_decay")
def adamw(case):
    beside(case)
    sets = {"optimizer.lr": 3e-3, "optimizer.beta1": 0.5, "optimizer.beta2": 0.7, "optimizer.eps": 1e-3, "optimizer.weight_decay": 3.0}
    ran, model, _ = beside(case, sets, counts=sets)
    weights_agree(ran, model, 4)
    beside(case, {"optimizer.weight_decay": 0.0, "optimizer.beta1": 0.0}, counts=["optimizer.weight_decay"])


@row("optimizer.clip")
def clip(case):
    # Adam hardly feels a constant factor, so a large epsilon makes the size of the gradient count.
    sets = {"optimizer.eps": 1.0, "optimizer.lr": 0.5}
    free = beside(case, {**sets, "optimizer.clip": 0})[2]
    small = min(norm for _, norm, _ in free) / 7
    for value in (small, 2 * small):
        beside(case, {**sets, "optimizer.clip": value}, counts=["optimizer.clip"])
    # Where it is not set it is 1: with a head so large that the norm is more.
    large = {**sets, "model.init_std": 0.5}
    assert beside(case, large)[2][0][1] > 2


@row("schedule.kind", "schedule.warmup", "schedule.min_lr", "schedule.decay")
def schedules(case):
    sequences = len(sample_order.tokens_of(work / TRAIN)) // 16
    epoch = 8 * 4 / sequences  # of 8 steps
    for sets, course in (
        ({}, {}),
        ({"schedule.kind": "linear"}, dict(kind="linear")),
        ({"schedule.kind": "constant"}, dict(kind="constant")),
        ({"schedule.kind": "wsd"}, dict(kind="wsd")),  # a tenth of 20: the last 2 steps
        ({"schedule.kind": "wsd", "schedule.decay": "7 steps"}, dict(kind="wsd", decay=7)),
        ({"schedule.kind": "wsd", "schedule.decay": "512 tokens", "schedule.min_lr": 0.0}, dict(kind="wsd", decay=8, min_lr=0.0)),
        ({"schedule.kind": "wsd", "schedule.decay": f"{epoch - 1e-9:.12f} epochs"}, dict(kind="wsd", decay=8)),
        ({"schedule.min_lr": 5e-3}, dict(min_lr=5e-3)),
        ({"schedule.warmup": "11 steps", "schedule.kind": "linear", "schedule.min_lr": 0.0}, dict(kind="linear", warmup=11, min_lr=0.0)),
        ({"schedule.warmup": "0 steps"}, dict(warmup=0)),
        ({"schedule.warmup": "320 tokens"}, dict(warmup=5)),
    ):
        ran = case.train({"train.until": "20 steps", **sets})
        all_close(f"{sets}: lr", ran.column("lr"), [torch_model.learning_rate(s, 20, **{"lr": 1e-2, "warmup": 2, **course}) for s in range(1, 21)], 1e-12, 1e-18)


# --- data ------------------------------------------------------------------------------------------------------------------------
@row("data.train")
def sources(case):
    first, second = sample_order.tokens_of(work / TRAIN), sample_order.tokens_of(work / TWO)
    dutch = sample_order.tokens_of(work / TWO, ["nl"])
    for entries, circles, weights in (
        ([{"path": TRAIN, "weight": 3}, {"path": TWO, "weight": 1}], [first, second], [3, 1]),
        ([{"path": TWO, "weight": 0.05}, {"path": TRAIN, "weight": 0.15}, {"path": TWO, "languages": ["nl"], "weight": 0.2}], [second, first, dutch], [0.05, 0.15, 0.2]),
        ([{"path": TRAIN}, {"path": TWO}], [first, second], [1, 1]),
    ):
        steps = 100
        rows = batches(case, {"data.train": entries, "data.seed": 3}, steps=steps).reshape(-1, 17)
        ours = sample_order.samples(circles, weights, 3, 16, len(rows))
        assert (rows == ours).all(), f"{entries}: {numpy.flatnonzero((rows != ours).any(1))[:5]} differ"
        drawn = numpy.bincount([sample_order.component_of(s, weights)[0] for s in range(len(rows))])
        assert all(abs(n - len(rows) * w / sum(weights)) <= len(weights) for n, w in zip(drawn, weights)), drawn
    # Training reads them so too.
    beside(case, {"data.train": [{"path": TWO, "weight": 3, "languages": ["nl"]}, {"path": TRAIN, "weight": 1}]}, counts=["data.train"])
    case.refused("train", "tiny.toml", {"data.train": [{"path": TWO, "languages": ["fy"]}]}, "--dry-run", says=["fy", "en,nl"])


@row("data.seed")
def order_of_samples(case):
    circle = sample_order.tokens_of(work / TRAIN)
    rows = {seed: batches(case, {"data.seed": seed}, steps=60).reshape(-1, 17) for seed in (0, 1)}
    for seed, drawn in rows.items():
        assert (drawn == sample_order.samples([circle], [1], seed, 16, len(drawn))).all(), f"seed {seed}: another order"
    assert (rows[0] != rows[1]).any(1).mean() > 0.9
    zero, one = (case.train({"data.seed": s}, "--save-initial") for s in (0, 1))
    assert zero.events("start")[0]["state_hash"] == one.events("start")[0]["state_hash"] and zero.column("loss") != one.column("loss")


@row("data.sequence_length")
def sequence_length(case):
    ran = beside(case, {"data.sequence_length": 24}, counts=["data.sequence_length"])[0]
    equal("tokens", ran.column("tokens_total"), [4 * 24 * s for s in range(1, 5)])
    case.refused("train", "tiny.toml", {"data.sequence_length": 65}, says=["max_sequence", "65"])


@row("data.document_mask")
def document_mask(case):
    # Documents of nine tokens or so: several in a sequence.
    (work / "short.jsonl").write_text("".join(json.dumps({"text": f"de molen {'wind ' * (i % 5)}draait {i}"}) + "\n" for i in range(300)))
    run("data", "prepare", "short.jsonl", "--licence", "CC0-1.0", "--language", "nl", "--output", "short", "--tokenizer", "tok.json")
    short = {"data.train": [{"path": "short/train"}], "data.sequence_length": 32}
    assert (samples_of({**GIVEN, **short}, 4)[:, :, :-2] == END).any(2).mean() > 0.5
    beside(case, {**short, "data.document_mask": True}, counts=["data.document_mask"])
    beside(case, {**short, "data.document_mask": False})


@row("data.tokenizer")
def tokenizer(case):
    run("tokenizer", "train", "held.jsonl", "--vocabulary", 312, "--output", "foreign.json")
    case.refused("train", "tiny.toml", {"data.tokenizer": "foreign.json"}, "--dry-run", says="tokenizer")
    ran = case.train({"data.tokenizer": "./tok.json"})
    equal("the checkpoint's", (ran.checkpoint(4) / "tokenizer.json").read_bytes(), (work / "tok.json").read_bytes())
    assert not (case.train({"data.tokenizer": "none"}).checkpoint(4) / "tokenizer.json").exists()


def held_out(folder, language):
    """Rows of a held-out language as the documentation has them: each token once a label, behind an end of text; -1 fills up."""
    tokens = sample_order.tokens_of(work / folder, [language])
    windows = -(-len(tokens) // 16)
    labels = numpy.full(windows * 16, -1)
    labels[: len(tokens)] = tokens
    ids = numpy.full(windows * 16, END)
    ids[1 : len(tokens)] = tokens[:-1]
    return ids.reshape(-1, 16), labels.reshape(-1, 16)


def summed_loss(model, ids, labels, ends=None):
    with torch.no_grad():
        scores = model.logits(torch.as_tensor(ids), ends).flatten(0, 1)
        return torch.nn.functional.cross_entropy(scores, torch.as_tensor(labels).flatten(), ignore_index=-1, reduction="sum").item()


def expected_validation(model, sets, windows=None, ends=None):
    """Loss, tokens and bits a byte of [(folder, language)], over at most so many windows of each; `ends`: attention within documents."""
    total, counted, bits = 0.0, 0, {}
    for folder, language in sets:
        ids, labels = held_out(folder, language)
        part = slice(0, windows)
        loss, tokens = summed_loss(model, ids[part], labels[part], ends), int((labels[part] >= 0).sum())
        shards = [s for s in json.loads((work / folder / "manifest.json").read_text())["shards"] if s["language"] == language]
        size = sum(s["text_bytes"] for s in shards) * tokens / sum(s["tokens"] for s in shards)
        total, counted = total + loss, counted + tokens
        bits.setdefault(language, []).append((loss / math.log(2) / size, tokens))
    return total / counted, counted, {k: sum(b * t for b, t in v) / sum(t for _, t in v) for k, v in bits.items()}


def final(ran):
    return torch_model.Model(TINY_MODEL, torch_model.weights_of(ran.checkpoint(max(ran.checkpoints()))))


@row("data.validation", "train.validate_batches")
def validation(case):
    """Loss and bits a byte by hand: of one set, of several, of some languages, of so many batches."""
    everything = [(HELD, "nl"), (TWO_HELD, "en"), (TWO_HELD, "nl")]
    both = [{"path": HELD}, {"path": TWO_HELD}]
    for sets, expected, windows, ranks in (
        ({"data.validation": [{"path": HELD}]}, everything[:1], None, 1),
        ({"data.validation": both}, everything, None, 1),
        ({"data.validation": both}, everything, None, 3),
        ({"data.validation": [{"path": TWO_HELD, "languages": ["en"]}]}, everything[1:2], None, 1),
        # So many global batches of four sequences, of each set and language; on any ranks.
        ({"data.validation": both, "train.validate_batches": 2}, everything, 8, 1),
        ({"data.validation": both, "train.validate_batches": 2}, everything, 8, 3),
        ({"data.validation": both, "train.validate_batches": 1}, everything, 4, 2),
        ({"data.validation": both, "data.document_mask": True}, everything, None, 1),
    ):
        ran = case.train({"train.until": "2 steps", **sets}, "--ranks", ranks)
        model = final(ran) if ranks == 1 else final(case.train({"train.until": "2 steps"}))
        loss, tokens, bits = expected_validation(model, expected, windows, END if "data.document_mask" in sets else None)
        found = ran.events("validation")[-1]
        equal(f"{sets} on {ranks}: tokens", found["tokens"], tokens)
        close(f"{sets} on {ranks}: loss", found["loss"], loss, 1e-9)
        equal(f"{sets}: languages", set(found["bits_per_byte"]), set(bits))
        for language, value in bits.items():
            close(f"{sets} on {ranks}: bits per byte of {language}", found["bits_per_byte"][language], value, 1e-9)
    # "reported for each and by language"
    each = case.train({"train.until": "2 steps", "data.validation": both}).events("validation")[-1]["sets"]
    equal("sets", [e["path"] for e in each], [HELD, TWO_HELD])
    for found, own in zip(each, (everything[:1], everything[1:])):
        loss, tokens, bits = expected_validation(final(case.train({"train.until": "2 steps"})), own)
        equal("tokens of a set", found["tokens"], tokens)
        close("loss of a set", found["loss"], loss, 1e-9)
        for language, value in bits.items():
            close("bits of a set", found["bits_per_byte"][language], value, 1e-9)
    case.refused("train", "tiny.toml", {"data.validation": [{"path": HELD, "weight": 2.0}]}, "--dry-run", says=["data.validation", "weight"])


@row("train.validate_every")
def validate_every(case):
    held = {"data.validation": [{"path": HELD}], "train.until": "6 steps", "train.validate_batches": 1}
    for every, steps in (("2 steps", [2, 4, 6]), ("4 steps", [4, 6]), ("192 tokens", [3, 6]), ("500 steps", [6])):
        ran = case.train({**held, "train.validate_every": every})
        equal(every, [e["step"] for e in ran.events("validation")], steps)


@row("train.noise_scale_every")
def noise_scale(case):
    """A run that measures trains as one that does not, and the small batch has the gradient of its own samples alone."""
    sets = {"batch.global": 16, "batch.micro": 2, "train.until": "6 steps", "checkpoint.every": "3 steps"}
    plain = case.train(sets)
    equal("without the key", plain.events("noise_scale"), [])
    for ranks, more in ((1, {}), (2, {"parallel.zero": 3, "batch.micro": 8}), (2, {"parallel.pipeline": 2}), (2, {"parallel.tensor": 2})):
        ran = case.train(sets, more, {"train.noise_scale_every": 2}, "--ranks", ranks)
        measured = ran.events("noise_scale")
        equal(f"{more}: steps", [e["step"] for e in measured], [2, 4, 6])
        all_close(f"{more}: losses", ran.column("loss"), plain.column("loss"), 0 if ranks == 1 else 1e-9)
        equal(f"{more}: tokens", [(e["small"]["tokens"], e["large"]["tokens"]) for e in measured], [(2 * 16, 16 * 16)] * 3)
        all_close(f"{more}: the norm of the step", [e["large"]["grad_norm"] for e in measured], ran.column("grad_norm")[1::2], 1e-12)
        if "parallel.zero" in more:  # the last step was measured, and its traffic is that of one step
            equal("traffic", ran.events("stop")[-1]["traffic"], case.train(sets, more, "--ranks", ranks).events("stop")[-1]["traffic"])
        if ranks == 1:
            norms = [e["small"]["grad_norm"] for e in measured]
        all_close(f"{more}: norms of small batches", [e["small"]["grad_norm"] for e in measured], norms, 1e-9)
        pairs = [tuple(e[k][w] for k in ("small", "large") for w in ("tokens", "grad_norm")) for e in measured]
        noise = sum((s**2 - l**2) / (1 / b - 1 / g) for b, s, g, l in pairs)
        squares = sum((g * l**2 - b * s**2) / (g - b) for b, s, g, l in pairs)
        assert noise > 0 and squares > 0, pairs
        close(f"{more}: the estimate", measured[-1]["tokens"], noise / squares)
        assert measured[-1]["low"] <= measured[-1]["tokens"] <= measured[-1]["high"] and measured[0]["high"] is None
    # At the first step, the small batch is that of a run whose whole batch it is.
    first = case.train(sets, {"train.stop_after": "1 steps", "train.noise_scale_every": 1}).events("noise_scale")[0]
    alone = case.train(sets, {"train.stop_after": "1 steps", "batch.global": 2})
    close("the norm of a small batch", first["small"]["grad_norm"], alone.column("grad_norm")[0], 1e-9)
    # A run that stopped goes on with the measurements that it had.
    every = {**sets, "train.noise_scale_every": 1}
    whole = case.train(every).events("noise_scale")[-1]
    case.train(every, {"train.stop_after": "3 steps"}, name="in-two-parts")
    later = case.train(every, name="in-two-parts").events("noise_scale")[-1]
    for key in ("step", "measurements", "tokens", "low", "high"):
        equal(f"after a restart: {key}", later[key], whole[key])
    case.refused("train", "tiny.toml", {"batch.global": 1, "batch.micro": 1, "train.noise_scale_every": 1}, "--dry-run", says=["train.noise_scale_every", "batch.global is 1"])
    # The plan of batches takes what the run measured.
    report = json.loads(case.molen("plan", "--calculus", "--cluster", "snellius-h100", "--tokens", "450e9", "--sizes", "30e9", "--noise-scale", "runs/in-two-parts", "--format", "json").stdout)
    close("--noise-scale RUN", report["plan"]["noise_scale_tokens"], later["tokens"])
    case.refused("plan", "--calculus", "--cluster", "snellius-h100", "--tokens", "450e9", "--sizes", "30e9", "--noise-scale", str(plain.path), says=["--noise-scale", "train.noise_scale_every"])
    page = work / "noise.html"
    case.molen("report", "runs/in-two-parts", "--output", page)
    assert "Gradient noise scale" in page.read_text()


# --- batches and the course of a training -------------------------------------------------------------------------------------------
@row("batch.global", "batch.micro")
def batch(case):
    whole = beside(case, {"batch.global": 8}, more={"batch.micro": 8}, counts=["batch.global"])[0]
    equal("samples of a step", [m["samples"] for m in whole.steps], [[8 * s, 8 * s + 7] for s in range(4)])
    beside(case, {"batch.global": 8}, more={"batch.micro": 2})
    programs = {micro: case.program({"batch.global": 8, "batch.micro": micro}) for micro in (8, 2)}
    assert programs[8].buffers["ids"][1] == 4 * programs[2].buffers["ids"][1] == 8 * 16
    assert "4 micro-batches of 2 x 16 tokens" in case.molen("train", "tiny.toml", {"batch.global": 8, "batch.micro": 2}, "--dry-run").stdout
    case.refused("train", "tiny.toml", {"batch.micro": 3}, "--dry-run", says="batch.micro")


@row("train.until")
def until(case):
    sequences = len(sample_order.tokens_of(work / TRAIN)) // 16
    for value, steps in (("3 steps", 3), ("320 tokens", 5), ("321 tokens", 6), (f"{28 / sequences - 1e-9:.12f} epochs", 7)):
        ran = case.train({"train.until": value})
        equal(value, len(ran.steps), steps)
        all_close(f"{value}: the horizon of the schedule", ran.column("lr"), [torch_model.learning_rate(s, steps, lr=1e-2, warmup=2) for s in range(1, steps + 1)], 1e-12)


def ended_before(case, name, key, *sets):
    """A run that has reached its end says by which key when it is started again."""
    words = [{"run.name": name}, *sets]
    case.molen("train", "tiny.toml", *words)
    said = case.molen("train", "tiny.toml", *words)
    assert f"nothing to do, {key} (2 steps) was reached before" in said.stdout + said.stderr, said.stdout + said.stderr


@row("train.stop_after")
def stop_after(case):
    ended_before(case, "over", "train.until", {"train.until": "2 steps"})
    ended_before(case, "stopped", "train.stop_after", {"train.until": "9 steps", "train.stop_after": "2 steps"})
    for value, steps in (("3 steps", 3), ("320 tokens", 5)):
        ran = case.train({"train.until": "9 steps", "train.stop_after": value})
        equal(value, (len(ran.steps), ran.checkpoints()), (steps, [steps]))
        all_close("the schedule goes to train.until", ran.column("lr"), [torch_model.learning_rate(s, 9, lr=1e-2, warmup=2) for s in range(1, steps + 1)], 1e-12)
    start = time.monotonic()
    ran = case.train({"train.until": "10000000 steps", "train.stop_after": "0.7 s"})
    took, begun, ended = time.monotonic() - start, ran.events("start")[0]["wall_time_s"], ran.steps[-1]["wall_time_s"]
    assert 0.65 <= ended - begun <= took < 30 and ran.checkpoints()[-1] == ran.steps[-1]["step"], (begun, ended, took)


@row("train.seed")
def initial_weights(case):
    stored = {}
    for seed in (0, 1):
        tensors, _ = torch_model.read_safetensors(case.train({"train.seed": seed, "train.until": "2 steps"}, "--save-initial").checkpoint(0) / "rank-00000.safetensors")
        stored[seed] = tensors
        key = sample_order.xxh3(b"lm_head.weight", seed)
        drawn = [0.02 * sample_order.normal(key, i) for i in range(320 * 24)]
        off = numpy.abs(tensors["lm_head.weight"].flatten() - drawn).max()
        assert off < 1e-15, f"seed {seed}: {off}"
    for name, values in stored[0].items():
        if values.ndim == 2 and not name.startswith("optimizer."):
            r = numpy.corrcoef(values.flatten(), stored[1][name].flatten())[0, 1]
            assert abs(r) < 5 / math.sqrt(values.size), f"{name}: seeds 0 and 1 are correlated, {r}"
    assert (batches(case, {"train.seed": 0}) == batches(case, {"train.seed": 1})).all()


@row("train.deterministic")
def deterministic(case):
    a, b = (case.train({"train.deterministic": True}) for _ in range(2))
    equal("bits", [m["loss"] for m in a.steps], [m["loss"] for m in b.steps])
    case.refused("train", "tiny.toml", {"train.deterministic": False}, says="train.deterministic")


@row("train.trace_steps")
def trace(case):
    assert not (case.train({}).path / "trace.json").exists()
    for steps in ([2], [1, 3]):
        ran = case.train({"train.trace_steps": steps})
        spans = [e for e in json.loads((ran.path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
        equal("steps", sorted({e["args"]["step"] for e in spans}), steps)
        ops = len({e["args"]["op"] for e in spans})
        equal("ops of each step", len(spans), len(steps) * int(lines_of_program(case)))
        assert ops > 10
    # The power of each scope is a chart beside the ops, within the traced steps.
    (work / "steady.jsonl").write_text("".join(json.dumps({"time_s": t, "energy_j": {"cpu-package0": 80.0 * t}}) + "\n" for t in (0.0, 1e5)))
    ran = case.train({"train.trace_steps": [2, 3], "energy.meters": ["replay:steady.jsonl"], "energy.sample_every": "1 ms"})
    events = json.loads((ran.path / "trace.json").read_text())["traceEvents"]
    power = [e for e in events if e["ph"] == "C"]
    ends = 1e6 * sum(m["step_s"] for m in ran.steps if m["step"] in (2, 3))
    assert power and {e["name"] for e in power} == {"cpu-package0 (W)"} and all(0 <= e["ts"] <= ends for e in power), power


def lines_of_program(case):
    return json.loads(case.molen("program", "tiny.toml", "--format", "json").stdout)["ops"]
