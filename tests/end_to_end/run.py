#!/usr/bin/env python3
"""End to end from the command line: data, tokenizer, training, stop and resume, other rank counts, misuse, generation.

usage: run.py MOLEN
"""
import array
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

import harness
from harness import ENV, MOLEN, finish, metrics, mpirun, ok, refused, shards, skip, started, work


def run(*args, **settings):
    """As the harness's, with the console's long lines, which are broken and go on after four blanks, in one piece."""
    done = harness.run(*args, **settings)
    if args[0] == "train":
        done.stdout = re.sub(r"\n    (?=\S)", " ", done.stdout)
    return done


shards()
rng = random.Random(7)
refused("a licence that is none", "data", "prepare", "held.jsonl", "--licence", "CC0", "--output", "never", says=["did you mean 'CC0-1.0'?"])
ok("a licence that is none: no folder", not (work / "never").exists())
ok("tokenizer round trip", json.loads(run("tokenizer", "decode", "--tokenizer", "tok.json", "--jsonl", stdin=run(
    "tokenizer", "encode", "--tokenizer", "tok.json", "--jsonl", stdin=json.dumps({"text": "de molen, 42 \u00e9\U0001f600"}) + "\n").stdout).stdout)["text"] == "de molen, 42 \u00e9\U0001f600")

# --- training, stopping, resuming -----------------------------------------------------------------------------------------
run("train", "run.toml", "--set", "run.name=whole", "--save-initial")
whole = metrics("whole")
ok("loss falls", whole[24]["loss"] < 0.8 * whole[1]["loss"], (whole[1]["loss"], whole[24]["loss"]))
m = whole[24]
ok("phases sum to the step", abs(sum(m["phase_s"].values()) - m["step_s"]) < 1e-6 + 1e-3 * m["step_s"])
ok("memory as planned", m["memory_peak_bytes"] == m["memory_planned_bytes"])
ok("unmeasured is null", m["j_per_token"] is None or m["j_per_token"] > 0)
stop = rng.randrange(2, 23)
run("train", "run.toml", "--set", "run.name=parts", "--set", f'train.stop_after="{stop} steps"')
run("train", "run.toml", "--set", "run.name=parts")
out = run("runs", "compare", "runs/whole", "runs/parts").stdout
ok(f"stopped after {stop} and resumed: identical", "identical" in out, out)
# A run that is already there takes no further step and writes no checkpoint, whichever key ends it.
for name, end, extra in (("first", 6, ["--set", 'train.stop_after="6 steps"']), ("earlier", 6, ["--set", 'train.stop_after="4 steps"']), ("until", 24, [])):
    if name == "first":
        run("train", "run.toml", "--set", "run.name=there", *extra)
    if name == "until":
        run("train", "run.toml", "--set", "run.name=there")
    files = {p: p.stat().st_mtime_ns for p in (work / "runs/there/checkpoints").rglob("*") if not p.name.startswith("lease-")} | {"metrics": (work / "runs/there/metrics.jsonl").read_bytes()}
    out = run("train", "run.toml", "--set", "run.name=there", *extra).stdout
    after = {p: p.stat().st_mtime_ns for p in (work / "runs/there/checkpoints").rglob("*") if not p.name.startswith("lease-")} | {"metrics": (work / "runs/there/metrics.jsonl").read_bytes()}
    key = "train.until" if name == "until" else "train.stop_after"
    ok(f"already at the end ({name}): stops at once", files == after and f"stopped after step {end}: nothing to do, {key}" in out and "predicted" not in out, out)
# How model FLOPs are counted: the name in the console, the metrics and the events; the rate by the formula it names.
flops = {x: json.loads(run("model", "show", "gpt2", "--sequence", 512, "--mfu", x, "--format", "json").stdout) for x in ("causal", "palm")}
for x, j in flops.items():
    ok(f"model show --mfu {x}", j["flops_formula"] == x and j["train_flops_per_token"] == j[f"train_flops_per_token_{x}"] and f"FLOP a token ({x}: " in run("model", "show", "gpt2", "--mfu", x).stdout, j)
n, attention = flops["palm"]["parameters"], 12 * 12 * 768 * 512  # layers, heads x head_dim, sequence
ok("palm is 6N + 12LhDs", flops["palm"]["train_flops_per_token"] == 6 * n + attention and flops["causal"]["train_flops_per_token"] < 6 * n + attention / 2 + 1, flops)
out = run("train", "run.toml", "--set", "run.name=palm", "--set", 'train.stop_after="2 steps"', "--mfu", "palm").stdout
ok("train --mfu palm says so", "model FLOPs of a token (palm): 6 N (all parameters that a token meets) + 12 L h D s" in out and "MFU(palm) " in out, out)
# Parameters of run.toml's model: two tables, and two layers of attention, MLP and norms, and the last norm.
n = 2 * 320 * 48 + 2 * (48 * (48 + 2 * 24) + 48 * 48 + 3 * 48 * 80 + 2 * 48) + 48
per_token = {"palm": 6 * n + 12 * 2 * 48 * 48, "causal": 6 * (n - 320 * 48 - 5 * 48) + 6 * 2 * 48 * 48}
for x, m in (("palm", metrics("palm")[2]), ("causal", whole[2])):
    ok(f"rate by {x}", m["flops_formula"] == x and abs(m["model_tflops_per_device"] * 1e12 * m["step_s"] / (8 * 48 * per_token[x]) - 1) < 1e-9, m)
