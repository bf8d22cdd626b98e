"""Rows of program, simulate, calibrate, verify and model."""
import json
import math
import re

from effects import Program, close, equal, row
from flags_train import formats
from harness import run, work

FP32 = {"precision.compute": "fp32"}
RATE = 1e9
PARTS = ("embed", "norm_qkv", "rotate", "attention", "out_projection", "norm_up", "activation", "down", "final_norm", "head")
OTHERS = ("load_batch", "zero_fill", "sum_squares", "clip_scale", "set_flag", "optimizer_step", "all_reduce", "reduce_scatter", "all_gather", "reduce_scalars", "send", "receive")


def made_up(path, conditions, factor=1.0, rate=RATE, base=None, cores=64):
    """A calibration in which an op takes FLOPs / rate seconds, or bytes / rate where it has none; or `base` seconds each."""
    first = math.log(base) if base else -math.log(rate)
    fit = lambda features: {"weights": [first, 0.0 if base else 1.0, *[0.0] * (features - 2)], "center": [0.0] * features, "residual": 0.0, "samples": 1, "typical_s": 1.0}
    kinds = {f"{p} {part}": fit(6) for p in ("forward", "backward") for part in PARTS} | {k: fit(2) for k in OTHERS}
    entries = [{"threads": 1, "compute": "fp32", "kernels": "fused", **c, "cores": {"logical": cores, "physical": cores, "affinity": "0"}, "costs": {"calibration_factor": c.pop("factor", factor), "kinds": kinds}} for c in map(dict, conditions)]
    for e in entries:
        e.pop("factor", None)
    gemm = json.loads(run("doctor", "--format", "json").stdout)["gemm_library"]
    path.write_text(json.dumps({"format": 7, "gemm": gemm, "host": "x", "cpu": "x", "created": "2026-01-01T00:00:00Z", "entries": entries}))
    return path.name


def work_of(program, kind=None):
    """FLOPs, or bytes where an op has none, of a step's ops, on a rank."""
    return sum(o["times"] * max(1, int(o["hardware_flops"]) or int(o["moved"])) for o in program.ops if kind is None or o["kind"] == kind)


