#!/usr/bin/env python3
"""Narrow types from the command line: fp16 under a loss scale, steps that are skipped, stop and resume; gradients that travel in
16 bits.

usage: precision.py MOLEN
"""
import hashlib
import json
import pathlib
import random
import re
import shutil
import subprocess

import numpy
import safetensors.numpy
from harness import ENV, MOLEN, finish, metrics, ok, refused, run, shards, work

shards()
rng = random.Random(11)
START, STEPS = 2.0**28, 24
HALF = ["--set", "precision.compute=fp16", "--set", f"precision.loss_scale={START:.0f}", "--set", "precision.loss_scale_window=4", "--set", 'train.until="24 steps"', "--set", 'checkpoint.every="2 steps"', "--set", "checkpoint.keep=0"]


def train(name, *sets):
    return run("train", "run.toml", *HALF, "--set", f"run.name={name}", *[x for s in sets for x in ("--set", s)])


def scales(name):
    return [(m["loss_scale"], m["skipped_steps"]) for m in metrics(name).values()]


def state(name, step):
    return json.loads((work / f"runs/{name}/checkpoints/step-{step:09d}/state.json").read_text())["state"]


def digest(value):
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


# --- a scale that is far too large falls until the run trains, and grows again ---------------------------------------------
run("train", "run.toml", "--set", "run.name=plain")
plain = metrics("plain")
ok("without fp16 there is no scale", all(m["loss_scale"] is None and m["skipped_steps"] is None for m in plain.values()) and "loss_scale" not in state("plain", 24))
said = train("half").stdout
half = metrics("half")
first = next(s for s in half if half[s]["grad_norm"] is not None)
ok("steps were skipped until the scale fits", 4 < first < 20 and [m["loss_scale"] for s, m in half.items() if s <= first] == [START / 2**i for i in range(first)], scales("half"))
scale, good, skipped, course = START, 0, 0, []
for m in half.values():
    if m["grad_norm"] is None:
        course.append((scale, skipped + 1))
        scale, good, skipped = scale / 2, 0, skipped + 1
    else:
        course.append((scale, skipped))
        good += 1
        if good == 4:
            scale, good = scale * 2, 0
ok("halved at each overflow, doubled after each four good steps", scales("half") == course and max(s for s, _ in course[first - 1 :]) > course[first - 1][0], (scales("half"), course))
ok("a skipped step has a loss, uses its samples and its place in the schedule", all(half[s]["loss"] > 0 and (half[s]["lr"], half[s]["tokens_total"], half[s]["samples"]) == (plain[s]["lr"], plain[s]["tokens_total"], plain[s]["samples"]) for s in half) and len(half) == STEPS)
ok("nothing is trained before", abs(half[1]["loss"] - plain[1]["loss"]) < 1e-2 and half[24]["loss"] < 0.9 * half[first]["loss"], [m["loss"] for m in half.values()])
ok("the norm is that of the loss itself", 0.5 < half[first]["grad_norm"] / plain[1]["grad_norm"] < 2, (half[first], plain[1]))
ok("the console says what was skipped", said.count("skipped: gradient overflows at scale ") == skipped and f"skipped: gradient overflows at scale {START:g}, 1 so far" in said, said)
ok("memory as planned", all(m["memory_peak_bytes"] == m["memory_planned_bytes"] for m in half.values()))
ok("the checkpoint has it", state("half", 24)["loss_scale"] == {"scale": scale, "good_steps": good, "skipped_steps": skipped}, state("half", 24)["loss_scale"])
prom = (work / "runs/half/metrics.prom").read_text()
ok("Prometheus has it", f'molen_skipped_steps_total{{run="half"}} {skipped}' in prom and 'molen_loss_scale{run="half"}' in prom, prom)
run("report", "runs/half")

# The first update is AdamW's first: lr g / (|g| + eps), so each weight whose gradient is far above eps moves by the learning rate. Counted as
# a later step, the corrections of both moments would leave less than half of that.
whole = ["--set", "optimizer.weight_decay=0", "--set", 'checkpoint.every="1 steps"']
run("train", "run.toml", *HALF, *whole, "--set", "run.name=first", "--set", f'train.stop_after="{first} steps"')
weights = []
for step in (first - 1, first):
    run("checkpoint", "export", f"runs/first/checkpoints/step-{step:09}", f"first-{step}", "--dtype", "fp32")
    weights.append(safetensors.numpy.load_file(work / f"first-{step}/model.safetensors"))
moved = numpy.concatenate([numpy.abs(weights[1][k] - weights[0][k]).ravel() for k in weights[0]]) / metrics("first")[first]["lr"]
median = float(numpy.median(moved[moved > 0.01]))
ok("the first update after skipped steps is a first one", metrics("first")[first]["skipped_steps"] == first - 1 and abs(median - 1) < 0.02, median)

