#!/usr/bin/env python3
"""molen against PyTorch: the same first weights, samples, AdamW, schedule and clipping, from the command line.

usage: torch_parity.py MOLEN

In fp64 every loss and every gradient norm of 50 steps within 1e-9, and the weights after them within 1e-8 of each tensor's largest, for
each kind of model, of schedule and of batch (end_to_end/beside_torch.py). In fp32 500 steps end within 0.5 % of the loss of the plain
PyTorch program that `make bench` compares with. In bf16 one step from the same weights: no tensor's gradient is further from fp64's than
four times what PyTorch's autocast is (docs/decisions/0006-precision.md, "Proof").
"""
import json
import pathlib
import random
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/end_to_end"))
from harness import EXHAUSTIVE, MOLEN, run, work  # noqa: E402

import numpy  # noqa: E402
import torch  # noqa: E402

STEPS = 50
TOML = """
[model]
family = "llama"
layers = 2
hidden = 48
ffn = 88
heads = 6
kv_heads = 2
head_dim = 8
vocabulary = 311
max_sequence = 40
[data]
train = [{ path = "data/train" }]
sequence_length = 33
[batch]
global = 8
micro = 2
[optimizer]
lr = 3e-3
[schedule]
warmup = "5 steps"
[precision]
compute = "fp64"
[math]
threads = 1
[energy]
meters = ["none"]
"""


def prepare():
    """Two sources: long documents, and short ones, of which a sequence holds several."""
    rng = random.Random(3)
    words = [f"w{i}" for i in range(60)]
    for name, documents, length in (("t", 700, 90), ("short", 2500, 5)):
        (work / f"{name}.jsonl").write_text("".join(json.dumps({"text": " ".join(rng.choice(words) for _ in range(length))}) + "\n" for _ in range(documents)))
    run("tokenizer", "train", "t.jsonl", "--vocabulary", 300, "--output", "tok.json")
    for name, folder in (("t", "data"), ("short", "short")):
        run("data", "prepare", f"{name}.jsonl", "--language", "en", "--licence", "CC0-1.0", "--output", folder, "--tokenizer", "tok.json")
    (work / "tiny.toml").write_text(TOML)


prepare()
import beside_torch  # noqa: E402
import torch_model  # noqa: E402
from effects import Case  # noqa: E402

beside_torch.GIVEN.clear()
beside_torch.GIVEN.update({"model.family": "llama", "model.layers": 2, "model.hidden": 48, "model.ffn": 88, "model.heads": 6, "model.kv_heads": 2, "model.head_dim": 8, "model.vocabulary": 311,
                           "optimizer.lr": 3e-3, "schedule.warmup": "5 steps", "data.train": [{"path": "data/train"}], "data.sequence_length": 33, "batch.global": 8})
