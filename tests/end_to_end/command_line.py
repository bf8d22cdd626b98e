#!/usr/bin/env python3
"""The command line itself: verbs that are not built, misspelt words, --format json of every table, --dry-run.

usage: command_line.py MOLEN
"""
import json
import pathlib
import shutil
import subprocess

from harness import ENV, MOLEN, finish, ok, refused, run, shards, work

# --- verbs and options -----------------------------------------------------------------------------------------------------
top = run("--help").stdout
listed, footer = top.split("Not built yet: ")
for verb in ("serve", "submit", "data mix"):
    for extra in ([], ["x.toml", "--nodes", 4], ["--help"]):
        r = run(*verb.split(), *extra, code=2)
        ok(f"{verb} {extra}: says that it is not built", r.stderr.startswith(f"molen: `molen {verb}` is not built yet") and len(r.stderr.splitlines()) == 1 and r.stdout == "", r.stderr)
    ok(f"{verb}: no command of the help", verb in footer and f"\n  {verb} " not in listed, top)
r = run("plan", code=2)
ok("plan: what it needs", "CONFIG" in r.stderr and "--calculus" in r.stderr and "--runs" in r.stderr and len(r.stderr.splitlines()) == 1 and r.stdout == "", r.stderr)
ok("data mix: nor of `data --help`", "mix" not in run("data", "--help").stdout)
for words, says in (
    (["trian"], ["unknown command 'trian' of `molen`; did you mean 'train'?"]),
    (["trian", "--help"], ["did you mean 'train'?"]),
    (["data", "preprae"], ["unknown command 'preprae' of `molen data`; did you mean 'prepare'?"]),
    (["checkpoint", "exprot", "a", "b"], ["did you mean 'export'?"]),
    (["train", "x.toml", "--resmue", "never"], ["unknown option '--resmue' of `molen train`; did you mean '--resume'?"]),
    (["train", "--resmue=never"], ["unknown option '--resmue' of `molen train`; did you mean '--resume'?"]),
    (["data", "prepare", "x", "--licnece", "MIT"], ["did you mean '--licence'?"]),
    (["--verison"], ["unknown option '--verison' of `molen`; did you mean '--version'?"]),
    (["generate", "x", "--seed", "-1", "--stpo", "y"], ["unknown option '--stpo' of `molen generate`; did you mean '--stop'?"]),
    (["train", "x.toml", "--set"], ["--set"]),
    (["train", "x.toml", "y.toml"], ["y.toml"]),
    (["zzzzzzzz"], ["unknown command 'zzzzzzzz' of `molen` (`molen --help` lists"]),
    (["data"], ["`molen data` needs a command: fetch, prepare"]),
    ([], ["`molen` needs a command: train"]),
):
    refused(f"molen {' '.join(words)}", *words, says=says)

# Control characters of a file that a message repeats do not reach the terminal.
(work / "escape.toml").write_text('[model]\n"\\u001b]52;c;eA==\\u0007" = 1\n')
(work / "escape.json").write_text('{"\\u001b]52;c;eA==\\u0007": 1, "\\u001b]52;c;eA==\\u0007": 2}')
for words in (["config", "show", "escape.toml"], ["simulate", "--model", "llama-tiny", "--cluster", "escape.json"], ["train", "\x1b[2J.toml"], ["report", "\x9b2J"]):
    r = run(*words, code=2)
    ok(f"{words[0]}: no escape reaches the terminal", not any(c in r.stdout + r.stderr for c in "\x1b\x07\x9b") and r.stderr.startswith("molen: "), repr(r.stderr))

r = subprocess.run([MOLEN, "doctor"], cwd=work, env={**ENV, "MOLEN_GEMM": "cublas"}, capture_output=True, text=True)
ok("MOLEN_GEMM of no library is refused", r.returncode == 2 and "MOLEN_GEMM=cublas: aten or onednn" in r.stderr, r.stderr)

# --- dry run ---------------------------------------------------------------------------------------------------------------
shards()
def left_in_work():
    return sorted(p for p in work.rglob("*") if work / "cache" not in [p, *p.parents])  # what is remembered of a machine may be written


before = left_in_work()
r = run("train", "run.toml", "--set", "run.name=dry", "--dry-run", "--set", 'train.stop_after="6 steps"')
ok("dry run: data and epochs", "sequences of 48 tokens" in r.stdout and "train.until: 24 steps of 8 sequences, 9216 tokens, " in r.stdout and "train.stop_after: 6 steps" in r.stdout
   and "validation: " in r.stdout and "the program is sound" in r.stdout, r.stdout)