ok("events name the formula", '"flops_formula":"palm"' in (work / "runs/palm/events.jsonl").read_text().replace(": ", ":"))
# MFU against a peak measured at the start, the same in every record; kept by an attempt that continues; null with its reason.
def peak_of(name):
    environment = json.loads((work / f"runs/{name}/environment.json").read_text())["device_peak"]
    starts = [json.loads(x) for x in (work / f"runs/{name}/events.jsonl").read_text().splitlines()]
    starts = [x["device_peak"] for x in starts if x["event"] in ("start", "resume")]
    ok(f"one peak in the records of {name}", starts and all(x == environment for x in starts), (environment, starts))
    return environment


def mfu_ok(name, ranks=1):
    peak = peak_of(name)
    for m in metrics(name).values():
        ok(f"{name}, step {m['step']}: mfu x peak is the rate", abs(m["mfu"] * peak["flops_per_s"] / (m["model_tflops_per_device"] * 1e12) - 1) < 1e-9, m)
        ok(f"{name}, step {m['step']}: hfu", m["flops_formula"] == "palm" or m["hfu"] >= m["mfu"] * (1 - 1e-9), m)
    return peak


mfu_ok("whole")
mfu_ok("palm")
ok("a resumed run keeps its peak", mfu_ok("parts")["source"].startswith("measured"))
# Sizes at which GEMMs are most of the step: a peak that is 10x wrong shows.
sizes = [x for s in ("model.hidden=256", "model.ffn=704", "model.head_dim=64", "batch.micro=4", 'train.until="3 steps"', "parallel.recompute=\"full\"") for x in ("--set", s)]
out = run("train", "run.toml", "--set", "run.name=wide", *sizes, "--ranks", 2).stdout
peak = mfu_ok("wide")
m = metrics("wide")[3]
ok("mfu is a share", 0.01 < m["mfu"] < 1.5, (m, peak))
ok("the console says the peak and MFU", f"peak of a device, for MFU: {peak['source']}" in out and "GFLOP/s fp32 GEMM" in out and "mean of 2 ranks" in out and f"MFU(causal) {100 * m['mfu']:.1f}%" in out, out)
ok("recompute shows in hfu", m["hfu"] > 1.2 * m["mfu"], m)
prom = (work / "runs/wide/metrics.prom").read_text()
ok("Prometheus names the formula", 'molen_mfu_ratio{flops_formula="causal",run="wide"} ' in prom and "molen_hfu_ratio" in prom and f'source="{peak["source"]}"' in prom, prom)
page = run("report", "runs/wide").stdout + (work / "runs/wide/report.html").read_text()
ok("the report shows MFU and the peak", "MFU (causal), median" in page and peak["source"] in page)
out = run("train", "run.toml", "--set", "run.name=exact", "--set", 'precision.compute="fp64"', "--set", 'train.stop_after="1 steps"').stdout
ok("fp64: null and why", "MFU is not known: the reference kernels (fp64)" in out and metrics("exact")[1]["mfu"] is None and metrics("exact")[1]["hfu"] is None and peak_of("exact")["flops_per_s"] is None, out)
ok("no such formula", "--mfu: hfu not in {causal,palm}" in run("train", "run.toml", "--set", "run.name=palm", "--mfu", "hfu", code=2).stderr)
# TensorBoard itself reads the events: every step once, a new session where the run was resumed.
oracle = pathlib.Path(__file__).resolve().parents[1] / "oracle/tensorboard_read.py"
python = pathlib.Path(__file__).resolve().parents[2] / ".venv/bin/python"
r = subprocess.run([python, oracle, work / "runs/parts/tensorboard", "--tag", "loss_metrics/global_avg_loss", "--tag", "mfu(%)", "--last", "24", "--resumed", str(stop + 1)], capture_output=True, text=True)
ok("TensorBoard reads the events", r.returncode == 0, r.stdout + r.stderr)
r = subprocess.run([python, oracle, work / "runs/parts/tensorboard", "--tag", "mfu/flops_formula", "--tag", "mfu/device_peak", "--tag", "hfu(%)"], capture_output=True, text=True)
ok("TensorBoard reads the formula and the peak", r.returncode == 0 and "causal: " in r.stdout, r.stdout + r.stderr)

run("train", "run.toml", "--set", "run.name=again")
ok("the same layout twice: identical", "identical" in run("runs", "compare", "runs/whole", "runs/again").stdout)
# And in short runs of more than one thread, each a process of its own: the same bits.
for i in range(8):
    run("train", "run.toml", "--set", f"run.name=bits{i}", "--set", "math.threads=2", "--set", "precision.compute=fp32", "--set", "model.hidden=192", "--set", "model.head_dim=48", "--set", 'train.stop_after="4 steps"', "--set", "checkpoint.keep=0", "--set", "train.validate_every=100 steps")
