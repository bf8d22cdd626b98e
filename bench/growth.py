#!/usr/bin/env python3
"""How the time of `molen simulate` grows with ranks, stages, layers and micro-batches, and two commands of a model of 1 T parameters.

usage: growth.py MOLEN [--rounds N] [--record]
The model is gpt-1t on frontier in 16 bits, with 8 tensor ranks and the optimizer's states sharded (ZeRO-1). Each row doubles one size
from row to row. Times are CPU seconds of the whole command, the least of N rounds, so that other work on the machine counts little; the
growth is the exponent of the size between the first row and the last one: 1 is linear, 0 is constant. The two commands are timed by the
clock, as a user waits for them: the median of N rounds.
Exit status 1 where a figure misses its bound in docs/results/metrics.json; --record adds the figures to docs/results/records.jsonl.
"""
import argparse
import math
import pathlib
import resource
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
import results  # noqa: E402

TENSOR = 8
# By name: what is doubled, and its sizes.
AXES = {
    "ranks": ("data-parallel ranks, each with as many micro-batches", [(("data", d),) for d in (6, 12, 24, 48, 96)]),
    "stages": ("stages", [(("stages", p),) for p in (8, 16, 32, 64)]),
    "layers": ("layers", [(("layers", n),) for n in (128, 256, 512, 1024)]),
    "micro_batches": ("micro-batches of a replica", [(("micro_batches", m),) for m in (400, 800, 1600, 3200, 6400)]),
}
USUAL = {"data": 6, "stages": 64, "layers": 128, "micro_batches": 267}


def command(molen, sizes):
    s = {**USUAL, **sizes}
    ranks = TENSOR * s["stages"] * s["data"]
    sets = [f"parallel.tensor={TENSOR}", f"parallel.pipeline={s['stages']}", "parallel.zero=1", "batch.micro=1", "data.sequence_length=2048", "precision.compute=bf16",
            f"model.layers={s['layers']}", f"batch.global={s['micro_batches'] * s['data']}"]
    return [molen, "simulate", "--model", "gpt-1t", "--cluster", "frontier", "--ranks", str(ranks), *(word for x in sets for word in ("--set", x))]


def timed(words):
    """The clock's seconds and the processor's of a command."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("molen")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", action="store_true")
    o = parser.parse_args()
    figures = []
    for name, (title, rows) in AXES.items():
        print(f"{title}:")
        seconds = []
        for row in rows:
            words = command(o.molen, dict(row))
            seconds.append(min(timed(words)[1] for _ in range(o.rounds)))
            print(f"  {row[0][1]:>6}  {seconds[-1]:7.3f} s", flush=True)
        growth = math.log(seconds[-1] / seconds[0]) / math.log(rows[-1][0][1] / rows[0][0][1])
        print(f"  grows as the power {growth:.2f}")
        figures.append((f"growth/{name}", growth, None))
    for micro_batches in (267, 1600):
        words = command(o.molen, {"micro_batches": micro_batches})
        walls = [timed(words)[0] for _ in range(max(5, o.rounds))]
        print(f"{' '.join(['molen', *words[1:]])}\n  {statistics.median(walls):.3f} s [{min(walls):.3f}, {max(walls):.3f}]")
        figures.append((f"growth/command_{micro_batches}", statistics.median(walls), [min(walls), max(walls)]))
    if not results.report(figures, f"bench/growth.py build/molen --rounds {o.rounds} --record", o.record):
        sys.exit(1)


if __name__ == "__main__":
    main()
