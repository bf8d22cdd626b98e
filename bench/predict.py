#!/usr/bin/env python3
"""Predicted beside measured step time and memory, for shapes and rank counts that the calibration did not see.

usage: predict.py MOLEN [--output FILE.json]
Calibrates this machine (2 threads; 2 thread-ranks of one thread), then predicts and runs each shape below. Memory: the planned
peak against the arena the executor used, which must be equal.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

# name, ranks, threads, what differs from the calibration's shapes
SHAPES = [
    ("llama-tiny, 4 x 256", 1, 2, ["model.preset=llama-tiny", "data.sequence_length=256", "batch.global=4", "batch.micro=4"]),
    ("llama-tiny, 2 x 512, 2 micro", 1, 2, ["model.preset=llama-tiny", "data.sequence_length=512", "batch.global=4", "batch.micro=2"]),
    ("llama-tiny, recompute", 1, 2, ["model.preset=llama-tiny", "data.sequence_length=256", "batch.global=4", "batch.micro=4", 'parallel.recompute="full"']),
    ("d 320, 5 layers", 1, 2, ["model.family=llama", "model.hidden=320", "model.layers=5", "model.heads=10", "model.kv_heads=5", "model.ffn=900", "model.vocabulary=10000",
                               "model.max_sequence=512", "data.sequence_length=200", "batch.global=6", "batch.micro=6"]),
    ("llama-60m, 2 x 512", 1, 2, ["model.preset=llama-60m", "data.sequence_length=512", "batch.global=2", "batch.micro=2"]),
    ("llama-60m, 4 x 512", 1, 2, ["model.preset=llama-60m", "data.sequence_length=512", "batch.global=4", "batch.micro=4"]),
    ("d 448, V 5000, 4 x 300", 1, 2, ["model.family=llama", "model.hidden=448", "model.layers=4", "model.heads=7", "model.kv_heads=7", "model.ffn=1300", "model.vocabulary=5000",
                                      "model.max_sequence=512", "data.sequence_length=300", "batch.global=4", "batch.micro=4"]),
    ("llama-tiny, 2 ranks", 2, 1, ["model.preset=llama-tiny", "data.sequence_length=256", "batch.global=8", "batch.micro=4"]),
    ("llama-tiny, 2 ranks, ZeRO-1", 2, 1, ["model.preset=llama-tiny", "data.sequence_length=256", "batch.global=8", "batch.micro=4", "parallel.zero=1"]),
    ("llama-tiny, 2 ranks, 3 micro", 2, 1, ["model.preset=llama-tiny", "data.sequence_length=128", "batch.global=24", "batch.micro=4", "parallel.zero=1"]),
    ("llama-60m, 2 ranks", 2, 1, ["model.preset=llama-60m", "data.sequence_length=512", "batch.global=4", "batch.micro=2"]),
    ("llama-60m, 2 ranks, ZeRO-1", 2, 1, ["model.preset=llama-60m", "data.sequence_length=512", "batch.global=4", "batch.micro=2", "parallel.zero=1"]),
]


def run(*command):
    r = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {r.stderr}")
    return r.stdout


def main():
    p = argparse.ArgumentParser()
    p.add_argument("molen")
    p.add_argument("--output")
    p.add_argument("--steps", type=int, default=4)
    a = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="molen_predict_") as folder:
        cluster = str(pathlib.Path(folder) / "here.json")
        run(a.molen, "calibrate", "--output", cluster, "--threads", 2)
        run(a.molen, "calibrate", "--output", cluster, "--threads", 1, "--ranks", 2)
        rows = []
        print(f"{'shape':<32}{'predicted':>11}{'measured':>11}{'error':>8}{'memory planned':>17}{'used':>13}")
        for name, ranks, threads, sets in SHAPES:
            flags = [x for s in [*sets, f"math.threads={threads}", "precision.compute=fp32"] for x in ("--set", s)]
            flags += ["--ranks", ranks] if ranks > 1 else []
            predicted = json.loads(run(a.molen, "simulate", *flags, "--cluster", cluster, "--format", "json"))
            measured = json.loads(run(a.molen, "bench", *flags, "--steps", a.steps).splitlines()[-1])
            error = predicted["step_s"] / measured["median_s"] - 1
            rows.append({"shape": name, "predicted_s": predicted["step_s"], "measured_s": measured["median_s"], "error": error, "planned_bytes": predicted["memory_bytes"],
                         "used_bytes": measured["arena_used_bytes"]})
            print(f"{name:<32}{predicted['step_s']:>10.3f}s{measured['median_s']:>10.3f}s{100 * error:>+7.1f}%{predicted['memory_bytes']:>17,}{measured['arena_used_bytes']:>13,}")
        median = statistics.median(abs(r["error"]) for r in rows)
        exact = all(r["planned_bytes"] == r["used_bytes"] for r in rows)
        print(f"median error {100 * median:.1f}% over {len(rows)} shapes (bound 10%, goal 3%); memory {'exact' if exact else 'DIFFERS'}")
        if a.output:
            pathlib.Path(a.output).write_text(json.dumps({"median_error": median, "memory_exact": exact, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