# --- stop and resume: amid the skipped steps, just behind them, and anywhere -----------------------------------------------
for stop in (first - 2, first, rng.randrange(first + 1, STEPS - 1)):
    train(f"parts{stop}", f'train.stop_after="{stop} steps"')
    train(f"parts{stop}")
    out = run("runs", "compare", "runs/half", f"runs/parts{stop}").stdout
    ok(f"stopped after {stop} and resumed: identical", "identical" in out and scales(f"parts{stop}") == scales("half"), out)
    ok(f"stopped after {stop}: the same state", run("checkpoint", "verify", "--digest", f"runs/parts{stop}/checkpoints/step-000000024").stdout.split()[-1] == run("checkpoint", "verify", "--digest", "runs/half/checkpoints/step-000000024").stdout.split()[-1])
# On other ranks: the same skips, and a checkpoint continues on any layout.
shutil.copytree(work / "runs/half/checkpoints", work / "shared")
for name, ranks, sets in (("zero1", 2, ["parallel.zero=1"]), ("full", 4, ["parallel.sharding=FULL_SHARD", "parallel.recompute=full"]), ("tensor", 2, ["parallel.tensor=2"]), ("stages", 2, ["parallel.pipeline=2"]), ("pieces", 2, ["parallel.context=2"])):
    run("train", "run.toml", *HALF, "--resume", "12", "--ranks", ranks, *[x for s in [*sets, f"run.name={name}", "checkpoint.dir=shared", 'train.stop_after="14 steps"', "checkpoint.keep=0"] for x in ("--set", s)])
    a, b = half[13], metrics(name)[13]
    ok(f"continues under {name}", abs(a["loss"] / b["loss"] - 1) < 2e-3 and (a["loss_scale"], a["skipped_steps"], a["samples"]) == (b["loss_scale"], b["skipped_steps"], b["samples"]) and b["memory_peak_bytes"] == b["memory_planned_bytes"], (a, b))
run("train", "run.toml", *HALF, "--set", "run.name=two", "--set", "parallel.zero=1", "--ranks", 2, "--set", 'train.stop_after="12 steps"')
ok("two ranks skip as one", scales("two") == scales("half")[:12], (scales("two"), scales("half")))

# --- from and to other types -----------------------------------------------------------------------------------------------
run("train", "run.toml", "--set", "run.name=from", "--set", "precision.compute=bf16", "--set", 'train.stop_after="6 steps"')
ok("a run in bf16 stores no scale", "loss_scale" not in state("from", 6))
refused("another type on resume", "train", "run.toml", "--set", "run.name=from", "--set", "precision.compute=fp16", says=["precision.compute", "--allow-change"])
run("train", "run.toml", "--set", "run.name=from", "--set", "precision.compute=fp16", "--set", 'train.stop_after="8 steps"', "--allow-change", "precision.compute")
ok("bf16 goes on in fp16 with the first scale", metrics("from")[7]["loss_scale"] == 65536 and state("from", 8)["loss_scale"]["scale"] == 65536, metrics("from")[7])
run("train", "run.toml", "--set", "run.name=half", "--resume", "12", "--set", "precision.compute=fp32", "--set", "run.name=wide", "--set", "checkpoint.dir=shared", "--set", 'train.stop_after="13 steps"', "--set", "checkpoint.keep=0", "--set", 'checkpoint.every="100 steps"', "--allow-change", "precision.compute")
stored = json.loads((work / "shared/step-000000013/state.json").read_text())["state"]
ok("fp16 goes on in fp32, and its skips stay counted", metrics("wide")[13]["loss_scale"] is None and stored["loss_scale"]["skipped_steps"] == half[12]["skipped_steps"], stored)
path = work / f"runs/parts{first}/checkpoints/step-000000024/state.json"
kept = json.loads(path.read_text())
ok("the digest of a state is of its JSON", digest(kept["state"]) == kept["state_sha256"])
for what, change, says in (("no scale", lambda s: s.pop("loss_scale"), "no loss_scale"), ("a scale of 0", lambda s: s["loss_scale"].update(scale=0), "a loss scale of 0"), ("more skips than steps", lambda s: s["loss_scale"].update(skipped_steps=99), "99 of 24 steps skipped")):
    changed = json.loads(json.dumps(kept))
    change(changed["state"])
    changed["state_sha256"] = digest(changed["state"])
    path.write_text(json.dumps(changed))
    refused(f"a checkpoint in fp16 with {what}", "train", "run.toml", *HALF, "--set", f"run.name=parts{first}", says=["state.json", says])
refused("a scale without fp16", "train", "run.toml", "--set", "precision.loss_scale=1024", says=["precision.loss_scale", "fp16"])
refused("a scale below 1", "train", "run.toml", *HALF[:2], "--set", "precision.loss_scale=0.5", says=["precision.loss_scale", "a number from 1"])

