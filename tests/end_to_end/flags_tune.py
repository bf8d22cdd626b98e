"""Rows of tune: searches that are predicted on a cluster, and one that trains."""
import json
from xml.etree import ElementTree

from effects import close, equal, lines_of, row
from flags_plan import FP32, made_up
from flags_sweep import SRUN
from harness import work

JOB = ["--model", "llama3-8b", {"data.sequence_length": 4096, "batch.global": 32}, "--cluster", "dgx-h100"]
SEARCH = ["--search", "parallel.tensor=1,2,4", "--search", "batch.micro=1,2,4", "--search", "parallel.zero=0,1"]


def tune(case, *words):
    return json.loads(case.molen("tune", *words, "--format", "json").stdout)


def texts_of(path):
    return [e.text or "" for e in ElementTree.fromstring(path.read_text()).iter() if e.tag.endswith("text")]


def simulated(case, ranks, config):
    return json.loads(case.molen("simulate", config, "--cluster", "dgx-h100", "--ranks", ranks, "--format", "json").stdout)


@row("tune --model", "tune --set", "tune --cluster", "tune --ranks", "tune --search", "tune --trials", "tune --output", "tune --format")
def predicted_search(case):
    said = tune(case, *JOB, "--ranks", 8, *SEARCH, "--trials", 18, "--output", "tuned")
    equal("the whole space", (said["points"], len(said["trials"])), (18, 18))
    equal("each point once", len({json.dumps(t["keys"]) for t in said["trials"]}), 18)
    steps = [t for t in said["trials"] if t["outcome"] == "step"]
    assert 0 < len(steps) < 18 and said["failures"]["out_of_memory"]["count"] == 18 - len(steps), said["failures"]
    best = max(steps, key=lambda t: t["tokens_per_s_per_device"])
    equal("the best", said["best"][0], best)
    equal("its value", best["objective"], best["tokens_per_s_per_device"])
    # best.toml is a configuration with the same step.
    again = simulated(case, 8, "tuned/best.toml")
    close("best.toml", again["step_s"], best["step_s"])
    equal("its memory", again["memory_bytes"], best["memory_bytes"])
    equal("the journal, whose lines are in the order in which trials ended", sorted(lines_of(work / "tuned/tune.jsonl")[1:], key=lambda t: t["trial"]), said["trials"])
    assert {"trial", "tokens/s per device", f"trial ({len(steps)})", f"out of memory ({18 - len(steps)})"} <= set(texts_of(work / "tuned/trajectory.svg"))
    assert {"parallel.tensor", "batch.micro", "parallel.zero", "log throughput", "log memory"} <= set(texts_of(work / "tuned/sensitivity.svg"))
    equal("impact of each key", list(said["sensitivity"]), ["parallel.tensor", "batch.micro", "parallel.zero"])
    text = case.molen("tune", *JOB, "--ranks", 8, *SEARCH, "--trials", 18).stdout
    assert f"{best['objective']:.0f}" in text and "18 trials of 18 points" in text and "the first out of memory: trial" in text and "80 % likely" in text, text
    failed = case.molen("tune", *JOB, "--ranks", 8, "--search", "parallel.tensor=3,5", code=1)
    assert "no trial of the search has a step" in failed.stderr and "2 refused" in failed.stderr, failed.stderr
    # A search goes on: fewer trials are the first of more, and a line that was cut short runs again.
    twelve = tune(case, *JOB, "--ranks", 8, *SEARCH, "--trials", 12, "--output", "longer")
    equal("--trials", twelve["trials"], said["trials"][:12])
    lines = (work / "longer/tune.jsonl").read_text().splitlines()
    (work / "longer/tune.jsonl").write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40])
    longer = tune(case, *JOB, "--ranks", 8, *SEARCH, "--trials", 18, "--output", "longer")
    equal("it goes on to the same trials", (longer["kept"], longer["trials"]), (11, said["trials"]))
    for words, says in (
        (["--ranks", 16, *SEARCH], "ranks = 8 there and 16 here"),
        (["--ranks", 8, *SEARCH, "--set", "train.seed=1"], "train.seed = 0 there and 1 here"),
        (["--ranks", 8, *SEARCH[:4]], "space"),
    ):
        case.refused("tune", *JOB, *words, "--output", "longer", says=["another search", says])


