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
    commands = [["train"], ["bench"], ["verify"], ["verify", "--static"], ["calibrate", "--output", "refused.json"], ["program"], ["plan", "--cluster", "dgx-h100"]]
    for verb, *options in commands:
        case.refused(verb, "tiny.toml", *options, small, says=[f"{k}: " for k in keys])
    case.refused("train", "tiny.toml", small, says=["this command is for molen itself, which ", "predict the framework with `molen simulate --cluster NAME`"])
    assert not (work / "refused.json").exists()
    alone = {k: v for k, v in sets.items() if k.startswith("framework.")}
    if alone:
        case.refused("simulate", "tiny.toml", MODEL, alone, "--cluster", "dgx-h100", says=[f'{k}: has an effect only with framework.kind = "pytorch"' for k in alone])


def titles(case):
    """What sweep and tune say of the steps of a framework."""
    for verb, option in (("sweep", "--grid"), ("tune", "--search")):
        words = [verb, "tiny.toml", MODEL, "--cluster", "dgx-h100", "--ranks", 8, option, "batch.micro=1,2"]
        named = 'with framework.kind = "pytorch" on '
        for kind in ("molen", "pytorch"):
            equal(f"{verb}: {kind}", json.loads(case.molen(*words, {"framework.kind": kind}, "--format", "json").stdout)["framework"], kind)
            equal(f"{verb}: its title", named in case.molen(*words, {"framework.kind": kind}).stdout.splitlines()[0], kind == "pytorch")
        both = [*words, option, "framework.kind=molen,pytorch"]
        equal(f"{verb} of both", json.loads(case.molen(*both, "--format", "json").stdout)["framework"], None)
        assert named not in case.molen(*both).stdout


