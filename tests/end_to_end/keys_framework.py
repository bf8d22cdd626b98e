"""Rows of [framework]: what each key changes in the predicted step, and that everything that runs molen refuses it by its name."""
import json
import pathlib
import re

from effects import close, equal, row
from harness import work

LAYERS, HIDDEN, FFN, HEADS, VOCABULARY, SEQUENCE, MICRO = 4, 2048, 5632, 16, 32000, 1024, 2
MODEL = {
    "model.layers": LAYERS, "model.hidden": HIDDEN, "model.ffn": FFN, "model.heads": HEADS, "model.kv_heads": HEADS, "model.head_dim": HIDDEN // HEADS,
    "model.vocabulary": VOCABULARY, "model.max_sequence": SEQUENCE, "data.sequence_length": SEQUENCE, "batch.micro": MICRO, "batch.global": 32,
    "precision.compute": "bf16",
}
PYTORCH = {**MODEL, "framework.kind": "pytorch"}
PARAMETERS = LAYERS * (4 * HIDDEN**2 + 3 * HIDDEN * FFN + 2 * HIDDEN) + 2 * VOCABULARY * HIDDEN + HIDDEN
TREE = pathlib.Path(__file__).resolve().parents[2]
LAUNCH = float(re.search(r"(?m)^launch = \{ value = ([0-9.e-]+)", (TREE / "clusters/dgx-h100.toml").read_text())[1])
FACTORS = {k: v["value"] for k, v in json.loads((TREE / "src/sim/factors.json").read_text())["factors"].items()}


def predicted(case, *sets, ranks=8, on="dgx-h100"):
    return json.loads(case.molen("simulate", "tiny.toml", *sets, "--ranks", ranks, "--cluster", on, "--format", "json").stdout)


def seconds(said, kind):
    return sum(o["seconds"] for o in said["ops"] if o["kind"] == kind)


def count(said, kind):
    return sum(o["count"] for o in said["ops"] if o["kind"] == kind)


def refuses(case, sets, *keys):
    """What runs molen, and what measures it, say which key they cannot do."""
    small = {"framework.kind": "pytorch", **sets}
    for command in (["train", "tiny.toml"], ["bench", "tiny.toml"], ["verify", "tiny.toml"], ["verify", "tiny.toml", "--static"], ["calibrate", "tiny.toml", "--output", "refused.json"], ["program", "tiny.toml"]):
        case.refused(*command, small, says=[f"{k}: " for k in keys])
    assert not (work / "refused.json").exists()
    alone = {k: v for k, v in sets.items() if k.startswith("framework.")}
    if alone:
        case.refused("simulate", "tiny.toml", MODEL, alone, "--cluster", "dgx-h100", says=[*alone, "framework.kind"])


@row("framework.kind")
def kind(case):
    molen, said = predicted(case, MODEL), predicted(case, PYTORCH)
    equal("molen is the default", predicted(case, {**MODEL, "framework.kind": "molen"}), molen)
    assert molen["allocator_bytes"] is None
    # An allocator's blocks exceed what is asked of it by a quarter; the context takes 1 GiB, and both groups of ranks 0.35 GiB each.
    close("memory as the driver shows it", said["memory_bytes"], 1.25 * said["allocator_bytes"] + (1 + 2 * 0.35) * 2**30, 1e-6)
    # No op runs between steps.
    close("between steps", said["step_s"], sum(said["phase_s"].values()) * (1 + FACTORS["outside"]), 1e-9)
    close("molen counts none", molen["step_s"], sum(molen["phase_s"].values()), 1e-9)
    # In each micro-batch, kernels of the loss move 28 bytes for each logit.
    traffic = 32 // MICRO // 8 * MICRO * SEQUENCE * VOCABULARY * 28 * FACTORS["memory"]
    assert said["step_s"] > molen["step_s"] + 0.9 * traffic / 3.35e12, (said["step_s"], molen["step_s"], traffic)
    assert "the framework's memory" in case.molen("simulate", "tiny.toml", PYTORCH, "--cluster", "dgx-h100").stdout
    refuses(case, {}, "framework.kind")
    case.refused("simulate", "tiny.toml", PYTORCH, "--cluster", "dgx-h100", "--clocks", says=["framework.kind: ", "--clocks"])
    case.refused("simulate", "tiny.toml", PYTORCH, {"precision.compute": "fp32"}, "--cluster", "dgx-h100", says=["precision.compute: ", "framework.kind"])


@row("framework.gradients")
def gradients(case):
    whole, half = predicted(case, PYTORCH), predicted(case, {**PYTORCH, "framework.gradients": "16-bit"})
    # Gradients in fp32 may travel in 16 bits too, so 2 bytes of each parameter are all that the key changes beside the messages.
    sent = predicted(case, {**PYTORCH, "precision.reduce": "bf16"})
    close("bytes of gradients", sent["allocator_bytes"] - half["allocator_bytes"], 2 * PARAMETERS, 1e-6)
    equal("seconds with messages of 16 bits", half["step_s"], sent["step_s"])
    close("half of the bytes are reduced", seconds(half, "all_reduce") / seconds(whole, "all_reduce"), 0.5, 0.15)
    assert half["step_s"] < whole["step_s"]
    equal("fp32 is the default", predicted(case, {**PYTORCH, "framework.gradients": "fp32"}), whole)
    refuses(case, {"framework.gradients": "16-bit"}, "framework.gradients", "framework.kind")