@row("simulate --cluster", "simulate --set", "simulate --format", "simulate --ranks", "simulate --ranks-per-node", "simulate --communicator", "simulate --stage", "simulate --trace", "simulate --model")
def simulate(case):
    one, slow = made_up(work / "one.json", [dict(ranks=1, communicator="self")]), made_up(work / "slow.json", [dict(ranks=1, communicator="self")], factor=2.5)
    program = case.program(FP32)
    said = formats(case, "simulate", "tiny.toml", FP32, "--cluster", one, shows=lambda v: ["predicted step", "fp32", v["ops"][0]["kind"]])
    close("one rank's step: its work at the rate", said["step_s"], work_of(program) / RATE, 1e-9)
    close("tokens a second", said["tokens_per_s"], 64 / said["step_s"], 1e-9)
    equal("memory", said["memory_bytes"], json.loads(case.molen("program", "tiny.toml", FP32, "--format", "json").stdout)["peak_bytes"])
    for kind in ("optimizer_step", "sum_squares"):
        found = next(o for o in said["ops"] if o["kind"] == kind)
        close(kind, found["seconds"], work_of(program, kind) / RATE, 1e-9)
        equal(f"{kind}: how often", found["count"], program.count(kind))
    close("phases sum to the step", sum(said["phase_s"].values()), said["step_s"], 1e-9)
    slowed = json.loads(case.molen("simulate", "tiny.toml", FP32, "--cluster", slow, "--format", "json").stdout)
    close("the factor of the calibration", slowed["step_s"], 2.5 * said["step_s"], 1e-9)
    deeper = {**FP32, "model.layers": 3}
    close("--set", json.loads(case.molen("simulate", "tiny.toml", deeper, "--cluster", one, "--format", "json").stdout)["step_s"], work_of(case.program(deeper)) / RATE, 1e-9)
    llama = ["--model", "llama-tiny", {**FP32, "data.sequence_length": 64, "math.threads": 1}]
    close("--model", json.loads(case.molen("simulate", *llama, "--cluster", one, "--format", "json").stdout)["step_s"], work_of(Program(case.molen("program", *llama).stdout)) / RATE, 1e-9)
    # Two nodes: collectives among MPI ranks as measured, and scaled by the bytes that a rank moves: 2 (n-1)/n.
    both = made_up(work / "both.json", [dict(ranks=2, communicator="mpi"), dict(ranks=2, communicator="threads", factor=3.0)])

    def of(kind, *words):
        value = json.loads(case.molen("simulate", "tiny.toml", {**FP32, "batch.micro": 1}, "--cluster", both, "--format", "json", *words).stdout)
        return next(o["seconds"] for o in value["ops"] if o["kind"] == kind), value["extrapolated"]

    (threads, _), (mpi, measured), (nodes, _), (four, extrapolated) = (of("all_reduce", *words) for words in (["--ranks", 2], ["--ranks", 2, "--communicator", "mpi"], ["--ranks", 2, "--ranks-per-node", 1], ["--ranks", 4, "--ranks-per-node", 2]))
    reduced = work_of(case.program({**FP32, "batch.micro": 1}, "--ranks", 2), "all_reduce") / RATE
    for name, seconds, expected in (("threads, of factor 3", threads, 3 * reduced), ("mpi", mpi, reduced), ("two nodes are mpi's", nodes, reduced), ("four ranks", four, reduced * (2 * 3 / 4) / (2 * 1 / 2))):
        close(name, seconds, expected, 1e-9)
    assert measured is None and "2 rank" in extrapolated, (measured, extrapolated)
    # More threads than cores share them: four ranks on two cores take twice as long.
    few = made_up(work / "few.json", [dict(ranks=4, communicator="threads")], cores=2)
    many = made_up(work / "many.json", [dict(ranks=4, communicator="threads")], cores=64)
    whole, shared = (json.loads(case.molen("simulate", "tiny.toml", {**FP32, "batch.micro": 1}, "--ranks", 4, "--cluster", c, "--format", "json").stdout)["step_s"] for c in (many, few))
    assert 2 * (1 - 1e-9) <= shared / whole <= 4, (whole, shared)
    case.refused("simulate", "tiny.toml", FP32, "--cluster", one, "--communicator", "mpi", "--ranks", 2, says="one.json")
    # Two stages: the ops of the stage that is asked for, and what all stages take.
    staged = {**FP32, "parallel.pipeline": 2, "batch.micro": 1}
    wide = made_up(work / "wide.json", [dict(ranks=2, communicator="threads")])
    stages = [json.loads(case.molen("simulate", "tiny.toml", staged, "--ranks", 2, "--cluster", wide, "--stage", s, "--format", "json").stdout) for s in (0, 1)]
    for s, said in enumerate(stages):
        stage = case.program(staged, "--ranks", 2, "--rank", s)
        equal(f"stage {s}", said["stage"], s)
        equal("the stage with the head", any(o["kind"].endswith(" head") for o in said["ops"]), s == 1)
        of_no_part = {o["kind"]: o["count"] for o in said["ops"] if " " not in o["kind"]}
        equal("the ops of the stage", of_no_part, {kind: stage.count(kind) for kind in of_no_part})
        close("all of its compute", said["stages"][s]["compute_s"], sum(o["times"] * max(1, int(o["hardware_flops"]) or int(o["moved"])) for o in stage.ops if o["stream"] == "compute") / RATE, 1e-9)
        assert said["phase_s"]["bubble"] > 0 and said["stages"][s]["bubble_s"] == said["phase_s"]["bubble"], said["phase_s"]
        assert any(o["waiting_s"] > 0 for o in said["ops"]), "no stage waits"
    equal("the step and the stages, whichever is shown", *[(v["step_s"], v["stages"]) for v in stages])
    assert stages[0]["step_s"] < sum(s["compute_s"] for s in stages[0]["stages"]) + 2 * stages[0]["phase_s"]["bubble"]
    case.molen("simulate", "tiny.toml", staged, "--ranks", 2, "--cluster", wide, "--trace", "step.json")
    spans = [e for e in json.loads((work / "step.json").read_text())["traceEvents"] if e["ph"] == "X"]
    equal("--trace: the ops of both stages", [sum(e["pid"] == s for e in spans) for s in (0, 1)], [sum(o["count"] for o in v["ops"] if not o["kind"].startswith("epilogue")) for v in stages])
    close("--trace: until the step's end", max(e["ts"] + e["dur"] for e in spans), stages[0]["step_s"] * 1e6, 1e-6)
    assert "bubble" in case.molen("simulate", "tiny.toml", staged, "--ranks", 2, "--cluster", wide).stdout
    case.refused("simulate", "tiny.toml", staged, "--ranks", 2, "--cluster", wide, "--stage", 2, says=["--stage: 2", "2 stages"])


