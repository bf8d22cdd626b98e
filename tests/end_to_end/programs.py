#!/usr/bin/env python3
"""The two programs of the command line: molen is free of libtorch, and becomes molen-compute for commands that compute.

usage: programs.py MOLEN
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from harness import ENV, MOLEN, finish, ok, run, shards, started, work

COMPUTE = pathlib.Path(MOLEN).with_name("molen-compute")
LIBTORCH = ("libtorch", "libc10")
shards()
FP32 = ["--set", "precision.compute=fp32"]
SMALL = ["--model", "llama-tiny", *FP32]


def loaded(*words, code=0):
    """The names of the shared libraries that a command loads, as the dynamic linker tells them."""
    log = work / "loaded"
    r = subprocess.run([MOLEN, *map(str, words)], cwd=work, env=ENV | {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(log)}, capture_output=True, text=True, timeout=300)
    assert r.returncode == code, f"molen {' '.join(map(str, words))}: exit {r.returncode}\n{r.stdout}\n{r.stderr}"
    names = set()
    for file in work.glob("loaded.*"):
        names |= {line.split("calling init: ")[1].rsplit("/", 1)[-1].strip() for line in file.read_text(errors="replace").splitlines() if "calling init: " in line}
        file.unlink()
    assert any(n.startswith("libc.so") for n in names), names
    return names


CUDA = json.loads(run("doctor", "--format", "json").stdout)["cuda"]


def heavy(names):
    return sorted(n for n in names if n.startswith(LIBTORCH))


# --- who loads libtorch --------------------------------------------------------------------------------------------------------
run("train", "run.toml", "--set", "run.name=one", "--set", 'train.stop_after="2 steps"')
for words in (["--version"], ["--help"], ["train", "--help"], ["generate", "--help"], ["model", "list"], ["config", "reference"], ["config", "show", "run.toml"],
              ["simulate", *SMALL[:2], "--cluster", "dgx-a100"], ["plan", *SMALL[:2], "--cluster", "dgx-a100", "--ranks", "2", "--simulate", "2"],
              ["sweep", *SMALL[:2], "--cluster", "dgx-a100", "--ranks", "2", "--grid", "parallel.zero=0,1"], ["program", "run.toml"], ["program", "runs/one"],
              ["verify", "run.toml", "--static", "--ranks", "2"], ["energy", "list"], ["runs", "list"], ["report", "runs/one"], ["checkpoint", "list", "runs/one"],
              ["checkpoint", "export", "runs/one", "exported"], ["checkpoint", "import", "exported", "imported"], ["data", "verify", "data", "--tokenizer", "tok.json"],
              ["tokenizer", "train", "train.jsonl", "--vocabulary", "300", "--output", "other.json"]):
    if CUDA and (words[0] == "program" or "--static" in words):  # only a libtorch for CUDA knows the devices that such a plan is for
        continue
    ok(f"{' '.join(words[:3])}: without libtorch", not (found := heavy(loaded(*words))), found)
ok("an option that is refused: without libtorch", not heavy(loaded("train", "run.toml", "--resmue", "never", code=2)))
# These commands compute, or need a run to know their answer, so molen-compute answers.
for words, code in ((["doctor"], 0), (["generate", "runs/one", "--prompt", "de", "--max-tokens", "2"], 0), (["bench", "run.toml", "--steps", "1"], 0), (["verify", "run.toml", "--ranks", "2", "--layouts", "given", "--steps", "1"], 0),
                    (["train", "nowhere.toml"], 2), (["program", "run.toml", "--set", "precision.compute=auto"], 0)):
    ok(f"{' '.join(words[:2])}: with libtorch", any(n.startswith("libtorch_cpu") for n in loaded(*words, code=code)))
ok("program: the measured choice of a type", "(measured on " in run("program", "run.toml", "--set", "precision.compute=auto").stdout)
same = subprocess.run([COMPUTE, "--help"], capture_output=True, text=True, env=ENV)
ok("both programs have the same commands", same.returncode == 0 and same.stdout.split("Usage:")[1].split("\n", 1)[1] == run("--help").stdout.split("Usage:")[1].split("\n", 1)[1], same.stdout)

# --- the process stays the same one ---------------------------------------------------------------------------------------------
LONG = ["bench", "run.toml", "--steps", "1000000"]
with open(work / "base.toml") as file:
    r = subprocess.run([MOLEN, "bench", "/dev/stdin", "--steps", "1"], cwd=work, env=ENV, stdin=file, capture_output=True, text=True, timeout=300)
ok("standard input is for the command", r.returncode == 0 and '"median_s"' in r.stdout, r.stderr)


def computes(pid):
    """Waits until the process has become molen-compute."""
    for _ in range(600):
        if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == COMPUTE.name:
            return
        time.sleep(0.05)
    raise AssertionError(f"{pid} is still {os.readlink(f'/proc/{pid}/exe')}")


def lives(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


job = started([MOLEN, *LONG], env=ENV, start_new_session=True, stdout=subprocess.DEVNULL)
computes(job.pid)
ok("the words are the user's", pathlib.Path(f"/proc/{job.pid}/cmdline").read_text().split("\0")[:-1] == [MOLEN, *LONG])
ok("the group is the starter's", os.getpgid(job.pid) == job.pid)
os.killpg(job.pid, signal.SIGINT)
ok("a signal to the group ends it", job.wait(timeout=60) == -signal.SIGINT)
job = started([MOLEN, "train", "run.toml", "--set", "run.name=stopped", "--set", 'train.until="1000000 steps"'], env=ENV, stdout=subprocess.PIPE)
for line in job.stdout:
    if "step 3" in " ".join(line.split()):
        break
job.terminate()
rest = job.communicate(timeout=120)[0]
ok("a training that is asked to end saves and ends well", job.returncode == 0 and list((work / "runs/stopped/checkpoints").glob("step-*")), rest)

STARTER = """
import ctypes, signal, subprocess, sys, time
def ends_with_us():
    assert ctypes.CDLL(None).prctl(1, signal.SIGKILL) == 0  # PR_SET_PDEATHSIG
