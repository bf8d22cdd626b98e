#!/usr/bin/env python3
"""Tests from which checkpoint a run continues: histories that --resume begins, damaged checkpoints, those of another run, and starts that end in the middle.

usage: histories.py MOLEN
"""
import json
import pathlib
import shutil
import subprocess

from harness import ENV, MOLEN, finish, metrics, mpirun, ok, run, shards, work

shards()
(work / "short.toml").write_text('extends = "base.toml"\n[train]\nuntil = "12 steps"\nvalidate_every = "4 steps"\n[checkpoint]\nevery = "4 steps"\nkeep = 2\n[energy]\nmeters = ["none"]\n')
FAULTS = work / "faults.so"
subprocess.run(["cc", "-shared", "-fPIC", "-o", FAULTS, pathlib.Path(__file__).with_name("faults.c"), "-ldl"], check=True)


def train(name, *words, sets=(), code=0, launcher=(), env=None):
    words = ["train", "short.toml", *words, *(x for s in (f"run.name={name}", *sets) for x in ("--set", s))]
    r = subprocess.run([*launcher, MOLEN, *map(str, words)], cwd=work, env=ENV | (env or {}), capture_output=True, text=True, timeout=300)
    assert r.returncode == code, f"{words}: exit {r.returncode}, expected {code}\n{r.stdout}\n{r.stderr}"
    return r


STOP = ('train.stop_after="4 steps"',)


def there(name):
    """Returns the entries of a run's directory of checkpoints, without leases."""
    return sorted(p.name.replace("step-0000000", "") for p in (work / "runs" / name / "checkpoints").iterdir() if p.name.startswith("step-"))


def events(name, kind):
    return [e for e in map(json.loads, (work / "runs" / name / "events.jsonl").read_text().splitlines()) if e["event"] == kind]


def steps(name):
    return [json.loads(x)["step"] for x in (work / "runs" / name / "metrics.jsonl").read_text().splitlines()]


def identity(name):
    return json.loads((work / "runs" / name / "run.json").read_text())


def flip(name, step, file):
    path = work / f"runs/{name}/checkpoints/step-{step:09}/{file}"
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)


def held_out(name):
    """The steps of the report's curve of held-out loss."""
    run("report", f"runs/{name}")
    page = (work / f"runs/{name}/report.html").read_text()
    data = json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])
    return data["charts"][0]["series"][1]["x"]


def copy(source, name):
    shutil.copytree(work / "runs" / source, work / "runs" / name)


# --- begun anew ---------------------------------------------------------------------------------------------------------------------------
train("whole")
ok("keep = 2", there("whole") == ["08", "12"], there("whole"))
copy("whole", "anew")
r = train("anew", "--resume", "never", sets=STOP)
ok("never: both are kept aside by name", there("anew") == ["04", "08.abandoned-2", "12.abandoned-2"], there("anew"))
ok("never: it is said", "history 2 of this run begins anew" in r.stderr and "steps 8, 12 now end in '.abandoned-2'" in r.stderr, r.stderr)
ok("never: and recorded", [(e["history"], e["from_step"], e["abandoned"]) for e in events("anew", "history")] == [(2, None, [12, 8])], events("anew", "history"))
ok("never: run.json", [(h["from_step"], h["settled"]) for h in identity("anew")["histories"]] == [(-1, True), (-1, True)] and identity("anew")["attempts"] == 2, identity("anew"))
ok("never: the course is the new one", steps("anew") == [1, 2, 3, 4] and {(m["history"], m["attempt"]) for m in metrics("anew").values()} == {(2, 2)}, metrics("anew"))
ok("never: the old one is kept", len((work / "runs/anew/metrics.jsonl.abandoned-2").read_text().splitlines()) == 12 and (work / "runs/anew/tensorboard.abandoned-2").is_dir())
ok("never: runs show", json.loads(run("runs", "show", "runs/anew", "--format", "json").stdout)["step"] == 4)
ok("never: the report", held_out("anew") == [4] and held_out("whole") == [4, 8, 12], (held_out("anew"), held_out("whole")))
r = train("anew")
ok("the next start goes on from 4", "continues after step 4" in r.stdout and events("anew", "resume")[-1]["step"] == 4, r.stdout)
ok("keep counts what is not abandoned", there("anew") == ["08", "08.abandoned-2", "12", "12.abandoned-2"], there("anew"))
ok("the same course", "identical: 12 steps" in run("runs", "compare", "runs/whole", "runs/anew").stdout)
r = train("first", "--resume", "never", sets=STOP)
ok("never in a new directory leaves nothing behind", len(identity("first")["histories"]) == 1 and not events("first", "history") and r.stderr == "", r.stderr)

