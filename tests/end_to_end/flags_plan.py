"""Rows of program, simulate, plan, calibrate, verify and model."""
import datetime
import json
import os
import math
import pathlib
import re
from xml.etree import ElementTree

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
    entries = [{"threads": 1, "compute": "fp32", "kernels": "fused", **c, "cores": {"logical": cores, "physical": cores, "affinity": "0"}, "costs": {"calibration_factor": c.pop("factor", factor), "factor_residual": 0.01, "kinds": kinds}} for c in map(dict, conditions)]
    for e in entries:
        e.pop("factor", None)
    gemm = json.loads(run("doctor", "--format", "json").stdout)["gemm_library"]
    path.write_text(json.dumps({"format": 8, "gemm": gemm, "host": "x", "cpu": "x", "created": "2026-01-01T00:00:00Z", "entries": entries}))
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
        close(f"{kind}: its only thread computes", found["computing_s"], found["seconds"], 1e-9)
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
    # A description: the cluster decides device, precision and the ranks of a node.
    described = ["simulate", "--model", "llama3-8b", {"data.sequence_length": 2048, "batch.global": 16, "parallel.sharding": "FULL_SHARD"}]
    of = lambda name, *words: json.loads(case.molen(*described, "--cluster", name, "--ranks", 16, *words, "--format", "json").stdout)
    here, there = of("dgx-a100"), of("dgx-h100")
    equal("its precision", here["compute"], "bf16")
    assert here["step_s"] > 1.5 * there["step_s"] and here["memory_bytes"] == there["memory_bytes"], (here["step_s"], there["step_s"])
    low, high = here["cluster"]["interval_s"]
    assert low < here["step_s"] < high and here["cluster"]["site_j"] >= here["cluster"]["devices_j"] + here["cluster"]["hosts_j"]
    text = (pathlib.Path(__file__).resolve().parents[2] / "clusters/dgx-a100.toml").read_text()
    (work / "half.toml").write_text(re.sub(r"(?m)^(pue = \{ value = )[0-9.]+", r"\g<1>2.0", text))
    double = of("half.toml")
    close("--cluster FILE: its figures", double["cluster"]["site_j"], 2 * (double["cluster"]["devices_j"] + double["cluster"]["hosts_j"]), 1e-9)
    # Offloaded state moves at the rates of the host, which half the link's rate slows, and must fit into its memory.
    offload = ["--set", 'parallel.offload=["optimizer", "parameters"]']
    host = of("dgx-a100", *offload)["cluster"]
    close("memory of the host: its eighth", host["plannable_host_bytes"], float(re.search(r"(?m)^host_memory = \{ value = ([0-9.e+]+)", text)[1]) / 8, 1e-6)
    slow_link = re.sub(r"(?m)^(host_link = \{ value = )[0-9.e+]+", r"\g<1>1e9", text)
    (work / "link.toml").write_text(slow_link)
    (work / "little.toml").write_text(re.sub(r"(?m)^(host_memory = \{ value = )[0-9.e+]+", r"\g<1>2e10", text))
    seconds = {name: of(name, *offload)["step_s"] for name in ("dgx-a100", "link.toml")}
    moved = sum(o["bytes"] for o in of("link.toml", *offload)["ops"] if o["kind"] == "copy_to_device")
    assert seconds["link.toml"] > max(seconds["dgx-a100"], moved / 1e9) > 0, (seconds, moved)
    equal("fits", (host["fits"], of("little.toml", *offload)["cluster"]["fits"]), (True, False))
    # The interval is that of the sources, which are independent: figures of the description, and classes of ops. Those of the host count where it is used.
    for said in (here, of("dgx-a100", *offload)):
        interval = said["interval"]
        close("the spread of the sources", interval["spread"], math.sqrt(sum(e**2 for e in interval["sources"].values())), 1e-9)
        equal("the interval", said["cluster"]["interval_s"], [interval["low_s"], interval["high_s"]])
        close("its ends", interval["high_s"] / said["step_s"], said["step_s"] / interval["low_s"], 1e-9)
        close("its upper end", interval["high_s"], said["step_s"] * (1 + interval["spread"]), 1e-9)
        equal("sources of the host", {"host", "node.host_link"} <= set(interval["sources"]), said is not here)
        assert {"products", "device.gemm_efficiency"} <= set(interval["sources"]), interval
        for kind in said["ops"]:
            low, high = kind["interval_s"]
            assert low < kind["seconds"] < high or kind["seconds"] == 0, kind
    (work / "sure.toml").write_text(re.sub(r"(?m)^(host_(?:link|bandwidth) = \{ value = [0-9.e+]+), spread = [0-9.]+", r"\1", text))
    narrow, wide_one = of("sure.toml", *offload)["interval"], of("dgx-a100", *offload)["interval"]
    assert narrow["spread"] < wide_one["spread"] and "node.host_link" not in narrow["sources"], (narrow, wide_one)
    equal("a step without offload", of("sure.toml")["interval"], here["interval"])
    # A calibration errs by the scatter of its fits, and by what its factor leaves open.
    sure = json.loads((work / one).read_text())
    for entry in sure["entries"]:
        entry["costs"]["kinds"]["forward down"]["residual"] = 0.3
    (work / "scattered.json").write_text(json.dumps(sure))
    exact, scattered = (json.loads(case.molen("simulate", "tiny.toml", FP32, "--cluster", name, "--format", "json").stdout) for name in (one, "scattered.json"))
    assert exact["step_s"] == scattered["step_s"] and exact["interval"]["spread"] < scattered["interval"]["spread"], (exact["interval"], scattered["interval"])
    close("what the factor leaves open", exact["interval"]["sources"]["whole steps"], math.expm1(1.2816 * 0.01), 1e-9)
    down = [next(o for o in said["ops"] if o["kind"] == "forward down") for said in (exact, scattered)]
    assert down[0]["interval_s"][1] < down[1]["interval_s"][1] and down[1]["interval_s"][1] > 1.4 * down[1]["seconds"], down
    assert "80 % of steps are expected from" in case.molen("simulate", "tiny.toml", FP32, "--cluster", one).stdout
    assert "exceeds the 2.33 GiB of the host's memory" in case.molen(*described, "--cluster", "little.toml", "--ranks", 16, *offload).stdout
    case.refused(*described, "--cluster", "dgx-a10", "--ranks", 16, says="did you mean 'dgx-a100'")
    case.refused(*described, "--cluster", "ipu-pod4", "--ranks", 4, says=["ipu-pod4", "calculus"])
    case.refused(*described, "--cluster", "dgx-a100", "--ranks", 12, says="whole nodes")
    case.refused(*described, "--cluster", "snellius-h100", "--ranks", 16, "--ranks-per-node", 8, says="--ranks-per-node: 8")
    case.refused(*described, "--cluster", "dgx-a100", "--ranks", 16, "--communicator", "mpi", says="--communicator")
    case.refused("simulate", "tiny.toml", {"device.kind": "cpu"}, "--cluster", "dgx-a100", says="device.kind")


