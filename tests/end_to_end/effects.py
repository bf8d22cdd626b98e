"""A table of what users can set and what each setting does: rows that measure an effect by its amount, and a run of all of them.

A row is a function under @row("optimizer.clip", ...) or @row("train --resume", ...). It gets a Case, whose `molen` and `train` start
the program. A row fails where the amount is not the one that the documentation says, and where it never set what it stands for; the
table fails where anything that the program lists has no row, and where a row stands for something that the program does not list.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time
import traceback

from harness import ENV, MOLEN, root, work

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
rows = []
HANGS_S = 1200  # a command that takes this long hangs; a calibration beside other work on two cores takes more than 240 s

TINY = """
[model]
family = "llama"
layers = 2
hidden = 24
ffn = 40
heads = 4
kv_heads = 2
head_dim = 6
vocabulary = 320
max_sequence = 64
[data]
train = [{ path = "data/train" }]
tokenizer = "tok.json"
sequence_length = 16
[batch]
global = 4
micro = 2
[optimizer]
lr = 1e-2
[schedule]
warmup = "2 steps"
[train]
until = "4 steps"
[precision]
compute = "fp64"
[math]
threads = 1
[energy]
meters = ["none"]
"""
# The same model as the tests describe it themselves, for the oracle.
TINY_MODEL = dict(family="llama", layers=2, hidden=24, ffn=40, heads=4, kv_heads=2, head_dim=6, vocabulary=320)


def row(*names):
    def add(function):
        rows.append((names, function))
        return function

    return add


def toml(value):
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def lines_of(path):
    return [json.loads(x) for x in pathlib.Path(path).read_text().splitlines()]


class Run:
    """A training that has ended."""

    def __init__(self, path, result):
        self.path, self.out, self.err = path, result.stdout, result.stderr

    @property
    def steps(self):
        return lines_of(self.path / "metrics.jsonl")

    def column(self, name):
        return [m[name] for m in self.steps]

    def events(self, kind):
        return [e for e in lines_of(self.path / "events.jsonl") if e["event"] == kind]

    def checkpoints(self):
        return sorted(int(p.name[5:]) for p in (self.path / "checkpoints").glob("step-?????????"))

    def checkpoint(self, step):
        return self.path / f"checkpoints/step-{step:09}"


class Case:
    def __init__(self, name):
        self.name, self.used, self.runs = re.sub(r"\W+", "-", name), set(), 0

    def molen(self, *args, code=0, stdin=None, launcher=(), env=None):
        """`args`: words; a dictionary among them is `--set key=value` for each. Exit code 2 or 1 gives the error."""
        words = self.words_of(args)
        r = subprocess.run([*launcher, MOLEN, *words], cwd=work, env={**ENV, **(env or {})}, input=stdin, capture_output=True, text=True, timeout=HANGS_S)
        assert r.returncode == code, f"molen {' '.join(words)}: exit {r.returncode}, expected {code}\n{r.stdout[-3000:]}\n{r.stderr[-3000:]}"
        return r

    def words_of(self, args):
        words = []
        for a in args:
            words += [x for k, v in a.items() for x in ("--set", f"{k}={toml(v)}")] if isinstance(a, dict) else [str(a)]
        self.note(words)
        return words

    def terminal(self, *args):
        """The lines that a terminal of 100 columns gets; a line that is rewritten is one each time."""
        command = f"stty cols 100; {shlex.join([MOLEN, *self.words_of(args)])}"
        done = subprocess.run(["script", "-qec", command, "/dev/null"], cwd=work, env={**ENV, "TERM": "dumb"}, stdin=subprocess.DEVNULL, capture_output=True, timeout=HANGS_S)
        assert done.returncode == 0, done.stdout
        return done.stdout.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n")

    def progress(self, stage, *args):
        """Shares in percent that the command's rewritten line says of `stage`, as `molen verify layouts`."""
        lines = [x for x in self.terminal(*args) if x.startswith(f"{stage} [")]
        whole = [re.match(rf"{stage} \[[#-]+\] (\d+)%(?: \| [^|]+)?(?: \| eta [\d:]+)?$", x.rstrip()) for x in lines]
        assert all(whole) and max(map(len, lines)) <= 100, lines
        shares = [int(m[1]) for m in whole]
        assert shares == sorted(shares) and len(set(shares)) > 1, lines
        return shares

    def note(self, words):
        verb = []
        for word in words:
            if word.startswith("-") or word not in VERBS.get(" ".join(verb), ()):
                break
            verb.append(word)
        name = " ".join(verb)
        self.used |= {f"{name} {w.split('=')[0]}".strip() for w in words if re.match(r"--?[a-z]", w)}
        self.used |= {w.split("=")[0] for before, w in zip(words, words[1:]) if before == "--set"}

    def train(self, *args, name=None, config="tiny.toml", **more):
        if name is None:
            self.runs += 1
            name = f"{self.name}-{self.runs}"
        named = () if any(isinstance(a, dict) and ("run.name" in a or "run.dir" in a) for a in args) else ({"run.name": name},)
        return Run(work / "runs" / name, self.molen("train", *([config] if config else []), *named, *args, **more))

    def refused(self, *args, says, code=2, **more):
        r = self.molen(*args, code=code, **more)
        assert all(s in r.stderr for s in ([says] if isinstance(says, str) else says)), r.stderr

    def program(self, *args, config="tiny.toml"):
        return Program(self.molen("program", config, *args).stdout)