# --- from a step --------------------------------------------------------------------------------------------------------------------------
train("all", sets=("checkpoint.keep=0",))
copy("all", "back")
r = train("back", "--resume", 4, sets=('train.stop_after="6 steps"',))
ok("a step: those beyond are kept aside", there("back") == ["04", "06", "08.abandoned-2", "12.abandoned-2"], there("back"))
ok("a step: lines beyond it too", steps("back") == [1, 2, 3, 4, 5, 6] and held_out("back") == [4, 6], (steps("back"), held_out("back")))
oracle, python = (pathlib.Path(__file__).resolve().parents[n] / x for n, x in ((1, "oracle/tensorboard_read.py"), (2, ".venv/bin/python")))
t = subprocess.run([python, oracle, work / "runs/back/tensorboard", "--tag", "loss_metrics/global_avg_loss", "--last", "6", "--resumed", "5"], capture_output=True, text=True)
ok("a step: TensorBoard shows the new course alone", t.returncode == 0, t.stdout + t.stderr)
train("back")
ok("a step: auto goes on from the new course", events("back", "resume")[-1]["step"] == 6 and "identical" in run("runs", "compare", "runs/whole", "runs/back").stdout, there("back"))
r = train("back", "--resume", 9, code=2)
ok("no such step: nothing moves", "holds no checkpoint of this step" in r.stderr and there("back") == ["08", "08.abandoned-2", "12", "12.abandoned-2"], there("back"))

# --- killed within the moves: whatever was moved, the next start finishes it -------------------------------------------------------------------
for words, left in ((["--resume", "never"], ["04", "04.abandoned-2", "08.abandoned-2", "12.abandoned-2"]), (["--resume", 4], ["04", "08.abandoned-2", "12.abandoned-2"])):
    for call in range(20):
        name = f"cut-{words[1]}-{call}"
        copy("all", name)
        r = subprocess.run([MOLEN, "train", "short.toml", "--set", f"run.name={name}", "--set", STOP[0], *map(str, words)], cwd=work, env=ENV | {"LD_PRELOAD": str(FAULTS), "DIE_AT_MOVE": str(call)}, capture_output=True, text=True, timeout=300)
        if r.returncode == 0:
            break
        assert r.returncode == 9, r.stderr
        dry = run("train", "short.toml", "--set", f"run.name={name}", "--dry-run").stdout
        assert ("continues from" in dry) == (words[1] == 4) and "step-000000012" not in dry and "step-000000008" not in dry, dry
        train(name, sets=STOP)
        assert there(name) == left and steps(name) == [1, 2, 3, 4], f"{call}: {there(name)} {steps(name)}"
        assert [h["settled"] for h in identity(name)["histories"]] == [True, True], identity(name)
    ok(f"{words}: killed at each of {call} moves", call == (7 if words[1] == "never" else 5), call)

# --- checkpoints that cannot be read for now, or have another version, are not damaged -------------------------------------------------------------
for number, part in enumerate(("step-000000012/state.json", "step-000000012/index.json", ".safetensors")):
    name = f"unreadable-{number}"
    copy("all", name)
    r = train(name, sets=("checkpoint.keep=0",), env={"LD_PRELOAD": str(FAULTS), "FAIL_OPEN": part}, code=1)
    ok(f"{part} cannot be read: the start fails and moves nothing", "Input/output error" in r.stderr and part.strip("/") in r.stderr and there(name) == there("all") and steps(name) == steps("all"), (r.stderr, there(name)))
    train(name, sets=("checkpoint.keep=0",))
    ok("and the next one goes on from the newest", events(name, "resume")[-1]["step"] == 12 and there(name) == there("all"), events(name, "resume"))
copy("all", "newer")
state = work / "runs/newer/checkpoints/step-000000012/state.json"
assert state.read_text().count('"format_version": 2') == 1
state.write_text(state.read_text().replace('"format_version": 2', '"format_version": 9'))
r = train("newer", code=1)
ok("another version: the start fails and moves nothing", "version" in r.stderr and "step-000000012" in r.stderr and there("newer") == there("all") and steps("newer") == steps("all"), (r.stderr, there("newer")))

# --- other data under the same name -------------------------------------------------------------------------------------------------------------
data = ('data.train=[{ path = "swapped/train" }]',)
shutil.copytree(work / "data", work / "swapped")
train("swap", sets=(*data, *STOP))
shutil.rmtree(work / "swapped")
run("data", "prepare", "held.jsonl", "--licence", "CC0-1.0", "--output", "swapped", "--tokenizer", "tok.json")
r = train("swap", sets=data, code=2)
ok("shards that were made again from another text: refused", "the training data is not what this run was trained on so far" in " ".join(r.stderr.split()) and steps("swap") == [1, 2, 3, 4], r.stderr)
train("swap", "--allow-change", "data.train", sets=data)
ok("and taken where that is allowed", steps("swap") == list(range(1, 13)), steps("swap"))

