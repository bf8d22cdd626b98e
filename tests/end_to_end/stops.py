#!/usr/bin/env python3
"""Stops at random steps and on a full disk: the same layout goes on with the same bits, another one with the same state.

usage: stops.py MOLEN   (MOLEN_STOP_SEED=N repeats the steps of an earlier run)
"""
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time

from harness import ENV, MOLEN, finish, metrics, ok, run, shards, skip, started, work

shards()
seed = int(os.environ.get("MOLEN_STOP_SEED") or random.SystemRandom().randrange(2**32))
print(f"MOLEN_STOP_SEED={seed}", flush=True)
rng = random.Random(seed)


def train(name, ranks, stop=None, code=0, **keys):
    sets = [f"run.name={name}", *(f"{k.replace('__', '.')}={v}" for k, v in keys.items())]
    if stop:
        sets.append(f'train.stop_after="{stop} steps"')
    return run("train", "run.toml", "--ranks", ranks, *(x for s in sets for x in ("--set", s)), code=code)


# --- random steps ----------------------------------------------------------------------------------------------------------
LAYOUTS = {1: {}, 2: {"parallel__zero": 1}}
for ranks, layout in LAYOUTS.items():
    train(f"whole{ranks}", ranks, **layout, checkpoint__every='"100 steps"')
    stops = sorted(rng.sample(range(1, 24), 3))
    for stop in [*stops, None]:
        train(f"parts{ranks}", ranks, stop, **layout)
    r = run("runs", "compare", f"runs/whole{ranks}", f"runs/parts{ranks}")
    ok(f"{ranks} ranks, stopped after {stops}: identical", "identical: 24 steps" in r.stdout, r.stdout)
    attempts = {m["attempt"] for m in metrics(f"parts{ranks}").values()}
    ok(f"{ranks} ranks: four attempts", attempts == {1, 2, 3, 4}, attempts)
for before, after in ((1, 2), (2, 1), (2, 4)):
    stop, name = rng.randrange(1, 24), f"from{before}to{after}"
    train(name, before, stop, **LAYOUTS[before])
    digest = run("checkpoint", "verify", "--digest", f"runs/{name}").stdout.split("digest ")[1].strip()
    train(name, after, **LAYOUTS.get(after, {"parallel__zero": 1}))
    resumed = [json.loads(x) for x in (work / f"runs/{name}/events.jsonl").read_text().splitlines() if '"resume"' in x][-1]
    ok(f"{before} ranks stopped after {stop}, {after} go on: the state is the same", resumed["state_hash"] == digest, (resumed, digest))
    a, b = metrics(f"whole{before}"), metrics(name)
    # The next step from the same state: fp32 rounding of a mean of 384 token losses, summed in another order.
    next_step = stop + 1
    ok(f"{name}: the next step has the same loss and samples", abs(a[next_step]["loss"] / b[next_step]["loss"] - 1) < 1e-5 and a[next_step]["samples"] == b[next_step]["samples"],
       (a[next_step], b[next_step]))
    ok(f"{name}: all samples once, in order", sorted(b) == list(range(1, 25)) and all(b[s]["samples"] == a[s]["samples"] for s in a))

