#!/usr/bin/env python3
"""Jobs of several hosts, as far as one machine can show them: four MPI ranks that are told to be two on each of two hosts.

usage: hosts.py MOLEN

The launcher's variables are what tells molen which ranks share a host; here a wrapper sets them. What moves between hosts of its own, and
counters of several machines, are not shown.
"""
import json
import os
import shutil
import sys

from harness import MOLEN, finish, metrics, ok, refused, run, shards, work

if not shutil.which("mpirun"):
    sys.exit("no mpirun: tools/setup.sh installs it")
shards()
(work / "host.sh").write_text('#!/bin/sh\nexport OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % 2))\nexec "$@"\n')
(work / "host.sh").chmod(0o755)
ONE = ["mpirun", "-n", "4", "--oversubscribe", "--bind-to", "none"]
TWO = [*ONE, str(work / "host.sh")]
SHORT = ['train.stop_after="3 steps"', 'train.validate_every="100 steps"']


def words(name, *sets):
    return ["train", "run.toml", *(x for s in (f"run.name={name}", *SHORT, *sets) for x in ("--set", s))]


def groups(name):
    setting = next(x for x in (work / f"runs/{name}/program.txt").read_text().splitlines() if x.startswith("setting "))
    return [dict(w.split("=", 1) for w in setting.split()[1:])[k] for k in ("dp_replicate", "dp_shard", "threads")]


def environment(name):
    return json.loads((work / f"runs/{name}/environment.json").read_text())


cores = len(os.sched_getaffinity(0))
run(*words("alone"))
hybrid = ["parallel.sharding=HYBRID_SHARD", "math.threads=0"]
run(*words("one", *hybrid), launcher=ONE)
run(*words("two", *hybrid), launcher=TWO)
ok("one host: its four ranks are a group, and share its cores", groups("one") == ["1", "4", str(max(1, cores // 4))], groups("one"))
ok("two hosts: each is a group, with copies across", groups("two") == ["2", "2", str(max(1, cores // 2))], groups("two"))
ok("environment.json", [(environment(n)["ranks"], environment(n)["local_ranks"]) for n in ("one", "two")] == [(4, 4), (4, 2)])
axes = {t["axis"] for e in map(json.loads, (work / "runs/two/events.jsonl").read_text().splitlines()) if e["event"] == "stop" for t in e["traffic"]}
ok("shards within a host, copies across", {"dp_shard", "dp_replicate"} <= axes, axes)
for name in ("one", "two"):
    ok(f"{name}: the losses of one rank", all(abs(metrics(name)[s]["loss"] / metrics("alone")[s]["loss"] - 1) < 1e-5 for s in (1, 2, 3)))
wide = ["parallel.tensor=4", "model.kv_heads=4"]
run(*words("tensor", *wide), launcher=ONE)
refused("tensor ranks lie within a host", *words("apart", *wide), says=["parallel.tensor", "do not lie within a node of 2 ranks"], launcher=TWO)
# Planned where nothing is launched, the program is the very same.
planned = run("program", "run.toml", "--ranks", 4, "--ranks-per-node", 2, *(x for s in hybrid for x in ("--set", s))).stdout
# But for the comments that say which choices a configuration leaves open.
def ops_of(text):
    return [line for line in text.splitlines() if not line.startswith("#") or "planned peak" in line]


ran = (work / "runs/two/program.txt").read_text()
ok("as planned by `molen program --ranks-per-node`", ops_of(planned) == ops_of(ran))
# A rank that is not told how many share its host is told so, not taken for alone.
(work / "silent.sh").write_text('#!/bin/sh\nunset OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_LOCAL_RANK\nexec "$@"\n')
(work / "silent.sh").chmod(0o755)
r = run(*words("silent"), launcher=[*ONE, str(work / "silent.sh")], code=2)
ok("a launcher that does not say is refused", "OMPI_COMM_WORLD_LOCAL_SIZE" in r.stderr and not (work / "runs/silent").exists(), r.stderr)
assert MOLEN
finish("hosts")