GPT = {"model.family": "gpt", "model.kv_heads": 6}
QWEN = {"model.qk_norm": "head", "model.head_dim": 14}
SPARSE = {"model.experts": 5, "model.experts_per_token": 2, "model.expert_ffn": 28, "model.balance_loss": 0.2, "model.z_loss": 0.02}
V3 = {**SPARSE, "model.z_loss": 0.0, "model.layers": 3, "model.dense_layers": 1, "model.shared_experts": 1, "model.router_scores": "sigmoid", "model.router_scale": 2.5, "model.router_bias_rate": 0.01}
ALIBI = {"model.position": "alibi", "model.activation": "gelu_tanh", "model.norm": "layer"}
SHORT = {"data.train": [{"path": "short/train"}], "data.document_mask": True}
LION = {"optimizer.kind": "lion", "optimizer.lr": 1e-3, "optimizer.beta2": 0.99, "optimizer.weight_decay": 0.3}
MUON = {"optimizer.kind": "muon"}
ADAFACTOR = {"optimizer.kind": "adafactor", "optimizer.lr": 0.02}
# Each degree of ZeRO and each number of ranks, once; all of their pairs in the exhaustive run.
SHARDED = [(zero, ranks) for zero in range(4) for ranks in range(1, 5) if zero == 0 or ranks > 1] if EXHAUSTIVE else [(0, 1), (1, 3), (2, 2), (3, 4)]
# name: settings, ranks, and the clip that every step's norm must exceed.
CASES = {
    "Llama, grouped queries, cosine": ({}, 1, None),
    "Llama, tied, linear": ({"model.tied": True, "schedule.kind": "linear"}, 1, None),
    "Llama, norms of queries and keys over each head": (QWEN, 1, None),
    "Llama, the same, two ranks": ({**QWEN, "parallel.zero": 3}, 2, None),
    "Llama, norms of queries and keys over all heads": ({"model.qk_norm": "all"}, 1, None),
    "experts, as Mixtral": (SPARSE, 1, None),
    "experts, as OLMoE": ({**SPARSE, "model.norm_topk": False, "model.qk_norm": "all"}, 1, None),
    "experts behind a dense layer, Muon": ({**SPARSE, **MUON, "model.dense_layers": 1, "model.layers": 3}, 1, None),
    "shared experts behind a dense layer, as DeepSeek-V2": ({**SPARSE, "model.dense_layers": 1, "model.layers": 3, "model.shared_experts": 2, "model.norm_topk": False}, 1, None),
    **{f"experts as in DeepSeek-V3, {o['optimizer.kind']}": ({**V3, **o}, 1, None) for o in ({"optimizer.kind": "adamw"}, LION, MUON, ADAFACTOR)},
    "a biased softmax, clipped": ({**SPARSE, "model.router_bias_rate": 0.01, "model.router_scale": 1.5, "optimizer.clip": 0.2}, 1, 0.2),
    "experts with a capacity": ({**SPARSE, "model.expert_capacity": 0.75}, 1, None),
    "experts as in DeepSeek-V3 with a capacity": ({**V3, "model.expert_capacity": 1.0}, 1, None),
    "experts, Muon, tied, documents": ({**SPARSE, **SHORT, **MUON, "model.tied": True}, 1, None),
    "experts, Adafactor": ({**SPARSE, **ADAFACTOR, "model.qk_norm": "all"}, 1, None),
    "experts, 4 expert ranks, ZeRO-3": ({**SPARSE, "model.experts": 8, "parallel.expert": 4, "parallel.zero": 3}, 4, None),
    "experts as in DeepSeek-V3, two expert ranks, two tensor ranks": ({**V3, "model.experts": 6, "parallel.expert": 2, "parallel.tensor": 2}, 4, None),
    "GPT, warm-up, stable, decay": ({**GPT, "schedule.kind": "wsd", "schedule.decay": "15 steps"}, 1, None),
    "GPT, tied, constant": ({**GPT, "model.tied": True, "schedule.kind": "constant"}, 1, None),
    "ALiBi, layer norm, a tenth of decay": ({**ALIBI, "schedule.kind": "wsd"}, 1, None),
    "attention within documents": (SHORT, 1, None),
    "GPT within documents": ({**GPT, **SHORT}, 1, None),
    "ALiBi within documents": ({**ALIBI, **SHORT}, 1, None),
    # Three ranks of two sequences at a time take twelve places for eight sequences: the labels of four are ignored.
    "rows whose labels are ignored": ({}, 3, None),
    "clipping in every step": ({"optimizer.clip": 0.2, "optimizer.eps": 0.1, "optimizer.lr": 0.05}, 1, 0.2),
    "clipping in every step, two ranks": ({**GPT, "optimizer.clip": 0.2, "optimizer.eps": 0.1, "optimizer.lr": 0.05}, 2, 0.2),
    **{f"Lion, ZeRO-{zero}, {ranks} ranks": ({**LION, "parallel.zero": zero}, ranks, None) for zero, ranks in ((0, 1), (0, 2), (1, 3), (2, 2), (3, 4))},
    **{f"Muon, ZeRO-{zero}, {ranks} ranks": ({**MUON, "parallel.zero": zero}, ranks, None) for zero, ranks in SHARDED},
    **{f"Muon, two tensor ranks, ZeRO-{zero}": ({**MUON, "parallel.tensor": 2, "parallel.sequence": True, "parallel.zero": zero}, 4 if zero else 2, None) for zero in (0, 3)},
    "Muon, as first published, clipped": ({**MUON, "optimizer.match_adamw": False, "optimizer.lr": 0.02, "optimizer.rest_lr": 3e-3, "optimizer.clip": 0.2}, 2, 0.2),
    **{f"Adafactor, ZeRO-{zero}, {ranks} ranks": ({**ADAFACTOR, "parallel.zero": zero}, ranks, None) for zero, ranks in SHARDED},
    "Adafactor, two tensor ranks, GPT": ({**GPT, **ADAFACTOR, "parallel.tensor": 2}, 2, None),
    "Adafactor, three tensor ranks, more than heads of keys": ({**ADAFACTOR, "model.ffn": 90, "parallel.tensor": 3}, 3, None),
    "Adafactor, two tensor ranks, ZeRO-3 over two": ({**ADAFACTOR, "parallel.tensor": 2, "parallel.sequence": True, "parallel.zero": 3}, 4, None),
    "Adafactor, two stages, tied": ({**ADAFACTOR, "model.tied": True, "parallel.pipeline": 2}, 2, None),
    "Adafactor, tied, other options, clipped": ({**ADAFACTOR, "model.tied": True, "optimizer.beta2_decay": -0.5, "optimizer.eps1": 1e-3, "optimizer.eps2": 0.03, "optimizer.update_clip": 1.5, "optimizer.clip": 0.2}, 2, 0.2),
    "a mixture by weight": ({"data.train": [{"path": "data/train", "weight": 2}, {"path": "short/train", "weight": 5}]}, 1, None),
}


