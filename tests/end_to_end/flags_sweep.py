"""Rows of sweep: experiments that are predicted on a cluster, and those that train."""
import csv
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import time
from xml.etree import ElementTree

from effects import close, equal, lines_of, row
from flags_plan import FP32, made_up
from harness import ENV, MOLEN, started, work

JOB = ["--model", "llama3-8b", {"data.sequence_length": 2048, "batch.global": 64}]


def words_in(path):
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""


def folder_of(process):
    try:
        return os.readlink(process / "cwd")
    except OSError:
        return None


def until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


def same_figures(trial, simulated):
    """A trial and what `molen simulate` says of the same configuration."""
    equal("an outcome", trial["outcome"], "step")
    for key in ("step_s", "tokens_per_s", "memory_bytes", "extrapolated"):
        equal(key, trial[key], simulated[key])
    equal("interval", [trial["step_s_low"], trial["step_s_high"]], [simulated["interval"][k] for k in ("low_s", "high_s")])


def sweep(case, *words, code=0):
    return json.loads(case.molen("sweep", *words, "--format", "json", code=code).stdout)


@row("sweep --grid", "sweep --set", "sweep --model", "sweep --cluster", "sweep --ranks", "sweep --nodes", "sweep --scaling", "sweep --format", "sweep --noise-scale")
def predicted_sweep(case):
    def simulated(ranks, **keys):
        sets = {k.replace("__", "."): v for k, v in keys.items()}
        return json.loads(case.molen("simulate", *JOB, sets, "--cluster", "dgx-h100", "--ranks", ranks, "--format", "json").stdout)

    def like(trial, said, ranks):
        close("step", trial["step_s"], said["step_s"])
        equal("interval", [trial["step_s_low"], trial["step_s_high"]], said["cluster"]["interval_s"])
        equal("memory", trial["memory_bytes"], said["memory_bytes"])
        close("tokens/s per device", trial["tokens_per_s_per_device"], said["tokens_per_s"] / ranks)
        joules = said["cluster"]["devices_j"] + said["cluster"]["hosts_j"]
        close("kWh per step", trial["kwh_per_step"], joules / 3.6e6)
        close("J/token", trial["j_per_token"], joules / trial["tokens"])

    # Each trial of the product is a simulation of its own; the last key changes fastest.
    grid = ["--grid", "batch.micro=1,2", "--grid", "parallel.sharding=FULL_SHARD,SHARD_GRAD_OP"]
    said = sweep(case, *JOB, "--cluster", "dgx-h100", "--ranks", 16, *grid)
    wanted = [(m, s) for m in (1, 2) for s in ("FULL_SHARD", "SHARD_GRAD_OP")]
    equal("the product in its order", [(t["keys"]["batch.micro"], t["keys"]["parallel.sharding"]) for t in said["trials"]], wanted)
    for trial, (micro, sharding) in zip(said["trials"], wanted):
        like(trial, simulated(16, batch__micro=micro, parallel__sharding=sharding), 16)
    equal("--nodes: two of 8 devices", sweep(case, *JOB, "--cluster", "dgx-h100", "--nodes", 2, *grid)["trials"][0]["step_s"], said["trials"][0]["step_s"])
    equal("no time to a loss without a noise scale", said["trials"][0]["loss_s_per_mtoken"], None)
    batches = [{"parallel.sharding": "FULL_SHARD"}, "--cluster", "dgx-h100", "--ranks", 16, "--grid", "batch.global=16,256", "--noise-scale", "1M"]
    small, large = sweep(case, *JOB, *batches)["trials"]
    for trial in (small, large):
        close("the time to a loss", trial["loss_s_per_mtoken"], trial["step_s"] / trial["tokens"] * 1e6 * (1 + trial["tokens"] / 1e6))
    assert large["tokens_per_s"] > small["tokens_per_s"] and large["loss_s_per_mtoken"] > small["loss_s_per_mtoken"], (small, large)
    shown = case.molen("sweep", *JOB, *batches).stdout
    assert "time to loss" in shown and "at a gradient noise scale of 1.00 M tokens" in " ".join(shown.split()), shown
    case.refused("sweep", *JOB, *batches[:-1], "0", says=["--noise-scale"])
    # Trials that fail are rows with their reason: those that do not fit, and values that contradict each other.
    rows = sweep(case, *JOB, "--cluster", "dgx-a100", "--nodes", 2, "--grid", "batch.micro=1,3", "--grid", "parallel.sharding=NO_SHARD,FULL_SHARD")["trials"]
    equal("outcomes", [t["outcome"] for t in rows], ["out_of_memory", "step", "refused", "refused"])
    assert rows[0]["memory_bytes"] > 80e9 and "needs" in rows[0]["why"] and rows[0]["step_s"] is None, rows[0]
    equal("the contradiction", rows[2]["why"], "--grid batch.micro: 3 does not divide batch.global = 64")
    # Scaling: the batch of each size, and what the larger sizes gain.
    sharded = {"parallel.sharding": "FULL_SHARD"}
    for scaling, batches in (("strong", [64, 64, 64]), ("weak", [64, 128, 256])):
        rows = sweep(case, *JOB, sharded, "--cluster", "dgx-h100", "--scaling", scaling, "--nodes", "1,2,4")["trials"]
        equal(f"{scaling}: batches", [t["batch_global"] for t in rows], batches)
        for trial, batch, nodes in zip(rows, batches, (1, 2, 4)):
            equal("the size", (trial["nodes"], trial["ranks"], trial["ideal_speed_up"]), (nodes, 8 * nodes, nodes))
            like(trial, simulated(8 * nodes, batch__global=batch, parallel__sharding="FULL_SHARD"), 8 * nodes)
            close("speed-up", trial["speed_up"], trial["tokens_per_s"] / rows[0]["tokens_per_s"])
            close("efficiency", trial["efficiency"], trial["speed_up"] / nodes)
    # The text has the same figures; a sweep in which no trial succeeds ends with 1, behind its table.
    text = case.molen("sweep", *JOB, "--cluster", "dgx-h100", "--ranks", 16, *grid).stdout
    for trial in said["trials"]:
        assert f"{trial['tokens_per_s_per_device']:.0f}" in text and trial["layout"] in text, text
    assert text.startswith("llama3-8b on 16 ranks of dgx-h100, predicted") and "4 trials: 4 with a step" in text, text
    none = [*JOB, "--cluster", "dgx-h100", "--ranks", 1, "--grid", "batch.micro=1"]
    failed = case.molen("sweep", *none, code=1)
    assert "out of memory" in failed.stdout and "no trial" in failed.stderr and "80 %" not in failed.stdout.split("1 trial:")[1], (failed.stdout, failed.stderr)
    assert '"why" of each trial says why' in case.molen("sweep", *none, "--format", "json", code=1).stderr
    both = subprocess.run([MOLEN, *case.words_of(["sweep", *none])], cwd=work, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert both.returncode == 1 and both.stdout.splitlines()[-1].startswith("molen: no trial of the sweep has a step"), both.stdout
    # Each row has an interval of its own: from the step over a factor to the step times it.
    assert "a step takes with a probability of 80 % between the times beside its prediction" in text, text
    for trial in said["trials"]:
        close("the same factor below and above", trial["step_s"] / trial["step_s_low"], trial["step_s_high"] / trial["step_s"], 1e-9)
    # A cluster is described by its devices: processors are refused, as a row where the grid has them.
    rows = sweep(case, *JOB, sharded, "--cluster", "dgx-h100", "--ranks", 16, "--grid", "device.kind=auto,cpu")["trials"]
    equal("kinds of device", [t["outcome"] for t in rows], ["step", "refused"])
    assert rows[1]["why"].startswith("--grid device.kind: dgx-h100 describes"), rows[1]
    # Weak scaling: the batches are those that the grid has, and not the one that it replaces.
    weak = [*JOB, sharded, {"batch.global": 3}, "--cluster", "dgx-h100", "--scaling", "weak", "--nodes", "2,4"]
    equal("batches of the grid", [t["batch_global"] for t in sweep(case, *weak, "--grid", "batch.global=32,64")["trials"]], [32, 64, 64, 128])
    (work / "calibration.json").write_text("{}")
    job = [*JOB, "--cluster", "dgx-h100"]
    for words, says in (
        (["--ranks", 8, "--grid", "batch.micr=1"], "did you mean 'batch.micro'"),
        (["--ranks", 8, "--grid", "batch.micro=1,x"], 'expected a positive integer, got "x"'),
        (["--ranks", 8, "--grid", "batch.micro="], "the list of values is empty"),
        (["--ranks", 8, "--grid", "batch.micro=1", "--grid", "batch.micro=2"], "the key is there twice"),
        (["--ranks", 8, "--grid", f"train.seed={','.join(map(str, range(101)))}", "--grid", f"data.seed={','.join(map(str, range(100)))}"], "more than 10000 trials"),
        (["--nodes", 100000, "--grid", "batch.micro=1"], "--nodes: dgx-h100 has"),
        (["--nodes", 1, "--ranks", 8, "--grid", "batch.micro=1"], "give --ranks or --nodes, not both"),
        (["--grid", "batch.micro=1"], "needs --nodes or --ranks"),
        (["--ranks", 8], "needs --grid"),
        (["--nodes", "2,1", "--scaling", "weak"], "must rise"),
        (["--nodes", "1,2", "--grid", "batch.micro=1"], "--scaling"),
        (["--ranks", 8, "--grid", "batch.micro=1", "--real"], "give one of the two"),
        (["--ranks", 8, "--grid", "batch.micro=1", "--steps", 2], "--steps"),
        (["--ranks", 12, "--grid", "batch.micro=1"], "not whole nodes"),
        (["--ranks", 8, "--set", "device.kind=cpu", "--grid", "batch.micro=1"], "--set device.kind: dgx-h100 describes"),
        (["--nodes", "2,3", "--scaling", "weak", "--grid", "batch.global=8,7"], "which is no whole number"),
    ):
        case.refused("sweep", *job, *words, says=says)
    case.refused("sweep", *JOB, "--grid", "batch.micro=1", says=["--cluster", "--real"])
    case.refused("sweep", *JOB, "--cluster", "calibration.json", "--ranks", 8, "--grid", "batch.micro=1", says="calibration.json")
    # The figures of each trial are those of a simulation, to the last digit.
    layouts = ["--grid", "parallel.tensor=1,4", "--grid", "parallel.pipeline=1,2"]
    rows = sweep(case, *JOB, sharded, "--cluster", "dgx-h100", "--ranks", 16, "--ranks-per-node", 4, *layouts)["trials"]
    for t in rows:
        said = json.loads(case.molen("simulate", *JOB, sharded, t["keys"], "--cluster", "dgx-h100", "--ranks", 16, "--ranks-per-node", 4, "--format", "json").stdout)
        same_figures(t, said)
        equal("joules", t["kwh_per_step"], (said["cluster"]["devices_j"] + said["cluster"]["hosts_j"]) / 3.6e6)
    equal("four layouts", len({t["step_s"] for t in rows}), 4)
    equal("--nodes: of so many ranks", [t["step_s"] for t in sweep(case, *JOB, sharded, "--cluster", "dgx-h100", "--nodes", 4, "--ranks-per-node", 4, *layouts)["trials"]], [t["step_s"] for t in rows])


@row("sweep --cluster", "sweep --communicator", "sweep --ranks-per-node")
def calibrated_sweep(case):
    made = made_up(work / "made.json", [dict(ranks=1, communicator="self"), dict(ranks=2, communicator="threads"), dict(ranks=2, communicator="mpi", factor=3.0)])
    layouts = ["--grid", "parallel.sharding=NO_SHARD,FULL_SHARD", "--grid", "parallel.pipeline=1,2"]
    step_of = {}
    for words in ([], ["--communicator", "mpi"], ["--ranks-per-node", 1]):
        job = ["tiny.toml", FP32, "--cluster", made, "--ranks", 2, *words]
        rows = sweep(case, *job, *layouts)["trials"]
        equal("outcomes", [t["outcome"] for t in rows], ["step"] * 4)
        for t in rows:
            same_figures(t, json.loads(case.molen("simulate", *job, t["keys"], "--format", "json").stdout))
            equal("a calibration has no joules and no peak", (t["kwh_per_step"], t["mfu"], t["cluster"]), (None, None, made))
        step_of[len(words) and words[0]] = [t["step_s"] for t in rows]
    equal("layouts differ", len(set(step_of[0])) > 2, True)
    equal("nodes of one rank are those of mpi", step_of["--ranks-per-node"], step_of["--communicator"])
    assert all(mpi > threads for mpi, threads in zip(step_of["--communicator"], step_of[0])), step_of
    one = sweep(case, "tiny.toml", FP32, "--cluster", made, "--grid", "batch.micro=1,2")["trials"]
    equal("without --ranks, one", [(t["ranks"], t["extrapolated"]) for t in one], [(1, None)] * 2)
    four = sweep(case, "tiny.toml", {**FP32, "batch.micro": 1}, "--cluster", made, "--scaling", "strong", "--ranks", "2,4")["trials"]
    assert four[0]["extrapolated"] is None and "2 rank" in four[1]["extrapolated"] and four[1]["speed_up"] > 0, four
    # A trial that the calibration lacks is a row that says which measurement is missing; the others stay.
    types = sweep(case, "tiny.toml", "--cluster", made, "--ranks", 2, "--grid", "precision.compute=fp32,bf16")["trials"]
    equal("a type that was not measured", [t["outcome"] for t in types], ["step", "not_calibrated"])
    assert "`molen calibrate --ranks 2 --threads 1 --compute bf16` measures it" in types[1]["why"] and types[1]["step_s"] is None, types[1]
    less = json.loads((work / made).read_text())
    for entry in less["entries"]:
        entry["costs"]["kinds"].pop("all_gather")
    (work / "less.json").write_text(json.dumps(less))
    ops = sweep(case, "tiny.toml", FP32, "--cluster", "less.json", "--ranks", 2, *layouts[:2])["trials"]
    equal("an op that was not measured", [t["outcome"] for t in ops], ["step", "not_calibrated"])
    assert "no measurement of 'all_gather'" in ops[1]["why"] and "`molen calibrate --ranks 2 --threads 1 --compute fp32` measures it" in ops[1]["why"], ops[1]
    text = case.molen("sweep", "tiny.toml", FP32, "--cluster", "less.json", "--ranks", 2, *layouts[:2]).stdout
    assert "1 with a step, 1 not calibrated" in text and "not calibrated: the calibration has no measurement of 'all_gather'" in text, text
    for words, says in (
        (["--nodes", 2], "--nodes: made.json is a calibration"),
        (["--ranks", 2, "--set", "device.kind=cuda"], "measures processors"),
        (["--ranks", 3, "--ranks-per-node", 2], "are not whole nodes of 2"),
        (["--ranks", 2, "--parallel", 2], "--parallel: is for --real"),
    ):
        case.refused("sweep", "tiny.toml", FP32, "--cluster", made, "--grid", "batch.micro=1", *words, says=says)
    case.refused("sweep", *JOB, "--cluster", "dgx-h100", "--ranks", 8, "--communicator", "mpi", "--grid", "batch.micro=1", says="--communicator: dgx-h100 is a description")


@row("sweep --real", "sweep --launch", "sweep --steps", "sweep --output")
def real_sweep(case):
    real = ["tiny.toml", "--real", "--steps", 4, "--output", "swept"]
    grid = ["--grid", "batch.micro=1,2,3"]
    said = sweep(case, *real, *grid)
    one, two, three = said["trials"]
    equal("outcomes", [t["outcome"] for t in said["trials"]], ["step", "step", "refused"])
    assert "4 micro-batches" in one["layout"] and "2 micro-batches" in two["layout"] and "3 does not divide" in three["why"], said
    for trial in (one, two):
        path = work / "swept" / trial["run"]
        steps = [m["step_s"] for m in lines_of(path / "metrics.jsonl")]
        equal("--steps: those measured, after two of warm-up", len(steps), 6)
        equal("the median, the upper of two", trial["step_s"], statistics.median_high(steps[2:]))
        assert min(steps[2:]) <= trial["step_s_low"] <= trial["step_s"] <= trial["step_s_high"] <= max(steps[2:]), trial
        close("tokens/s", trial["tokens_per_s"], 64 / trial["step_s"])
        equal("memory", trial["memory_bytes"], max(m["memory_peak_bytes"] for m in lines_of(path / "metrics.jsonl")))
        machine = json.loads((path / "environment.json").read_text())
        equal("the machine", (trial["cpu"], trial["device"], trial["molen"]), (machine["cpu"], "cpu", f"{machine['molen']} ({machine['git']})"))
        equal("no checkpoint stays", list(path.glob("checkpoints/*")), [])
    # --output: the rows as lines and as a table, and plots.
    equal("sweep.jsonl", lines_of(work / "swept/sweep.jsonl"), said["trials"])
    table = list(csv.DictReader((work / "swept/sweep.csv").open(newline="")))
    equal("sweep.csv", [(r["batch.micro"], r["outcome"], r["step_s"]) for r in table], [(str(t["keys"]["batch.micro"]), t["outcome"], "" if t["step_s"] is None else json.dumps(t["step_s"])) for t in said["trials"]])
    plot = (work / "swept/tokens_per_s_per_device.svg").read_text()
    texts = [e.text or "" for e in ElementTree.fromstring(plot).iter() if e.tag.endswith("text")]
    assert {"custom on 1 rank, measured", "micro 1", "micro 2", "refused"} <= set(texts), texts
    # A sweep that was cut off goes on: the trial whose line is whole is kept, the others train again.
    attempts = lambda trial: json.loads((work / "swept" / trial["run"] / "run.json").read_text())["attempts"]
    lines = (work / "swept/sweep.jsonl").read_text().splitlines()
    (work / "swept/sweep.jsonl").write_text(lines[0] + "\n" + lines[1][: len(lines[1]) // 2])
    again = sweep(case, *real, *grid)
    equal("one trial is kept, the other trains again", (again["kept"], again["trials"][0], attempts(one), attempts(two)), (1, one, 1, 2))
    equal("of another number of steps nothing is kept", sweep(case, *real[:3], 3, *real[4:], *grid)["kept"], 0)
    wider = sweep(case, *real, "--grid", "batch.micro=1,2,4")
    equal("a larger grid trains what is new", (wider["kept"], attempts(one), attempts(two)), (2, 1, 2))
    equal("the other rows stay in the file", len(lines_of(work / "swept/sweep.jsonl")), 3 + 3 + 1)
    # A line that is damaged within the file is not passed over; its trial would be lost without a word.
    file = work / "swept/sweep.jsonl"
    whole = file.read_text()
    file.write_text(whole.replace("\n", "x\n", 1))
    case.refused("sweep", *real, *grid, says="sweep.jsonl:1")
    file.write_text(whole)
    # On another machine, such as the nodes of another partition, a trial is another one.
    moved = json.loads(case.molen("sweep", *real, *grid, "--format", "json", env={"SLURM_JOB_PARTITION": "other"}).stdout)
    equal("nothing is kept from another machine", (moved["kept"], moved["trials"][0]["trial"] != one["trial"]), (0, True))
    # A trial without a step is tried again: what it lacked is there now.
    late = ["tiny.toml", "--real", "--steps", 1, "--output", "late", "--set", 'data.train=[{ path = "late/train" }]', "--grid", "batch.micro=1"]
    lacking = sweep(case, *late, code=1)["trials"][0]
    equal("without its data", (lacking["outcome"], str(work / "late") in lacking["why"]), ("refused", False))
    shutil.copytree(work / "data/train", work / "late/train")
    equal("with its data", [t["outcome"] for t in sweep(case, *late)["trials"]], ["step"])
    # One sweep at a time in a folder; a signal ends the sweep and its training, and the next sweep begins at once.
    long = [MOLEN, *case.words_of(["sweep", "tiny.toml", "--real", "--steps", 1000000, "--output", "long", "--grid", "batch.micro=1"])]
    sweeping = started(long, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    training = lambda: [p for p in pathlib.Path("/proc").glob("[0-9]*/cmdline") if str(work / "long").encode() in words_in(p)]
    until(lambda: list(work.glob("long/runs/*/metrics.jsonl")) and training())
    case.refused("sweep", "tiny.toml", "--real", "--output", "long", "--grid", "batch.micro=2", says=[f"long: process {sweeping.pid} on", "--output"], code=1)
    sweeping.send_signal(signal.SIGTERM)
    said_last = sweeping.communicate(timeout=60)[1]
    assert sweeping.returncode == 1 and "a signal ended this trial" in said_last, said_last
    equal("nothing goes on", training(), [])
    # Killed without a warning, a sweep leaves no training behind either: one of its own is killed with it.
    killed = [MOLEN, *case.words_of(["sweep", "tiny.toml", "--real", "--steps", 1000000, "--output", "long", "--grid", "batch.micro=1"])]
    sweeping = started(killed, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(training)
    sweeping.kill()
    sweeping.wait(timeout=60)
    until(lambda: not training(), 20)
    # A launcher is asked to end its ranks. A message of the shell would end it, because the reader of its output is dead.
    (work / "asked.sh").write_text('#!/bin/sh\nexec 2>/dev/null\ntrap \'kill $job; wait $job; echo ended > ended; exit\' TERM\n"$@" &\njob=$!\necho $job > job\nwait $job\n')
    (work / "asked.sh").chmod(0o755)
    sweeping = started([*killed, "--launch", str(work / "asked.sh")], env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: (work / "job").exists() and len(training()) == 2)  # the launcher, which knows its job, and the training
    sweeping.kill()
    sweeping.wait(timeout=60)
    until(lambda: not training() and (work / "ended").exists(), 60)
    # Failures are told apart.
    # 2 layers of 3 matrices of 4096 x 2^20 are 26e9 parameters; in fp64 the weights alone take 0.2 TB, and gradients and states three times as much.
    large = sweep(case, "tiny.toml", {"model.hidden": 4096}, "--real", "--steps", 1, "--output", "large", "--grid", "model.ffn=40,1048576")["trials"]
    equal("too large", ([t["outcome"] for t in large], "where a rank has" in large[1]["why"]), (["step", "out_of_memory"], True))
    gone = case.molen("sweep", "tiny.toml", "--real", "--output", "gone", "--launch", "no-such-launcher", "--grid", "batch.micro=1", code=1)
    assert "failed: exit status 127" in gone.stdout, gone.stdout
    # --launch: its words stand before molen's, with the size in their place.
    (work / "launch.sh").write_text('#!/bin/sh\necho "$1" >> launched\nshift\nexec "$@"\n')
    (work / "launch.sh").chmod(0o755)
    scaled = sweep(case, "tiny.toml", "--real", "--steps", 1, "--output", "launched-runs", "--launch", "./launch.sh 'of {ranks}'", "--scaling", "weak", "--ranks", "1,3")["trials"]
    equal("started with each size", (work / "launched").read_text().splitlines(), ["of 1", "of 3"])
    equal("weak scaling: the batch", [t["batch_global"] for t in scaled], [4, 12])
    threads = sweep(case, "tiny.toml", "--real", "--steps", 1, "--output", "threads", "--set", "batch.micro=1", "--scaling", "strong", "--ranks", "1,2")["trials"]
    equal("without it ranks are threads", [t["ranks"] for t in threads], [1, 2])
    if json.loads(case.molen("doctor", "--format", "json").stdout)["mpi"]:
        mpi = sweep(case, "tiny.toml", "--real", "--steps", 1, "--output", "mpi", "--launch", "mpirun -n {ranks} --oversubscribe --bind-to none", "--ranks", 2, "--grid", "batch.micro=1,2")["trials"]
        equal("ranks of mpirun", [t["ranks"] for t in mpi], [2, 2])
    alone = sweep(case, "tiny.toml", "--real", "--steps", 1, "--output", "alone", "--launch", "env N={ranks}", "--ranks", 2, "--grid", "batch.micro=1", code=1)["trials"]
    equal("other ranks than asked", (alone[0]["outcome"], alone[0]["why"]), ("failed", "the launcher started 1 rank, not 2"))
    for words, says in (
        (["--grid", "batch.micro=1"], "--output"),
        (["--output", "x", "--grid", "batch.micro=1", "--launch", "srun -N {nodes}"], "{nodes} needs --nodes"),
        (["--output", "x", "--grid", "batch.micro=1", "--launch", "srun", "--ranks", 2], "--launch has no {ranks}"),
        (["--output", "x", "--grid", "batch.micro=1", "--nodes", 2], "srun -N {nodes}"),
        (["--output", "x", "--grid", "batch.micro=1", "--launch", "srun 'x"], "a quote does not end"),
    ):
        case.refused("sweep", "tiny.toml", "--real", *words, says=says)
    assert not (work / "x").exists() and re.search(r"1 trial kept", case.molen("sweep", *real, "--grid", "batch.micro=1").stdout)


# An srun of one machine: its ranks are those of mpirun, which it starts as a child and does not end. A configuration with
# the seed 3 crashes it, and one with the seed 4 keeps it waiting.
SRUN = """#!/bin/sh
nodes=$2 ranks=$4 first=$6 config=$7
shift 7
echo "$nodes $ranks $first $(basename "$config")" >> srun.log
touch "begun-$first"
case $(grep -o 'train.seed = [0-9]*' "$config") in
*3) for i in $(seq 40); do echo "line $i"; done; echo "Segmentation fault"; exit 139 ;;
*4) echo "a rank hangs"; sleep 1000 ;;
esac
i=0
while [ -n "$MEET" ] && [ $i -lt 600 ] && ! [ -e begun-0 -a -e begun-1 ]; do sleep 0.1; i=$((i + 1)); done
[ $i -lt 600 ] || exit 7
mpirun -n "$ranks" --oversubscribe --bind-to none "$@"
"""


@row("sweep --real", "sweep --launch", "sweep --time-limit", "sweep --parallel", "sweep --ranks-per-node", "sweep --nodes")
def launched_sweep(case):
    if not json.loads(case.molen("doctor", "--format", "json").stdout)["mpi"]:
        return case.note(["sweep", "--real", "--launch", "--time-limit", "--parallel", "--ranks-per-node", "--nodes"])
    (work / "srun").write_text(SRUN)
    (work / "srun").chmod(0o755)
    log = lambda: (work / "srun.log").read_text().split("\n")[:-1]
    alive = lambda: [words_in(p / "cmdline") for p in pathlib.Path("/proc").glob("[0-9]*") if folder_of(p) == str(work)]
    sized = ["./srun -N {nodes} -n {ranks} --relative {first_node} {config}", "--ranks-per-node", 2]
    real = ["sweep", "tiny.toml", "--real", "--steps", 1, "--launch", *sized]
    allocation = {"SLURM_JOB_NUM_NODES": "2"}

    def swept(*words, code=0, **more):
        return json.loads(case.molen(*real, *words, "--format", "json", code=code, env={**allocation, **more}).stdout)["trials"]

    # The allocation bounds the nodes: a trial that wants more is a row.
    rows = swept("--output", "sizes", "--scaling", "strong", "--nodes", "1,3", "--set", "batch.micro=1")
    equal("outcomes", [t["outcome"] for t in rows], ["step", "refused"])
    equal("two ranks of the launcher", (rows[0]["ranks"], log()), (2, [f"1 2 0 {pathlib.Path(rows[0]['run']).name}.toml"]))
    equal("why", rows[1]["why"], "it needs 3 nodes, and the Slurm allocation has 2 (SLURM_JOB_NUM_NODES)")
    # Without --nodes a trial has all of them; that mpirun then starts its ranks on one node is told.
    (work / "srun.log").unlink()
    whole = swept("--output", "whole", "--grid", "batch.micro=1", code=1)
    equal("all nodes of the allocation", (log()[0].split()[:2], whole[0]["why"]), (["2", "4"], "the launcher started 4 ranks on 1 node, not on 2"))
    # A crash and a hang are rows with the end of their logs; the sweep goes on.
    begin = time.monotonic()
    rows = swept("--output", "failures", "--nodes", 1, "--grid", "train.seed=3,4,2", "--time-limit", "20 s")
    equal("outcomes", [t["outcome"] for t in rows], ["failed", "failed", "step"])
    equal("a crash", (rows[0]["why"], rows[0]["log"][-2:], len(rows[0]["log"])), ("exit status 139: Segmentation fault", ["line 40", "Segmentation fault"], 12))
    equal("a hang", (rows[1]["why"], rows[1]["log"]), ("it did not end within its time limit, 20.00 s", ["a rank hangs"]))
    assert 20 < time.monotonic() - begin < 120 and (work / "failures" / f"{rows[1]['run']}.log").read_text() == "a rank hangs\n"
    equal("nothing goes on", alive(), [])
    text = case.molen(*real, "--output", "failures", "--nodes", 1, "--grid", "train.seed=3,2", env=allocation).stdout
    assert "1 trial kept" in text and f"{rows[0]['run']}.log ends with:\n  line 30\n" in text, text
    # Two at a time, each on a node of its own: either launcher waits for the other.
    for first in ("begun-0", "begun-1", "srun.log"):
        (work / first).unlink(missing_ok=True)
    rows = swept("--output", "both", "--nodes", 1, "--grid", "batch.micro=1,2", "--parallel", 2, MEET="1")
    equal("outcomes", [t["outcome"] for t in rows], ["step", "step"])
    equal("on nodes of their own", sorted(x.split()[2] for x in log()), ["0", "1"])
    # However the sweep ends, its trees end, and the same command goes on behind the trials that have ended.
    for name, number in (("interrupted", signal.SIGINT), ("asked", signal.SIGTERM), ("killed", signal.SIGKILL)):
        command = [MOLEN, *case.words_of([*real, "--nodes", 1, "--output", name, "--grid", "train.seed=2,4"])]
        sweeping = started(command, env={**ENV, **allocation}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until(lambda: any(words.startswith(b"sleep") for words in alive()))
        equal("the first trial has ended", len(lines_of(work / name / "sweep.jsonl")), 1)
        sweeping.send_signal(number)
        sweeping.communicate(timeout=60)
        until(lambda: not alive(), 60)
        again = swept("--output", name, "--nodes", 1, "--grid", "train.seed=2,1")
        equal(f"{name}: it goes on", [t["outcome"] for t in again], ["step", "step"])
        equal(f"{name}: the first trial was kept", json.loads((work / name / again[0]["run"] / "run.json").read_text())["attempts"], 1)
    # A trial that waits for the nodes of another one does not begin when a signal has ended that one.
    (work / "srun.log").unlink()
    command = [MOLEN, *case.words_of([*real, "--scaling", "strong", "--nodes", "1,2", "--parallel", 2, "--output", "waiting", "--set", "train.seed=4"])]
    sweeping = started(command, env={**ENV, **allocation}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    until(lambda: any(words.startswith(b"sleep") for words in alive()))
    sweeping.send_signal(signal.SIGTERM)
    said_last = sweeping.communicate(timeout=60)[1]
    assert sweeping.returncode == 1 and "a signal ended this trial" in said_last and len(log()) == 1 and not alive(), (said_last, log(), alive())
    # The ranks of mpirun end too, while they train.
    for number in (signal.SIGTERM, signal.SIGKILL):
        command = [MOLEN, *case.words_of(["sweep", "tiny.toml", "--real", "--steps", 1000000, "--launch", *sized, "--nodes", 1, "--output", f"long-{number}", "--grid", "batch.micro=1"])]
        sweeping = started(command, env={**ENV, **allocation}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: list(work.glob(f"long-{number}/runs/*/metrics.jsonl")))
        sweeping.send_signal(number)
        sweeping.communicate(timeout=90)
        until(lambda: not alive(), 90)
    for words, env, says in (
        (["--nodes", 1, "--time-limit", "5"], allocation, "--time-limit"),
        (["--nodes", 1, "--time-limit", "0 s"], allocation, "leaves a trial no time"),
        (["--nodes", 1], {}, "{first_node} counts the nodes of a Slurm allocation"),
        (["--ranks", 3], allocation, "are not whole nodes of 2"),
        (["--nodes", 1], {"SLURM_JOB_NUM_NODES": "two"}, 'SLURM_JOB_NUM_NODES: expected the number of nodes of the job, got "two"'),
        (["--nodes", 1, "--communicator", "mpi"], allocation, "--communicator"),
    ):
        case.refused(*real, "--output", "x", "--grid", "batch.micro=1", *words, says=says, env=env)
    for launch, words, says in (
        ("srun -N {node}", ["--nodes", 1], "there is no place {node}"),
        ("srun -N {nodes} -n {ranks}", ["--nodes", 1], "{ranks} needs --ranks"),
        ("srun -N {nodes}", ["--nodes", 1, "--parallel", 2], "{first_node}"),
        ("srun -n {ranks}", ["--ranks", 2, "--parallel", 2], "{first_node}"),
    ):
        case.refused("sweep", "tiny.toml", "--real", "--output", "x", "--grid", "batch.micro=1", "--launch", launch, *words, says=says, env=allocation)
    case.refused("sweep", "tiny.toml", "--real", "--output", "x", "--grid", "batch.micro=1", "--ranks-per-node", 2, says="--ranks-per-node: without --launch")