def slots(program):
    return sorted(b for b in program.buffers if b.startswith("param."))


@row("program --set", "program --model", "program --ranks", "program --ranks-per-node", "program --rank", "program --format")
def program(case):
    text, said = case.molen("program", "tiny.toml").stdout, json.loads(case.molen("program", "tiny.toml", "--format", "json").stdout)
    equal("the same program", [x.split("#")[0].rstrip() for x in text.splitlines() if not x.startswith("#")], [x.rstrip() for x in said["text"].splitlines()])
    equal("text", case.molen("program", "tiny.toml", "--format", "text").stdout, text)
    p = Program(text)
    equal("ops", said["ops"], len(p.ops))
    assert f"planned peak {said['peak_bytes']} bytes" in text
    equal("--set", len(slots(case.program({"model.layers": 5}))), len(slots(p)) + 3)
    equal("--model", Program(case.molen("program", "--model", "gpt2", FP32).stdout).arch["name"], "gpt2")
    equal("--ranks", case.program("--ranks", 2).setting["dp_shard"], "2")
    stages = [slots(case.program({"parallel.pipeline": 2}, "--ranks", 2, "--rank", r)) for r in (0, 1)]
    equal("--rank: that of its stage", [[s for s in have if "layer" in s] for have in stages], [["param.layer.0"], ["param.layer.1"]])
    hybrid = {"parallel.sharding": "HYBRID_SHARD", "batch.micro": 1}
    for words, groups in ((["--ranks", 4], ("1", "4")), (["--ranks", 4, "--ranks-per-node", 2], ("2", "2"))):
        setting = case.program(hybrid, *words).setting
        equal(f"{words}: a group is a node", (setting["dp_replicate"], setting["dp_shard"]), groups)
    case.refused("program", "tiny.toml", "--rank", 1, says="--rank 1")
    ran = case.train("--ranks", 2).path
    equal("of a run: what any of its ranks ran", {case.molen("program", ran, "--rank", r).stdout.split("\n", 1)[0] for r in (0, 1)}, {f"# what ran, as {ran}/program.txt has it"})
    case.refused("program", ran, "--rank", 2, says="--rank 2: the run had 2 ranks")
    def left_open(**more):
        return {c["key"]: c for c in json.loads(case.molen("program", "--model", "gpt2", {**FP32, **more}, "--ranks", 2, "--format", "json").stdout)["open_choices"]}

    left = left_open()
    assert all(left[key]["why"].startswith("default") for key in ("data.sequence_length", "batch.global", "batch.micro", "parallel.sharding")), left
    length = left["data.sequence_length"]
    equal("shorter than the model takes", length["why"], "default; the model takes up to 1024")
    equal("all that it takes", left_open(**{"model.max_sequence": int(length["value"])})["data.sequence_length"]["why"], "default")
    case.refused("program", "tiny.toml", "--ranks", 4, "--ranks-per-node", 3, says="--ranks-per-node")


