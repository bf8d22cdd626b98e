#!/usr/bin/env python3
"""The cost of metering: the CPU time of its threads, and the time of a step with meters beside one without, by turns.

usage: metering.py MOLEN [--pairs N] [--steps N] [--record]
Trains llama-tiny on one rank of all cores. Its meters are a recording of six counters (two of processor and memory, four of GPUs), read
every 100 ms; the joules are divided among phases as for real counters. Prints the share of the process's CPU time that the thread of the
meters and that of the ledger take, and the ratio of the median step with meters to that without, over all pairs, with the upper end of its
95 % interval (Student's t, of the logarithms). Exit status 1 where a bound of docs/results/metrics.json is missed; --record adds the figures
to docs/results/records.jsonl.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tools"), str(ROOT / "tests/end_to_end")]
import results as records  # noqa: E402

CONFIG = """
[model]
preset = "llama-tiny"
vocabulary = 320
[data]
train = [{ path = "data/train" }]
tokenizer = "tok.json"
sequence_length = 256
[batch]
global = 4
micro = 4
[precision]
compute = "fp32"
"""
SCOPES = ("cpu-package0", "dram0", "gpu0", "gpu1", "gpu2", "gpu3")
# Student's t for a one-sided 95 % limit, by degrees of freedom.
T95 = {3: 2.353, 5: 2.015, 7: 1.895, 9: 1.833, 11: 1.796, 15: 1.753, 19: 1.729, 23: 1.714, 31: 1.696}


def threads_of(pid):
    """CPU seconds of each named thread so far; the first field of schedstat is nanoseconds."""
    seconds = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            seconds[(task / "comm").read_text().strip()] = int((task / "schedstat").read_text().split()[0]) * 1e-9
        except (OSError, IndexError):  # the thread is gone
            pass
    return seconds


def train(harness, name, meters, steps):
    """Returns the median step in s, the CPU seconds of the process, and those of its threads of metering."""
    sets = [f"run.name={name}", f"energy.meters={json.dumps([meters])}", f'train.until="{steps} steps"', f'checkpoint.every="{steps} steps"']
    job = subprocess.Popen([harness.MOLEN, "train", "llama-tiny.toml", *(x for s in sets for x in ("--set", s))], cwd=harness.work, env=harness.ENV, stdout=subprocess.DEVNULL)
    seen = {}
    while os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        seen |= threads_of(job.pid)
        time.sleep(0.1)
    _, status, used = os.wait4(job.pid, 0)
    if status:
        sys.exit(f"{name}: status {status}")
    took = [m["step_s"] for m in map(json.loads, (harness.work / f"runs/{name}/metrics.jsonl").read_text().splitlines())]
    return statistics.median(took[5:]), used.ru_utime + used.ru_stime, seen


def main():
    p = argparse.ArgumentParser()
    p.add_argument("molen")
    p.add_argument("--pairs", type=int, default=12, choices=[n + 1 for n in T95])
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--record", action="store_true", help="adds the figures to docs/results/records.jsonl")
    a = p.parse_args()
    import harness
    harness.shards()
    (harness.work / "node.jsonl").write_text("".join(json.dumps({"time_s": t, "energy_j": {s: 100.0 * t for s in SCOPES}}) + "\n" for t in (0.0, 1e5)))
    (harness.work / "llama-tiny.toml").write_text(CONFIG)
    logs, shares = [], {"meters": [], "ledger": []}
    for pair in range(a.pairs):
        step = {}
        for metered in (False, True) if pair % 2 == 0 else (True, False):
            step[metered], cpu, threads = train(harness, f"{'with' if metered else 'without'}-{pair}", "replay:node.jsonl" if metered else "none", a.steps)
            if metered:
                for name, of in shares.items():
                    of.append(100 * threads[name] / cpu)
        logs.append(math.log(step[True] / step[False]))
        print(f"pair {pair + 1}: {step[False]:.4f} s without, {step[True]:.4f} s with, {100 * math.expm1(logs[-1]):+.2f} %; thread of the meters {shares['meters'][-1]:.4f} %, "
              f"of the ledger {shares['ledger'][-1]:.4f} % of the CPU time", flush=True)
    upper = statistics.mean(logs) + T95[a.pairs - 1] * statistics.stdev(logs) / math.sqrt(a.pairs)
    print(f"the step takes {100 * math.expm1(statistics.mean(logs)):+.2f} % more, at most {100 * math.expm1(upper):+.2f} % by 95 %")
    measured = [("energy/step", 100 * math.expm1(upper), None)]
    measured += [(f"energy/{name}_thread", statistics.median(of), [min(of), max(of)]) for name, of in shares.items()]
    harness.shutil.rmtree(harness.root)
    sys.exit(0 if records.report(measured, f"bench/metering.py build/molen --pairs {a.pairs} --steps {a.steps}", a.record) else 1)


if __name__ == "__main__":
    main()
