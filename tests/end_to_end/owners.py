#!/usr/bin/env python3
"""Who writes into a directory, and how a run ends: two jobs at once, owners that die, names, requeued jobs, signals, records that cannot be written.

usage: owners.py MOLEN
"""
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import threading
import time

from harness import ENV, MOLEN, finish, metrics, mpirun, ok, run, shards, started, work

shards()
(work / "long.toml").write_text('extends = "base.toml"\n[train]\nuntil = "100000000 steps"\nvalidate_every = "1000000 steps"\n[checkpoint]\nevery = "1000000 steps"\n[energy]\nmeters = ["none"]\n')
FAULTS = work / "faults.so"
subprocess.run(["cc", "-shared", "-fPIC", "-o", FAULTS, pathlib.Path(__file__).with_name("faults.c"), "-ldl"], check=True)


def start(name, *sets, words=(), env=None, ready=5, **more):
    """A training without end, once it has recorded so many steps."""
    words = ["train", "long.toml", *words, *(x for s in ((f"run.name={name}",) if name else ()) + sets for x in ("--set", s))]
    job = started([MOLEN, *words], env=ENV | (env or {}), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **more)
    wait(lambda: lines(name) >= ready, job)
    return job


def lines(name):
    path = work / "runs" / name / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait(condition, job=None, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "too slow"
        assert job is None or job.poll() is None, job.communicate()
        time.sleep(0.02)


def stop(job, code=0):
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=60)
    assert job.returncode == code, (job.returncode, err)
    return err


def leases(folder):
    return sorted((work / folder).glob("lease-*.json"))


def checkpoints(name):
    return sorted(int(p.name[5:]) for p in (work / f"runs/{name}/checkpoints").glob("step-?????????"))


# --- two jobs ---------------------------------------------------------------------------------------------------------------------------
job = start("twice")
worlds = [("one rank", [], ()), ("two ranks", ["--ranks", 2], ())] + ([("two MPI ranks", [], mpirun(2))] if mpirun(2) else [])
for label, words, launcher in worlds:
    r = run("train", "long.toml", "--set", "run.name=twice", *words, launcher=launcher, code=1)
    ok(f"a second job in a run directory, {label}: refused, and told whose it is", f"runs/twice: process {job.pid} on {os.uname().nodename} writes here" in r.stderr and "run.name" in r.stderr, r.stderr)
before = lines("twice")
wait(lambda: lines("twice") > before + 3, job)
stop(job)
ok("every line names the run", {m["run_id"] for m in metrics("twice").values()} == {json.loads((work / "runs/twice/run.json").read_text())["id"]} and len({m["run_id"] for m in metrics("twice").values()}) == 1)
ok("the first one was not disturbed", {m["attempt"] for m in metrics("twice").values()} == {1} and checkpoints("twice") == [len(metrics("twice"))])
job = start("one", "checkpoint.dir=shared")
r = run("train", "long.toml", "--set", "run.name=other", "--set", "checkpoint.dir=shared", code=1)
ok("a second job in a checkpoint.dir: refused", f"shared: process {job.pid} on " in r.stderr and not (work / "runs/other/metrics.jsonl").exists(), r.stderr)
stop(job)
job = start("usual")
r = run("train", "long.toml", "--set", "run.name=own", "--set", "checkpoint.dir=runs/usual/checkpoints", code=1)
ok("a second job that names a run's own checkpoints: refused", f"runs/usual/checkpoints: process {job.pid} on " in r.stderr, r.stderr)
stop(job)
run("train", "long.toml", "--set", "run.name=own", "--set", 'train.stop_after="1 steps"')

exported = work / "exported"
run("checkpoint", "export", "runs/own", exported, "--tokenizer", "tok.json")
job = start("unsaved")  # its directory of checkpoints holds no checkpoint yet
r = run("checkpoint", "import", exported, "runs/unsaved/checkpoints", code=1)
ok("an import into the checkpoints of a run: refused", f"runs/unsaved/checkpoints: process {job.pid} on " in r.stderr and "import into another directory" in " ".join(r.stderr.split()) and not checkpoints("unsaved"), r.stderr)
stop(job)