class Program:
    """The text of docs/formats/program.md: header, buffers, and ops as dictionaries with how often each runs in a step."""

    def __init__(self, text):
        self.text, self.ops, self.buffers, body = text, [], {}, None
        lines = text.splitlines()
        self.schedule = next(x for x in lines if x.startswith("schedule ")).split()[1:]
        for words in (x.split("#")[0].split() for x in lines):
            if words[0:1] == ["buffer"]:
                self.buffers[words[1]] = (words[2], int(words[3]), words[4:])
            elif words[0:1] == ["setting"]:
                self.setting = dict(w.split("=", 1) for w in words[1:])
            elif words[0:1] == ["body"]:
                body = words[1]
            elif words and words[0].startswith("%"):
                times = sum(x.split(":")[0] == body for x in self.schedule)
                self.ops.append({"body": body, "kind": words[1], "times": times, **dict(w.split("=", 1) for w in words[2:])})
        self.arch = json.loads(next(x for x in lines if x.startswith("arch "))[5:])

    def count(self, kind, **words):
        """How often such an op runs in a step."""
        return sum(o["times"] for o in self.ops if o["kind"] == kind and all(o.get(k) == str(v) for k, v in words.items()))

    def moved(self, kind, **words):
        return sum(o["times"] * int(o["moved"]) for o in self.ops if o["kind"] == kind and all(o.get(k) == str(v) for k, v in words.items()))


def help_of(path):
    return subprocess.run([MOLEN, *path, "--help"], capture_output=True, text=True, env=ENV).stdout


def walk(path=()):
    """Every command with the options of its --help; the positionals of those that have no commands below them."""
    text = help_of(path)
    below = re.findall(r"^  (\S+)\s", text.split("Subcommands:\n")[1], re.M) if "Subcommands:" in text else []
    VERBS[" ".join(path)] = below
    options = [o for names in re.findall(r"^  (-[\w,-]+)", text, re.M) for o in names.split(",") if o.startswith("--") and o != "--help"]
    yield " ".join(path), [] if below else re.findall(r"^  ([A-Z][A-Z_]+) ", text, re.M), options
    for verb in below:
        yield from walk((*path, verb))


VERBS = {}  # of each command those below it, once `walk` was there


def close(name, a, b, relative=1e-9, absolute=0.0):
    assert abs(a - b) <= relative * abs(b) + absolute, f"{name}: {a!r} where {b!r} is expected"


def all_close(name, a, b, relative=1e-9, absolute=0.0):
    assert len(a) == len(b) > 0, f"{name}: {len(a)} values where {len(b)} are expected"
    for i, (x, y) in enumerate(zip(a, b)):
        close(f"{name}[{i}]", x, y, relative, absolute)


def equal(name, a, b):
    assert a == b, f"{name}: {a!r} where {b!r} is expected"


def run_table(what, listed):
    """All rows, two at a time; `only` of MOLEN_ROWS, a regular expression, where one row is looked at."""
    only = re.compile(os.environ.get("MOLEN_ROWS", ""))
    known, stood = set(listed), [n for names, _ in rows for n in names]
    failures = [f"{n}: no row of the table measures its effect" for n in sorted(known - set(stood))]
    failures += [f"{n}: the table has a row, the program does not list it" for n in sorted(set(stood) - known)]

    def measure(entry):
        names, function = entry
        case, start = Case(function.__name__), time.monotonic()
        try:
            work.enter(f"{rows.index(entry)}-{function.__name__}")
            function(case)
            unset = [n for n in names if n not in case.used]
            return f"never set: {', '.join(unset)}" if unset else None, time.monotonic() - start
        except Exception:
            return traceback.format_exc(limit=-3), time.monotonic() - start
        finally:
            work.leave()

    chosen = [e for e in rows if only.search(" ".join(e[0]) + " " + e[1].__name__)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for (names, function), (failure, seconds) in zip(chosen, pool.map(measure, chosen)):
            print(f"{'ok  ' if failure is None else 'FAIL'} {seconds:5.1f} s  {function.__name__}: {', '.join(names)}", flush=True)
            if failure and "MOLEN_ROWS_UNTIL_ONE_FAILS" in os.environ:
                os._exit(1)  # of tools/mutate.py, which ends what other rows have started and removes what they wrote
            if failure:
                failures.append(f"{function.__name__} ({', '.join(names)}): {failure}")
    if failures:
        print("\n" + "\n".join(failures))
        sys.exit(f"{what}: {len(failures)} failures; the files are in {root / 'rows'}")
    shutil.rmtree(root)
    print(f"{what}: {len(chosen)} rows measure the effect of {len({n for names, _ in chosen for n in names})} of {len(known)}")