def clocks_set(text):
    """The clocks in MHz that a program's text sets, in the order of its schedule, and the number of its other instances."""
    bodies = dict(re.findall(r"(?m)^body (set_clock\S+)\n\s*%0 set_clock khz=(\d+) stream=compute", text))
    schedule = re.search(r"(?m)^schedule (.*)$", text)[1].split()
    return [int(bodies[name]) // 1000 for name in schedule if name in bodies], len([name for name in schedule if name not in bodies])


@row("simulate --clocks", "simulate --slowdown", "simulate --programs")
def clocks(case):
    uneven = {"data.sequence_length": 2048, "batch.global": 32, "batch.micro": 1, "parallel.pipeline": 4, "parallel.tensor": 2, "parallel.sharding": "NO_SHARD"}
    command = ["simulate", "--model", "llama-1.1b", uneven, "--cluster", "dgx-a100", "--ranks", 8]
    said = formats(case, *command, "--clocks", shows=lambda v: ["slack plan", "EnvPipe's rule", "one clock for all", "these joules rest on:", *v["clock_plan"]["assumptions"]])
    plan, cluster = said["clock_plan"], said["cluster"]
    now, slack, envpipe, single = (plan[k] for k in ("highest", "slack", "envpipe", "single"))
    close("now: the predicted step", now["step_s"], said["step_s"], 1e-9)
    close("now: the joules of the devices", now["devices_j"], cluster["devices_j"], 1e-9)
    close("now: those of the hosts too", now["computers_j"], cluster["devices_j"] + cluster["hosts_j"], 1e-9)
    close("the saving", slack["saving"], 1 - slack["devices_j"] / now["devices_j"], 1e-9)
    assert slack["saving"] > 0.01 and slack["devices_j"] <= min(envpipe["devices_j"], single["devices_j"]) * (1 + 1e-9), plan
    assert plan["bound_devices_j"] <= slack["devices_j"] * (1 + 1e-6), plan
    assert plan["simulated_s"] <= said["step_s"] * (1 + 1e-9), plan
    equal("stages", sorted({row["stage"] for row in plan["clocks"]}), [0, 1, 2, 3])
    assert all(855e6 <= row["least_hz"] <= row["median_hz"] <= row["most_hz"] <= 1410e6 for row in plan["clocks"]), plan["clocks"]
    assert json.loads(case.molen(*command, "--format", "json").stdout)["clock_plan"] is None
    # Programs that set these clocks: each change is an op, and they save nearly as much, in the same time.
    case.molen(*command, "--clocks", "--programs", "clocked")
    equal("a program for each stage", sorted(p.name for p in (work / "clocked").iterdir()), ["program-stage-1.txt", "program-stage-2.txt", "program-stage-3.txt", "program.txt"])
    own = plan["programs"]
    assert slack["devices_j"] * (1 - 1e-9) <= own["devices_j"] < 0.5 * (slack["devices_j"] + now["devices_j"]), plan
    assert own["step_s"] <= said["step_s"] * (1 + 1e-9), plan
    for stage, changes in enumerate(plan["changes_of_programs"]):
        clocks, others = clocks_set((work / "clocked" / ("program.txt" if stage == 0 else f"program-stage-{stage}.txt")).read_text())
        assert others > 64 and all(855 <= mhz <= 1410 for mhz in clocks), (stage, clocks)
        equal(f"changes of stage {stage}", sum(a != b for a, b in zip(clocks, [clocks[-1]] + clocks[:-1])), changes)
    assert max(plan["changes_of_programs"]) > 2, plan["changes_of_programs"]
    case.refused(*command, "--clocks", "--programs", "clocked", says=["--programs", "clocked/program.txt", "is there already"])
    case.refused(*command, "--programs", "other", says="--clocks")
    slower = json.loads(case.molen(*command, "--clocks", "--slowdown", 0.1, "--format", "json").stdout)["clock_plan"]
    close("--slowdown", slower["deadline_s"], 1.1 * said["step_s"], 1e-9)
    assert slower["slack"]["devices_j"] < slack["devices_j"] and said["step_s"] < slower["simulated_s"] <= 1.1 * said["step_s"] * (1 + 1e-9), slower
    # A device of twice the exponent saves more, and one whose voltage falls nowhere gains nothing from a lower clock but what its wait costs.
    text = (pathlib.Path(__file__).resolve().parents[2] / "clusters/dgx-a100.toml").read_text()
    (work / "steep.toml").write_text(re.sub(r"(?m)^(exponent = \{ value = )[0-9.]+", r"\g<1>3.3", text))
    steep = json.loads(case.molen("simulate", "--model", "llama-1.1b", uneven, "--cluster", "steep.toml", "--ranks", 8, "--clocks", "--format", "json").stdout)["clock_plan"]
    assert steep["slack"]["saving"] > slack["saving"], (steep["slack"], slack)
    # A change that takes long is made less often, and the step is still in time.
    (work / "slow.toml").write_text(text.replace("[clocks]\n", '[clocks]\nchange_s = { value = 0.02, source = "assumption: for a test" }\n'))
    slow = json.loads(case.molen("simulate", "--model", "llama-1.1b", uneven, "--cluster", "slow.toml", "--ranks", 8, "--clocks", "--format", "json").stdout)["clock_plan"]
    assert sum(slow["changes_of_programs"]) < sum(plan["changes_of_programs"]) and own["devices_j"] <= slow["programs"]["devices_j"], slow
    assert slow["programs"]["step_s"] <= said["step_s"] * (1 + 1e-9), slow
    equal("change_s", slow["change_s"], 0.02)
    (work / "no_knee.toml").write_text(re.sub(r"(?m)^knee_hz = .*$", "", text))
    case.refused("simulate", "--model", "llama-1.1b", uneven, "--cluster", "no_knee.toml", "--ranks", 8, "--clocks", says=["clocks.knee_hz", "docs/formats/cluster.md"])
    case.refused("simulate", "--model", "llama-1.1b", uneven, "--cluster", "lumi-g", "--ranks", 8, "--clocks", says=["lumi-g", "clocks.low_hz"])
    case.refused(*command, "--slowdown", 0.1, says="--clocks")
    case.refused(*command, "--clocks", "--slowdown", 1.5, says="--slowdown")
    made_up(work / "one.json", [dict(ranks=1, communicator="self")])
    case.refused("simulate", "tiny.toml", FP32, "--cluster", "one.json", "--clocks", says=["--clocks", "calibration"])


def described_with(path, reliability=None, storage=None, base="dgx-a100"):
    """The shipped description with exact figures of its own for failures and storage."""
    text = (pathlib.Path(__file__).resolve().parents[2] / f"clusters/{base}.toml").read_text()
    for table, figures in (("reliability", reliability), ("storage", storage)):
        text += f"\n[{table}]\n" + "".join(f'{key} = {{ value = {value}, source = "test" }}\n' for key, value in (figures or {}).items())
    (work / path).write_text(text)
    return path


@row("simulate --cluster", "simulate --set", "simulate --ranks", "simulate --model", "simulate --format")
def whole_run(case):
    described = ["simulate", "--model", "llama3-8b", {"data.sequence_length": 2048, "batch.global": 16, "parallel.sharding": "FULL_SHARD"}, "--ranks", 16]
    length = {"train.until": "1000 steps", "checkpoint.every": "100 steps"}
    even = dict(step_jitter=0.0, slow_node_share=0.0, slow_node_factor=1.0, node_mtbf_hours=10.0, restart=300.0)

    def of(cluster, sets=length):
        return json.loads(case.molen(*described, sets, "--cluster", cluster, "--format", "json").stdout)

    usual = described_with("usual.toml", even, dict(node_bandwidth=1e9))
    said = of(usual)
    run, step = said["whole_run"], said["step_s"]
    value = lambda key, of=None: (of or run)[key]["value"]
    # Weights and two moments in fp32, written by two nodes at 1 GB/s each while all wait.
    presets = json.loads(case.molen("model", "list", "--format", "json").stdout)
    parameters = next(m["parameters"] for m in presets if m["name"] == "llama3-8b")
    equal("bytes of a checkpoint", run["checkpoint_bytes"], 12 * parameters)
    save = 12 * parameters / 2e9
    close("a save", value("save_s"), save)
    equal("checkpoints", (run["checkpoints"], run["checkpoint_every"], run["steps"]), (10, 100, 1000))

    def expected(every, save_s=save, load_s=save, step_s=step, mtbf=10 * 3600 / 2):
        """Daly's expectation for 1000 steps, and its parts."""
        stretch, tries = every * step_s + save_s, math.expm1((every * step_s + save_s) / mtbf)
        redone, restarts = mtbf * tries - stretch, tries * mtbf * math.expm1((300 + load_s) / mtbf)
        return 1000 / every * (stretch + redone + restarts), 1000 / every * redone, 1000 / every * restarts

    total, redone, restarts = expected(100)
    parts = run["parts_s"]
    for name, amount in dict(useful=1000 * step, checkpoints=10 * save, redone=redone, restarts=restarts).items():
        close(name, value(name, parts), amount, 1e-6)
    equal("nothing else", [value(name, parts) for name in ("slowest_rank", "data", "evaluation")], [0, 0, 0])
    equal("without validation, there are no evaluations", (run["evaluations"], run["uncounted_evaluations"]), (0, None))
    close("the run", value("total_s"), total, 1e-9)
    close("failures: one in the job's MTBF", value("failures"), total / 18000, 1e-9)
    close("goodput", run["goodput"], 1000 * step / total, 1e-9)
    assert run["total_s"]["low"] < total < run["total_s"]["high"]
    close("energy with the site", value("site_j") / value("energy_j"), float(re.search(r"(?m)^pue = \{ value = ([0-9.]+)", (work / usual).read_text())[1]))
    # While ranks wait, a device draws its idle power and a share of the range above it, and a host its own power.
    watts = {key: float(re.search(rf"(?m)^{key}_power = \{{ value = ([0-9.]+)", (work / usual).read_text())[1]) for key in ("idle", "peak", "host")}
    share = json.loads((pathlib.Path(__file__).resolve().parents[2] / "src/sim/factors.json").read_text())["factors"]["power_waiting"]["value"]
    waiting, working = 16 * (watts["idle"] + share * (watts["peak"] - watts["idle"])) + 2 * watts["host"], (said["cluster"]["devices_j"] + said["cluster"]["hosts_j"]) / step
    again = (working * 1000 * step + waiting * 10 * save) * redone / (1000 * step + 10 * save)
    close("energy of what no step needs", value("lost_j"), waiting * (10 * save + restarts) + again, 1e-6)
    close("energy", value("energy_j"), working * 1000 * step + value("lost_j"), 1e-6)
    # Each setting by its amount.
    half = of(usual, {**length, "checkpoint.every": "50 steps"})["whole_run"]
    close("checkpoint.every: twice as many", value("checkpoints", half["parts_s"]), 20 * save)
    close("checkpoint.every: the run", value("total_s", half), expected(50)[0], 1e-9)
    close("the best interval saves as much as it says", value("total_s", of(usual, {**length, "checkpoint.every": f"{run['best_every']} steps"})["whole_run"]), run["best_total_s"])
    assert run["best_total_s"] <= min(total, value("total_s", half))
    close("train.until in tokens", value("total_s", of(usual, {**length, "train.until": f"{1000 * 16 * 2048} tokens"})["whole_run"]), total)
    fast = of(described_with("fast.toml", even, dict(node_bandwidth=1e11, write_bandwidth=4e9, read_bandwidth=8e9)))["whole_run"]
    close("storage: the file system limits writing", value("save_s", fast), save / 2)
    close("storage: and reading", value("load_s", fast), save / 4)
    close("storage: the run", value("total_s", fast), expected(100, save / 2, save / 4)[0], 1e-9)
    # The largest of 16 normal variables is expected at 1.76599 standard deviations (Harter 1961, Biometrika 48).
    uneven = of(described_with("uneven.toml", {**even, "step_jitter": 0.02}, dict(node_bandwidth=1e9)))["whole_run"]
    close("jitter of 16 devices", uneven["slowest_rank_factor"], 1 + 0.02 * 1.76599, 0, 0.02 * 6e-6)
    close("jitter: the run", value("total_s", uneven), expected(100, step_s=step * uneven["slowest_rank_factor"])[0], 1e-9)
    slow = of(described_with("slow_nodes.toml", {**even, "slow_node_share": 0.1, "slow_node_factor": 1.5}, dict(node_bandwidth=1e9)))["whole_run"]
    close("slow nodes: one of two", slow["slowest_rank_factor"], 1 + 0.5 * (1 - 0.9**2))
    # What the description lacks is assumed, and named.
    assumed = of("dgx-a100")["whole_run"]
    assert all(f["source"].startswith("assumption: ") and f["spread"] > 0 for f in assumed["figures"]), assumed["figures"]
    equal("figures of the file", {f["source"] for f in run["figures"]}, {"test"})
    shown = case.molen(*described, length, "--cluster", "dgx-a100").stdout
    assert "whole run of 1000 steps on 2 nodes" in shown and "reliability.restart = 600 +- 100 %: assumption: " in shown, shown
    # Validations: of each language two batches take twice as long as one; after steps 4, 8 and 10.
    held = {"precision.compute": "fp32", "train.until": "10 steps", "train.validate_every": "4 steps", "data.validation": [{"path": "held/heldout"}]}
    one, two = (json.loads(case.molen("simulate", "tiny.toml", {**held, "train.validate_batches": n}, "--cluster", usual, "--format", "json").stdout)["whole_run"] for n in (1, 2))
    assert one["evaluation_s"] > 0 and one["uncounted_evaluations"] is None
    close("train.validate_batches", two["evaluation_s"], 2 * one["evaluation_s"])
    equal("train.validate_every", one["evaluations"], 3)
    measured = json.loads(case.molen("simulate", "tiny.toml", {**held, "train.validate_batches": 1, "train.noise_scale_every": 4}, "--cluster", usual, "--format", "json").stdout)["whole_run"]
    equal("train.noise_scale_every: steps 4 and 8 run twice", (one["noise_scales"], measured["noise_scales"]), (0, 2))
    assert value("evaluation", measured["parts_s"]) > value("evaluation", one["parts_s"])
    close("evaluation", value("evaluation", one["parts_s"]), 3 * one["evaluation_s"])
    staged = json.loads(case.molen("simulate", "tiny.toml", {**held, "parallel.pipeline": 2, "parallel.tensor": 2, "batch.micro": 1}, "--ranks", 8, "--cluster", usual, "--format", "json").stdout)["whole_run"]
    assert staged["evaluation_s"] > 0 and staged["uncounted_evaluations"] is None, staged
    lost = json.loads(case.molen("simulate", "tiny.toml", {**held, "data.validation": [{"path": "held/nowhere"}]}, "--cluster", usual, "--format", "json").stdout)["whole_run"]
    assert "held/nowhere" in lost["uncounted_evaluations"] and value("evaluation", lost["parts_s"]) == 0, lost
    # Where there is no run to predict.
    equal("a length that nobody gave", of(usual, {})["whole_run"], None)
    calibrated = json.loads(case.molen("simulate", "tiny.toml", FP32, "--cluster", made_up(work / "single.json", [dict(ranks=1, communicator="self")]), "--format", "json").stdout)
    assert "calibration" in calibrated["whole_run"]["absent"], calibrated["whole_run"]
    # A million steps in one stretch, with a failure every half an hour.
    never = of(described_with("failing.toml", {**even, "node_mtbf_hours": 1.0}, dict(node_bandwidth=1e9)), {"train.until": "1M steps", "checkpoint.every": "1M steps"})["whole_run"]
    assert "never ends" in never["absent"], never
    (work / "without.toml").write_text((work / usual).read_text().replace('restart = { value = 300.0, source = "test" }', "restart = 300.0"))
    case.refused(*described, length, "--cluster", "without.toml", says=["without.toml", "reliability.restart", "needs its source"])


@row("plan --calculus", "plan --model", "plan --set", "plan --sizes", "plan --tokens", "plan --cluster", "plan --nodes", "plan --devices", "plan --mfu", "plan --mfu-spread", "plan --recompute", "plan --noise-scale", "plan --format", "plan --plot")
def calculus(case):
    base = ["plan", "--calculus", "--cluster", "snellius-h100"]

    def said(*words):
        return json.loads(case.molen(*base, *words, "--format", "json").stdout)

    def days(value):
        return value["models"][0]["costs"]["days"]["value"]

    sized = ["--tokens", "450e9", "--sizes", "30e9"]
    one = said(*sized, "--nodes", 22)
    p, costs, value = one["plan"], one["models"][0]["costs"], lambda key: p[key]["value"]
    seconds = 6 * 30e9 * 450e9 / (88 * value("peak_16bit_flops_per_s") * 0.4)
    power = 88 * (value("idle_power_w") + (value("peak_power_w") - value("idle_power_w")) * value("load")) + 22 * value("host_power_w")
    computers, site = power * seconds, power * seconds * value("pue")
    expected = dict(days=seconds / 86400, device_hours=88 * seconds / 3600, power_w=power, computer_energy_kwh=computers / 3.6e6, energy_kwh=site / 3.6e6, co2e_t=site * value("intensity_kg_per_j") / 1e3, water_l=computers * value("water_m3_per_j") * 1e3, electricity_eur=site * value("price_eur_per_j"), device_hours_eur=0, car_km=site * value("intensity_kg_per_j") / value("car_kg_per_m") / 1e3)
    equal("the costs", sorted(costs), sorted(expected))
    for name, amount in expected.items():
        close(name, costs[name]["value"], amount)
        assert costs[name]["low"] <= amount * (1 + 1e-9) and amount <= costs[name]["high"] * (1 + 1e-9), costs[name]
    # Each option by its amount.
    equal("--nodes: four devices each, as --devices", days(said(*sized, "--devices", 88)), days(one))
    close("--devices", days(said(*sized, "--devices", 44)), 2 * days(one))
    close("--tokens", days(said("--tokens", "0.9T", "--sizes", "30B", "--nodes", 22)), 2 * days(one))
    close("--mfu", days(said(*sized, "--nodes", 22, "--mfu", 0.2)), 2 * days(one))
    close("--recompute: 8 N", days(said(*sized, "--nodes", 22, "--recompute")), 8 / 6 * days(one))
    for spread in (0, 0.5):
        interval = said(*sized, "--mfu-spread", spread)["models"][0]["costs"]["days"]
        close("--mfu-spread", interval["high"] / interval["value"] - 1, math.hypot(spread, p["peak_16bit_flops_per_s"]["spread"]), 1e-9, 1e-12)
    several = said("--tokens", "450B", "--sizes", "1B,7e9", "--nodes", 22)["models"]
    equal("--sizes", [m["parameters"] for m in several], [1e9, 7e9])
    equal("the sizes of the figure without", [m["parameters"] for m in said("--tokens", "450B")["models"]], [1e9, 2e9, 7e9, 13e9, 30e9, 70e9])
    close("ZeRO-3 over 88 devices", one["models"][0]["memory"][0]["zero_bytes_per_device"][3], 16 * 30e9 / 88)
    close("Hoffmann's law", one["models"][0]["loss"][0]["loss"], 1.69 + 406.4 / 30e9**0.34 + 410.7 / 450e9**0.28)
    # A model: the exact count, at the length of its sequences; and what else its configuration says.
    for length in (1024, 4096):
        model = said("--model", "llama3-8b", {"data.sequence_length": length}, "--tokens", "450B")["models"][0]
        shown = json.loads(case.molen("model", "show", "llama3-8b", "--sequence", length, "--format", "json").stdout)
        used = next(f for f in model["flops"] if f["used"])
        equal("--model: its parameters", model["parameters"], shown["parameters"])
        close("--set: the sequence", used["per_token"], shown["train_flops_per_token_causal"])
    own = said("tiny.toml", {"parallel.recompute": "full"})
    equal("train.until: 4 steps of 4 x 16 tokens", (own["plan"]["tokens"], own["plan"]["recompute"]), (256, True))
    equal("--tokens over it", said("tiny.toml", "--tokens", "1B")["plan"]["tokens"], 1e9)
    # The MFU of a simulated step: the same step, the same FLOPs, so tokens / tokens a step of those steps.
    job = ["--model", "llama3-8b", {"data.sequence_length": 4096}, {"batch.global": 88}, {"parallel.sharding": "FULL_SHARD"}]
    for layout in ([], [{"parallel.recompute": "full"}]):
        step = json.loads(case.molen("simulate", *job, *layout, "--cluster", "snellius-h100", "--ranks", 88, "--format", "json").stdout)["step_s"]
        of_step = said(*job, *layout, "--tokens", "450B", "--nodes", 22, "--mfu", "simulated")
        close("--mfu simulated: the time of its steps", days(of_step) * 86400, 450e9 / (88 * 4096) * step)
        high = of_step["models"][0]["costs"]["days"]["high"] / days(of_step)
        assert "simulated step" in of_step["plan"]["mfu"]["source"] and high > 1.01, of_step["plan"]["mfu"]
    simulated = [*base, "--tokens", "1B", "--mfu", "simulated"]
    case.refused(*simulated, says=["--mfu simulated", "--model"])
    case.refused(*simulated, *job, "--nodes", 22, "--mfu-spread", 0.1, says="--mfu-spread")
    case.refused(*simulated, *job, "--nodes", 22, "--recompute", says=["--recompute", "parallel.recompute"])
    case.refused(*simulated, *job, {"parallel.tensor": 5}, "--nodes", 22, says=["--mfu simulated", "88 devices", "parallel.tensor"])
    case.refused(*base, *sized, "--mfu", "much", says=["--mfu", "much", "simulated"])
    # Another framework's step takes longer, and a share that is given is of no step.
    framework = [*job, {"framework.kind": "pytorch"}, "--tokens", "450B", "--nodes", 22]
    of_framework = json.loads(case.molen("simulate", *job, {"framework.kind": "pytorch"}, "--cluster", "snellius-h100", "--ranks", 88, "--format", "json").stdout)["step_s"]
    close("--mfu simulated: of a framework", days(said(*framework, "--mfu", "simulated")) * 86400, 450e9 / (88 * 4096) * of_framework)
    case.refused(*base, *framework, says=["framework.kind: a given --mfu simulates no step; --mfu simulated does"])
    # Batches: at the noise scale twice the least tokens and twice the least steps.
    rows = {b["batch_tokens"]: b for b in said(*sized, "--nodes", 22, "--noise-scale", "4M")["models"][0]["batches"]}
    equal("--noise-scale", (rows[4e6]["token_ratio"], rows[4e6]["step_ratio"], rows[1e6]["step_ratio"]), (2, 2, 5))
    close("the days to the loss", rows[4e6]["days"]["value"], 2 * days(one))
    close("and the time of a step", rows[4e6]["step_s"]["value"], seconds * 4e6 / 450e9)
    equal("none without", one["models"][0]["batches"], [])
    # Clusters: those that are shipped, and one of a file.
    refusal = case.molen("plan", "--calculus", "--tokens", "1B", code=2).stderr
    names = refusal.split("molen has ")[1].strip().split(", ")
    assert "--cluster" in refusal and "snellius-h100" in names and len(names) > 1, refusal
    for name in names:
        other = json.loads(case.molen("plan", "--calculus", "--cluster", name, "--sizes", "1B", "--tokens", "1B", "--devices", 1, "--format", "json").stdout)
        close(f"--cluster {name}: its peak", days(other), 6e18 / (0.4 * other["plan"]["peak_16bit_flops_per_s"]["value"]) / 86400)
    (work / "mine.toml").write_text((pathlib.Path(__file__).resolve().parents[2] / "clusters/snellius-h100.toml").read_text().replace('"snellius-h100"', '"mine"', 1))
    equal("--cluster FILE", json.loads(case.molen("plan", "--calculus", "--cluster", "mine.toml", *sized, "--format", "json").stdout)["plan"]["cluster"], "mine")
    # The tables that people read, and the plot.
    text, markdown = case.molen(*base, *sized, "--nodes", 22).stdout, case.molen(*base, *sized, "--nodes", 22, "--format", "markdown").stdout
    equal("text", case.molen(*base, *sized, "--nodes", 22, "--format", "text").stdout, text)
    shown = f"{days(one):.1f} ("
    assert shown in text and shown in markdown and "## Costs" in markdown and "|---|---:|" in markdown and "|" not in text, (text, markdown)
    case.molen(*base, "--tokens", "450B", "--plot", "days.svg")
    lines = [[tuple(map(float, xy.split(","))) for xy in e.attrib["points"].split()] for e in ElementTree.parse(work / "days.svg").getroot().iter("{http://www.w3.org/2000/svg}polyline")]
    rises = [(line[0][1] - line[-1][1]) / (line[-1][0] - line[0][0]) for line in lines]
    for size, rise in zip((1, 2, 7, 13, 30, 70), rises, strict=True):
        close(f"--plot: the line of {size} B", rise, size / 70 * rises[-1], 0.05)
    for words, says in (
        (["--mfu", 1.2], ["--mfu: 1.2"]), (["--mfu", 0], ["--mfu: 0"]), (["--tokens", "0"], ["--tokens: '0'"]), (["--tokens", "-3"], ["--tokens"]), (["--devices", 10**6], ["--devices", "1000000"]),
        (["--nodes", 10**6], ["--nodes", "1000000"]), (["--model", "lama3-8b"], ["lama3-8b", "did you mean 'llama3-8b'"]), (["--sizes", "x"], ["--sizes: 'x'"]), (["--noise-scale", "0"], ["--noise-scale"]),
        (["--model", "gpt2", "--sizes", "1B"], ["--sizes"]), (["--model", "gpt2", {"parallel.recompute": ["attention"]}], ["parallel.recompute"]), (["--nodes", 1, "--devices", 1], ["--devices"]),
    ):
        given = words if "--tokens" in words else ["--tokens", "1B", *words]
        case.refused(*base, *given, says=says)
    case.refused(*base, says="--tokens")
    case.refused("plan", says=["CONFIG", "--calculus", "--runs"])
    case.refused(*base, *sized, "--ranks", 8, says=["--ranks", "--calculus does not take it"])


@row("plan --objective", "plan --ranks", "plan --best", "plan --simulate", "plan --memory", "plan --watts", "plan --output")
def plan_search(case):
    model = ["--model", "llama3-8b", {"data.sequence_length": 2048, "batch.global": 64}]
    base = ["plan", *model, "--cluster", "juwels-booster"]

    def said(*words, ranks=16):
        return json.loads(case.molen(*base, "--ranks", ranks, *words, "--format", "json").stdout)

    one = said("--output", "plans")
    steps = [b["step_s"] for b in one["best"]]
    equal("the best first, five of them", steps, sorted(steps)[:5])
    # Each file is the layout: simulated alone, it takes the same time and memory.
    for found in one["best"]:
        again = json.loads(case.molen("simulate", found["file"], "--cluster", "juwels-booster", "--ranks", 16, "--format", "json").stdout)
        close("the file's step", again["step_s"], found["step_s"], 1e-9)
        equal("the file's memory", again["memory_bytes"], found["memory_bytes"])
        assert again["cluster"]["fits"] and found["bound_s"] <= found["step_s"]
        close("tokens a second of a device", found["tokens_per_s_per_device"], 64 * 2048 / found["step_s"] / 16, 1e-9)
        close("joules a token", found["j_per_token"], (again["cluster"]["devices_j"] + again["cluster"]["hosts_j"]) / (64 * 2048), 1e-9)
    # A whole search takes seconds, and one of three simulations a moment.
    quick = ("--simulate", 3)
    few = said(*quick)
    equal("--simulate", (few["simulated"], few["complete"], len(few["best"])), (3, False, 3))
    first = few["best"][0]
    equal("--nodes of four devices", json.loads(case.molen(*base, "--nodes", 4, *quick, "--format", "json").stdout)["best"], few["best"])
    equal("--best", said("--best", 2, *quick)["best"], few["best"][:2])
    small = said("--memory", "14GiB")
    assert all(b["memory_bytes"] <= 14 * 2**30 for b in small["best"]) and any(b["memory_bytes"] > 14 * 2**30 for b in one["best"])
    for objective, key in (("energy", "j_per_token"), ("cost", "eur_per_step"), ("co2", "kg_co2e_per_step"), ("memory", "memory_bytes")):
        values = [b[key] for b in said("--objective", objective)["best"]]
        assert values == sorted(values) and values[0] <= min(b[key] for b in one["best"]), (objective, values)
    # A price of device hours is in the cost, beside the electricity.
    juwels = (pathlib.Path(__file__).resolve().parents[2] / "clusters/juwels-booster.toml").read_text()
    (work / "charged.toml").write_text(juwels.replace('"juwels-booster"', '"charged"', 1).replace("[site]\n", "[site]\nprice_eur_per_device_hour = { value = 2, source = \"contract\" }\n"))
    charged = json.loads(case.molen("plan", *model, "--cluster", "charged.toml", "--ranks", 16, "--objective", "cost", "--simulate", 3, "--format", "json").stdout)["best"][0]
    hours = 16 * charged["step_s"] * 2 / 3600
    assert hours < charged["eur_per_step"] < 1.2 * hours, (hours, charged)
    # Nothing takes less than a node's idle power.
    case.refused(*base, "--ranks", 16, "--watts", "1kW", says=["juwels-booster", "a higher --watts may help", "more than 1000 W"])
    case.refused("plan", *model, {"data.document_mask": True}, "--cluster", "juwels-booster", "--ranks", 16, says="data.document_mask")
    for nodes in (0, -1, 10**6):
        case.refused(*base, "--nodes", nodes, says=f"--nodes: {nodes}" if nodes < 1 else "1000000")
    case.refused(*base, "--ranks", 0, says="--ranks")
    for words in (["--tokens", "1B"], ["--factors", "f.json"], ["--plot", "x.svg"]):
        case.refused(*base, "--ranks", 16, *words, says=[words[0], "a search does not take it"])
    # The configuration's own layout is replaced, which is said.
    replaced = json.loads(case.molen("plan", *model, {"parallel.tensor": 2, "batch.micro": 2}, "--cluster", "juwels-booster", "--ranks", 16, *quick, "--format", "json").stdout)
    equal("the keys that are replaced", (replaced["replaced"], replaced["best"]), (["batch.micro", "parallel.tensor"], few["best"]))
    equal("where every layout went", one["layouts"], sum(one[k] for k in ("too_large_kept", "beyond_run", "too_large", "refused", "simulated", "excluded")) if one["complete"] else one["layouts"])
    equal("--watts that is enough", said("--watts", "100kW", *quick)["best"], few["best"])
    text = case.molen(*base, "--ranks", 16, *quick).stdout
    assert first["layout"] in text and "slower by" in text and "80 % of steps of the first are expected" in text, text
    for words, says in ((["--objective", "tim"], ["--objective", "did you mean 'time'"]), (["--memory", "x"], ["--memory"]), (["--watts", "x"], ["--watts"]), (["--ranks", 10**7], ["--ranks"]), (["--format", "markdown"], ["--format"]), (["--memory", "1GiB"], ["more nodes or --memory may help"])):
        given = words if "--ranks" in words else ["--ranks", 16, *words]
        case.refused(*base, *given, says=says)
    case.refused("plan", *model, says="--cluster")
    case.refused("plan", *model, "--cluster", "juwels-boster", says="did you mean 'juwels-booster'")


@row("plan --days", "plan --kwh")
def plan_limits_of_a_run(case):
    """Limits of a run of 1000 steps of 8 x 512 tokens: what is slowest, or takes most energy, among a few layouts is beyond them."""
    sets = {"data.sequence_length": 512, "batch.global": 8}
    few = ["--cluster", "dgx-a100", "--ranks", 4, "--simulate", 12, "--best", 12]
    run = ["plan", "--model", "llama-60m", {**sets, "train.until": f"{1000 * 8 * 512} tokens"}, *few]

    def said(*words):
        return json.loads(case.molen(*run, *words, "--format", "json").stdout)

    whole = said()["best"]
    for found in whole:
        equal("the steps of the run", found["run"]["steps"], 1000)
        close("days", found["run"]["days"], 1000 * found["step_s"] / 86400, 1e-9)
        for key in ("kg_co2e", "eur"):
            close(key, found["run"][key], 1000 * found[f"{key}_per_step"], 1e-9)
    for flag, key, count in (("--days", "days", "too_long"), ("--kwh", "kwh", "too_much_energy")):
        totals = sorted(b["run"][key] for b in whole)
        most = (totals[5] + totals[6]) / 2
        limited = said(flag, repr(most))
        assert max(b["run"][key] for b in limited["best"]) <= most and limited["beyond_run"] + limited[count] > 0, (flag, limited)
        text = case.molen(*run, flag, repr(most)).stdout
        assert f"take more than {most:g} {key}" in text.replace("kWh", "kwh"), text
        case.refused(*run, flag, 1e-9, says=["a higher --days or --kwh may help", "by their bound"])
        case.refused("plan", "--model", "llama-60m", sets, *few, flag, 1, says=[flag, "train.until"])
        for wrong in (-1, "nan"):
            case.refused(*run, f"{flag}={wrong}", says=[flag, "above 0"])
    text = case.molen(*run).stdout
    assert "1000 steps of the first take" in text and "Pareto front" in text, text
    # All twelve are shown, so the front follows from them: no other one takes less of one figure and no more of the others.
    value, tokens = said(), 8 * 512
    figures = [(b["step_s"], b["j_per_token"] * tokens, b["memory_bytes"]) for b in value["best"]]
    front = [not any(all(x <= y for x, y in zip(f, g)) and f != g for f in figures) for g in figures]
    assert 0 < sum(front) < len(front), figures
    equal("the front", sorted(x["step_s"] for x in value["pareto_front"]), sorted({f[0] for f, on in zip(figures, front) if on}))
    assert all(on for b, on in zip(value["best"], front) if b["pareto"]) and value["pareto_open"] > 0, value


@row("plan --carbon", "plan --deadline", "plan --from")
def plan_carbon(case):
    """A forecast of hours whose third day is cleaner: the run of the best layout starts where its mean is least."""
    hours, start = 24 * 30, datetime.datetime(2001, 3, 1, tzinfo=datetime.timezone.utc)
    at = lambda text: datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    grams = [50 if 48 <= h < 72 else 300 + h % 24 for h in range(hours)]
    (work / "grid.csv").write_text("time,g_per_kwh\n" + "".join(f"{(start + datetime.timedelta(hours=h)).isoformat()},{g}\n" for h, g in enumerate(grams)))
    plan = ["plan", "--model", "llama-60m", {"data.sequence_length": 512, "batch.global": 8}, "--cluster", "dgx-a100", "--ranks", 4, "--simulate", 3]
    tokens = lambda n: {"train.until": f"{n * 8 * 512} tokens"}
    carbon = ["--carbon", "grid.csv", "--from", "2001-03-01"]

    def said(*words):
        return json.loads(case.molen(*plan, *words, "--format", "json").stdout)

    # A step of some milliseconds, so that the run takes half a day or so.
    step = said(tokens(1))["best"][0]["step_s"]
    until = tokens(int(43200 / step))
    found = said(until, *carbon)["carbon"]
    length = found["duration_s"]["high"]
    assert 43200 < length < 86400, found

    def mean(begin):
        """Of an interval of that length, hour by hour."""
        end, total = begin + length, 0.0
        for h in range(hours):
            total += max(0.0, min(end, 3600.0 * (h + 1)) - max(begin, 3600.0 * h)) * grams[h]
        return total / length

    for name in ("at_once", "best", "worst"):
        begin = (at(found[name]["start"]) - start).total_seconds()
        close(f"{name}: the mean", found[name]["g_per_kwh"], mean(begin), 1e-3 if name == "worst" else 1e-9)
        close(f"{name}: emissions", found[name]["kg_co2e"]["value"], found["site_j"]["value"] / 3.6e6 * found[name]["g_per_kwh"] / 1e3, 1e-9)
        equal(f"{name}: its length", abs((at(found[name]["end"]) - start).total_seconds() - begin - length) <= 2, True)
    equal("at once", found["at_once"]["start"], "2001-03-01T00:00:00Z")
    equal("the best is the first within the clean day", found["best"]["start"], "2001-03-03T00:00:00Z")
    close("its mean", found["best"]["g_per_kwh"], 50)
    quarters = [mean(900.0 * i) for i in range(int((3600 * hours - length) / 900))]
    assert min(quarters) >= found["best"]["g_per_kwh"] - 1e-9 and max(quarters) <= found["worst"]["g_per_kwh"] + 1e-9
    # With a deadline, the run ends before it.
    early = said(until, *carbon, "--deadline", "30 h")["carbon"]
    equal("the deadline", early["deadline"], "2001-03-02T06:00:00Z")
    assert at(early["best"]["end"]) <= at(early["deadline"]) and early["best"]["g_per_kwh"] > 250, early
    equal("a time as the deadline", said(until, *carbon, "--deadline", "2001-03-02T06:00Z")["carbon"], early)
    later = said(until, "--carbon", "grid.csv", "--from", "2001-03-04T00:00Z")["carbon"]
    equal("--from", later["at_once"]["start"], "2001-03-04T00:00:00Z")
    text = case.molen(*plan, until, *carbon).stdout
    assert "least CO2e" in text and "2001-03-03T00:00:00Z" in text and "grid.csv" in text, text
    equal("without a forecast", said(until)["carbon"], None)
    for words, says in ((["--deadline", "1 h"], ["--carbon", "until the deadline"]), (["--deadline", "soon"], ["--deadline", "10 days"]), (["--deadline", "2001-02-01"], ["--deadline", "not after"])):
        case.refused(*plan, until, *carbon, *words, says=says)
    case.refused(*plan, until, "--carbon", "grid.csv", says=["--carbon", "--from"])  # the present is not in March 2001
    case.refused(*plan, until, "--carbon", "grid.csv", "--from", "March", says="--from")
    case.refused(*plan, *carbon, says=["--carbon", "train.until"])
    case.refused(*plan, until, "--carbon", "none.csv", says="none.csv")
    (work / "bad.csv").write_text("time,g_per_kwh\n2001-03-01,100\n2001-03-02,-5\n")
    case.refused(*plan, until, "--carbon", "bad.csv", says=["bad.csv:3", "g_per_kwh"])
    case.refused("plan", "--calculus", "--carbon", "grid.csv", says="--carbon")
    case.refused(*plan, until, "--deadline", "1 d", says="--carbon")


@row("plan --runs", "plan --factors", "plan --print-factors")
def plan_runs(case):
    table = (pathlib.Path(__file__).resolve().parents[2] / "bench/published/runs.csv").read_text().splitlines()
    header, rows = table[0], [r for r in table[1:] if r.startswith(("narayanan2021-t1-00", "frontier"))]
    (work / "runs.csv").write_text("\n".join([header, *rows]) + "\n")
    case.molen("plan", "--runs", "runs.csv", "--output", "out.jsonl")
    lines = [json.loads(x) for x in (work / "out.jsonl").read_text().splitlines()]
    equal("a line for each row, in order", [x["run_id"] for x in lines], [r.split(",")[0] for r in rows])
    equal("on standard output without --output", [json.loads(x) for x in case.molen("plan", "--runs", "runs.csv").stdout.splitlines()], lines)
    good = [x for x in lines if "error" not in x]
    assert len(good) >= 9 and all("blank" in x["error"] for x in lines if "error" in x), lines
    for x in good:
        assert x["step_s"] > 0 and x["step_s_low"] < x["step_s"] < x["step_s_high"] and x["memory_bytes_per_gpu"] > x["memory_allocator_bytes_per_gpu"] > 0, x
    factors = json.loads(case.molen("plan", "--print-factors").stdout)
    (work / "slow.json").write_text(json.dumps({"outside": 1.0}))
    slow = [json.loads(x) for x in case.molen("plan", "--runs", "runs.csv", "--factors", "slow.json").stdout.splitlines()]
    for a, b in zip(good, [x for x in slow if "error" not in x], strict=True):
        close("--factors: a step and as long outside", b["step_s"] / a["step_s"], 2 / (1 + factors["outside"]["value"]), 1e-9)
    (work / "sets.json").write_text(json.dumps([{}, {"outside": 1.0}]))
    several = [json.loads(x) for x in case.molen("plan", "--runs", "runs.csv", "--factors", "sets.json").stdout.splitlines()]
    for a, b, both in zip(good, [x for x in slow if "error" not in x], [x for x in several if "error" not in x], strict=True):
        close("--factors: several sets", both["step_s"][0], a["step_s"], 1e-9)
        close("--factors: the second set", both["step_s"][1], b["step_s"], 1e-9)
    (work / "bad.json").write_text('{"gem": 1}')
    case.refused("plan", "--runs", "runs.csv", "--factors", "bad.json", says="did you mean 'gemm'")
    (work / "none.csv").write_text("model\nx\n")
    case.refused("plan", "--runs", "none.csv", says="run_id")
    case.refused("plan", "--runs", "runs.csv", "--calculus", says=["--calculus", "--runs does not take it"])
    case.refused("plan", "--runs", "runs.csv", "--cluster", "dgx-a100", says=["--cluster", "--runs does not take it"])


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
    # Tensor ranks compute rows in two pieces, with two exchanges in place of one.
    whole, pieces = ({r["layout"]: r["ops"] for r in rows("--ranks", 2, "--static", "--set", f"parallel.tensor_chunks={n}")} for n in (1, 2))
    changed = {layout.split(",")[1] for layout in set(whole) | set(pieces) if whole.get(layout) != pieces.get(layout) and "," in layout}
    assert changed and all(" tp 2" in layout for layout in changed), f"layouts that parallel.tensor_chunks changes: {changed}"
    head, *table = case.molen("verify", "tiny.toml", small, "--ranks", 2, "--static").stdout.splitlines()[: len(names) + 1]
    assert all(x[head.index("verifier") - 1 :] == " sound" for x in table) and {x[: head.index(" ops")].split("  ")[0] for x in table} <= set(names), f"columns: {[head, *table]}"
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
    said = case.molen("model", "show", "gpt2").stdout
    assert re.search(r"^  head +79\.05 GFLOP +237\.14 GFLOP +75\.13 MiB +371\.10 MiB$", said, re.M), f"the figures of a part below their titles: {said}"
    n = 124_439_808
    for sequence in (256, 1024):
        said = {f: json.loads(case.molen("model", "show", "gpt2", "--sequence", sequence, "--mfu", f, "--format", "json").stdout) for f in ("palm", "causal")}
        close(f"palm at {sequence}", said["palm"]["train_flops_per_token"], 6 * n + 12 * 12 * 768 * sequence)
        equal("causal", (said["causal"]["train_flops_per_token"], said["causal"]["sequence"]), (said["palm"]["train_flops_per_token_causal"], sequence))


@row("calibrate --output", "calibrate --ranks", "calibrate --threads", "calibrate --compute", "calibrate --rounds", "calibrate --minutes", "calibrate --widest", "calibrate --format", "calibrate --set", "calibrate --model")
def calibrate(case):
    fast = ["--widest", 128, "--output", "measured.json"]
    first = case.molen("calibrate", *fast, "--compute", "fp32", "--threads", 1, "--rounds", 2, "--format", "json")
    said = re.search(r"^fp32: (\d+) measurements, from (.*), to (.*)$", first.stderr, re.M)
    equal("--rounds, --widest", (int(said[1]), said[2].startswith("round 1 of 2, d 128 "), said[3].startswith("round 2 of 2, d 128 ")), (18, True, True))
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
    case.progress("calibrate fp32", "calibrate", "tiny.toml", written, "--widest", 128, "--threads", 1, "--rounds", 1, "--output", "written.json")
    assert json.loads(case.molen("simulate", "tiny.toml", written, "--cluster", "written.json", "--format", "json").stdout)["step_s"] > 0
    # Without conditions: one rank with all cores, more ranks that share them, and one rank with one thread, in both types.
    cores = len(os.sched_getaffinity(0))
    teams = [(n, cores // n) for n in (1, 2, 4, 8) if n <= cores] + [(1, 1)] * (cores > 1)
    all_of_it = case.molen("calibrate", "--widest", 128, "--minutes", 0.001, "--output", "all.json", "--format", "json")
    conditions = [(e["ranks"], e["threads"], e["compute"], e["communicator"]) for e in json.loads(all_of_it.stdout)]
    equal("all conditions", conditions, [(n, t, c, "threads" if n > 1 else "self") for n, t in teams for c in ("fp32", "bf16")])
    equal("they are in the file", len(json.loads((work / "all.json").read_text())["entries"]), len(conditions))
    assert all(f"{n} x {t} {c}: " in all_of_it.stderr for n, t, c, _ in conditions), all_of_it.stderr
    # No time is left for a second round; one measurement at each shape is made in any case.
    rounds = re.findall(r"measurements, from round (\d) of 3, .*, to round (\d) of 3", all_of_it.stderr)
    equal("rounds", rounds, [("1", "1")] * len(conditions))
    assert "round 2" not in all_of_it.stderr, all_of_it.stderr
    case.refused("calibrate", "--minutes", 0, says="--minutes")
    case.refused("calibrate", "--widest", 100, says=["--widest", "128"])
    case.refused("calibrate", "--set", "device.kind=cuda", says=["device.kind", "measures processors"])
    # Under the conditions of a configuration, or of a preset with others over it, and no wider than its model.
    (work / "own.toml").write_text('extends = "tiny.toml"\n[precision]\ncompute = "fp32"\n')
    preset = {"model.hidden": 128, "model.head_dim": 32, "math.threads": 1, "data.sequence_length": 16, **FP32}
    for words, width in ((["own.toml"], 128), (["--model", "llama-tiny", preset], 128)):
        made = case.molen("calibrate", *words, "--rounds", 1, "--output", f"own-{len(words)}.json", "--format", "json")
        equal(f"{words}: type and threads", [(e["compute"], e["threads"]) for e in json.loads(made.stdout)], [("fp32", 1)])
        assert re.search(rf"^fp32: 15 measurements, .* to round 1 of 1, d {width} ", made.stderr, re.M), made.stderr