# --- an owner that is gone ----------------------------------------------------------------------------------------------------------------
job = start("killed", 'run.lease="1 s"')
job.kill()
job.wait()
began = time.monotonic()
r = run("train", "long.toml", "--set", "run.name=killed", "--set", 'train.stop_after="1 steps"')
ok("a killed process of this host: nobody waits for it", "taking over" not in r.stderr, r.stderr)
alone = time.monotonic() - began


def elsewhere(folder, **fields):
    """The newest lease, as if its owner were on another host."""
    path = leases(folder)[-1]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"host": "node7", "boot": "another", "released": False} | fields) + "\n")


for seconds in (2, 5):
    elsewhere("runs/killed", period_s=seconds)
    began = time.monotonic()
    r = run("train", "long.toml", "--set", "run.name=killed", "--set", 'train.stop_after="1 steps"', "--set", 'run.lease="60 s"')
    took = time.monotonic() - began - alone
    ok(f"a dead owner elsewhere with a lease of {seconds} s: taken over after {took:.1f} s", seconds - 1 < took < seconds + 3 and f"on node7 was writing here; taking over if it shows no life for {seconds} s" in r.stderr, (took, r.stderr))
ok("the lease is as long as run.lease says", json.loads(leases("runs/killed")[-1].read_text())["period_s"] == 60 and len(leases("runs/killed")) == 1)
elsewhere("runs/killed", period_s=0.5, host="node7\x1b]0;gone\x07")
r = run("train", "long.toml", "--set", "run.name=killed", "--set", 'train.stop_after="1 steps"')
ok("what an owner's file says reaches no terminal as it is", "node7\\x1b]0;gone" in r.stderr and "\x1b" not in r.stderr, r.stderr)
# One that lives elsewhere renews; the one that waits sees it.
elsewhere("runs/killed", period_s=4)
renewing = threading.Event()


def renew():
    for n in range(1000):
        if renewing.wait(0.5):
            return
        elsewhere("runs/killed", period_s=4, renewals=100 + n)


thread = threading.Thread(target=renew)
thread.start()
r = run("train", "long.toml", "--set", "run.name=killed", code=1)
renewing.set()
thread.join()
ok("an owner that lives elsewhere: refused", "on node7 writes here" in r.stderr, r.stderr)
# One that stood still for too long has lost its lease: it saves nothing any more.
job = start("still", 'run.lease="1 s"')
os.kill(job.pid, signal.SIGSTOP)
for folder in ("runs/still", "runs/still/checkpoints"):
    elsewhere(folder, period_s=1)
r = run("train", "long.toml", "--set", "run.name=still", "--set", 'train.stop_after="3 steps"')
os.kill(job.pid, signal.SIGCONT)
err = stop(job, code=1)
ok("a late owner saves nothing", "has taken over" in err and "nothing more is written here" in err and checkpoints("still") == [3], (err, checkpoints("still")))