ok("dry run: the same on 2 ranks", run("train", "run.toml", "--dry-run", "--ranks", 2).stdout.count("train.until: ") == 1)
sequences = int(r.stdout.split("data: ")[1].split()[0])
epochs = json.loads(f"[{r.stdout.split('9216 tokens, ')[1].split()[0]}]")[0]
ok("dry run: epochs are samples over sequences", abs(epochs * sequences / (24 * 8) - 1) < 1e-3, r.stdout)
ok("dry run: nothing written", left_in_work() == before)

run("tokenizer", "train", "held.jsonl", "--vocabulary", 310, "--output", "other.json")
run("train", "run.toml", "--set", "run.name=some", "--set", 'train.stop_after="6 steps"')


def alike(name, *sets, says):
    """Refused by --dry-run in the words of the real start, and nothing written by either."""
    words = ["train", "run.toml", *(x for s in sets for x in ("--set", s))]
    there = left_in_work()
    refused(name + ", dry run", *words, "--dry-run", says=says)
    dry = run(*words, "--dry-run", code=2).stderr
    real = run(*words, code=2).stderr
    ok(f"{name}: the real start says the same", dry == real, f"{dry}\n{real}")
    ok(f"{name}: nothing written", left_in_work() == there)


alike("no such data", "run.name=a", 'data.train=[{path="nowhere"}]', says=["nowhere"])
alike("no data named", "run.name=a", "data.train=[]", says=["data.train"])
alike("no such validation data", "run.name=a", 'data.validation=[{path="nowhere"}]', says=["nowhere"])
alike("no such tokenizer", "run.name=a", "data.tokenizer=nowhere.json", says=["nowhere.json"])
alike("another tokenizer", "run.name=a", "data.tokenizer=other.json", says=["tokenizer"])
alike("no language of it", "run.name=a", 'data.train=[{path="data/train", languages=["fy"]}]', says=["fy"])
alike("no horizon in steps", "run.name=a", 'train.until="2 h"', says=["train.until", "the schedule needs a length in steps, tokens or epochs"])
shard = next((work / "data/train").glob("*.bin"))
good = shard.read_bytes()
for name, bad in (("truncated", good[:-2]), ("altered", good[:100] + bytes([good[100] ^ 1]) + good[101:])):
    shard.write_bytes(bad)
    alike(f"{name} shard", "run.name=a", says=[shard.stem])
shard.write_bytes(good)
held = next((work / "held/heldout").glob("*.bin"))
kept = held.read_bytes()
held.write_bytes(kept[:-2])
alike("truncated validation shard", "run.name=a", says=[held.stem])
held.write_bytes(kept)
# Sound data that is not what the checkpoint was trained on.
shutil.copytree(work / "held/heldout", work / "other")
alike("other data on resume", "run.name=some", 'data.train=[{path="other"}]', says=["data.train"])
kept_data = work / "data/train"
kept_data.rename(work / "kept")
shutil.copytree(work / "other", kept_data)
alike("other data in the same place on resume", "run.name=some", says=["not what this run was trained on"])
shutil.rmtree(kept_data)
(work / "kept").rename(kept_data)

# --- json ------------------------------------------------------------------------------------------------------------------
# A calibration in the place of minutes of measuring: the example of the parser's tests, with an entry for each kind of op that the
# program asks for.
here = json.loads((pathlib.Path(__file__).resolve().parents[1] / "fuzz/seeds/calibration/good.json").read_text())
entry = here["entries"][0] | {"ranks": 1, "communicator": "self"}
of_part, plain = entry["costs"]["kinds"]["forward head"], entry["costs"]["kinds"]["all-reduce"]
of_update = plain | {"weights": [-7.5, 0.0, 0.5], "center": [0.0, 12.25, 12.25]}  # of an optimizer that multiplies matrices
here["entries"] = [entry]


def measured_for(*words):
    """Adds the kinds of ops that a simulation needs, and returns its result."""
    for _ in range(100):
        (work / "here.json").write_text(json.dumps(here))
        r = subprocess.run([MOLEN, "simulate", "run.toml", "--cluster", "here.json", *words], cwd=work, env=ENV, capture_output=True, text=True)
        if "no measurement of '" not in r.stderr:
            return r
        kind = r.stderr.split("no measurement of '")[1].split("'")[0]
        whole = kind.endswith(", matrices")
        entry["costs"]["kinds"][kind] = of_update if whole else of_part if kind.startswith(("forward", "backward", "recompute")) else plain
    return r