def exact():
    for name, (sets, ranks, clip) in CASES.items():
        layout = {k: v for k, v in sets.items() if k.startswith("parallel.")}  # PyTorch begins with the weights of one rank
        sets = {k: v for k, v in sets.items() if k not in layout}
        ran, model, theirs = beside_torch.beside(Case(name), sets, STEPS, ranks, bound=1e-9, more=layout)
        if ranks == 1:
            beside_torch.weights_agree(ran, model, STEPS, 1e-8)
        assert clip is None or all(norm > clip for _, norm, _ in theirs), f"{name}: steps that are not clipped"
        assert theirs[-1][0] < 0.98 * theirs[0][0], f"{name}: nothing was learnt"
        worst = max(abs(a / b[0] - 1) for a, b in zip(ran.column("loss"), theirs))
        print(f"ok  fp64, {STEPS} steps, {name}: losses within {worst:.1e}, norms {min(t[1] for t in theirs):.2f} to {max(t[1] for t in theirs):.2f}", flush=True)


def modules():
    """torch_model.py's experts, with which molen agrees above, beside transformers' modules: the layer of a DeepSeek-V2-Lite, whose attention
    molen does not have, and those of DeepSeek-V3, dots.llm1 and Qwen3-MoE. Their routers compute in fp32 whatever the type, which is the bound."""
    import transformers
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
    from transformers.models.dots1.modeling_dots1 import Dots1MoE
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    sizes = dict(hidden_size=48, moe_intermediate_size=28, num_experts_per_tok=3, num_attention_heads=6, num_key_value_heads=6)
    deepseek = dict(n_routed_experts=8, n_shared_experts=2, n_group=1, topk_group=1, routed_scaling_factor=2.5, **sizes)
    v3 = dict(shared_experts=2, router_scores="sigmoid", router_scale=2.5, router_bias_rate=0.01)
    kinds = {
        "DeepSeek-V2": (DeepseekV2Moe, transformers.DeepseekV2Config(topk_method="greedy", norm_topk_prob=False, **deepseek), dict(shared_experts=2, router_scale=2.5, norm_topk=False)),
        "DeepSeek-V3": (DeepseekV3MoE, transformers.DeepseekV3Config(norm_topk_prob=True, **deepseek), v3),
        "dots.llm1": (Dots1MoE, transformers.Dots1Config(norm_topk_prob=False, **deepseek), {**v3, "norm_topk": False}),
        "Qwen3-MoE": (Qwen3MoeSparseMoeBlock, transformers.Qwen3MoeConfig(num_experts=8, norm_topk_prob=True, **sizes), {}),
    }
    for name, (kind, config, keys) in kinds.items():
        torch.manual_seed(len(name))
        config._experts_implementation = "eager"
        module = kind(config).double().eval()
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.normal_(0.0, 0.3)
        weights = {"mlp." + n: t.detach() for n, t in (*module.named_parameters(), *module.named_buffers())}
        both, down = weights.pop("mlp.experts.gate_up_proj"), weights.pop("mlp.experts.down_proj")
        for e in range(8):
            gate, up = both[e].chunk(2)
            weights |= {f"mlp.experts.{e}.{n}_proj.weight": t for n, t in (("gate", gate), ("up", up), ("down", down[e]))}
        model = torch_model.Model(dict(family="llama", layers=1, hidden=48, heads=6, experts=8, experts_per_token=3, expert_ffn=28, **keys), weights)
        x = torch.randn(3, 11, 48, dtype=torch.float64)
        with torch.no_grad():
            theirs, ours = module(x), model.experts("mlp", x)
        theirs = theirs[0] if isinstance(theirs, tuple) else theirs
        off = ((ours - theirs).abs().max() / theirs.abs().max()).item()
        print(f"ok  the experts of {name}: within {off:.1e} of transformers' module")
        assert off < 64 * 2**-24, f"{name}: {off} from transformers' module"


