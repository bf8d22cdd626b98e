#!/usr/bin/env python3
"""A step of molen beside every way in which PyTorch makes it well: each library of products, each allocator, compiled and not, in fp32 and bf16.

usage: ratios.py MOLEN [--rounds N] [--steps N] [--types fp32,bf16] [--record]

The 56.4M Llama (preset llama-60m) from the same random weights on the same batches, 4 x 512 tokens a step, 2 threads, all programs in turn in each round. Losses
of every step are compared: a program that computes something else is no peer. molen's figures are of `molen train`, with its data and its records.
Rows of PyTorch: as installed; with huge pages and jemalloc; MKL told that this is a processor of Intel's (elsewhere it takes slower code); linear layers by
oneDNN; each of these compiled. In bf16 autocast over fp32 weights, as molen keeps fp32 master weights. What is not on this machine is named, and no row.
The ratio that counts is beside the best row of each type.
"""
import argparse
import hashlib
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

import numpy

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))
sys.path.insert(0, str(HERE))
import results as records  # noqa: E402
import startup  # noqa: E402

VOCABULARY, SEQUENCE, BATCH = 32000, 512, 4
# Losses of two programs that round differently, after a few steps from the same weights (of 10.4): fp32 within 1e-4, bf16 within 5e-3.
NEAR = {"fp32": 1e-4, "bf16": 5e-3}