@row("verify --set", "verify --model", "verify --ranks", "verify --ranks-per-node", "verify --layouts", "verify --cover", "verify --steps", "verify --precision", "verify --static", "verify --format")
def verify(case):
    small = {"batch.micro": 1}

    def rows(*words):
        return json.loads(case.molen("verify", "tiny.toml", small, *words, "--format", "json").stdout)

    listed = rows("--ranks", 2, "--layouts", "ZERO1", "--steps", 3)
    assert all("ZERO1" in r["layout"] and r["same"] for r in listed), listed
    equal("--steps: of fp64; fp32 runs one", sorted({(r["compute"], r["steps"]) for r in listed}), [("fp32", 1), ("fp64", 3)])
    for asked in (["fp64"], ["fp32"], ["fp64", "fp32"]):
        found = rows("--ranks", 2, "--layouts", "given", "--steps", 1, "--precision", ",".join(asked))
        equal("--precision", [r["compute"] for r in found], asked)
        # 1e-9 in fp64; what rounding of 24 bits allows in fp32.
        assert all((r["bound"] <= 1e-9) == (r["compute"] == "fp64") for r in found), found
    equal("ten steps where not said", {r["steps"] for r in rows("--layouts", "given", "--precision", "fp64")}, {10})
    static = rows("--ranks", 2, "--static")
    pairs = rows("--ranks", 2, "--static", "--cover", "pairs")
    names, covering = ([r["layout"] for r in part] for part in (static, pairs))
    assert set(covering) < set(names) and len(covering) > 2 and all(r["findings"] == [] for r in static), (len(names), len(covering))
    assert len(rows("--ranks", 4, "--static")) > len(names) > len(rows("--static"))
    tensor = [r for r in rows("--ranks", 4, "--static", "--ranks-per-node", 2) if "tp 4" in r["layout"]]
    equal("tensor ranks within a node", (tensor, any("tp 4" in r["layout"] for r in rows("--ranks", 4, "--static"))), ([], True))
    said = json.loads(case.molen("verify", "--model", "gpt2", FP32, "--static", "--layouts", "given", "--format", "json").stdout)
    close("--model: four bytes of each parameter", said["stages"][0]["parameters_bytes"], 4 * 124_439_808, 1e-4)
    text = case.molen("verify", "tiny.toml", small, "--ranks", 2, "--layouts", "given", "--steps", 1).stdout
    assert re.search(r"^2 layouts, 2 of them the same model", text, re.M) or "the same model" in text, text
    case.refused("verify", "tiny.toml", "--precision", "bf16", says="--precision")
    for words in (["--ranks", 2, "--steps", 1, "--precision", "fp64"], ["--ranks", 4, "--static"]):
        equal(f"{words}: the first share", case.progress("verify layouts", "verify", "tiny.toml", small, *words)[0], 0)


@row("model list --format", "model show --format", "model show --sequence", "model show --mfu")
def model(case):
    presets = formats(case, "model", "list", shows=lambda v: [m["name"] for m in v])
    assert {"gpt2", "llama3-8b"} <= {m["name"] for m in presets}
    formats(case, "model", "show", "gpt2", shows=lambda v: [v["parameters"], v["parts_of_one_sequence_bf16"][0]["part"]])
    n = 124_439_808
    for sequence in (256, 1024):
        said = {f: json.loads(case.molen("model", "show", "gpt2", "--sequence", sequence, "--mfu", f, "--format", "json").stdout) for f in ("palm", "causal")}
        close(f"palm at {sequence}", said["palm"]["train_flops_per_token"], 6 * n + 12 * 12 * 768 * sequence)
        equal("causal", (said["causal"]["train_flops_per_token"], said["causal"]["sequence"]), (said["palm"]["train_flops_per_token_causal"], sequence))


