#!/usr/bin/env python3
"""Ranks that die, stop or hang under mpirun: noticed in time, and named with their op.

usage: flight.py MOLEN
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import time

from harness import ENV, MOLEN, finish, mpirun, ok, run, shards, started, work

if not mpirun(2):
    finish("flight")
shards()
LONG = ["train", "run.toml", "--set", 'train.until="1000000 steps"', "--set", 'train.validate_every="1000000 steps"', "--set", 'checkpoint.every="1000000 steps"']


def until(what, condition, seconds=60.0):
    """Polls; returns what `condition` returned once that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def steps(name):
    path = work / "runs" / name / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def start(name, ranks, *sets):
    words = [*mpirun(ranks), MOLEN, *LONG, "--set", f"run.name={name}", *(x for s in sets for x in ("--set", s))]
    job = started(words, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    until("five steps", lambda: steps(name) >= 5 or job.poll() is not None)
    assert job.poll() is None, job.communicate()
    live = flight(name)
    ok(f"{name}: a living run has its ranks", len(live["ranks"]) == ranks and {r["state"] for r in live["ranks"]} <= {"running", "waiting", "between"}, live)
    return job, [r["pid"] for r in live["ranks"]]


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def flight(name):
    return json.loads(run("runs", "flight", f"runs/{name}", "--format", "json").stdout)


def end_of(job, seconds):
    try:
        out, err = job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        raise
    return job.returncode, out, err


# --- a rank is killed: mpirun ends the others about a second later, unless they do so first; what is in the files suffices ----
job, pids = start("killed", 3, "parallel.zero=1")
os.kill(pids[1], signal.SIGKILL)
code, out, err = end_of(job, 60)
ok("killed: the job fails", code != 0, code)
f = flight("killed")
ok("killed: the files name the dead rank", f["culprits"] == [1] and f["ranks"][1]["state"] == "dead" and {r["state"] for r in f["ranks"]} <= {"dead", "alarmed"}, json.dumps(f, indent=1))
ok("killed: at most one report, of that rank", err.count("molen: ") <= 1 and (f["report"] is None or "rank 1 (" in (work / f["report"]).read_text().splitlines()[3]), err)
dead = f["ranks"][1]
ok("killed: and its op in the program", dead["op"] is not None and dead["step"] >= 5 and dead["text"].split(" of ")[0] in next(x for x in dead["excerpt"].splitlines() if x.endswith("<-- here")), dead)
ok("killed: nearly all records are whole", all(s["torn"] <= 1 and s["readable"] > 10 for r in f["ranks"] for s in r["streams"]), f["ranks"])
text = run("runs", "flight", "runs/killed").stdout
ok("killed: the table", "rank 1 " in text.splitlines()[0] and "<-- here" in text and "last heartbeat" in text, text)

# --- a rank is stopped: nobody else would ever notice ------------------------------------------------------------------------
def stopped(name, limit, *sets):
    job, pids = start(name, 2, *sets)
    os.kill(pids[1], signal.SIGSTOP)
    begun = time.monotonic()
    report = work / f"runs/{name}/flight/report-1.txt"
    until("the report", lambda: report.exists() and "<-- here" in report.read_text(), limit + 26)
    took = time.monotonic() - begun
    code, out, err = end_of(job, 60)
    # The limit runs from the last progress; the other rank may get as far as a step first.
    ok(f"{name}: reported after {took:.1f} s", took < limit + 2.0, took)
    ok(f"{name}: the job fails with one error", code != 0 and err.count("molen: ") == 1 and "rank 1" in err and "stopped" in err and "report: " in err, err)
    said = report.read_text()
    # Where the signal finds rank 1 behind its part of the step's last collective, rank 0 ends the step and then waits outside of the
    # program, for the sums of the step's record: it is hung after an op, rather than waiting in one.
    waits = "rank 0 waits in op" in said or re.search(r"^ +0 .* hung: after op \d+ ", said, re.M)
    ok(f"{name}: the report", "written by rank 0" in said and "stopped" in said and waits and said.count("<-- here") >= 1, said)
    until("no rank is left", lambda: not any(alive(p) for p in pids), 20)
    f = flight(name)
    ok(f"{name}: the files still name it", f["culprits"] == [1] and f["report"].endswith("report-1.txt"), f)


stopped("stopped", 4.0, 'train.hang_timeout="4 s"')
if os.environ.get("MOLEN_NIGHTLY"):
    stopped("shipped", 30.0)  # the limit of a run that says none; steps here take milliseconds

# --- a short limit is no false alarm: validation, checkpoints and the start are not steps --------------------------------------
r = run("train", "run.toml", "--set", "run.name=well", "--set", 'train.hang_timeout="2 s"', "--set", 'train.validate_every="2 steps"', "--set", 'checkpoint.every="2 steps"', "--save-initial", launcher=mpirun(2))
f = flight("well")
ok("well: ended by itself", f["culprits"] == [] and f["summary"] == "all ranks ended by themselves" and f["report"] is None, f)
run("train", "run.toml", "--set", "run.name=well", "--set", 'train.until="30 steps"', "--allow-change", "train.until", "--ranks", "3")
f = flight("well")
ok("well: another attempt on other ranks has its own records", [r["attempt"] for r in f["ranks"]] == [2, 2, 2], f)
run("runs", "flight", "data", code=2)
finish("flight")