@row("framework.kind")
def kind(case):
    molen, said = predicted(case, MODEL), predicted(case, PYTORCH)
    equal("molen is the default", predicted(case, {**MODEL, "framework.kind": "molen"}), molen)
    assert molen["allocator_bytes"] is None
    # An allocator's blocks exceed what is asked of it by a quarter; the context takes 1 GiB, and both groups of ranks 0.35 GiB each.
    close("memory as the driver shows it", said["memory_bytes"], 1.25 * said["allocator_bytes"] + (FACTORS["context_memory"] + 2 * FACTORS["communicator_memory"]) * 2**30, 1e-6)
    # No op runs between steps.
    close("between steps", said["step_s"], sum(said["phase_s"].values()) * (1 + FACTORS["outside"]), 1e-9)
    close("molen counts none", molen["step_s"], sum(molen["phase_s"].values()), 1e-9)
    # In each micro-batch, kernels of the loss move 28 bytes for each logit.
    traffic = 32 // MICRO // 8 * MICRO * SEQUENCE * VOCABULARY * 28 * FACTORS["memory"]
    assert said["step_s"] > molen["step_s"] + 0.9 * traffic / 3.35e12, (said["step_s"], molen["step_s"], traffic)
    text = case.molen("simulate", "tiny.toml", PYTORCH, "--ranks", 8, "--cluster", "dgx-h100").stdout
    assert 'predicted step of framework.kind = "pytorch": ' in text and "libraries, fits into the" in text and "ZeRO" not in text, text
    equal("whose step it is", (molen["framework"], said["framework"]), (None, {"kind": "pytorch", "zero": 0, "zero_asked": 0}))
    # molen's plan leaves room for the driver's context and for the communicators of the world and of its replicas, which the memory of a framework counts.
    room = {name: (s["cluster"]["fits"], s["cluster"]["device_memory_bytes"] - s["cluster"]["plannable_memory_bytes"]) for name, s in (("molen", molen), ("framework", said))}
    context, communicator = (round(FACTORS[f"{name}_memory"] * 2**30) for name in ("context", "communicator"))
    equal("plannable", room, {"molen": (True, context + 2 * communicator), "framework": (True, 0)})
    equal("overheads", (molen["cluster"]["overheads"], said["cluster"]["overheads"]), ({"context_bytes": context, "communicators": 2, "communicator_bytes": communicator}, None))
    huge = {**PYTORCH, "model.hidden": 16384, "model.ffn": 65536, "model.heads": 128, "model.kv_heads": 128}
    exceeds = predicted(case, huge)
    assert not exceeds["cluster"]["fits"] and exceeds["memory_bytes"] > exceeds["cluster"]["plannable_memory_bytes"], exceeds["cluster"]
    assert "libraries, exceeds the" in case.molen("simulate", "tiny.toml", huge, "--ranks", 8, "--cluster", "dgx-h100").stdout
    # Two stages of two layers: the first keeps two micro-batches at once, the last one. An allocator takes a quarter more.
    staged = {**PYTORCH, "parallel.pipeline": 2, "parallel.stage_layers": [2, 2]}
    stages, fewer = (predicted(case, {**staged, "framework.saved_activations": s})["stages"] for s in ("autograd", "molen"))
    for i, micro_batches in enumerate((2, 1)):
        more = 1.25 * 2 * micro_batches * (4 * HIDDEN + 2 * FFN) * MICRO * SEQUENCE
        close(f"stage {i}", stages[i]["memory_bytes"] - fewer[i]["memory_bytes"], more, 1e-6)
    # A pipeline does not gather sharded parameters in each pass, and says so.
    one, three = (predicted(case, {**staged, "parallel.zero": zero}) for zero in (1, 3))
    equal("ZeRO-3 of a pipeline", (three["step_s"], three["framework"]), (one["step_s"], {"kind": "pytorch", "zero": 1, "zero_asked": 3}))
    assert "sharded parameters (zero 3) of a pipeline are predicted as ZeRO-1" in case.molen("simulate", "tiny.toml", staged, {"parallel.zero": 3}, "--ranks", 8, "--cluster", "dgx-h100").stdout
    titles(case)
    refuses(case, {}, "framework.kind")
    case.refused("simulate", "tiny.toml", PYTORCH, "--cluster", "dgx-h100", "--clocks", says=["framework.kind: ", "--clocks"])
    case.refused("simulate", "--model", "mixtral-8x7b", {"framework.kind": "pytorch"}, "--ranks", 8, "--cluster", "dgx-h100", says=["model.preset: ", "framework.kind", "experts"])
    for heads in ({"model.head_dim": 264}, {"model.position": "alibi"}):
        case.refused("simulate", "tiny.toml", PYTORCH, heads, "--ranks", 8, "--cluster", "dgx-h100", says=["math.flash_attention: ", "set math.flash_attention = false"])
        predicted(case, {**PYTORCH, **heads, "math.flash_attention": False})
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
    # Where parameters are sharded, gradients travel in 16 bits and stay in fp32.
    whole, half, sent = (predicted(case, {**PYTORCH, "parallel.zero": 3, **more}) for more in ({}, {"framework.gradients": "16-bit"}, {"precision.reduce": "bf16"}))
    equal("sharded: as with messages of 16 bits", half, sent)
    # Half of the bytes are reduced, and the latency of a message stays.
    ratio = seconds(half, "reduce_scatter") / seconds(whole, "reduce_scatter")
    assert 0.5 <= ratio < 0.75, ratio
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
    for axis in ("tp", "pp"):
        case.refused("simulate", "tiny.toml", PYTORCH, {"framework.overlap": [axis]}, "--ranks", 8, "--cluster", "dgx-h100", says=["framework.overlap: ", f'"{axis}" has no effect'])
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
        # Context ranks share the tokens, which meet the keys of the whole sequence. The two norms' results and that of the activation are of the rank's own tokens.
        context = {**of, "parallel.context": 2}
        all_of_them, fewer = predicted(case, context), predicted(case, {**context, "framework.saved_activations": "molen"})
        close("of context ranks", all_of_them["allocator_bytes"] - fewer["allocator_bytes"], LAYERS * more / 2, 1e-6)
    full = {**PYTORCH, "parallel.recompute": "full"}
    again = predicted(case, full)["allocator_bytes"] - predicted(case, {**full, "framework.saved_activations": "molen"})["allocator_bytes"]
    close("one layer at a time where they are computed again", again, 4 * tokens * HIDDEN + 2 * tokens * FFN, 1e-6)
    parts = {**PYTORCH, "parallel.recompute": ["norm_up", "activation"]}
    again = predicted(case, parts)["allocator_bytes"] - predicted(case, {**parts, "framework.saved_activations": "molen"})["allocator_bytes"]
    close("of what is computed again, one layer", again, 2 * tokens * HIDDEN * LAYERS + 2 * tokens * HIDDEN + 2 * tokens * FFN, 1e-6)
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