@row("calibrate --output", "calibrate --ranks", "calibrate --threads", "calibrate --compute", "calibrate --rounds", "calibrate --widest", "calibrate --format", "calibrate --set", "calibrate --model")
def calibrate(case):
    fast = ["--widest", 128, "--output", "measured.json"]
    first = case.molen("calibrate", *fast, "--compute", "fp32", "--threads", 1, "--rounds", 2, "--format", "json")
    said = re.search(r"^fp32: (\d+) measurements, from (.*), to (.*)$", first.stderr, re.M)
    equal("--rounds, --widest", (int(said[1]), said[2].startswith("round 1 of 2, d 128 "), said[3].startswith("round 2 of 2, d 128 ")), (12, True, True))
    entry = json.loads(first.stdout)[0]
    equal("as asked", (entry["compute"], entry["threads"], entry["ranks"], entry["communicator"]), ("fp32", 1, 1, "self"))
    text = case.molen("calibrate", *fast, "--compute", "bf16", "--threads", 1, "--ranks", 2, "--rounds", 1).stdout
    stored = json.loads((work / "measured.json").read_text())["entries"]
    equal("another condition is added", [(e["compute"], e["ranks"], e["communicator"]) for e in stored], [("fp32", 1, "self"), ("bf16", 2, "threads")])
    assert "calibrated" in text and "bf16" in text and "all_reduce" in text, text
    # The fit is of what was measured, and the factor is in the prediction.
    assert all(e["costs"]["calibration_factor"] > 0 and e["costs"]["calibration_factor"] != 1 for e in stored), [e["costs"]["calibration_factor"] for e in stored]
    sets = {**FP32, "model.hidden": 128, "model.head_dim": 32, "model.ffn": 352, "model.vocabulary": 2048, "data.sequence_length": 64}
    bench = json.loads(case.molen("bench", "tiny.toml", sets, "--steps", 5).stdout)
    said = json.loads(case.molen("simulate", "tiny.toml", sets, "--cluster", "measured.json", "--format", "json").stdout)
    assert 1 / 4 < said["step_s"] / bench["min_s"] < 4, (said["step_s"], bench["min_s"])
    doubled = json.loads((work / "measured.json").read_text())
    doubled["entries"][0]["costs"]["calibration_factor"] *= 2
    (work / "doubled.json").write_text(json.dumps(doubled))
    close("twice the factor", json.loads(case.molen("simulate", "tiny.toml", sets, "--cluster", "doubled.json", "--format", "json").stdout)["step_s"], 2 * said["step_s"])
    # Attention that is written out is measured where a configuration asks for it: its kind has costs, and simulate finds them.
    written = {**sets, "math.flash_attention": False}
    case.refused("simulate", "tiny.toml", written, "--cluster", "measured.json", says="calibrate")
    case.molen("calibrate", "tiny.toml", written, "--widest", 128, "--threads", 1, "--rounds", 1, "--output", "written.json")
    assert json.loads(case.molen("simulate", "tiny.toml", written, "--cluster", "written.json", "--format", "json").stdout)["step_s"] > 0
    case.refused("calibrate", "--widest", 100, says=["--widest", "128"])
    case.refused("calibrate", "--set", "device.kind=cuda", says=["device.kind", "measures processors"])
    case.progress("calibrate fp32", "calibrate", "--widest", 128, "--output", "shown.json", "--compute", "fp32", "--threads", 1, "--rounds", 1)
    # Under the conditions of a configuration, or of a preset with others over it, and no wider than its model.
    (work / "own.toml").write_text('extends = "tiny.toml"\n[precision]\ncompute = "fp32"\n')
    preset = {"model.hidden": 128, "model.head_dim": 32, "math.threads": 1, "data.sequence_length": 16, **FP32}
    for words, width in ((["own.toml"], 128), (["--model", "llama-tiny", preset], 128)):
        made = case.molen("calibrate", *words, "--rounds", 1, "--output", f"own-{len(words)}.json", "--format", "json")
        equal(f"{words}: type and threads", [(e["compute"], e["threads"]) for e in json.loads(made.stdout)], [("fp32", 1)])
        assert re.search(rf"^fp32: 9 measurements, .* to round 1 of 1, d {width} ", made.stderr, re.M), made.stderr