def write_data(folder, tokens, vocabulary=VOCABULARY):
    """One shard of random tokens."""
    startup.make(folder, 1, tokens)
    manifest = json.loads((folder / "manifest.json").read_text())
    drawn = numpy.random.default_rng(0).integers(1, vocabulary, tokens, dtype=numpy.uint16)
    documents = tokens // startup.DOCUMENT
    drawn[startup.DOCUMENT - 1 :: startup.DOCUMENT] = 0
    (folder / "shard-000000.bin").write_bytes(drawn.tobytes())
    assert struct.calcsize("H") * tokens == (folder / "shard-000000.bin").stat().st_size and documents * startup.DOCUMENT == tokens
    manifest["tokenizer"]["vocabulary"] = vocabulary
    manifest["shards"][0]["bin"]["sha256"] = hashlib.sha256(drawn.tobytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def molen_words(kind, steps, name):
    sets = {"device.kind": "cpu", "model.preset": "llama-60m", "data.train": '[{path="data"}]', "data.sequence_length": SEQUENCE, "batch.global": BATCH, "batch.micro": BATCH, "math.threads": 2,
            "precision.compute": kind, "optimizer.lr": 3e-4, "schedule.min_lr": 3e-5, "schedule.warmup": "0 steps", "train.until": f"{steps} steps",
            "checkpoint.every": "100000 steps", "run.name": name}  # fmt: skip
    return [w for key, value in sets.items() for w in ("--set", f"{key}={value}")]


def run(command, folder, env=None):
    done = subprocess.run([str(w) for w in command], cwd=folder, env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **(env or {})}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def of_molen(molen, kind, steps, env, words=molen_words):
    def measure(folder, turn):
        name = f"{kind}-{turn}-{len(list((folder / 'runs').iterdir())) if (folder / 'runs').exists() else 0}"
        run([molen, "train", *words(kind, steps, name)], folder, env)
        lines = [json.loads(x) for x in (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()]
        return [m["step_s"] for m in lines], [m["loss"] for m in lines]

    return measure


def of_torch(kind, steps, words, env, sequence=SEQUENCE):
    def measure(folder, turn):
        out = run([sys.executable, HERE / "peers/train_torch.py", "--model", "model", "--tokens", "batches.bin", "--sequence", sequence, "--global-batch", BATCH, "--micro", BATCH, "--steps", steps,
                   "--horizon", steps, "--threads", 2, "--dtype", "fp32", *(["--autocast"] if kind == "bf16" else []), *words], folder, env)  # fmt: skip
        lines = [json.loads(x) for x in out.splitlines() if x.startswith("{")]
        return [m["seconds"] for m in lines if "step" in m], [m["loss"] for m in lines if "step" in m]

    return measure


def allocators():
    """Name and environment of each allocator that is here, and what is not."""
    found, missing = {"": {}, "huge pages": {"THP_MEM_ALLOC_ENABLE": "1"}}, []
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout
    for library in ("libjemalloc.so", "libtcmalloc_minimal.so"):
        paths = [line.split("=> ")[1] for line in listed.splitlines() if library in line]
        if paths:
            found[f"huge pages, {library[3:].split('.')[0]}"] = {"THP_MEM_ALLOC_ENABLE": "1", "LD_PRELOAD": paths[0]}
        else:
            missing.append(library)
    return found, missing


def intel_shim(folder):
    """MKL asks this function which processor it is on."""
    (folder / "shim.c").write_text("int mkl_serv_intel_cpu_true(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "shim.so", "shim.c"], cwd=folder, check=True)
    return str(folder / "shim.so")


def rows_of(molen, kind, steps, folder):
    """{name: measure}, with PyTorch's rows behind molen's."""
    rows = {"molen": of_molen(molen, kind, steps, {})}
    for library in ("aten", "onednn"):
        rows[f"molen, GEMMs by {library}"] = of_molen(molen, kind, steps, {"MOLEN_GEMM": library})
    found, missing = allocators()
    best = list(found.items())[-1]
    for name, env in found.items():
        rows["PyTorch" + (f", {name}" if name else "")] = of_torch(kind, steps, [], env)
    if "GenuineIntel" in pathlib.Path("/proc/cpuinfo").read_text():
        missing.append("the shim of MKL (this processor is Intel's)")
    else:
        shim = intel_shim(folder)
        preload = " ".join(filter(None, [shim, best[1].get("LD_PRELOAD")]))
        rows["PyTorch, MKL as on Intel, " + best[0]] = of_torch(kind, steps, [], {**best[1], "LD_PRELOAD": preload})
        rows["PyTorch compiled, MKL as on Intel, " + best[0]] = of_torch(kind, steps, ["--compile"], {**best[1], "LD_PRELOAD": preload})
    if kind == "fp32":  # autocast's products in bf16 are oneDNN's already
        rows["PyTorch, oneDNN linears, " + best[0]] = of_torch(kind, steps, ["--onednn"], best[1])
    rows["PyTorch compiled"] = of_torch(kind, steps, ["--compile"], {})
    rows["PyTorch compiled, " + best[0]] = of_torch(kind, steps, ["--compile"], best[1])
    return rows, missing


def same_losses(kind, steps, losses, reference):
    """Ends the program where one of the rows has other losses than the row `reference`."""
    expected = losses[reference][0]
    for name, courses in losses.items():
        for course in courses:
            far = max(abs(a / b - 1) for a, b in zip(course, expected))
            if len(course) != steps or not far <= NEAR[kind]:
                sys.exit(f"{name} computes something else in {kind}: losses {course} beside {expected}")


def medians_of(timed):
    """{name: [median seconds of a step, of each round]}; compilation takes the first of the steps that are left out."""
    return {name: [statistics.median(t[3:]) for t in turns] for name, turns in timed.items()}


def beside_best(kind, medians, columns=()):
    """Prints the rows, with more columns (title, function of the seconds of a step); returns the record of molen beside the best row of PyTorch: ratio, spread, rows."""
    peers = {name: statistics.median(m) for name, m in medians.items() if name.startswith("PyTorch")}
    best = min(peers, key=peers.get)
    print(f"{'':<52}{'s/step':>8}{'min':>8}{'max':>8}{''.join(f'{title:>9}' for title, _ in columns)}{'beside molen':>14}")
    for name, m in medians.items():
        s = statistics.median(m)
        print(f"{name:<52}{s:>8.3f}{min(m):>8.3f}{max(m):>8.3f}{''.join(f'{of(s):>9}' for _, of in columns)}{s / statistics.median(medians['molen']):>13.2f}x")
    per_round = [a / b for a, b in zip(medians[best], medians["molen"])]
    print(f"molen is {statistics.median(per_round):.2f}x the best row of PyTorch in {kind} ({best}; {min(per_round):.2f} to {max(per_round):.2f})")
    rows = {name: [round(f(m), 4) for f in (statistics.median, min, max)] for name, m in medians.items()}
    return statistics.median(per_round), [min(per_round), max(per_round)], rows


def table(kind, steps, timed, losses, rates):
    medians = medians_of(timed)
    same_losses(kind, steps, losses, "PyTorch")
    gflop = 517.0  # docs/formats/metrics.md: 6 N of the matrices and causal attention, 2048 tokens
    print(f"\n{kind}: 56.4M Llama, {BATCH} x {SEQUENCE} tokens a step; GEMM rate {rates[kind]:.0f} GFLOP/s; all losses within {NEAR[kind]:g}")
    columns = [("GFLOP/s", lambda s: f"{gflop / s:.0f}"), ("of GEMM", lambda s: f"{100 * gflop / s / rates[kind]:.0f}%")]
    ratio = beside_best(kind, medians, columns)
    return [(f"ratios/{kind}", *ratio), (f"ratios/{kind}/gemm_share", 100 * gflop / statistics.median(medians["molen"]) / rates[kind], None)]


def write_inputs(molen, folder, words, steps, vocabulary, sequence=SEQUENCE):
    """Data for molen, and for PyTorch the same initial weights (`model`) and batches (`batches.bin`)."""
    write_data(folder / "data", (steps + 2) * BATCH * sequence + startup.DOCUMENT * 16, vocabulary)
    run([molen, "train", *words, "--set", "train.stop_after=1 steps", "--save-initial"], folder)
    run([molen, "checkpoint", "export", "runs/weights/checkpoints/step-000000000", "model"], folder)
    run([molen, "data", "batches", *words, "--steps", steps, "--output", "batches.bin"], folder)


def in_turns(rows, rounds, folder):
    """Seconds and losses of the steps of each row: {name: [of each round]}."""
    timed, losses = {name: [] for name in rows}, {name: [] for name in rows}
    for turn in range(rounds):
        for name, measure in rows.items():
            seconds, course = measure(folder, turn)
            print(f"round {turn + 1}, {name}: {statistics.median(seconds[3:]):.4f} s", file=sys.stderr, flush=True)
            timed[name].append(seconds)
            losses[name].append(course)
    return timed, losses


def options(doc):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("molen")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=9)
    p.add_argument("--types", default="fp32,bf16")
    p.add_argument("--record", action="store_true", help="adds the figures to docs/results/records.jsonl")
    a = p.parse_args()
    a.molen = str(pathlib.Path(a.molen).resolve())
    return a


def finish(script, a, measured):
    """Records and judges; ends the program."""
    command = f"{script} build/molen" + (f" --rounds {a.rounds}" if a.rounds != 3 else "") + (f" --types {a.types}" if a.types != "fp32,bf16" else "")
    sys.exit(0 if records.report(measured, command, a.record) else 1)


def main():
    a, measured = options(__doc__), []
    with tempfile.TemporaryDirectory(prefix="molen_ratios_") as scratch:
        folder = pathlib.Path(scratch)
        write_inputs(a.molen, folder, molen_words("fp32", a.steps, "weights"), a.steps, VOCABULARY)
        rates = json.loads(run([a.molen, "doctor", "--format", "json"], folder))["gemm_gflops"]
        for kind in a.types.split(","):
            rows, missing = rows_of(a.molen, kind, a.steps, folder)
            timed, losses = in_turns(rows, a.rounds, folder)
            measured += table(kind, a.steps, timed, losses, rates)
            print(f"not here: {', '.join(missing)}" if missing else "every row is here")
    finish("bench/ratios.py", a, measured)


if __name__ == "__main__":
    main()