def long(steps=500):
    """In fp32 beside bench/peers/train_torch.py, which reads what `checkpoint export` and `data batches` write."""
    sets = {"train.until": f"{steps} steps", "precision.compute": "fp32", "checkpoint.every": "100000 steps"}
    case = Case("long")
    ran = case.train(sets, "--save-initial")
    case.molen("checkpoint", "export", ran.checkpoint(0), "hf")
    case.molen("data", "batches", "tiny.toml", sets, "--steps", steps, "--output", "long.bin")
    peer = subprocess.run([sys.executable, ROOT / "bench/peers/train_torch.py", *"--model hf --tokens long.bin --sequence 33 --global-batch 8 --micro 2 --dtype fp32 --lr 0.003 --min-lr 0.0003 --warmup 5 --clip 1.0 --threads 1 --steps".split(), str(steps)],
                          cwd=work, capture_output=True, text=True)
    assert peer.returncode == 0, peer.stderr
    theirs = [r["loss"] for r in map(json.loads, peer.stdout.splitlines()) if "step" in r]  # the last line sums up
    ours = ran.column("loss")
    a, b = (sum(x[-20:]) / 20 for x in (ours, theirs))
    print(f"ok  fp32, {steps} steps: final loss {a:.5f} here, {b:.5f} in PyTorch, {100 * abs(a - b) / b:.4f} % (bound 0.5 %); it was {ours[0]:.3f} at first")
    assert len(ours) == len(theirs) == steps and abs(a - b) <= 0.005 * b and b < 0.8 * ours[0]


def gradients(model, rows, ends, autocast):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = model.loss(rows, ends)
        loss_and_routers = loss + model.router_losses
    loss_and_routers.backward()
    return loss.item(), {n: w.grad.double().numpy() for n, w in model.w.items()}


def distances(loss, found, exact_loss, exact_gradients):
    """How far a loss is over the loss, and each gradient over the largest of its tensor."""
    # A value that is added to all keys has a gradient of zero.
    names = [n for n in found if not n.endswith("k_proj.bias")]
    far = {n: numpy.abs(found[n] - exact_gradients[n]).max() / numpy.abs(exact_gradients[n]).max() for n in names}
    return abs(loss / exact_loss - 1), far


def narrow():
    """The first moment after a step is a tenth of its gradient, where nothing is clipped."""
    for name, sets in (("Llama", {}), ("Llama, tied", {"model.tied": True}), ("norms of queries and keys", QWEN), ("GPT", GPT), ("ALiBi", ALIBI), ("within documents", SHORT)):
        sets = {"optimizer.clip": 0.0, "train.until": "1 steps", "schedule.warmup": "1 steps", "model.init_std": 0.1, **sets}
        ran = Case(f"bf16-{name}").train({**sets, "precision.compute": "bf16", "batch.micro": 8}, "--save-initial")
        settings = {**beside_torch.GIVEN, **sets}
        keys = {k.split(".")[1]: v for k, v in settings.items() if k.startswith("model.")}
        rows = beside_torch.samples_of(settings, 1)[0]
        ends = beside_torch.end_of_text("short/train") if "data.document_mask" in sets else None
        wide = gradients(torch_model.Model(keys, torch_model.weights_of(ran.checkpoint(0))), rows, ends, False)
        autocast = gradients(torch_model.Model(keys, torch_model.weights_of(ran.checkpoint(0), torch.float32)), rows, ends, True)
        theirs = distances(*autocast, *wide)
        stored, _ = torch_model.read_safetensors(ran.checkpoint(1) / "rank-00000.safetensors")
        ours = distances(ran.column("loss")[0], {n: stored["optimizer.m/" + n].astype(float) * 10 for n in wide[1]}, *wide)
        # Autocast rounds in the same places and as often, so its errors are of the size that ours may have. A loss may by chance be nearer
        # than the mean of n rounded terms, which is off by 2^-9 / sqrt(n). The norm is off by no more than the gradients are in all (the triangle inequality).
        bound, loss_bound = 4 * max(theirs[1].values()), 4 * max(theirs[0], 2**-9 / numpy.sqrt(len(rows) * len(rows[0])))
        norm = numpy.sqrt(sum((g**2).sum() for g in wide[1].values()))
        norm_bound = 4 * numpy.sqrt(sum(((autocast[1][n] - g) ** 2).sum() for n, g in wide[1].items())) / norm
        worst = max(ours[1], key=ours[1].get)
        print(f"ok  bf16, {name}: gradients up to {ours[1][worst]:.4f} from fp64's, autocast {max(theirs[1].values()):.4f}; loss {ours[0]:.1e} and {theirs[0]:.1e}")
        assert 2**-12 < ours[1][worst] <= bound and ours[0] <= loss_bound, f"{name}: {worst} is {ours[1][worst]} from fp64, the loss {ours[0]}; the bounds are {bound} and {loss_bound}"
        norm_off = abs(ran.column("grad_norm")[0] / norm - 1)
        print(f"    the norm {norm_off:.1e}; bounds: gradients {bound:.4f}, loss {loss_bound:.1e}, norm {norm_bound:.1e}")
        assert norm_off <= norm_bound, (ran.column("grad_norm")[0], norm)


assert MOLEN
modules()
exact()
long()
narrow()
shutil.rmtree(work)