@row("framework.overlap")
def overlap(case):
    # Sharded parameters are gathered in each pass: waited for, or beside compute, but for the first gather and the last reduction.
    sharded = {**PYTORCH, "parallel.zero": 3}
    waits, ahead = predicted(case, sharded), predicted(case, {**sharded, "framework.overlap": ["dp"]})
    moving = seconds(ahead, "all_gather") + seconds(ahead, "reduce_scatter")
    assert waits["step_s"] > ahead["step_s"] + 0.4 * moving, (waits["step_s"], ahead["step_s"], moving)
    # Tensor ranks exchange four pieces instead of one. Part of the exchanges of 8 micro-batches is then beside products.
    cut = {
        **PYTORCH, "model.hidden": 4096, "model.ffn": 11264, "model.heads": 32, "model.kv_heads": 32, "data.sequence_length": 4096, "model.max_sequence": 4096,
        "batch.micro": 1, "batch.global": 8, "parallel.tensor": 8, "parallel.sequence": True,
    }
    whole, pieces = (predicted(case, {**cut, "framework.overlap": axes}, on="dgx-a100") for axes in ([], ["tp"]))
    equal("pieces of products", (count(pieces, "forward down"), count(whole, "forward down")), (4 * 8 * LAYERS, 8 * LAYERS))
    moving = seconds(whole, "all_gather") + seconds(whole, "reduce_scatter")
    assert 0.05 * moving < whole["step_s"] - pieces["step_s"] < moving, (pieces["step_s"], whole["step_s"], moving)
    # Messages between stages stop compute as long as they move.
    staged = {**PYTORCH, "parallel.pipeline": 4, "batch.global": 32, "batch.micro": 1}
    stops, beside = predicted(case, staged), predicted(case, {**staged, "framework.overlap": ["pp"]})
    assert stops["step_s"] > beside["step_s"]
    equal("no axis is the default", predicted(case, {**staged, "framework.overlap": []}), stops)
    case.refused("simulate", "tiny.toml", PYTORCH, {"parallel.tensor": 8, "framework.overlap": ["tp"]}, "--ranks", 8, "--cluster", "dgx-h100", says=["framework.overlap: ", "parallel.sequence"])
    refuses(case, {"framework.overlap": ["dp"]}, "framework.overlap")


@row("framework.products")
def products(case):
    half, fp8 = predicted(case, PYTORCH), predicted(case, {**PYTORCH, "framework.products": "fp8"})
    for name in ("forward down", "forward out_projection", "backward down"):
        assert seconds(fp8, name) < 0.85 * seconds(half, name), (name, seconds(fp8, name), seconds(half, name))
    for name in ("forward attention", "head"):
        close(name, sum(o["seconds"] for o in fp8["ops"] if name in o["kind"]), sum(o["seconds"] for o in half["ops"] if name in o["kind"]), 1e-6)
    # The device's rate in fp8 is twice that in 16 bits, of which the factor remains: the rest of the op is its launch and its traffic.
    saved = seconds(half, "forward down") - seconds(fp8, "forward down")
    flops = 2 * LAYERS * 32 // 8 * SEQUENCE * HIDDEN * FFN
    least = flops / 989.4e12 * (1 - 1 / (2 * FACTORS["gemm_fp8"]))
    assert least < saved < 3 * least, (least, saved)
    equal("memory stays", half["memory_bytes"], fp8["memory_bytes"])
    case.refused("simulate", "tiny.toml", {**PYTORCH, "framework.products": "fp8"}, "--ranks", 8, "--cluster", "dgx-a100", says="does not compute in fp8")
    refuses(case, {"framework.products": "fp8"}, "framework.products")


@row("framework.saved_activations")
def saved(case):
    tokens = MICRO * SEQUENCE
    for flash in (True, False):
        of = {**PYTORCH, "math.flash_attention": flash}
        all_of_them, fewer = predicted(case, of), predicted(case, {**of, "framework.saved_activations": "molen"})
        # The results of two norms and of the gated activation, in 16 bits, and 5 bytes for each score of attention without tiles.
        more = 4 * tokens * HIDDEN + 2 * tokens * FFN + (0 if flash else 5 * HEADS * tokens * SEQUENCE)
        close(f"bytes of {LAYERS} layers", all_of_them["allocator_bytes"] - fewer["allocator_bytes"], LAYERS * more, 1e-6)
        equal("seconds stay", all_of_them["step_s"], fewer["step_s"])
    full = {**PYTORCH, "parallel.recompute": "full"}
    again = predicted(case, full)["allocator_bytes"] - predicted(case, {**full, "framework.saved_activations": "molen"})["allocator_bytes"]
    close("one layer at a time where they are computed again", again, 4 * tokens * HIDDEN + 2 * tokens * FFN, 1e-6)
    refuses(case, {"framework.saved_activations": "molen"}, "framework.saved_activations")


@row("framework.compiled")
def compiled(case):
    eager, fused = predicted(case, PYTORCH), predicted(case, {**PYTORCH, "framework.compiled": True})
    # An op that only moves memory moves the share of its bytes that the factor says; its launch stays.
    launches = count(eager, "forward activation") * LAUNCH * FACTORS["launch"]
    ratio = (seconds(fused, "forward activation") - launches) / (seconds(eager, "forward activation") - launches)
    close("bytes of element-wise ops", ratio, FACTORS["compiled"], 1e-3)
    # Without a compiler, a layer that is computed again is computed as a whole, with its last product.
    again = {**PYTORCH, "parallel.recompute": "full"}
    more = seconds(predicted(case, again), "backward down") - seconds(predicted(case, {**again, "framework.compiled": True}), "backward down")
    close("the last product of a layer", more, seconds(eager, "forward down"), 0.15)
    refuses(case, {"framework.compiled": True}, "framework.compiled")