r = measured_for()
ok("a calibration was made", r.returncode == 0, r.stderr)
refused("simulate: nodes that are not whole", "simulate", "run.toml", "--cluster", "here.json", "--ranks", "4", "--ranks-per-node", "3", says=["--ranks-per-node", "whole nodes of 3"])
refused("simulate: ranks of two nodes are not threads", "simulate", "run.toml", "--cluster", "here.json", "--ranks", "2", "--ranks-per-node", "1", says=["mpi"])
# Attention within documents is predicted from the data, which must be there.
for words in ([], ["--cluster", "dgx-a100"]):
    refused("simulate: documents without their data", "simulate", "run.toml", *(words or ["--cluster", "here.json"]), "--set", "data.document_mask=true", "--set", 'data.train=[{path="none"}]',
            says=["data.document_mask", "data.train", "none"])
refused("plan: documents without their data", "plan", "run.toml", "--cluster", "dgx-a100", "--nodes", "1", "--set", "data.document_mask=true", "--set", 'data.train=[{path="none"}]', says=["data.document_mask", "data.train", "none"])
# All layouts and choices are simulated, and a run has a prediction beside what it measured.
TENSOR = ["--set", "parallel.tensor=2"]
SHAPES = {"documents": ["--set", "data.document_mask=true"], "a ring": ["--set", "parallel.context=2", "--set", "parallel.context_form=ring"], "stages": ["--set", "parallel.pipeline=2"], "stages in halves": ["--set", "parallel.pipeline=2", "--set", "parallel.schedule=zb-h1"],
          "gradients in bf16": ["--set", "precision.reduce=bf16", "--set", "parallel.zero=2"], "tensor ranks": TENSOR, "pieces": [*TENSOR, "--set", "parallel.sequence=true", "--set", "parallel.tensor_chunks=2"],
          **{f"{kind}{', tensor ranks' * bool(more)}": ["--set", f"optimizer.kind={kind}", *more] for kind in ("lion", "muon", "adafactor") for more in ([], TENSOR)}}
for name, shape in SHAPES.items():
    r = measured_for("--ranks", "2", *shape)
    ok(f"simulate: {name}", r.returncode == 0 and "predicted step" in r.stdout, r.stderr)
    said = run("train", "run.toml", "--set", f"run.name={name.replace(' ', '-').replace(',', '')}", "--set", 'train.stop_after="2 steps"', "--cluster", "here.json", "--ranks", "2", *shape).stdout
    ok(f"train: a prediction for {name}", "no prediction" not in said and "predicted" in said, said)
masked = json.loads(measured_for("--ranks", "2", "--set", "data.document_mask=true", "--format", "json").stdout)
low, high = masked["attended"]["interval_s"]
ok("simulate: documents make an interval", 0 < masked["attended"]["share"] < 1 and low < masked["step_s"] < high, masked["attended"])
text = measured_for("--ranks", "2", "--set", "data.document_mask=true").stdout
ok("simulate: and are said", f"a standard deviation of {100 * masked['attended']['deviation']:.1f} points over" in text, text)
ok("simulate: and widen that of the step", masked["interval"]["sources"]["documents"] > 0 and masked["interval"]["high_s"] > high, masked["interval"])
# The best layout of a search with a mask is what `molen simulate` says of it, and so is the row of a sweep.
MASK = ["--set", "data.document_mask=true"]
found = json.loads(run("plan", "run.toml", "--cluster", "dgx-a100", "--ranks", "2", *MASK, "--simulate", "20", "--format", "json").stdout)
best = found["best"][0]
again = json.loads(run("simulate", "run.toml", "--cluster", "dgx-a100", "--ranks", "2", *MASK, *(x for k, v in best["keys"].items() for x in ("--set", f"{k}={json.dumps(v)}")), "--format", "json").stdout)
ok("plan: a mask as in a simulation", (best["step_s"], best["interval_s"], found["attended"]) == (again["step_s"], again["cluster"]["interval_s"], again["attended"]["share"]), f"{best}\n{again['interval']}")
rows = json.loads(run("sweep", "run.toml", "--cluster", "dgx-a100", "--ranks", "2", "--grid", "data.document_mask=false,true", "--format", "json").stdout)["trials"]
for row in rows:
    like = json.loads(run("simulate", "run.toml", "--cluster", "dgx-a100", "--ranks", "2", "--set", f"data.document_mask={json.dumps(row['keys']['data.document_mask'])}", "--format", "json").stdout)
    ok("sweep: a mask as in a simulation", [row["step_s"], row["step_s_low"], row["step_s_high"]] == [like["step_s"], *like["cluster"]["interval_s"]], f"{row}\n{like['interval']}")