# --- names ---------------------------------------------------------------------------------------------------------------------------------
def unnamed(env=None, steps=2):
    words = ["train", "long.toml", "--set", f'train.stop_after="{steps} steps"', "--set", "run.dir=unnamed"]
    return started([MOLEN, *words], env=ENV | (env or {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


jobs = [unnamed() for _ in range(5)]
done = [j.communicate(timeout=120) for j in jobs]
made = sorted((work / "unnamed").iterdir())
ok("five jobs without a name at once: a directory each", [j.returncode for j in jobs] == [0] * 5 and len(made) == 5, (made, done))
ok("and each has its own run", len({json.loads((p / "run.json").read_text())["id"] for p in made}) == 5 and all(len((p / "metrics.jsonl").read_text().splitlines()) == 2 for p in made), made)
slurm = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}


def new_run(env, steps):
    before = set((work / "unnamed").iterdir())
    out, err = (j := unnamed(env, steps)).communicate(timeout=120)
    return j.returncode, sorted(p.name for p in set((work / "unnamed").iterdir()) - before), out + err


code, made, said = new_run(slurm, 2)
ok("a job under Slurm", code == 0 and len(made) == 1, said)
mine = made[0]
code, made, said = new_run({**slurm, "SLURM_RESTART_COUNT": "1"}, 4)
ok("requeued, it finds itself again", code == 0 and made == [] and "continues after step 2" in said and f"unnamed/{mine}" in said, said)
code, made, said = new_run({**slurm, "SLURM_RESTART_COUNT": "0"}, 2)
ok("a first start is a new run", code == 0 and len(made) == 1, said)
code, made, said = new_run({**slurm, "SLURM_RESTART_COUNT": "2"}, 5)
ok("which of two it was is asked for", code == 2 and "run.name" in said and mine in said and made == [], said)
code, made, said = new_run({**slurm, "SLURM_JOB_ID": "78", "SLURM_RESTART_COUNT": "1"}, 2)
ok("another job's run is not taken", code == 0 and len(made) == 1, said)

# --- signals ---------------------------------------------------------------------------------------------------------------------------------
for sent in (signal.SIGUSR1, signal.SIGHUP, signal.SIGXCPU, signal.SIGINT):
    job = start(f"sent-{sent.name}")
    job.send_signal(sent)
    _, err = job.communicate(timeout=60)
    last = [json.loads(x) for x in (work / f"runs/sent-{sent.name}/events.jsonl").read_text().splitlines()][-1]
    ok(f"{sent.name} saves and exits 0", job.returncode == 0 and (last["event"], last["reason"].split(";")[0]) == ("stop", "stopped by a signal") and checkpoints(f"sent-{sent.name}") == [last["step"]], (job.returncode, last, err))
hold = work / "hold"
for signals, code in ((2, 0), (3, 128 + signal.SIGTERM)):
    name = f"held-{signals}"
    job = start(name, env={"LD_PRELOAD": str(FAULTS), "HOLD_SAVE": str(hold)})
    job.send_signal(signal.SIGTERM)
    wait(hold.exists, job)
    job.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    ok(f"{name}: a second signal leaves the save to its end", job.poll() is None)
    if signals == 3:
        job.send_signal(signal.SIGTERM)
        job.wait(30)
    hold.unlink()
    _, err = job.communicate(timeout=60)
    ok(f"{name}: exit {code}, {'nothing' if code else 'the last step'} saved", job.returncode == code and checkpoints(name) == ([] if code else [len(metrics(name))]), (job.returncode, err))
job = start("hasty", env={"LD_PRELOAD": str(FAULTS)}, words=["--set", "model.hidden=192", "--set", "model.head_dim=48", "--set", "batch.global=256"], ready=1)
# Two of a kind could become one, and a step might end between two with a pause.
job.send_signal(signal.SIGINT)
job.send_signal(signal.SIGTERM)
job.communicate(timeout=60)
ok("two signals within a step end it at once", job.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM) and checkpoints("hasty") == [], (job.returncode, checkpoints("hasty")))

# --- what a save needs, and what lasts as long as it does ---------------------------------------------------------------------------------
log = work / "syncs.txt"
job = start("needs", env={"LD_PRELOAD": str(FAULTS), "LOG_SYNCS": str(log)})
tokenizer = (work / "tok.json").read_bytes()
for name in ("tok.json", "long.toml", "base.toml"):
    (work / name).rename(work / f"{name}.gone")
stop(job)
for name in ("tok.json", "long.toml", "base.toml"):
    (work / f"{name}.gone").rename(work / name)
saved = work / f"runs/needs/checkpoints/step-{len(metrics('needs')):09}"
ok("a save needs neither tokenizer nor configuration to be there still", (saved / "tokenizer.json").read_bytes() == tokenizer and (saved / "config.toml").exists())
calls = log.read_text().splitlines()
published = next(i for i, x in enumerate(calls) if x.startswith("rename") and x.endswith(f"/{saved.name}"))
for name in ("metrics.jsonl", "events.jsonl", "energy.jsonl"):
    ok(f"{name} is on disk before the checkpoint is", f"sync {work}/runs/needs/{name}" in calls[:published], calls[:published])
ok("metrics.prom is written with each step and not synced", not any("metrics.prom" in x for x in calls if x.startswith("sync")) and sum(x.endswith("/metrics.prom") for x in calls) == len(metrics("needs")), calls[:20])

log = work / "each.txt"
words = ["train", "long.toml", *(x for s in ("run.name=each", 'checkpoint.every="2 steps"', 'train.stop_after="6 steps"') for x in ("--set", s))]
subprocess.run([MOLEN, *words], cwd=work, env=ENV | {"LD_PRELOAD": str(FAULTS), "LOG_SYNCS": str(log)}, check=True, stdout=subprocess.DEVNULL, timeout=120)
calls, begin = log.read_text().splitlines(), 0
for step in (2, 4, 6):
    published = next(i for i, x in enumerate(calls) if x.startswith("rename") and x.endswith(f"/step-{step:09}"))
    synced = {x.split("/")[-1] for x in calls[begin:published] if x.startswith(f"sync {work}/runs/each/")}
    ok(f"records are on disk before the checkpoint of step {step} is", {"metrics.jsonl", "events.jsonl", "energy.jsonl"} <= synced, calls[begin:published])
    begin = published

# --- records that cannot be written -------------------------------------------------------------------------------------------------------
def ignore_limit():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


words = ["train", "long.toml", "--set", "run.name=records", "--verbose"]
job = started([MOLEN, *words], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=ignore_limit)
said = []
reader = threading.Thread(target=lambda: said.extend(job.stdout))
reader.start()
wait(lambda: lines("records") >= 5, job)
# No file of the process may grow; its console is a pipe.
resource.prlimit(job.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
held, seen = lines("records"), len(said)
wait(lambda: len(said) > seen + 30, job)
ok("training goes on while nothing can be recorded", lines("records") <= held + 1)
resource.prlimit(job.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
wait(lambda: lines("records") >= held + 30, job)
job.send_signal(signal.SIGTERM)
job.wait(60)
reader.join()
text = re.sub(r"\n    (?=\S)", " ", "".join(said))  # long lines are broken, and go on after four blanks
warned = [x for x in text.splitlines() if "the run goes on, and tries again with each step" in x]
recorded = [json.loads(x)["step"] for x in (work / "runs/records/metrics.jsonl").read_text().splitlines()]
ok("each step is recorded once in the end", job.returncode == 0 and recorded == list(range(1, len(recorded) + 1)) and len(recorded) >= held + 30, recorded)
ok("and each file warned once", 1 <= len(warned) == len({re.search(r"runs/records/\S+", x)[0] for x in warned}) <= 3 and any("metrics.jsonl" in x for x in warned), warned)
prom = work / "runs/records/metrics.prom"
ok("metrics.prom is of the last step", f"molen_step{{run=\"records\"}} {recorded[-1]}" in prom.read_text(), prom.read_text())
# If a file that others read cannot be written, the run warns once and tries again in each step.
(work / "runs/blocked/metrics.prom").mkdir(parents=True)
(work / "runs/blocked/trace.json").mkdir()
job = started([MOLEN, *words[:2], "--set", "run.name=blocked", "--set", "train.trace_steps=[2, 3]"], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
said = []
reader = threading.Thread(target=lambda: said.extend(job.stdout))
reader.start()
wait(lambda: lines("blocked") >= 8, job)
(work / "runs/blocked/metrics.prom").rmdir()
wait((work / "runs/blocked/metrics.prom").is_file, job)
job.send_signal(signal.SIGTERM)
job.wait(60)
reader.join()
ok("files that cannot be written end no training, are told once and tried again", job.returncode == 0 and "".join(said).count("the run goes on, and tries") == 1 and checkpoints("blocked") == [len(metrics("blocked"))], said)

# A run whose directory has no room at the start: no file grows beyond 2,000 bytes, so its owner can be entered, and little else.
def hardly_any_room():
    ignore_limit()
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))


job = started([MOLEN, *words[:2], "--set", "run.name=full", "--verbose"], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=hardly_any_room)
said = []
reader = threading.Thread(target=lambda: said.extend(job.stdout))
reader.start()
wait(lambda: sum(x.startswith("step ") for x in said) >= 20, job)
full = work / "runs/full"
written_once = ["config.toml", "environment.json", "program.txt"]
ok("training begins though its directory has no room", not all((full / x).is_file() for x in written_once), said)
resource.prlimit(job.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
wait(lambda: all((full / x).is_file() for x in written_once) and lines("full") >= 30, job)
job.send_signal(signal.SIGTERM)
job.wait(60)
reader.join()
text = re.sub(r"\n    (?=\S)", " ", "".join(said))
ok("it says that nobody watches its ranks", text.count("the run goes on without a flight recorder") == 1, text)
ok("and the files follow once there is room", job.returncode == 0 and "run.name" not in (full / "config.toml").read_text() and "body" in (full / "program.txt").read_text() and checkpoints("full") == [len(metrics("full"))], said)
finish("owners")
