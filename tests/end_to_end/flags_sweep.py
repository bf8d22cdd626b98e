"""Rows of sweep: experiments that are predicted on a cluster, and those that train."""
import csv
import json
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import time
from xml.etree import ElementTree

from effects import close, equal, lines_of, row
from harness import ENV, MOLEN, started, work

JOB = ["--model", "llama3-8b", {"data.sequence_length": 2048, "batch.global": 64}]


def words_in(path):
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""


def until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


def sweep(case, *words, code=0):
    return json.loads(case.molen("sweep", *words, "--format", "json", code=code).stdout)


@row("sweep --grid", "sweep --set", "sweep --model", "sweep --cluster", "sweep --ranks", "sweep --nodes", "sweep --scaling", "sweep --format")
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
    case.refused("sweep", *JOB, "--cluster", "calibration.json", "--ranks", 8, "--grid", "batch.micro=1", says=["calibration.json is a calibration", "dgx-h100", "--real measures"])


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
    # A launcher is asked to end its ranks.
    (work / "asked.sh").write_text('#!/bin/sh\ntrap \'kill $job; wait $job; echo ended > ended; exit\' TERM\n"$@" &\njob=$!\nwait $job\n')
    (work / "asked.sh").chmod(0o755)
    sweeping = started([*killed, "--launch", str(work / "asked.sh")], env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: len(training()) == 2)  # the launcher and its training
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