# --- what is shown is what ran -----------------------------------------------------------------------------------------------
AUTO = ["--set", "precision.compute=auto"]
run("train", "run.toml", *AUTO, "--set", "run.name=auto", "--set", 'train.stop_after="2 steps"', "--ranks", "2")
stored = (work / "runs/auto/program.txt").read_text()
bare = lambda text: [line.split("  # ")[0] for line in text.splitlines() if not line.startswith("#")]
for words in (["runs/auto"], ["run.toml", *AUTO, "--ranks", "2"], ["runs/auto", "--set", "optimizer.lr=1e-3"]):
    shown = run("program", *words).stdout
    ok(f"program {' '.join(words)}: what ran", bare(shown) == bare(stored), shown[:2000])
ok("program RUN: says so", run("program", "runs/auto").stdout.startswith("# what ran, as runs/auto/program.txt has it\n"))
compute = next(w for w in stored.split() if w.startswith("compute=")).split("=")[1]
shown = run("program", "run.toml", *AUTO, "--ranks", "2").stdout
ok("program: which choice was open, and why so", f'# precision.compute = "{compute}" (measured on ' in shown, shown[:2000])
# A run that goes on keeps its type, also where the machine would choose another by now.
rates = work / "cache/molen/rates.json"
kept = rates.read_text()
changed = json.loads(kept)
for name, rate in changed["rates"].items():
    rate["flops_per_s"] = 1e9 if f"{compute} GEMM" in name else 1e12
rates.write_text(json.dumps(changed))
other = next(w for w in run("program", "run.toml", *AUTO, "--ranks", "2").stdout.split() if w.startswith("compute=")).split("=")[1]
run("train", "run.toml", *AUTO, "--set", "run.name=auto", "--set", 'train.stop_after="3 steps"', "--ranks", "2")
gone_on = next(w for w in (work / "runs/auto/program.txt").read_text().split() if w.startswith("compute=")).split("=")[1]
ok("a measured type stays that of the run", other != compute == gone_on, (compute, other, gone_on))
rates.write_text(kept)
given = run("verify", "run.toml", *AUTO, "--ranks", "2", "--static", "--layouts", "given", "--format", "json").stdout
ok("verify --static --layouts given: the same type and memory", json.loads(given)["compute"] == compute and f"planned peak {json.loads(given)['stages'][0]['peak_bytes']} bytes" in stored, given)
shown = run("program", "--model", "llama3-8b", "--ranks", "16", "--set", "precision.compute=bf16").stdout
ok("program: defaults that shape the plan are said", "# data.sequence_length = 512 (default; the model takes up to 8192)" in shown and '# parallel.sharding = "NO_SHARD" (default' in shown, shown[:2000])
refused("program: a directory that is no run", "program", "data", says=["data: a directory without config.toml"])
open_simulate = [*AUTO, "--ranks", "1", "--cluster", "here.json"]
ok("simulate: which choice is open, and what stands for it", '# precision.compute = "fp32" (predicted to be the fastest of what here.json holds' in run("simulate", "run.toml", *open_simulate).stdout)
# Whoever may write into the folder of runs gives them their names and tags.
planted = work / "runs" / "x\x1b]52;c;eA==\x07"
shutil.copytree(work / "runs/some", planted)
(planted / "environment.json").write_text(json.dumps({"tags": ["a\x1b[2J", "\x9b2J"]}))
said = run("runs", "list").stdout
ok("runs list: no name acts on a terminal", not any(c in said for c in "\x1b\x07\x9b") and "x\\x1b]52;c;eA==\\x07" in said, repr(said))
shutil.rmtree(planted)