# --- killed: every joule is in the run's sum, once ------------------------------------------------------------------------------
# The counter goes on while no attempt runs, and those joules are not the run's.
(work / "steady.jsonl").write_text("".join(json.dumps({"time_s": t, "energy_j": {"cpu-package0": 100.0 * t}}) + "\n" for t in (0.0, 1e9)))
sets = ["run.name=joules", 'energy.meters=["replay-clock:steady.jsonl"]', 'train.until="100000 steps"', 'train.validate_every="100000 steps"', 'checkpoint.every="40 steps"', "checkpoint.keep=2"]
command = [MOLEN, "train", "run.toml", *(x for s in sets for x in ("--set", s))]
lines = lambda name: [json.loads(x) for x in (work / f"runs/joules/{name}.jsonl").read_text().splitlines() if x.endswith("}")]
took = []  # by attempt: 100 W for the life of its process, which its meters do not exceed
for attempt in range(1, 5):
    begun = time.monotonic()
    job = started(command, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = rng.randrange(5, 70)  # steps of this attempt: before its first checkpoint, or after it
    while job.poll() is None and sum(m["attempt"] == attempt for m in (lines("metrics") if (work / "runs/joules/metrics.jsonl").exists() else [])) < until:
        time.sleep(0.01)
    ok(f"joules: attempt {attempt} is there to be killed", job.poll() is None)
    job.send_signal(signal.SIGKILL)
    job.wait()
    took.append(100.0 * (time.monotonic() - begun))
    time.sleep(0.5)


def to_the_end(more):
    """An attempt of so many steps more, which ends by itself."""
    begun = time.monotonic()
    run("train", "run.toml", *(x for s in [*sets, f'train.stop_after="{max(metrics("joules")) + more} steps"'] for x in ("--set", s)))
    took.append(100.0 * (time.monotonic() - begun))
    return [e for e in lines("energy") if e["event"] == "totals"][-1]


last = to_the_end(50)
said, ends = lines("metrics"), [e for e in lines("energy") if e["event"] == "last_reading"]
total = [m["kwh_total"] * 3.6e6 for m in said if m["kwh_total"] is not None]
ok("joules: the sum never falls, over all attempts", total == sorted(total) and len(total) > 20, total)
ok("joules: each attempt knows what the one before read last", [(e["of_attempt"], e["ended_by_itself"]) for e in ends] == [(n, False) for n in (1, 2, 3, 4)], ends)
for e, life in zip(ends, took):
    before = sum(x["total_j"] for x in ends if x["of_attempt"] < e["of_attempt"])
    told = [m["kwh_total"] * 3.6e6 for m in said if m["attempt"] == e["of_attempt"]]
    ok(f"joules: attempt {e['of_attempt']} loses nothing that it has told", before + e["total_j"] >= told[-1] * (1 - 1e-12), (before, e, told[-1]))
    ok(f"joules: and begins with all before it, once", before <= told[0] <= before + life and e["total_j"] <= life, (before, told[0], e, life))
undone = last["spent_total_j"] - last["total_j"]
ok("joules: steps are undone, the rest is used", 0 < undone == last["undone_j"] and abs(last["spent_j"]["cpu-package0"] / last["spent_total_j"] - 1) < 1e-12, last)
# An attempt that ends by itself leaves nothing undone, its last checkpoint and its end included.
further = to_the_end(10)
end = [e for e in lines("energy") if e["event"] == "last_reading"][-1]
ok("joules: nor does an end undo anything", end["ended_by_itself"] and abs(further["undone_j"] - undone) < 1e-6 * undone and further["total_j"] > last["total_j"], (end, further))
run("report", "runs/joules", "--output", "joules.html")
share = 100 * further["undone_j"] / further["spent_total_j"]
ok("joules: the report has them", f"({share:.1f}% of all) went into steps that failures undid" in (work / "joules.html").read_text(), share)

# --- no room ---------------------------------------------------------------------------------------------------------------
# A limit on the size of files: a checkpoint does not fit, the records do.
def no_room():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))


def one_error(name, r, says):
    ok(f"{name}: exit 1 and one error", r.returncode == 1 and r.stderr.count("molen:") == 1 and says in r.stderr, f"{r.returncode} {r.stderr}")


def whole_checkpoints(folder):
    return sorted(x.name for x in folder.iterdir() if x.name.startswith("step-") and "." not in x.name)


train("limit", 1, 6)
r = subprocess.run([MOLEN, "train", "run.toml", "--set", "run.name=limit"], cwd=work, env=ENV, preexec_fn=no_room, capture_output=True, text=True, timeout=300)
one_error("file size limit", r, "step-000000012")
ok("file size limit: only the last whole checkpoint", whole_checkpoints(work / "runs/limit/checkpoints") == ["step-000000006"], r.stderr)
train("limit", 1)
ok("file size limit: resumed from it, identical", "identical" in run("runs", "compare", "runs/whole1", "runs/limit").stdout)

# A file system of its own that is full, where one can be mounted (in a mount namespace, so that it goes with its process).
unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
(work / "disk").mkdir()
if shutil.which("unshare") and subprocess.run([*unshare, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", work / "disk"], capture_output=True).returncode == 0:
    # $1: bytes to leave free. Train, fill, fail, make room, go on; what was there in between is copied out.
    script = r"""
mount -t tmpfs -o size=16m tmpfs disk
train() { "$MOLEN" train run.toml --set run.dir=disk --set run.name=run "$@"; }
train --set 'train.stop_after="6 steps"' || exit 90
head -c 100m /dev/zero >disk/fill 2>/dev/null
truncate -s -"$1" disk/fill
train >out.txt 2>err.txt
echo $? >rc.txt
cp -r disk/run between
rm disk/fill
train || exit 91
cp -r disk/run runs/"$2"
"""
    for name, free, says in (("nearly full", 300_000, "step-000000012"), ("full", 0, "disk/run")):
        r = subprocess.run([*unshare, "sh", "-c", script, "sh", str(free), name.replace(" ", "_")], cwd=work, env=ENV | {"MOLEN": MOLEN}, capture_output=True, text=True, timeout=300)
        ok(f"{name} disk: resumes once there is room", r.returncode == 0, r.stdout + r.stderr)
        failed = subprocess.CompletedProcess([], int((work / "rc.txt").read_text()), "", (work / "err.txt").read_text())
        one_error(f"{name} disk", failed, says)
        ok(f"{name} disk: the error says why", "No space left on device" in failed.stderr, failed.stderr)
        ok(f"{name} disk: the previous checkpoint is whole", whole_checkpoints(work / "between/checkpoints") == ["step-000000006"])
        run("checkpoint", "verify", "between/checkpoints/step-000000006")
        ok(f"{name} disk: identical in the end", "identical" in run("runs", "compare", "runs/whole1", f"runs/{name.replace(' ', '_')}").stdout)
        shutil.rmtree(work / "between")
else:
    skip("a full file system", "unshare --mount and mount -t tmpfs are not allowed here")
finish("stops")