# --- gradients that travel in 16 bits ----------------------------------------------------------------------------------------
LAYOUTS = (("copies", 2, []), ("owned", 2, ["parallel.zero=1"]), ("sharded", 4, ["parallel.sharding=HYBRID_SHARD", "parallel.data_shard=2"]))
for name, ranks, sets in LAYOUTS:
    course = {}
    for reduce in ("fp32", "bf16", "fp16"):
        run("train", "run.toml", "--ranks", ranks, *[x for s in [*sets, f"precision.reduce={reduce}", f"run.name={name}-{reduce}"] for x in ("--set", s)])
        course[reduce] = metrics(f"{name}-{reduce}")
    for reduce in ("bf16", "fp16"):
        a, b = course["fp32"], course[reduce]
        ok(f"{reduce} between {name}: the same training", b[1]["loss"] == a[1]["loss"] and all(abs(a[s]["loss"] / b[s]["loss"] - 1) < 2e-2 for s in a) and 0 < abs(a[2]["grad_norm"] / b[2]["grad_norm"] - 1) < 1e-2, (a[24], b[24]))
        ok(f"{reduce} between {name}: memory as planned", all(m["memory_peak_bytes"] == m["memory_planned_bytes"] for m in b.values()))
        ok(f"{reduce} between {name}: a loss scale for fp16 alone", all((m["loss_scale"] == 65536) == (reduce == "fp16") for m in b.values()), b[1])
wide, short = (run("program", "run.toml", "--ranks", 2, "--set", f"precision.reduce={r}").stdout for r in ("fp32", "bf16"))


def gradient_bytes(text):
    return sum(int(re.search(r" moved=(\d+)", line)[1]) for line in text.splitlines() if re.search(r"all_reduce axis=dp updates=", line))


ok("half the bytes travel", gradient_bytes(wide) == 2 * gradient_bytes(short) > 0, (gradient_bytes(wide), gradient_bytes(short)))
(work / "p.txt").write_text(short)
run("train", "run.toml", "--ranks", 2, "--set", "precision.reduce=bf16", "--set", "run.name=text", "--program", "p.txt")
ok("the program from its text runs the same bits", "identical" in run("runs", "compare", "runs/copies-bf16", "runs/text").stdout)
stop = rng.randrange(2, 23)
for until in (["--set", f'train.stop_after="{stop} steps"'], []):
    run("train", "run.toml", "--ranks", 2, "--set", "parallel.zero=1", "--set", "precision.reduce=fp16", "--set", "run.name=owned-parts", *until)
ok(f"stopped after {stop} and resumed: identical", "identical" in run("runs", "compare", "runs/owned-fp16", "runs/owned-parts").stdout)
refused("messages narrower than fp64 compute", "train", "run.toml", "--set", "precision.compute=fp64", "--set", "precision.reduce=bf16", says=["precision.reduce", "narrower"])
said = run("verify", "run.toml", "--ranks", 2, "--layouts", "ZERO1", "--steps", 2, "--set", "precision.reduce=bf16").stdout
ok("verify proves the layouts of such a configuration", "the same model" in said, said)

# --- the other commands ----------------------------------------------------------------------------------------------------
here = json.loads((pathlib.Path(__file__).resolve().parents[1] / "fuzz/seeds/calibration/good.json").read_text())
entry = here["entries"][0] | {"ranks": 1, "communicator": "self", "compute": "fp16", "kernels": "aten"}
of_part, of_message = entry["costs"]["kinds"]["forward head"], entry["costs"]["kinds"]["all-reduce"]
here["entries"] = [entry]
for _ in range(100):
    (work / "here.json").write_text(json.dumps(here))
    r = subprocess.run([MOLEN, "simulate", "run.toml", *HALF[:2], "--cluster", "here.json", "--format", "json"], cwd=work, env=ENV, capture_output=True, text=True)
    if "no measurement of '" not in r.stderr:
        break
    kind = r.stderr.split("no measurement of '")[1].split("'")[0]
    entry["costs"]["kinds"][kind] = of_part if kind.split()[0] in ("forward", "backward", "recompute") else of_message
ok("fp16 is simulated", r.returncode == 0 and json.loads(r.stdout), r.stderr)


def peak(compute):
    return json.loads(run("verify", "run.toml", "--static", "--layouts", "given", "--set", f"precision.compute={compute}", "--format", "json").stdout)["stages"][0]["peak_bytes"]


peaks = {compute: peak(compute) for compute in ("bf16", "fp32", "fp16")}
ok("bf16 needs the least memory: its gradients of weights are made where they add up, those of fp16 in a copy", peaks["bf16"] < min(peaks["fp32"], peaks["fp16"]), peaks)
ok("text comes out", len(run("generate", "runs/half", "--prompt", "de molen", "--max-tokens", 8).stdout) > 8)
run("train", "run.toml", *HALF, "--dry-run", "--set", "run.name=dry")
finish("precision")