# One peak a machine: runs of the same type and threads are measured against the same.
peaks = [json.loads((work / "runs" / name / "environment.json").read_text())["device_peak"] for name in ("some", "stages")]
# Beside other work a rate may be measured too low; the run that is faster says so, and the next one measures again.
too_low = any("a new run measures the rate again" in events.read_text() for events in (work / "runs").glob("*/events.jsonl"))
run("train", "run.toml", "--set", "run.name=again", "--set", 'train.stop_after="1 steps"')
peaks.append(json.loads((work / "runs/again/environment.json").read_text())["device_peak"])
ok("the peak is measured once a machine", (peaks[0] == peaks[2] or too_low) and (work / "cache/molen/rates.json").is_file(), (peaks, too_low))
# A run that goes on keeps its own peak, also where the machine has forgotten it.
(work / "cache/molen/rates.json").unlink()
run("train", "run.toml", "--set", "run.name=again", "--set", 'train.stop_after="2 steps"')
peaks.append(json.loads((work / "runs/again/environment.json").read_text())["device_peak"])
ok("a run that goes on keeps its peak", peaks[3]["flops_per_s"] == peaks[2]["flops_per_s"], peaks)
# A rate that most steps exceed was measured while something slowed the machine.
run("train", "run.toml", "--set", "run.name=slow", "--set", 'train.stop_after="1 steps"')
slow = json.loads((work / "cache/molen/rates.json").read_text())
for rate in slow["rates"].values():
    rate["flops_per_s"] = 1.0
(work / "cache/molen/rates.json").write_text(json.dumps(slow))
said = run("train", "run.toml", "--set", "run.name=fast", "--set", 'train.stop_after="3 steps"').stdout
ok("a rate that steps exceed is measured again", "faster than the GEMM rate" in said and len(json.loads((work / "cache/molen/rates.json").read_text())["rates"]) < len(slow["rates"]), said)
out = run("train", "run.toml", "--set", "run.name=narrow", "--set", 'train.stop_after="2 steps"').stdout
ok("a log's lines fit 120 columns", all(len(line) <= 120 for line in out.splitlines()), out)
ok("and say nothing of energy that is not there", "J/tok" not in out and " - W" not in out, out)
# Nor does a calibration that lacks an op, or one that went away meanwhile; one that was never there is an error at once.
lacking = json.loads((work / "here.json").read_text())
lacking["entries"][0]["costs"]["kinds"].pop("optimizer_step")
(work / "lacking.json").write_text(json.dumps(lacking))
said = run("train", "run.toml", "--set", "run.name=lacking", "--set", 'train.stop_after="2 steps"', "--cluster", "lacking.json").stdout
ok("train: an op that was not measured leaves the run its end", "no prediction: the calibration has no measurement of 'optimizer_step'" in said and "stopped after step 2: " in said, said)
ok("train: its last step is saved", (work / "runs/lacking/checkpoints/step-000000002").is_dir())
refused("train: a calibration that is not there", "train", "run.toml", "--set", "run.name=nowhere", "--cluster", "nowhere.json", says=["nowhere.json"])
for words in (
    ["runs", "list"], ["runs", "show", "runs/some"], ["runs", "compare", "runs/some", "runs/some"], ["runs", "flight", "runs/some"],
    ["model", "list"], ["model", "show", "gpt2"], ["doctor"], ["program", "run.toml"], ["simulate", "run.toml", "--cluster", "here.json"],
    ["data", "inspect", "data"], ["data", "verify", "data"], ["data", "fetch", "--list"], ["energy", "list"],
    ["checkpoint", "list", "runs/some"], ["checkpoint", "verify", "runs/some"], ["config", "reference"], ["config", "show", "run.toml"],
    ["report", "runs/some"], ["verify", "run.toml", "--static", "--ranks", "2"],
):
    out = run(*words, "--format", "json").stdout
    try:
        value = json.loads(out)
    except ValueError as error:
        value = error
    ok(f"{' '.join(words)} --format json", isinstance(value, (dict, list)) and len(value) > 0, f"{value}\n{out}")
    ok(f"{' '.join(words)}: text is the default", run(*words).stdout != out)
r = subprocess.run([MOLEN, "energy", "live", "--every", "0.05", "--count", "2", "--format", "json"], cwd=work, env=ENV, capture_output=True, text=True)
ok("energy live: a JSON line a period", [isinstance(json.loads(x), dict) for x in r.stdout.splitlines()] == [True, True], r.stdout + r.stderr)
run("train", "run.toml", "--set", "run.name=less", "--set", "optimizer.lr=1e-4", "--set", 'train.stop_after="6 steps"')
j = json.loads(run("runs", "compare", "runs/some", "runs/less", "--format", "json", code=1).stdout)
ok("runs compare: what differs", j["identical"] is False and "lr" in j["first_difference"], j)
finish("command line")