@row("tune --space", "tune --nodes", "tune --seed", "tune --parallel", "tune --objective", "tune --noise-scale")
def spaces_of_search(case):
    (work / "space.toml").write_text(
        '[[dimension]]\nkey = "parallel.tensor"\nvalues = [1, 2, 4]\n[[dimension]]\nkey = "batch.micro"\nfrom = 1\nto = 64\nscale = "log"\n'
        '[[dimension]]\nkey = "gas"\nvalues = [2, 4]\n[[dimension]]\nkey = "nodes"\nvalues = [1, 2]\n'
    )
    said = tune(case, *JOB, "--space", "space.toml", "--trials", 12)
    equal("the file's space", said["points"], 3 * 64 * 2 * 2)
    for t in said["trials"]:
        if t["outcome"] == "step":
            k = t["keys"]
            equal("nodes: their ranks", t["ranks"], 8 * k["nodes"])
            equal("gas: the batch that follows", t["tokens"], 4096 * k["batch.micro"] * k["gas"] * t["ranks"] // k["parallel.tensor"])
    equal("--space frontier", tune(case, *JOB, "--space", "frontier", "--trials", 20)["points"], 3264)
    # --nodes: the ranks of all trials. --seed and --parallel: other trials, the same for the same words.
    of = lambda *words: tune(case, *JOB, {"parallel.zero": 1}, "--search", "batch.micro=1..16", "--search", "gas=1,2,4", "--search", "parallel.tensor=1,2,4,8", "--trials", 16, *words)
    one, two = of("--nodes", 1), of("--nodes", 2)
    equal("--nodes", [{t["ranks"] for t in v["trials"] if t["outcome"] == "step"} for v in (one, two)], [{8}, {16}])
    keys = lambda said: [t["keys"] for t in said["trials"]]
    equal("the same words, the same trials", keys(of("--nodes", 1)), keys(one))
    assert keys(of("--nodes", 1, "--seed", 1))[:8] != keys(one)[:8]
    by_one = keys(of("--nodes", 1, "--parallel", 1))
    equal("--parallel: the first trials do not depend on it", by_one[:8], keys(one)[:8])
    assert by_one[8:] != keys(one)[8:], "later ones are proposed from fewer or more trials"
    # --objective: each best has the least, or the most, of all points.
    space = ["--search", "parallel.tensor=1,2,4,8", "--search", "gas=1,8", "--search", "nodes=1,2"]
    figures = dict(throughput=lambda t: -t["tokens"] / t["step_s"] / t["ranks"], time=lambda t: t["step_s"] / t["tokens"], energy=lambda t: t["step_j"] / t["tokens"])
    bests = {}
    for objective, figure in figures.items():
        found = tune(case, *JOB, *space, "--objective", objective)
        least = min((t for t in found["trials"] if t["outcome"] == "step"), key=figure)
        equal(objective, (len(found["trials"]), found["best"][0]), (16, least))
        scale = {"throughput": -1, "time": 1e6, "energy": 1}[objective]
        close(f"{objective}: its figure", found["best"][0]["objective"], scale * figure(least))
        bests[objective] = found["best"][0]["keys"]
    # At a small noise scale a small batch is sooner at the loss, though it has fewer tokens a second.
    noisy = lambda tokens: tune(case, *JOB, *space, "--objective", "loss", "--noise-scale", tokens)
    for tokens, name in ((1e4, "10k"), (1e12, "1T")):
        found, to_loss = noisy(name), lambda t: t["step_s"] / t["tokens"] * 1e6 * (1 + t["tokens"] / tokens)
        least = min((t for t in found["trials"] if t["outcome"] == "step"), key=to_loss)
        equal(f"loss at {name}", (found["noise_scale_tokens"], found["best"][0]), (tokens, least))
        close(f"loss at {name}: its figure", found["best"][0]["objective"], to_loss(least))
        bests[name] = found["best"][0]["keys"]
    equal("a batch that does not slow learning", (bests["10k"]["gas"], bests["1T"]), (1, bests["time"]))
    case.refused("tune", *JOB, *space, "--objective", "loss", says=["--objective loss", "--noise-scale"])
    case.refused("tune", *JOB, *space, "--noise-scale", "4M", says=["--noise-scale", "--objective throughput"])
    equal("two nodes take less time", bests["time"]["nodes"], 2)
    assert bests["throughput"] != bests["time"], bests


@row("tune --real", "tune --launch", "tune --steps")
def trained_search(case):
    real = ["tiny.toml", "--real", "--steps", 2, "--search", "batch.micro=1,2,3,4", "--trials", 4, "--output", "trained"]
    said = tune(case, *real)
    equal("outcomes", {t["keys"]["batch.micro"]: t["outcome"] for t in said["trials"]}, {1: "step", 2: "step", 3: "refused", 4: "step"})
    for t in said["trials"]:
        if t["outcome"] == "step":
            steps = [m["step_s"] for m in lines_of(work / f"trained/runs/trial-{t['trial']:03}/metrics.jsonl")]
            equal("--steps: behind two of warm-up", len(steps), 4)
            close("measured: the median, the upper of two", t["step_s"], max(steps[2:]))
    equal("a second start trains nothing", tune(case, *real)["kept"], 4)
    (work / "tune.sh").write_text('#!/bin/sh\necho "$1" >> tune-launched\nshift\nexec "$@"\n')
    (work / "tune.sh").chmod(0o755)
    launched = tune(case, "tiny.toml", "--real", "--steps", 1, "--ranks", 1, "--launch", "./tune.sh 'of {ranks}'", "--search", "gas=1,2", "--output", "tune-launch")
    equal("--launch: started with the ranks", (work / "tune-launched").read_text().splitlines(), ["of 1", "of 1"])
    equal("two trials", len(launched["trials"]), 2)


@row("tune --cluster", "tune --communicator", "tune --ranks-per-node")
def calibrated_search(case):
    made = made_up(work / "made.json", [dict(ranks=1, communicator="self"), dict(ranks=2, communicator="threads"), dict(ranks=2, communicator="mpi", factor=3.0)])
    space = ["--search", "parallel.sharding=NO_SHARD,FULL_SHARD", "--search", "parallel.pipeline=1,2", "--search", "batch.micro=1,3", "--trials", 8]
    for words in ([], ["--communicator", "mpi"], ["--ranks-per-node", 1]):
        job = ["tiny.toml", FP32, "--cluster", made, "--ranks", 2, *words]
        said = tune(case, *job, *space, "--output", "calibrated" + "".join(map(str, words)))
        steps = [t for t in said["trials"] if t["outcome"] == "step"]
        equal("trials with a step, and refused ones", (len(steps), said["failures"]["refused"]["count"]), (4, 4))
        for t in steps:
            like = json.loads(case.molen("simulate", *job, t["keys"], "--format", "json").stdout)
            equal("a trial and a simulation", [t["step_s"], t["step_s_low"], t["step_s_high"], t["memory_bytes"]], [like["step_s"], like["interval"]["low_s"], like["interval"]["high_s"], like["memory_bytes"]])
    lacking = tune(case, "tiny.toml", "--cluster", made, "--ranks", 2, "--search", "precision.compute=fp32,bf16", "--search", "batch.micro=1,2", "--trials", 4)
    assert "molen calibrate --ranks 2 --threads 1 --compute bf16" in lacking["failures"]["not_calibrated"]["why"], lacking["failures"]
    four = ["--model", "llama3-8b", {"data.sequence_length": 4096, "batch.global": 32, "parallel.zero": 3}, "--cluster", "dgx-h100", "--search", "parallel.tensor=1,2", "--ranks-per-node", 4]
    equal("--ranks-per-node: of a cluster", {t["ranks"] for t in tune(case, *four, "--nodes", 4)["trials"]}, {16})
    for words, says in (
        (["--nodes", 1], "--nodes: made.json is a calibration"),
        (["--search", "nodes=1,2"], "nodes: made.json is a calibration"),
        (["--objective", "energy"], "--objective energy: made.json is a calibration"),
    ):
        case.refused("tune", "tiny.toml", FP32, "--cluster", made, "--search", "batch.micro=1,2", *words, says=says)


@row("tune --real", "tune --launch", "tune --nodes", "tune --parallel", "tune --time-limit", "tune --ranks-per-node")
def launched_search(case):
    if not json.loads(case.molen("doctor", "--format", "json").stdout)["mpi"]:
        return case.note(["tune", "--real", "--launch", "--nodes", "--parallel", "--time-limit", "--ranks-per-node"])
    (work / "srun").write_text(SRUN)
    (work / "srun").chmod(0o755)
    log = lambda: sorted(x.split()[:3] for x in (work / "srun.log").read_text().split("\n")[:-1])
    launch = ["tune", "tiny.toml", "--real", "--steps", 1, "--launch", "./srun -N {nodes} -n {ranks} --relative {first_node} {config}", "--ranks-per-node", 2]
    allocation = {"SLURM_JOB_NUM_NODES": "2"}
    run = lambda *words, **more: json.loads(case.molen(*launch, *words, "--format", "json", env={**allocation, **more}).stdout)
    # Two trials at a time, each on a node of its own, until all four have ended; a hang and a crash are two of them.
    both = run("--nodes", 1, "--search", "train.seed=1,2,3,4", "--trials", 4, "--parallel", 2, "--time-limit", "20 s", "--output", "both", MEET="1")
    equal("outcomes", {t["keys"]["train.seed"]: t["outcome"] for t in both["trials"]}, {1: "step", 2: "step", 3: "failed", 4: "failed"})
    of = {t["keys"]["train.seed"]: t for t in both["trials"]}
    equal("their logs", (of[3]["log"][-1], of[4]["log"], of[4]["why"]), ("Segmentation fault", ["a rank hangs"], "it did not end within its time limit, 20.00 s"))
    equal("ranks", {t["ranks"] for t in both["trials"] if t["outcome"] == "step"}, {2})
    equal("on one node each", {x[0] for x in log()}, {"1"})
    equal("on both nodes", {x[2] for x in log()}, {"0", "1"})
    equal("a second start trains nothing", run("--nodes", 1, "--search", "train.seed=1,2,3,4", "--trials", 4, "--parallel", 2, "--output", "both")["kept"], 4)
    # The nodes may be searched; those that the allocation does not have are refused.
    (work / "srun.log").unlink()
    searched = run("--search", "nodes=1,3", "--output", "nodes", "--set", "batch.micro=1")
    equal("nodes", {t["keys"]["nodes"]: t["outcome"] for t in searched["trials"]}, {1: "step", 3: "refused"})
    equal("what was started", log(), [["1", "2", "0"]])
    for words, says in (
        (["--nodes", 1, "--search", "nodes=1,2"], "--nodes: the space has nodes"),
        (["--nodes", 1, "--time-limit", "x"], "--time-limit"),
    ):
        case.refused(*launch, "--search", "batch.micro=1,2", "--output", "x", *words, says=says, env=allocation)
    case.refused(*launch[:-2], "--nodes", 1, "--search", "batch.micro=1,2", "--output", "x", says="{ranks} needs --ranks", env=allocation)
    case.refused("tune", "tiny.toml", "--real", "--launch", "./srun -N {nodes}", "--nodes", 1, "--search", "batch.micro=1,2", "--output", "x", says="--real needs --ranks-per-node", env=allocation)


@row("tune --search", "tune --trials", "tune --objective")
def wrong_searches(case):
    ok = ["--search", "batch.micro=1,2"]
    for words, says in (
        ([], "--search key=1,2,4"),
        (["--search", "batch.mirco=1,2"], "did you mean 'batch.micro'"),
        (["--search", "gass=1,2"], "did you mean 'gas'"),
        (["--search", "batch.micro"], "expected key=1,2,4"),
        (["--search", "batch.micro="], "the list of values is empty"),
        (["--search", "batch.micro=8..2"], "8..2 is empty"),
        (["--search", "batch.micro=8..x"], "is no range"),
        (["--search", "batch.micro=4"], "one point"),
        ([*ok, "--trials", 0], "--trials"),
        ([*ok, "--parallel", 0], "--parallel"),
        ([*ok, "--objective", "throughptu"], "did you mean 'throughput'"),
        ([*ok, "--space", "frontier"], "give --space or --search"),
        (["--space", "fronteir"], "--space fronteir"),
        (["--space", "none.toml"], "none.toml"),
        ([*ok, "--ranks", 8, "--nodes", 1], "give --ranks or --nodes"),
        ([*ok, "--ranks", 12], "whole nodes"),
        ([*ok, "--real"], "one of the two"),
        ([*ok, "--launch", "srun"], "--launch"),
        ([*ok, "--steps", 2], "--steps"),
        (["--search", "nodes=1,2", "--nodes", 1], "the space has nodes"),
        (["--search", "nodes=1,100000"], "dgx-h100 has"),
    ):
        case.refused("tune", *JOB, *words, says=says)
    trained = ["tune", "tiny.toml", "--real", *ok]
    for words, says in (
        ([], "--output"),
        (["--output", "x", "--nodes", 1], "--nodes"),
        (["--output", "x", "--parallel", 2], "--parallel"),
        (["--output", "x", "--launch", "srun", "--ranks", 2], "{ranks}"),
        (["--output", "x", "--launch", "srun 'x"], "a quote does not end"),
        (["--output", "x", "--search", "nodes=1,2"], "nodes"),
    ):
        case.refused(*trained, *words, says=says)
    case.refused("tune", "tiny.toml", *ok, says=["--cluster", "--real"])
    assert not (work / "x").exists()
