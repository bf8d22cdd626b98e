"""Rows of tune: searches that are predicted on a cluster, and one that trains."""
import json
from xml.etree import ElementTree

from effects import close, equal, lines_of, row
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
    assert f"{best['objective']:.0f}" in text and "18 trials of 18 points" in text and "the first out of memory: trial" in text, text
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


@row("tune --space", "tune --nodes", "tune --seed", "tune --parallel", "tune --objective")
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
