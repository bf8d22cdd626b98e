#!/usr/bin/env python3
"""Step time and planned memory of two builds of molen beside each other: is a change slower than what was there before?

usage: builds.py BEFORE MOLEN [--rounds N] [--steps N] [--only TEXT] [--record]
Each shape below runs in both builds by turns, N times; the order changes from pair to pair. A ratio is MOLEN's median step over BEFORE's in
one pair. The table has the median ratio of each shape with its 95 % interval (of the sign test), and the bytes that each build plans.
Before the redesign of ops, the table of RoPE's angles was outside of the plan (an allocation of each executor): a plan that has grown by this
table alone has not grown.
Exit status 1 where the median of all ratios or the memory misses its bound in docs/results/metrics.json; --record adds the figures to
docs/results/records.jsonl. Only settings that both builds know can be compared.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
import results as records  # noqa: E402

TINY = {"model.preset": "llama-tiny", "data.sequence_length": 256, "batch.micro": 4, "precision.compute": "fp32"}
L60M = {"model.preset": "llama-60m", "data.sequence_length": 512, "batch.micro": 2, "batch.global": 2, "precision.compute": "fp32"}
GPT = {"model.family": "gpt", "model.hidden": 384, "model.layers": 4, "model.heads": 6, "model.ffn": 1536, "model.vocabulary": 16384, "model.max_sequence": 512,
       "data.sequence_length": 384, "batch.micro": 2, "batch.global": 4, "precision.compute": "fp32"}
# name, ranks, threads of a rank, settings
SHAPES = [
    ("llama-60m, fp32", 1, 2, L60M),
    ("llama-60m, bf16", 1, 2, {**L60M, "precision.compute": "bf16"}),
    ("llama-tiny, recompute", 1, 2, {**TINY, "batch.global": 8, "parallel.recompute": "full"}),
    ("gpt, 4 layers", 1, 2, GPT),
    ("gpt, 4 layers, bf16", 1, 2, {**GPT, "precision.compute": "bf16"}),
    ("llama-tiny, ZeRO-1", 2, 1, {**TINY, "batch.global": 16, "parallel.zero": 1}),
    ("llama-tiny, ZeRO-3", 2, 1, {**TINY, "batch.global": 16, "parallel.zero": 3}),
    ("llama-tiny, TP 2", 2, 1, {**TINY, "batch.global": 8, "parallel.tensor": 2}),
    ("llama-tiny, CP 2", 2, 1, {**TINY, "batch.global": 8, "parallel.context": 2}),
    ("llama-tiny, 2 stages", 2, 1, {**TINY, "batch.global": 16, "parallel.pipeline": 2}),
]
ENV = dict(os.environ, CUDA_VISIBLE_DEVICES="")


def bench(molen, shape, steps):
    """The last line of `molen bench`: median_s, arena_bytes and the like."""
    _, ranks, threads, sets = shape
    flags = [x for k, v in {**sets, "math.threads": threads, "device.kind": "cpu"}.items() for x in ("--set", f"{k}={json.dumps(v)}")]
    r = subprocess.run([molen, "bench", *flags, *(["--ranks", str(ranks)] if ranks > 1 else []), "--steps", str(steps)], capture_output=True, text=True, env=ENV)
    if r.returncode:
        sys.exit(f"{molen} bench {' '.join(flags)}: {r.stderr}")
    return json.loads(r.stdout.splitlines()[-1])


def rotation_bytes(shape):
    """cos beside sin of each position on a rank, in fp32 [sequence, head_dim]; GPT has none. Both Llamas have heads of 64."""
    sets = shape[3]
    return 0 if sets.get("model.family") == "gpt" else sets["data.sequence_length"] // sets.get("parallel.context", 1) * 64 * 4


def interval(values, confidence=0.95):
    """Returns the interval of the median by the sign test: the narrowest pair of order statistics that covers no less; all values where they are too few."""
    ordered, n = sorted(values), len(values)
    k = 0
    while k + 1 < n - k - 1 and 1 - 2 * sum(math.comb(n, i) for i in range(k + 2)) / 2**n >= confidence:
        k += 1
    return ordered[k], ordered[n - 1 - k]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("before")
    p.add_argument("molen")
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--only", default="", help="shapes whose name holds this text")
    p.add_argument("--record", action="store_true", help="adds the figures to docs/results/records.jsonl")
    a = p.parse_args()
    shapes = [s for s in SHAPES if a.only in s[0]]
    if not shapes:
        sys.exit(f"no shape holds '{a.only}'")
    said = {s[0]: ([], []) for s in shapes}
    for turn in range(a.rounds):
        for shape in shapes:
            for build in (0, 1) if turn % 2 == 0 else (1, 0):
                said[shape[0]][build].append(bench((a.before, a.molen)[build], shape, a.steps))
    print(f"{'shape':<24}{'before':>10}{'now':>10}{'ratio':>8}{'95 % interval':>18}{'planned before':>16}{'planned now':>14}")
    ratios, grown = [], 0
    for shape, (before, now) in zip(shapes, said.values()):
        pairs = [n["median_s"] / b["median_s"] for b, n in zip(before, now)]
        low, high = interval(pairs)
        planned = before[0]["arena_bytes"], now[0]["arena_bytes"]
        grown += planned[1] > planned[0] + rotation_bytes(shape)
        ratios.append(statistics.median(pairs))
        steps = [statistics.median(x["median_s"] for x in of) for of in (before, now)]
        print(f"{shape[0]:<24}{steps[0]:>9.4f}s{steps[1]:>9.4f}s{ratios[-1]:>8.3f}{f'{low:.3f} to {high:.3f}':>18}{planned[0]:>16,}{planned[1]:>14,}", flush=True)
    print(f"median of {len(ratios)} ratios: {statistics.median(ratios):.3f}; {grown} shapes plan more memory than before, even with the table of RoPE's angles")
    measured = [("builds/step", statistics.median(ratios), [min(ratios), max(ratios)]), ("builds/memory", grown, None)]
    sys.exit(0 if records.report(measured, f"bench/builds.py BEFORE build/molen --rounds {a.rounds} --steps {a.steps}", a.record) else 1)


if __name__ == "__main__":
    main()
