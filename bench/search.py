#!/usr/bin/env python3
"""The speed of `molen plan`: all layouts of a large job bounded, and the most promising 200 simulated.

usage: search.py MOLEN [--rounds N] [--record]
The job is llama3-70b on 1,024 GPUs of juwels-booster, 1,024 sequences of 4,096 tokens a step. Times are CPU seconds of the search's one
thread, so that other work on the machine does not count. Each figure is the best of its rounds, beside the spread of all.
Exit status 1 where a figure misses its bound in docs/results/metrics.json; --record adds the figures to docs/results/records.jsonl.
"""
import argparse
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
import results  # noqa: E402

JOB = ["--model", "llama3-70b", "--set", "data.sequence_length=4096", "--set", "batch.global=1024", "--cluster", "juwels-booster", "--ranks", "1024", "--simulate", "200"]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("molen")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--record", action="store_true")
    o = parser.parse_args()
    said = [json.loads(subprocess.run([o.molen, "plan", *JOB, "--format", "json"], stdout=subprocess.PIPE, check=True).stdout) for _ in range(o.rounds)]
    rates = [s["layouts"] / s["bounded_cpu_s"] for s in said]
    seconds = [s["simulated_cpu_s"] for s in said]
    first = said[0]
    print(f"{first['layouts']} layouts bounded in {first['bounded_cpu_s']:.3f} s, {max(rates):.0f} a second")
    print(f"{first['simulated']} simulated, and programs of {first['too_large'] + first['refused']} others built, in {min(seconds):.1f} s")
    spread = lambda values: [min(values), max(values)] if o.rounds > 1 else None  # noqa: E731
    if not results.report([("search/bounds", max(rates), spread(rates)), ("search/simulated", min(seconds), spread(seconds))], f"bench/search.py build/molen --rounds {o.rounds} --record", o.record):
        sys.exit(1)


if __name__ == "__main__":
    main()