print(subprocess.Popen(sys.argv[1:], preexec_fn=ends_with_us, stdout=subprocess.DEVNULL).pid, flush=True)
time.sleep(600)
"""
starter = started([sys.executable, "-c", STARTER, MOLEN, *LONG], env=ENV, stdout=subprocess.PIPE)
child = int(starter.stdout.readline())
computes(child)
starter.kill()
starter.wait()
for _ in range(200):
    if not lives(child):
        break
    time.sleep(0.05)
ok("the signal at the end of the parent is kept", not lives(child))

# --- where molen-compute is looked for ------------------------------------------------------------------------------------------
alone = work / "alone/molen"
alone.parent.mkdir()
shutil.copy2(MOLEN, alone)


def by_alone(*words):
    return subprocess.run([alone, *words], cwd=work, env=ENV, capture_output=True, text=True, timeout=300)


ok("molen alone: a command that computes nothing", by_alone("simulate", *SMALL[:2], "--cluster", "dgx-a100").returncode == 0)
for words in (["train", "run.toml"], ["doctor"], ["generate", "runs/one"]):
    r = by_alone(*words)
    ok(f"molen alone: {words[0]} says what is missing, where, and what to do",
       r.returncode == 2 and r.stdout == "" and len(r.stderr.splitlines()) == 1 and f"{alone}-compute: no such file" in r.stderr and "make build" in r.stderr and "cmake --install" in r.stderr, r.stderr)
alone.with_name("molen-compute").write_text("text\n")
r = by_alone("doctor")
ok("molen-compute that cannot be started", r.returncode == 1 and r.stderr.startswith(f"molen: {alone}-compute: cannot be started: ") and len(r.stderr.splitlines()) == 1, r.stderr)

build = pathlib.Path(MOLEN).parents[2]
installed = subprocess.run(["cmake", "--install", build, "--component", "molen", "--prefix", work / "prefix"], capture_output=True, text=True)
ok("the installation", installed.returncode == 0 and sorted(p.name for p in (work / "prefix/bin").iterdir()) == ["molen", "molen-compute"], installed.stdout + installed.stderr)
(work / "links").mkdir()
(work / "links/molen").symlink_to(work / "prefix/bin/molen")
r = subprocess.run(["molen", "bench", "run.toml", "--steps", "1"], cwd=work, env=ENV | {"PATH": f"{work}/links:{ENV['PATH']}"}, capture_output=True, text=True, timeout=300)
ok("the installed program computes, found by PATH and through a link", r.returncode == 0 and '"median_s"' in r.stdout, r.stderr)

finish("programs")