figures = [[(m["loss"], m["grad_norm"]) for m in metrics(f"bits{i}").values()] for i in range(8)]
ok("eight processes of two threads: the same bits", all(f == figures[0] for f in figures) and len(figures[0]) == 4, figures)
# Each is a run of its own, begun from that run's checkpoint; it keeps aside what the one before has saved there.
shutil.copytree(work / "runs/parts/checkpoints", work / "shared")
other = run("train", "run.toml", "--set", "run.name=parts", "--resume", "12", "--ranks", 3, "--set", "parallel.zero=1", "--set", "run.name=moved", "--set", "checkpoint.dir=shared", "--set", 'train.stop_after="18 steps"').stdout
ok("resumes on 3 ranks with ZeRO-1", "continues after step 12" in other)
a, b = whole[13], metrics("moved")[13]
ok("the first step there has the same loss", abs(a["loss"] - b["loss"]) < 1e-5 and a["samples"] == b["samples"], (a["loss"], b["loss"]))
state = [json.loads(x)["state_hash"] for x in (work / "runs/moved/events.jsonl").read_text().splitlines() if '"resume"' in x][-1]
digest = run("checkpoint", "verify", "--digest", "runs/whole/checkpoints/step-000000012").stdout
ok("state hash equal after load on another layout", state in digest, (state, digest))
# Sharded parameters, gradients and optimizer states, in groups with copies and without: the same model continues.
for name, ranks, sets in (("fully", 3, ["parallel.sharding=FULL_SHARD", "parallel.prefetch=2"]), ("hybrid", 4, ["parallel.sharding=HYBRID_SHARD", "parallel.data_shard=2", "parallel.zero=1", "parallel.recompute=full"]), ("grads", 2, ["parallel.sharding=SHARD_GRAD_OP"]), ("tensor", 2, ["parallel.tensor=2"]), ("rows", 4, ["parallel.tensor=2", "parallel.sequence=true", "parallel.sharding=FULL_SHARD"]), ("stages", 2, ["parallel.pipeline=2", "parallel.schedule=gpipe"]), ("halves", 2, ["parallel.pipeline=2", "parallel.schedule=zb-h1"]), ("staged", 4, ["parallel.pipeline=2", "parallel.sharding=FULL_SHARD"]), ("hosted", 2, ['parallel.offload=["optimizer"]', "parallel.zero=1"]), ("host", 3, ['parallel.offload=["optimizer","gradients","parameters","activations"]', "parallel.sharding=FULL_SHARD"]), ("pieces", 2, ["parallel.context=2"]), ("ring", 4, ["parallel.context=2", "parallel.context_form=ring", "parallel.sharding=FULL_SHARD"]), ("units", 2, ["parallel.unit_layers=half", "parallel.sharding=FULL_SHARD"]), ("ordered", 4, ['parallel.order=["dp-shard", "pp", "cp", "dp-replicate", "tp"]', "parallel.sharding=HYBRID_SHARD", "parallel.data_replicate=2"])):
    sets = [x for s in [*sets, f"run.name={name}", "checkpoint.dir=shared", 'train.stop_after="14 steps"', "checkpoint.keep=0"] for x in ("--set", s)]
    said = run("train", "run.toml", "--resume", "12", "--ranks", ranks, *sets).stdout
    a, b = whole[13], metrics(name)[13]
    ok(f"continues under {name}: {sets[1]}", abs(a["loss"] / b["loss"] - 1) < 1e-5 and b["memory_peak_bytes"] == b["memory_planned_bytes"], f"{a} {b} {said}")
    state = [json.loads(x)["state_hash"] for x in (work / f"runs/{name}/events.jsonl").read_text().splitlines() if '"resume"' in x][-1]
    ok(f"the state is the same under {name}: {sets[1]}", state in digest, (state, digest))
# Attention within documents: another model, the same on one rank, on stages and on pieces of sequences.
masked = ["--set", "data.document_mask=true", "--set", 'train.stop_after="6 steps"']
for name, ranks, sets in (("masked", 1, []), ("masked2", 4, ["parallel.context=2", "parallel.pipeline=2"])):
    run("train", "run.toml", "--ranks", ranks, *masked, *[x for s in [*sets, f"run.name={name}"] for x in ("--set", s)])
one, many = metrics("masked"), metrics("masked2")
ok("documents are masked alike on one rank and on four", all(abs(one[s]["loss"] / many[s]["loss"] - 1) < 1e-5 for s in one) and len(one) == 6, (one, many))
held = [[json.loads(x)["loss"] for x in (work / f"runs/{n}/events.jsonl").read_text().splitlines() if '"validation"' in x][-1] for n in ("masked", "masked2")]
ok("and in validation", abs(held[0] / held[1] - 1) < 1e-5, held)
ok("and the mask is there", all(abs(one[s]["loss"] / whole[s]["loss"] - 1) > 1e-6 for s in one), (one, whole))
# The process holds what was printed, within 5 %.
# A model that is more than the program around it.
wide = [x for s in ("model.hidden=512", "model.ffn=1408", "model.head_dim=128", "model.layers=6") for x in ("--set", s)]
narrow = ["--set", "precision.compute=bf16"]
deeper = [x for s in ("model.layers=9", "model.vocabulary=4096", "batch.micro=4", "parallel.recompute=full") for x in ("--set", s)]
for name, extra in (("memory", wide), ("memory2", [*wide, "--ranks", 2]), ("memory3", [*wide, *narrow]), ("memory4", [*wide, *narrow, *deeper]), ("memory5", [*wide, "--ranks", 2, "--set", "parallel.sharding=FULL_SHARD"]), ("memory6", [*wide, "--set", 'parallel.offload=["optimizer","gradients","parameters","activations"]'])):
    said = run("train", "run.toml", "--set", f"run.name={name}", "--set", 'train.stop_after="4 steps"', *extra).stdout
    off, side = re.search(r"([0-9.]+)% (below|above) the [^ ]+ [A-Za-z]+ predicted", said).groups()
    ok(f"process memory as predicted ({name}): {off} % {side}", float(off) <= 5, said)
