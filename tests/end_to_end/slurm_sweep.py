#!/usr/bin/env python3
"""Trials of `molen sweep` and `molen tune` on a real Slurm of two nodes: their sizes, trials at the same time, and the end of their steps.

usage: slurm_sweep.py MOLEN     (as root, on a machine whose Slurm the test may start and stop)
MOLEN_SLURM_SCRIPTS names a folder with two programs: `up 2` starts a cluster of two nodes whose host names are n1 and n2, and `down` ends it.
`tools/nightly.sh slurm` runs this; `make test` does not.
"""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

os.environ["TMPDIR"] = "/var/tmp"  # the nodes have a /tmp of their own
from harness import ENV, MOLEN, SKIPPED, finish, ok, root, run, shards, started  # noqa: E402
from effects import TINY, lines_of  # noqa: E402

SCRIPTS = os.environ.get("MOLEN_SLURM_SCRIPTS")
SRUN = "srun --mpi=pmix -K -N {nodes} -n {ranks} --relative {first_node}"
SLURM_ENV = {k: v for k, v in ENV.items() if not k.startswith("OMPI_")}


def not_here(why):
    print(f"SKIPPED Slurm: {why}", flush=True)
    sys.exit(SKIPPED)


if not SCRIPTS:
    not_here("MOLEN_SLURM_SCRIPTS is not set")
if os.geteuid() != 0:
    not_here("only root can start a cluster")
if not json.loads(run("doctor", "--format", "json").stdout)["mpi"]:
    not_here("molen was built without MPI")
shards()
(root / "tiny.toml").write_text(TINY)


def salloc(*words):
    """The words of a command that runs in an allocation of both nodes."""
    return ["salloc", "-N2", "--ntasks-per-node=1", "--immediate=60", MOLEN, *map(str, words)]


def said(*words, code=0):
    r = subprocess.run(salloc(*words, "--format", "json"), cwd=root, env=SLURM_ENV, capture_output=True, text=True, timeout=400)
    assert r.returncode == code, (words, r.returncode, r.stdout[-3000:], r.stderr[-3000:])
    return json.loads(r.stdout)["trials"]


def steps():
    """Steps of srun that run now."""
    r = subprocess.run(["squeue", "-s", "-h", "-o", "%i"], capture_output=True, text=True, timeout=60)
    return [x for x in r.stdout.split() if x.rsplit(".", 1)[1].isdigit()]


def until(holds, what, seconds=90):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"it did not come to that: {what}"
        time.sleep(0.2)


def machine(folder, trial):
    return json.loads((root / folder / trial["run"] / "environment.json").read_text())


def sizes():
    rows = said("sweep", "tiny.toml", "--real", "--steps", 2, "--launch", SRUN, "--ranks-per-node", 1, "--scaling", "strong", "--nodes", "1,2,3", "--set", "batch.micro=1", "--output", "sizes")
    ok("trials on one node and on two; three are not there", [t["outcome"] for t in rows] == ["step", "step", "refused"], rows)
    ok("the ranks of each", [t["ranks"] for t in rows[:2]] == [1, 2], rows)
    ok("on nodes of their own", [machine("sizes", t)["local_ranks"] for t in rows[:2]] == [1, 1], rows)
    ok("why", "it needs 3 nodes, and the Slurm allocation has 2" in rows[2]["why"], rows[2])
    all_nodes = said("sweep", "tiny.toml", "--real", "--steps", 1, "--launch", SRUN, "--ranks-per-node", 1, "--grid", "batch.micro=1", "--output", "all")
    ok("without --nodes, those of the allocation", all_nodes[0]["ranks"] == 2, all_nodes)


def at_the_same_time():
    rows = said("sweep", "tiny.toml", "--real", "--steps", 300, "--launch", SRUN, "--ranks-per-node", 1, "--nodes", 1, "--grid", "batch.micro=1,2", "--parallel", 2, "--output", "both")
    ok("two trials at the same time", [t["outcome"] for t in rows] == ["step", "step"], rows)
    ok("on different nodes", {machine("both", t)["host"] for t in rows} == {"n1", "n2"}, [machine("both", t) for t in rows])
    spans = [[m["wall_time_s"] for m in lines_of(root / "both" / t["run"] / "metrics.jsonl")] for t in rows]
    ok("their steps overlap", max(s[0] for s in spans) < min(s[-1] for s in spans), [(s[0], s[-1]) for s in spans])
    searched = said("tune", "tiny.toml", "--real", "--steps", 1, "--launch", SRUN, "--ranks-per-node", 1, "--search", "nodes=1,2,3", "--set", "batch.micro=1", "--output", "searched")
    ok("a search over nodes", {t["keys"]["nodes"]: t["outcome"] for t in searched} == {1: "step", 2: "step", 3: "refused"}, searched)


def a_time_limit():
    endless = ["sweep", "tiny.toml", "--real", "--steps", 1000000, "--launch", SRUN, "--ranks-per-node", 1, "--nodes", 2, "--grid", "batch.micro=1", "--time-limit", "20 s", "--output", "endless"]
    rows = said(*endless, code=1)
    ok("a trial that takes too long has failed", rows[0]["outcome"] == "failed" and "time limit" in rows[0]["why"] and rows[0]["log"], rows)
    until(lambda: not steps(), "no step is left")


def an_end_without_a_warning():
    """The sweep is killed: its step ends on both nodes, and the same command goes on in the same allocation's place."""
    words = ["sweep", "tiny.toml", "--real", "--launch", SRUN, "--ranks-per-node", 1, "--nodes", 2, "--grid", "batch.micro=1", "--output", "killed"]
    job = started(salloc(*words, "--steps", 1000000), env=SLURM_ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: list(root.glob("killed/runs/*/metrics.jsonl")), "the training of a trial")
    sweep = [int(p.parent.name) for p in pathlib.Path("/proc").glob("[0-9]*/stat") if is_sweep(p.parent)]
    ok("the sweep and the guard of its trial", len(sweep) == 2, sweep)
    os.kill(min(sweep), signal.SIGKILL)
    job.wait(timeout=90)
    until(lambda: not steps(), "no step is left")
    rows = said(*words, "--steps", 2)
    ok("the next sweep goes on in the folder", [t["outcome"] for t in rows] == ["step"], rows)


def is_sweep(process):
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        return words[:2] == [MOLEN.encode(), b"sweep"] and b"killed" in words
    except OSError:
        return False


@contextlib.contextmanager
def cluster():
    made = subprocess.run([pathlib.Path(SCRIPTS) / "up", "2"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if made.returncode != 0:
        not_here(f"no cluster: {made.stdout.strip().splitlines()[-1:]}")
    try:
        yield
    finally:
        subprocess.run([pathlib.Path(SCRIPTS) / "down"], stdout=subprocess.DEVNULL)


with cluster():
    sizes()
    at_the_same_time()
    a_time_limit()
    an_end_without_a_warning()
finish("slurm_sweep")
