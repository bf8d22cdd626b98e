"""Shared by the end to end tests: the program, a directory of its own with small made-up text as shards, and checks.

usage of each test: TEST.py MOLEN   (needs no network)
"""
import atexit
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

MOLEN = str(pathlib.Path(sys.argv[1]).resolve())
EXHAUSTIVE = "MOLEN_EXHAUSTIVE" in os.environ  # all cases, as in `tools/nightly.sh exhaustive`; without it a part of the long lists
SKIPPED = 77  # the exit status that CMake's SKIP_RETURN_CODE names
root = pathlib.Path(tempfile.mkdtemp(prefix="molen_e2e_"))


class Folder(os.PathLike):
    """The directory that a test works in: `root`, or the thread's own one between `enter` and `leave`."""

    def __init__(self):
        self.threads = threading.local()

    @property
    def path(self):
        return getattr(self.threads, "path", root)

    def enter(self, name):
        """A new directory with a copy of all that `root` has, but for the caches: tests that run side by side share no other file."""
        path = root / "rows" / name
        shutil.copytree(root, path, ignore=lambda folder, _: {"rows", "cache"} if pathlib.Path(folder) == root else ())
        self.threads.path = path

    def leave(self):
        self.threads.__dict__.pop("path", None)

    def __truediv__(self, name):
        return self.path / name

    def __fspath__(self):
        return str(self.path)

    __str__ = __fspath__

    def __getattr__(self, name):
        return getattr(self.path, name)


work = Folder()
DEVICES = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")}
# Programs see no device: what a check expects must not depend on the machine. gpu.py shows them (show_devices).
ENV = dict(os.environ, **dict.fromkeys(DEVICES, ""), OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1", XDG_CACHE_HOME=str(root / "cache"))
checks = 0
skips = []
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the programs started here would ignore it

BASE = """
[model]
family = "llama"
layers = 2
hidden = 48
ffn = 80
heads = 4
kv_heads = 2
head_dim = 12
vocabulary = 320
max_sequence = 64
[data]
train = [{ path = "data/train" }]
validation = [{ path = "held/heldout" }]
tokenizer = "tok.json"
sequence_length = 48
[batch]
global = 8
micro = 2
[schedule]
warmup = "3 steps"
[optimizer]
lr = 3e-3
[precision]
compute = "fp32"
[math]
threads = 1
"""


def show_devices():
    for name, value in DEVICES.items():
        ENV.pop(name, None)
        if value is not None:
            ENV[name] = value


def run(*args, code=0, stdin=None, launcher=()):
    r = subprocess.run([*launcher, MOLEN, *map(str, args)], cwd=work, env=ENV, input=stdin, capture_output=True, text=True, timeout=300)
    assert r.returncode == code, f"molen {' '.join(map(str, args))}: exit {r.returncode}, expected {code}\n{r.stdout}\n{r.stderr}"
    return r


def started(words, **more):
    """A program that goes on beside the test, in the test's directory, and ends with it where a check has failed."""
    job = subprocess.Popen([str(w) for w in words], cwd=work, text=True, **more)

    def end():
        if job.poll() is None:
            job.terminate()  # mpirun then ends its ranks
            try:
                job.wait(timeout=5)
            except subprocess.TimeoutExpired:
                job.kill()

    atexit.register(end)
    return job


def ok(name, condition, detail=""):
    global checks
    checks += 1
    assert condition, f"{name}: {detail}"
    print(f"ok  {name}", flush=True)


def refused(name, *args, says, code=2, launcher=()):
    def written():  # but what is remembered of a machine, such as shards that were verified
        return {p: p.stat().st_mtime_ns for p in root.rglob("*") if root / "cache" not in p.parents and p.is_file()}

    before = written()
    r = run(*args, code=code, launcher=launcher)
    after = written()
    ok(name, all(s in r.stderr for s in says) and r.stderr.count("molen:") == 1, r.stderr)
    ok(name + ": nothing written over", all(after.get(p) == t for p, t in before.items()), [p for p, t in before.items() if after.get(p) != t])


def skip(what, why):
    """A check that cannot be made here, for want of a right or of hardware. The test ends as skipped, and tests/suites.json must allow it."""
    skips.append(what)
    print(f"SKIPPED {what}: {why}", flush=True)


@functools.cache
def built_with_mpi():
    if not (built := json.loads(run("doctor", "--format", "json").stdout)["mpi"]):
        skip("MPI ranks", "molen was built without MPI")
    return built


def mpirun(ranks):
    """The launcher of so many ranks; None, and a skip, where the build has no MPI. Where it has, a launcher that is missing is a failure."""
    if not built_with_mpi():
        return None
    assert shutil.which("mpirun"), "mpirun is missing; tools/setup.sh installs it"
    return ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"]


def metrics(name):
    lines = [json.loads(x) for x in (work / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    return {m["step"]: m for m in lines}


def finish(name):
    shutil.rmtree(root)
    print(f"{name}: {checks} checks passed" + (f", {len(skips)} skipped" if skips else ""))
    sys.exit(SKIPPED if skips else 0)


def shards():
    """tok.json, data/train and held/heldout, and run.toml: 24 steps of a two-layer model on them."""
    rng = random.Random(7)
    words = ["de", "het", "een", "molen", "wind", "water", "land", "the", "mill", "turns", "and", "of", "in", "grain", "naar", "voor", "niet"]
    for split, count in (("train", 260), ("held", 40)):
        with open(work / f"{split}.jsonl", "w") as f:
            for i in range(count):
                f.write(json.dumps({"text": " ".join(rng.choice(words) + ("." if rng.random() < 0.1 else "") for _ in range(120)), "language": "nl"}) + "\n")
    run("tokenizer", "train", "train.jsonl", "--vocabulary", 320, "--output", "tok.json")
    run("data", "prepare", "train.jsonl", "--licence", "CC0-1.0", "--output", "data", "--tokenizer", "tok.json")
    run("data", "prepare", "held.jsonl", "--licence", "CC0-1.0", "--split", "heldout", "--output", "held", "--tokenizer", "tok.json")
    run("data", "verify", "data", "--tokenizer", "tok.json")
    (work / "base.toml").write_text(BASE)
    (work / "run.toml").write_text('extends = "base.toml"\n[train]\nuntil = "24 steps"\nvalidate_every = "12 steps"\n[checkpoint]\nevery = "6 steps"\nkeep = 10\n')