# --- how often a checkpoint is read, and the shards ----------------------------------------------------------------------------------------------
# Each entry has a name, a number of processes, words for molen, and a launcher.
worlds = [("one rank", 1, ["--ranks", 1], ()), ("three ranks of a process", 1, ["--ranks", 3], ())]
if mpirun(2):
    worlds.append(("two processes", 2, [], mpirun(2)))
for words, opened in ((["--resume", 8], [8]), ([], [12])):
    for world, processes, ranks, launcher in worlds:
        name = f"read-{opened[0]}-{world.replace(' ', '-')}"
        copy("all", name)
        log = work / f"{name}.txt"
        train(name, *words, *ranks, sets=("checkpoint.keep=0", 'train.stop_after="9 steps"'), launcher=launcher, env={"LD_PRELOAD": str(FAULTS), "COUNT_OPENS": str(log)})
        wanted = sorted(f"runs/{name}/checkpoints/step-{s:09}/{f}.json" for s in opened for f in ("state", "index")) * processes
        ok(f"{world}, {words}: each process reads state and index once", sorted(log.read_text().split()) == sorted(wanted), log.read_text())

files = [p.resolve() for folder in ("data/train", "held/heldout") for p in (work / folder).iterdir() if p.suffix in (".bin", ".idx")]
by_one_rank = None
for world, _, ranks, launcher in worlds:
    log = work / f"shards-{world.replace(' ', '-')}.txt"
    # Where the cache cannot be written, nothing that rank 0 has verified is remembered; the other ranks rely on it all the same.
    for start, cache in (("first", log.with_suffix("")), ("second", log.with_suffix("")), ("forgetful", "/proc/nowhere")):
        log.write_text("")
        train("shards-read", "--dry-run", *ranks, launcher=launcher, env={"LD_PRELOAD": str(FAULTS), "COUNT_READS": str(log), "XDG_CACHE_HOME": str(cache)})
        read = {}
        for rank, path, got in (line.split() for line in log.read_text().splitlines()):
            read[int(rank), pathlib.Path(path)] = read.get((int(rank), pathlib.Path(path)), 0) + int(got)
        if start == "second":
            ok(f"{world}: a second start reads no shard", not read, read)
            continue
        # An index is parsed and hashed. Of tokens, 16 samples of at most 4,096 are read besides, of 2 bytes each.
        least = {(0, p): p.stat().st_size + (p.stat().st_size if p.suffix == ".idx" else 16 * min(8192, p.stat().st_size)) for p in files}
        by_one_rank = by_one_rank or read
        ok(f"{world}, {start} start: rank 0 hashes all shards, and no other rank reads any", read == by_one_rank and set(read) == set(least) and all(read[k] >= least[k] for k in least), (read, least))

# --- damaged state, and damaged data -------------------------------------------------------------------------------------------------------------
worlds = [("1", [], ()), ("2", ["--ranks", 2, "--set", "parallel.zero=1"], ())]
if mpirun(2):
    worlds.append(("2-mpi", ["--set", "parallel.zero=1"], mpirun(2)))