MPI = mpirun(2)
if MPI:
    mpi = MPI
    run("train", "run.toml", "--set", "run.name=mpi", launcher=mpi)
    run("train", "run.toml", "--set", "run.name=mpi2", launcher=mpi)
    ok("two MPI ranks, twice: identical", "identical" in run("runs", "compare", "runs/mpi", "runs/mpi2").stdout)
    ok("and the same losses as one rank", abs(metrics("mpi")[10]["loss"] - whole[10]["loss"]) < 1e-4)
    refused("an error under MPI is said once, exit 2", "train", "run.toml", "--set", "model.layers=twelve", says=["model.layers"], launcher=mpi)
    # One rank hangs while the other waits for it: the waiting rank reports it after a while, and the job ends.
    (work / "second.sh").write_text('#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && set -- "$@" --set parallel.tensor=3\nexec "$@"\n')
    (work / "second.sh").chmod(0o755)
    job = started([*mpi, str(work / "second.sh"), MOLEN, "train", "run.toml", "--set", "run.name=second"], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        _, err = job.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        job.terminate()  # mpirun ends its ranks
        job.communicate()
        raise
    ok("an error of one rank ends the job, with its rank", job.returncode == 2 and err.count("molen:") == 1 and "molen: rank 1: " in err and "parallel.tensor" in err and not (work / "runs/second").exists(), (job.returncode, err))

# --- energy --------------------------------------------------------------------------------------------------------------
# Recorded meters of constant power: of a whole machine without GPUs, and of its processor alone.
POWER = {"cpu-package0": 90.0, "dram0": 10.0}
for name, scopes in (("both.jsonl", POWER), ("cpu.jsonl", ["cpu-package0"])):
    (work / name).write_text("".join(json.dumps({"time_s": t, "energy_j": {s: POWER[s] * t for s in scopes}}) + "\n" for t in (0.0, 100000.0)))
power, tokens = sum(POWER.values()), 8 * 48


def energy_events(name, event):
    lines = [json.loads(x) for x in (work / "runs" / name / "energy.jsonl").read_text().splitlines()]
    return [x for x in lines if x["event"] == event]


def totals(name):
    return energy_events(name, "totals")


metered = ["--set", "run.name=metered", "--set", 'energy.meters=["replay:both.jsonl"]', "--set", "model.hidden=192", "--set", "model.head_dim=48"]
first = run("train", "run.toml", *metered, "--set", 'train.stop_after="9 steps"').stdout
second = run("train", "run.toml", *metered).stdout
m = metrics("metered")
share = sorted(m[s]["j_per_token"] * tokens / (power * m[s]["step_s"]) for s in m)
# The joules of a step are also those of the time between it and the step before: 0.1 to 0.4 ms of 12.
ok("J/token x tokens = power x time of a step", share[0] > 0.999 and share[len(share) // 2] < 1.1, share)
by_scope = {k: sum(m[s]["energy_j"][k] for s in m) for k in POWER}
ok("joules by scope", abs(by_scope["dram0"] / sum(by_scope.values()) - 0.1) < 1e-3 and m[5]["energy_source"]["dram0"] == "counter", by_scope)
ok("what is whole bears no mark", all("energy_coverage" not in m[s] for s in m) and "~" not in first and "in part" not in first, first)
t = totals("metered")
saved, last = [x for x in t if x["attempt"] == 1 and x["step"] == 9][-1], t[-1]
ok("totals hold both attempts", (last["attempt"], last["first_step"], last["steps"], last["tokens"]) == (2, 1, 24, m[24]["tokens_total"]) and saved["steps"] == 9, last)
second_s = sum(m[s]["step_s"] for s in range(10, 25))
ok("totals: joules of both", last["total_j"] > saved["total_j"] + power * second_s and abs(last["total_j"] / (power * last["seconds"]) - 1) < 0.01, (saved, last))
ok("the steps have no joule more than the run", power * sum(x["step_s"] for x in m.values()) < sum(x["j_per_token"] for x in m.values()) * tokens < last["total_j"], last)
stored = json.loads((work / "runs/metered/checkpoints/step-000000024/state.json").read_text())["state"]["totals"]
ok("totals in the checkpoint", stored["attempts"] == 2 and stored["steps"] == 24 and saved["total_j"] < stored["total_j"] <= last["total_j"], stored)
phases = energy_events("metered", "phases")
whole = [s["ticks"] == sum(e["ticks"] for e in s["entries"].values()) > 0 for line in phases for s in line["scopes"].values()]
ok("entries of phases add up to each counter", len(phases) >= 4 and len(whole) == 2 * len(phases) and all(whole), phases)
attempt, own = phases[-1]["scopes"], last["total_j"] - saved["total_j"]
ok("phases have the joules of their attempt", abs(sum(s["joules"] for s in attempt.values()) / own - 1) < 0.05, (attempt, own))
ok("constant power is not divided, with the reason", all(list(s["entries"]) == ["unattributed"] and "lag" in str(s["not_attributed"]) for s in attempt.values()) and "energy by phase in this attempt: unattributed 100.0% of" in second, attempt)
ok("kWh of the run grow over both attempts", saved["total_j"] / 3.6e6 < m[10]["kwh_total"] < m[24]["kwh_total"] <= last["total_j"] / 3.6e6 and m[24]["kg_co2e_total"] is None and " Wh |" in second, (saved, m[10], m[24], last))
ok("the stop says them", f"whole run: 24 steps, {last['tokens']} tokens, " in second and re.search(rf" {last['total_j']:.6g} J \+- \S+ J of resolution, \S+ J/token", second), second[-400:])
# Steps long enough for their edges not to count.
part = ["--set", "run.name=part", "--set", 'energy.meters=["replay:cpu.jsonl"]', *metered[4:], "--set", 'train.stop_after="3 steps"']
out = run("train", "run.toml", *part).stdout
m = metrics("part")
ok("a part is named and marked", all(m[s]["energy_coverage"] == "cpu only" and m[s]["j_per_token"] > 0 for s in m) and "marked ~: cpu only" in out and "| ~" in out and "(partial: cpu only)" in out, out)
prometheus = (work / "runs/part/metrics.prom").read_text()
ok("Prometheus has it as a label", 'molen_joules_per_token{coverage="cpu only",' in prometheus, prometheus)
run("train", "run.toml", *part[:-2], "--ranks", 2)
m = metrics("part")
share = sorted(m[s]["energy_j"]["cpu-package0"] / (90 * m[s]["step_s"]) for s in range(4, 25))
ok("two ranks of one host count it once", abs(share[10] - 1) < 0.2, share)
out = run("train", "run.toml", "--set", "run.name=unmetered", "--set", 'energy.meters=["none"]', "--set", 'train.stop_after="2 steps"').stdout
ok("without meters null, with its reason", metrics("unmetered")[2]["j_per_token"] is None and metrics("unmetered")[2]["energy_coverage"] == "nothing measured" and "energy is not measured: no meter is asked for" in out
   and "energy not measured" in out and totals("unmetered")[-1]["total_j"] is None, out)
run("report", "runs/part")
page = (work / "runs/part/report.html").read_text()
ok("the report says what is left out", "cpu only" in page and "whole run" in page.lower())

# --- energy of waits --------------------------------------------------------------------------------------------------------
# The storage of one rank stands still most of the time. The power of a made-up package follows: beside 1 W it has 30 W while a rank
# waits for data, and 70 W more where another stage then waits for that rank.
FAULTS = work / "faults.so"
subprocess.run(["cc", "-shared", "-fPIC", "-o", FAULTS, pathlib.Path(__file__).with_name("faults.c"), "-ldl"], check=True)


def stalling(watts):
    """Writes a recording of the next 120 s and the times at which reads stall; returns the words to put before the command."""
    at, joules, points, windows = time.monotonic(), 0.0, [], []
    for _ in range(400):
        for stalled, seconds in ((False, rng.uniform(0.03, 0.06)), (True, rng.uniform(0.2, 0.4))):
            points.append({"time_s": at, "energy_j": {"cpu-package0": joules}})
            windows += [f"{at} {at + seconds} 1\n"] if stalled else []
            joules += seconds * (1.0 + (watts if stalled else 0.0))
            at += seconds
    (work / "waits.jsonl").write_text("".join(json.dumps(p) + "\n" for p in points))
    (work / "windows").write_text("".join(windows))
    return ["env", f"LD_PRELOAD={FAULTS}", f"SLOW_READS={work / 'windows'}"]


waits = [x for s in ("run.name=waits", 'energy.meters=["replay-clock:waits.jsonl"]', 'energy.sample_every="3 ms"', "data.validation=[]", "batch.global=2", 'train.until="1000000 steps"', 'checkpoint.every="1000000 steps"') for x in ("--set", s)]


# The two waits of a pipeline go together, so they may share an entry.
WAITS = {1: {"data_wait"}, 2: {"data_wait", "bubble"}}


def names_in(entries):
    return {name for joined in entries for name in joined.split("+")}


def run_waits(stages, *more):
    """Of an attempt: its entries with a wait, whether these are of waits alone, and its seconds of waiting for data and of the bubble by its steps."""
    words = [*waits, "--set", 'train.stop_after="8 s"', "--set", f"parallel.pipeline={stages}", "--ranks", stages, *more]
    said = run("train", "run.toml", *words, launcher=stalling(100.0 if stages == 2 else 30.0)).stdout
    account, last = energy_events("waits", "phases")[-1]["scopes"]["cpu-package0"], totals("waits")[-1]
    entries, after = account["entries"], last["phases_j"]["cpu-package0"]
    of_waits = {name: e for name, e in entries.items() if {"data_wait", "bubble"} & set(name.split("+"))}
    steps = [m for m in metrics("waits").values() if m["attempt"] == last["attempt"]]
    ok(f"{stages} stages: all entries add up to the counter", sum(e["ticks"] for e in entries.values()) == account["ticks"] > 0, account)
    ok(f"{stages} stages: a wait is said at the end", all(f"{name} " in said for name in of_waits), said[-800:])
    # recorder_test.cpp has the exact sums. Here the attempt before divides its joules once more after its last checkpoint.
    ok(f"{stages} stages: the totals have at least this attempt's joules of waits", all(after[name] >= e["joules"] for name, e in of_waits.items()), (entries, after))
    parts = [(sum(e["ops"].values()), e["joules"]) for e in entries.values() if "ops" in e]
    ok(f"{stages} stages: the joules of ops add up to their phase", len(parts) > 1 and all(abs(of_ops - joules) <= 1e-9 * account["joules"] for of_ops, joules in parts), entries)
    whole = sum(e["joules"] for name, e in entries.items() if name not in ("base", "unattributed"))
    ok(f"{stages} stages: each stage has joules, and together all of the phases", list(account["stages"]) == [str(n) for n in range(stages)] and abs(sum(account["stages"].values()) / whole - 1) < 1e-9, account)
    alone = names_in(of_waits) == WAITS[stages]
    return of_waits, alone, stages * sum(m["data_wait_s"] for m in steps), stages * sum(m["phase_s"]["bubble"] for m in steps)


def sum_over(entries, key):
    return sum(e[key] for e in entries.values())


# With a sample each second too few are taken to divide anything.
stalling(1.0)
run("train", "run.toml", *waits, "--set", 'energy.sample_every="1 s"', "--set", 'train.stop_after="3 steps"', "--set", "train.trace_steps=[2]", "--set", "parallel.pipeline=2", "--ranks", 2)
ok("the first attempt has no entry for a wait, like those of older versions", list(totals("waits")[-1]["phases_j"]["cpu-package0"]) == ["unattributed"], totals("waits")[-1])
spans = [e for e in json.loads((work / "runs/waits/trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
ok("a trace is the same with and without a meter", any(e["name"] == "receive" for e in spans) and not any("waited_s" in e["args"] for e in spans), spans[:50])
for stages in (1, 2):
    # That the entries reach the powers of the waits within 2 % is shown by src/ledger/accuracy_test.cpp. Here other work on the machine holds ranks
    # up where the recording knows of nothing, so a run tells only that the waits have joules of that size. A run may be repeated for the
    # joules, and because entries are joined where a disturbance hides the difference. The seconds hold in every run. Which of two stages stalls is
    # a race for the first read.
    for attempt in range(5):
        of_waits, alone, loading, bubble = run_waits(stages)
        joules, rank_s = sum_over(of_waits, "joules"), sum_over(of_waits, "rank_seconds")
        detail = (of_waits, loading, bubble)
        if alone:
            ok(f"{stages} stages: no more seconds than the steps say", rank_s < 1.02 * (loading + bubble), detail)
            ok(f"{stages} stages: no wait for data is missing", stages == 2 or rank_s > 0.95 * loading, detail)
        # The bubble of the steps has the sending of messages too. Phases that a disturbance makes alike share an entry.
        seconds_fit = not alone or rank_s > 0.95 * loading + 0.7 * bubble
        fits = names_in(of_waits) >= WAITS[stages] and loading > 4 and seconds_fit and joules > 0.2 * (30, 100)[stages - 1] * loading
        if fits:
            break
    ok(f"{stages} stages: the joules and the seconds of waiting for data{' and for the other stage' if stages == 2 else ''}", fits, detail)
# The first pass of a step that measures the noise scale loads what the step needs. Its waits are in no step.
for attempt in range(5):
    of_waits, alone, loading, bubble = run_waits(2, "--set", "train.noise_scale_every=1")
    ok("waits for the batches of another pass are not those of the step", loading == 0, loading)
    if names_in(of_waits) >= WAITS[2]:
        break
ok("but their joules are those of waits for data and for the other stage", names_in(of_waits) >= WAITS[2] and sum_over(of_waits, "rank_seconds") > 4, (of_waits, bubble))
run("report", "runs/waits", "--output", "waits.html")
page = (work / "waits.html").read_text()
ok("the report has them", all(f"<th scope=row>{name}<td>" in page for name in of_waits), list(of_waits))

# --- signals -------------------------------------------------------------------------------------------------------------
p = started([MOLEN, "train", "run.toml", "--set", "run.name=term", "--set", 'train.until="100000 steps"'], env=ENV, stdout=subprocess.PIPE)
while "step 3/" not in p.stdout.readline():
    pass
p.send_signal(signal.SIGTERM)
rest = p.stdout.read()
ok("SIGTERM saves and exits 0", p.wait(timeout=60) == 0 and "saved" in rest and "signal" in rest, rest)

# mpirun stops reading at once and kills a second after its SIGTERM. It returns 1 itself, so what was saved counts. Steps
# so fast that their lines fill the pipe meanwhile.
if MPI:
    fast = [x for s in ("model.layers=1", "model.hidden=24", "model.ffn=16", "model.heads=2", "model.kv_heads=2", "batch.global=2", "batch.micro=1", "data.sequence_length=16", 'train.until="10000000 steps"', 'checkpoint.every="1000000 steps"') for x in ("--set", s)]
    for sent in (signal.SIGTERM, signal.SIGINT):
        p = started([*MPI, MOLEN, "train", "run.toml", "--set", f"run.name=mpi{sent.name}", *fast], env=ENV, stdout=subprocess.PIPE)
        while "step 200/" not in p.stdout.readline():
            pass
        p.send_signal(sent)
        p.communicate(timeout=60)
        last = json.loads((work / f"runs/mpi{sent.name}/events.jsonl").read_text().splitlines()[-1])
        ok(f"{sent.name} to mpirun saves", last["event"] == "stop" and "signal" in last["reason"] and (work / f"runs/mpi{sent.name}/checkpoints/step-{last['step']:09d}/state.json").exists(), last)
# A reader that goes away ends no run.
p = started([MOLEN, "train", "run.toml", "--set", "run.name=unread"], env=ENV, stdout=subprocess.PIPE)
p.stdout.readline()
p.stdout.close()
ok("a closed pipe ends no run", p.wait(timeout=60) == 0 and len(metrics("unread")) == 24)

# --- names and threads -----------------------------------------------------------------------------------------------------
before = set((work / "runs").iterdir())
for _ in range(2):
    run("train", "run.toml", "--set", 'train.stop_after="1 steps"', "--ranks", 2)
made = sorted(x.name for x in set((work / "runs").iterdir()) - before)
ok("without run.name each run has a directory of its own", len(made) == 2 and all(re.fullmatch(r"custom-\d{8}T\d{6}Z(-2)?", x) for x in made), made)
for name in ("threads2a", "threads2b"):
    run("train", "run.toml", "--set", f"run.name={name}", "--set", "math.threads=2", "--set", "model.hidden=96", "--set", "model.head_dim=24", "--ranks", 2)
ok("two threads a rank, twice: identical", "identical" in run("runs", "compare", "runs/threads2a", "runs/threads2b").stdout)
if len(os.sched_getaffinity(0)) < 2:
    skip("threads derived from the cores", "there is one core")
else:
    core = str(min(os.sched_getaffinity(0)))
    run("train", "run.toml", "--set", "run.name=cores", "--set", "math.threads=0", "--set", 'train.stop_after="2 steps"')
    n = len(os.sched_getaffinity(0))
    out = run("train", "run.toml", "--set", "run.name=cores", "--set", "math.threads=0", "--set", 'train.stop_after="3 steps"', launcher=("taskset", "-c", core)).stdout
    ok("derived threads are kept on resume", f"1 rank x {n} threads" in out and f"math.threads stays {n}" in out, out)

# --- misuse ----------------------------------------------------------------------------------------------------------------
(work / "typo.toml").write_text('extends = "base.toml"\n[model]\nlayer = 3\n')
refused("misspelt key", "train", "typo.toml", says=["typo.toml:3", "layer", "model.layers"])
refused("impossible sizes", "train", "run.toml", "--set", "model.kv_heads=3", says=["kv_heads"])
refused("sequence beyond the model", "train", "run.toml", "--set", "data.sequence_length=65", says=["max_sequence"])
refused("vocabulary too small", "train", "run.toml", "--set", "run.name=v", "--set", "model.vocabulary=300", says=["vocabulary"])
refused("different config on resume", "train", "run.toml", "--set", "run.name=parts", "--set", "optimizer.lr=0.5", says=["optimizer.lr", "--allow-change"])
huge = ["--set", "model.ffn=1048576", "--set", "model.layers=40"]
refused("a layout beyond the memory", "train", "run.toml", "--set", "run.name=big", *huge, says=["of memory where a rank has", "none of the nearest layouts of 1 rank fits either"])
refused("a bench beyond the memory", "bench", "run.toml", *huge, "--ranks", 2, says=["of memory where a rank has", "none of the nearest layouts of 2 ranks fits either"])
refused("a proof beyond the memory", "verify", "run.toml", *huge, "--ranks", 2, "--layouts", "NO_SHARD,FULL_SHARD", says=["the layout NO_SHARD", "in fp64, with the tensors to compare, needs", "of memory where a rank has"])
refused("no such checkpoint", "train", "run.toml", "--set", "run.name=parts", "--resume", "7", says=["7"])
refused("unbuilt parallelism", "train", "run.toml", "--set", "parallel.tensor=2", says=["parallel.tensor"])
run("tokenizer", "train", "held.jsonl", "--vocabulary", 310, "--output", "other.json")
refused("tokenizer that does not match the shards", "train", "run.toml", "--set", "run.name=t", "--set", "data.tokenizer=other.json", says=["tokenizer"])
# The layout that a refusal suggests is accepted. Weights, gradients and moments of each of two ranks, whole, take 1.4 times what is
# there for both; sharded, half of that.
def there():
    said = run("train", "run.toml", *huge, "--dry-run", code=2).stderr
    value, unit = re.search(r"a rank has ([0-9.]+) (MiB|GiB|TiB)", said).groups()
    return float(value) * {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]


def settings(layout, micro):
    """The settings that a layout's name stands for."""
    words = layout.split(", ")
    sets = [f"batch.micro={micro}", "parallel.zero=1" if words[0] == "ZERO1" else f"parallel.sharding={words[0].split()[0]}"]
    for word in words[1:]:
        if tensor := re.fullmatch(r"tp (\d+)( with sequence parallelism)?", word):
            sets += [f"parallel.tensor={tensor[1]}", f"parallel.sequence={'true' if tensor[2] else 'false'}"]
        elif context := re.fullmatch(r"cp (\d+) (gather|ring)", word):
            sets += [f"parallel.context={context[1]}", f"parallel.context_form={context[2]}"]
        elif stages := re.fullmatch(r"pp (\d+) (\S+)( x \d+)?", word):
            sets += [f"parallel.pipeline={stages[1]}", f"parallel.schedule={stages[2]}", f"parallel.virtual_stages={(stages[3] or ' x 1')[3:]}"]
        elif word == "recompute":
            sets.append("parallel.recompute=full")
        else:
            assert re.fullmatch(r"\d+ micro-batches", word), layout
    return [x for s in sets for x in ("--set", s)]


hidden = 4096
columns = int(1.4 * there() / (2 * 16) / (3 * hidden))  # of ffn, over all layers: 16 bytes of a parameter on each rank
layers = max(4, columns // 2**18)
beyond = [x for s in (f"hidden={hidden}", f"head_dim={hidden // 4}", f"layers={layers}", f"ffn={columns // layers // 16 * 16}") for x in ("--set", f"model.{s}")]
said = run("train", "run.toml", "--set", "run.name=beyond", *beyond, "--ranks", 2, "--dry-run", code=2).stderr
nearest = re.findall(r"([A-Z][^;:]*?) in micro-batches of (\d+) \(([0-9.]+ [MGT]iB)\)", said.split("nearest layouts that fit: ")[-1])
ok("a refusal names layouts that fit", said.count("molen:") == 1 and len(nearest) == 3, said)
for layout, micro, peak in nearest:
    said = run("train", "run.toml", "--set", "run.name=beyond", *beyond, "--ranks", 2, "--dry-run", *settings(layout, micro)).stdout
    ok(f"and a dry run accepts {layout}", re.search("the program (of stage 0 )?is sound", said) and ("pp 2" in layout or peak in said), f"{peak} {said}")
# The same on several ranks: one text, exit 2.
worlds = [("2 ranks", ["--ranks", 2], ())]
if MPI:
    worlds.append(("2 MPI ranks", [], MPI))
for label, sets, launcher in worlds:
    refused(f"a layout beyond the memory, {label}", "train", "run.toml", "--set", "run.name=big", *huge, *sets, says=["of memory where a rank has", "none of the nearest layouts of 2 ranks fits either"], launcher=launcher)
    refused(f"another tokenizer, {label}", "train", "run.toml", "--set", "run.name=t", "--set", "data.tokenizer=other.json", *sets, says=["tokenizer"], launcher=launcher)
    (work / "data/train/manifest.json").rename(work / "manifest.kept")
    refused(f"no manifest, {label}", "train", "run.toml", "--set", "run.name=t", *sets, says=["manifest.json"], launcher=launcher)
    (work / "manifest.kept").rename(work / "data/train/manifest.json")
    short = next((work / "data/train").glob("*.bin"))
    whole_shard = short.read_bytes()
    short.write_bytes(whole_shard[:-2])
    refused(f"truncated shard, {label}", "train", "run.toml", "--set", "run.name=t", *sets, says=[short.stem], launcher=launcher)
    short.write_bytes(whole_shard)
for key in ("parallel.schedule=gpipe", "train.deterministic=false", "energy.slowdown=0.05", "parallel.data_replicate=2"):
    refused(f"not built: {key}", "train", "run.toml", "--set", key, says=[key.split("=")[0]])
shard = next((work / "data/train").glob("*.bin"))
good = shard.read_bytes()
shard.write_bytes(good[:-2])
refused("truncated shard", "train", "run.toml", "--set", "run.name=s", says=[shard.stem])
shard.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
refused("altered shard", "train", "run.toml", "--set", "run.name=s", says=[shard.stem])
r = run("data", "verify", "data", code=2)
ok("verify says on stderr which shard was altered", shard.name in r.stderr and "SHA-256" in r.stderr and r.stdout == "", r.stdout + r.stderr)
shard.write_bytes(good)
ckpt = next((work / "runs/parts/checkpoints/step-000000024").glob("*.safetensors"))
kept = ckpt.read_bytes()
ckpt.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
refused("damaged checkpoint", "checkpoint", "verify", "runs/parts/checkpoints/step-000000024", says=[ckpt.name], code=1)
ckpt.write_bytes(kept)
r = run("train", "run.toml", "--set", "run.name=nan", "--set", "optimizer.lr=1e30", "--set", "optimizer.clip=0", code=1)
step, first, last = map(int, re.search(r"step (\d+): .*not finite.*Samples (\d+) to (\d+) of the global order", r.stderr).groups())
ok("a non-finite loss stops before the optimizer and names the samples", (first, last) == ((step - 1) * 8, step * 8 - 1), r.stderr)

# --- the program's text ------------------------------------------------------------------------------------------------------
text = run("program", "run.toml").stdout
(work / "p.txt").write_text(text)
run("train", "run.toml", "--set", "run.name=text", "--program", "p.txt")
ok("the program from its text runs the same bits", "identical" in run("runs", "compare", "runs/whole", "runs/text").stdout)
lines = text.splitlines()
drop = next(i for i, l in enumerate(lines) if "backward part=norm_up" in l)
(work / "bad.txt").write_text("\n".join(lines[:drop] + lines[drop + 1 :]) + "\n")
refused("a program with an op deleted", "train", "run.toml", "--set", "run.name=bad", "--program", "bad.txt", says=["refused", "d_x"])

# --- what comes out ------------------------------------------------------------------------------------------------------------
args = ["runs/whole", "--prompt", "de molen", "--max-tokens", 24, "--temperature", "0.9", "--seed", 3]
ok("generation with and without cache agree", run("generate", *args).stdout == run("generate", *args, "--no-cache").stdout)
# A string that the text holds without it, somewhere after its beginning; what comes before it is kept, and nothing else.
long = ["runs/whole", "--prompt", "de molen", "--max-tokens", 50, "--seed", 3]
free = run("generate", *long).stdout.rstrip("\n")
stop = next(w for w in free.split()[4:] if len(w) > 2 and w in free[len("de molen"):])
at = free.index(stop, len("de molen"))
stopped = run("generate", *long, "--stop", stop).stdout.rstrip("\n")
ok(f"a stop string ends it: {stop!r}", 0 < at and len(stopped) < len(free) and stopped.rstrip() == free[:at].rstrip(), (stopped, free))
run("checkpoint", "export", "runs/whole", "hf")
ok("export has what transformers reads", {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"} <= {p.name for p in (work / "hf").iterdir()})
run("checkpoint", "import", "hf", "imported")
ok("generation from the export agrees", run("generate", "hf", *args[1:]).stdout == run("generate", *args).stdout)
# A vocabulary that tensor ranks pad: what they export has the padding nowhere, at first bit for bit what one rank exports.
header = lambda path: (lambda b: json.loads(b[8 : 8 + int.from_bytes(b[:8], "little")]))((work / path / "model.safetensors").read_bytes())
def floats(path):
    raw = (work / path / "model.safetensors").read_bytes()
    values = array.array("f")
    values.frombytes(raw[8 + int.from_bytes(raw[:8], "little") :])
    return values
for name, ranks, more in (("odd1", 1, []), ("odd2", 2, ["--set", "parallel.tensor=2"])):
    run("train", "run.toml", "--save-initial", "--ranks", ranks, *more, *[x for s in (f"run.name={name}", "model.vocabulary=323", "checkpoint.every=2 steps", "train.stop_after=2 steps", "train.validate_every=100 steps") for x in ("--set", s)])
    for step in (0, 2):
        run("checkpoint", "export", f"runs/{name}/checkpoints/step-{step:09}", f"{name}-{step}", "--dtype", "fp32")
ok("export of tensor ranks: shapes without padding", header("odd2-2") == header("odd1-2") and header("odd2-2")["model.embed_tokens.weight"]["shape"] == [323, 48], header("odd2-2"))
ok("export of tensor ranks: the same start", floats("odd2-0") == floats("odd1-0"))
off = max(abs(a - b) for a, b in zip(floats("odd2-2"), floats("odd1-2"), strict=True))
ok(f"export of tensor ranks: the same model after 2 steps, {off:.1e} apart", 0 <= off < 1e-4 and floats("odd2-2") != floats("odd2-0"), off)
finish("end to end")