for world, words, launcher in worlds:
    train(f"sound-{world}", *words, launcher=launcher)
    for file in ("state.json", "index.json", f"rank-{0 if world == '1' else 1:05}.safetensors"):
        name = f"flipped-{world}-{file.split('.')[0]}"
        copy(f"sound-{world}", name)
        flip(name, 12, file)
        r = train(name, *words, launcher=launcher)
        ok(f"{name}: set aside, and the one before is used", there(name) == ["08", "12", "12.damaged-1"] and "continues after step 8" in r.stdout, (there(name), r.stdout))
        ok(f"{name}: it is said what is lost", r.stderr.count("set aside as step-000000012.damaged-1; going on from step 8: steps 9 to 12 are lost") == 1 and file in r.stderr, r.stderr)
        e = events(name, "set_aside")
        ok(f"{name}: and recorded", [(x["checkpoint_step"], x["from_step"], x["steps_lost"], x["attempt"]) for x in e] == [(12, 8, 4, 2)] and file in e[0]["reason"], e)
        ok(f"{name}: the same course in the end", "identical: 12 steps" in run("runs", "compare", f"runs/sound-{world}", f"runs/{name}").stdout)
    listed = run("checkpoint", "list", f"runs/{name}")
    ok(f"{name}: checkpoint list names what was set aside", listed.stderr.count("step-000000012.damaged-1: set aside as damaged") == 1 and "damaged" not in listed.stdout, listed.stderr)
    # None is left: an error, and one that stays, as a requeued job will find.
    name = f"ruined-{world}"
    copy(f"sound-{world}", name)
    for step in (8, 12):
        flip(name, step, "rank-00000.safetensors")
    r = train(name, *words, launcher=launcher, code=1)
    ok(f"{name}: exit 1", "none can be used" in r.stderr and there(name) == ["08.damaged-1", "12.damaged-1"], (there(name), r.stderr))
    for _ in range(2):
        r = train(name, *words, launcher=launcher, code=1)
        ok(f"{name}: and no fresh start", "none can be used" in r.stderr and "step-000000008.damaged-1: set aside" in r.stderr and there(name) == ["08.damaged-1", "12.damaged-1"], r.stderr)
    train(name, "--resume", "never", *words, sets=STOP, launcher=launcher)
    train(name, *words, sets=STOP, launcher=launcher)
    ok(f"{name}: --resume never leaves them behind", there(name) == ["04", "08.damaged-1.abandoned-2", "12.damaged-1.abandoned-2"] and events(name, "resume")[-1]["step"] == 4, there(name))
# Another layout: two ranks need columns of each block, and one of them reads it.
for world, launcher in (("threads", ()), *((("mpi", mpirun(2)),) if mpirun(2) else ())):
    name = f"flipped-columns-{world}"
    copy("sound-1", name)
    flip(name, 12, "rank-00000.safetensors")
    words = ["--set", "parallel.tensor=2"] if launcher else ["--ranks", 2, "--set", "parallel.tensor=2"]
    r = train(name, *words, launcher=launcher)
    ok(f"{name}: set aside by both, and the one before is used", there(name) == ["08", "12", "12.damaged-1"] and "continues after step 8" in r.stdout, (there(name), r.stdout))
    ok(f"{name}: it is said once", r.stderr.count("set aside as step-000000012.damaged-1") == 1 and "rank-00000.safetensors" in r.stderr, r.stderr)
for file in ("state.json", "rank-00000.safetensors"):
    name = f"asked-{file.split('.')[0]}"
    copy("whole", name)
    flip(name, 12, file)
    before = sorted(p.name for p in (work / f"runs/{name}/checkpoints").rglob("*") if "lease" not in p.name)
    r = train(name, "--resume", 12, code=1)
    ok(f"{name}: a damaged step that is asked for is an error, and nothing moves", file in r.stderr and sorted(p.name for p in (work / f"runs/{name}/checkpoints").rglob("*") if "lease" not in p.name) == before and len(identity(name)["histories"]) == 1, r.stderr)
copy("whole", "alone")
shutil.rmtree(work / "runs/alone/checkpoints/step-000000008")
flip("alone", 12, "state.json")
r = train("alone", code=1)
ok("the only one is damaged: exit 1, nothing moves", "none can be used" in r.stderr and there("alone") == ["12"], r.stderr)

# --- another run's --------------------------------------------------------------------------------------------------------------------------------
copy("whole", "mine")
shutil.rmtree(work / "runs/mine/checkpoints")
shutil.copytree(work / "runs/all/checkpoints", work / "runs/mine/checkpoints")
for words in ([], ["--resume", 8]):
    r = train("mine", *words, code=2)
    ok(f"another run's checkpoint is refused {words}", f"saved by the run 'all' (id {identity('all')['id']})" in r.stderr and "runs/mine is another run" in r.stderr and "checkpoint.dir of its own" in r.stderr, r.stderr)
ok("and nothing moves", there("mine") == ["04", "08", "12"], there("mine"))
shutil.copytree(work / "runs/all/checkpoints", work / "shared")
shared = ("checkpoint.dir=shared", "checkpoint.keep=0")
train("forked", "--resume", 8, sets=shared)
ok("a new run begins from another's", identity("forked")["from"] == {"id": identity("all")["id"], "name": "all", "step": 8} and steps("forked") == [9, 10, 11, 12], identity("forked"))
ok("and leaves behind what lay beyond", sorted(p.name for p in (work / "shared").glob("step-*12*")) == ["step-000000012", "step-000000012.abandoned-2"])
train("forked", sets=shared)
ok("and goes on from its own", events("forked", "resume")[-1]["step"] == 12)
r = train("all", sets=shared, code=2)
ok("where the first run does not", "saved by the run 'forked'" in r.stderr, r.stderr)
finish("histories")
