#!/usr/bin/env python3
"""Predictions of `molen plan --runs` beside what others published of the same runs (bench/published/README.md).

usage: published.py MOLEN [--runs TABLE.csv] [--json FILE] [-- more arguments of molen plan, such as --factors FILE]
       published.py MOLEN --fit FILE [--lambda L] [--iterations N] [--refresh N] [--json FILE] [--record]
       published.py --self-test

Prints for each source the error of the predicted step time, |predicted / measured - 1|, and beside it that of a null model, which knows the machine's
median rate alone; how well predictions order the layouts of one job; the error of predicted memory; and how often the 80 % interval holds the measured time.

--fit fits the factors that `molen plan --print-factors` marks as fitted: {name: {"start": value before the fit, "prior": standard deviation of its logarithm, "fitted": bool}}. It
minimises, over all rows that count, weight x Huber(log(predicted / measured)) + lambda x sum of ((log value - log start) / prior)^2 by damped Gauss-Newton on the
logarithms. molen takes all sets of factors of an iteration at once. A source of n rows weighs sqrt(n) in all. Each source is predicted by factors that were fitted to the
others before the factors that are fitted to all are written to FILE as {name: value}. --record adds the figures of these predictions to docs/results/records.jsonl; the exit
status is 1 where one of them misses its bound in docs/results/metrics.json.
"""
import argparse
import concurrent.futures
import csv
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "published"), str(HERE.parent / "tools")]
import results as records  # noqa: E402
from figures import BESIDE, by_source, choices, figures_of, measured_s, needed_ratios, null_times, read_table  # noqa: E402
from fit import NOISE, fit_all  # noqa: E402
from self_test import self_test  # noqa: E402

WORKERS = 2  # molen processes at a time


def percent(value, sign=False):
    return "-" if value is None else f"{100 * value:{'+' if sign else ''}.1f}%"


def print_times(title, table):
    print(f"\n{title}: |predicted / measured - 1|, and bias, its signed median")
    print(f"{'source':42}{'n':>5}{'median':>9}{'mean':>9}{'p90':>9}{'bias':>9}   {'null: median':>12}{'mean':>9}{'p90':>9}{'bias':>9}")
    for name, f in table.items():
        cells = [[percent(f[k].get(x), x == "bias") for x in ("median", "mean", "p90", "bias")] for k in ("predicted", "null")]
        note = f"   {f['unpredicted']} not predicted" if f["unpredicted"] else ""
        print(f"{name[:41]:42}{f['predicted']['n']:>5}" + "".join(f"{c:>9}" for c in cells[0]) + f"   {cells[1][0]:>12}" + "".join(f"{c:>9}" for c in cells[1][1:]) + note)


def print_figures(figures):
    print_times("rows with score = yes", figures["time"])
    print_times("of these, rows with complete = yes", figures["time_complete"])
    same = figures["null_same_rows"]
    print(f"\nThe null model is the median rate of the GPU type in the other sources ({figures['null_without_its_gpu']} rows have a type that no other source has). "
          f"Fitted to these same rows it has a median of {percent(same['median'])} and a mean of {percent(same['mean'])}.")
    c = figures["layouts"]
    tau = "-" if c["tau"] is None else f"{c['tau']:.2f}, {c['pairs_tau']:.2f} over all pairs"
    print(f"\nlayouts: {c['jobs']} jobs with {c['layouts']} layouts; the chosen one is {percent(c['regret'])} slower than the best on average, {percent(c['worst_regret'])} at worst; "
          f"one at random is {percent(c['random_regret'])} slower, the null model's {percent(c['null_regret'])}; Kendall tau {tau}")
    m = figures["memory"]
    for kind, key in BESIDE.items():
        f = m[kind]
        said = ", ".join(f"{x} {percent(f[x], x == 'bias')}" for x in ("median", "mean", "p90", "bias")) if f["n"] else "none"
        print(f"memory, {kind} beside {key}: {f['n']} rows: {said}")
    i = m["interval_80"]
    if i["n"]:
        print(f"memory: the 80 % interval holds the measured bytes of {percent(i['share'])} of {i['n']} rows; a spread of {i['spread_for_80']:.3f} would hold 80 %, "
              f"and those of the other sources hold {percent(i['cross_validated'])} of each source's")
    ran, out = m["ran"], m["out_of_memory"]
    print(f"memory: {ran['called_fitting']} of {ran['n']} rows that ran are called fitting, and {out['called_fitting']} of {out['n']} that ran out of memory")
    i = figures["interval_80"]
    said = "" if i["ratio_for_80"] is None else f"; it would hold that of 80 % if the spread of a class of ops were {i['ratio_for_80']:.3f} times what it is"
    print(f"80 % interval: holds the measured time of {percent(i['share'])} of {i['n']} rows{said}")
    for run, error in figures["errors"].items():
        print(f"no prediction for {run}: {error}")


def run_molen(molen, table, arguments):
    """Predictions of a table by run_id."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "predictions.jsonl"
        done = subprocess.run([molen, "plan", "--runs", str(table), "--output", str(output), *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"molen plan: exit code {done.returncode}\n{done.stderr.strip()}")
        lines = [json.loads(line) for line in output.read_text().splitlines()]
    return {line["run_id"]: line for line in lines}


def predictions_of(molen, path, rows, arguments):
    predictions = run_molen(molen, path, arguments)
    missing = [r["run_id"] for r in rows if r["run_id"] not in predictions]
    if missing or len(predictions) != len(rows):
        raise SystemExit(f"{path}: the predictions have {len(predictions)} names, the table has {len(rows)} rows, and {len(missing)} of these have no line")
    return predictions


class Model:
    """Log step times of rows under given factors: runs of molen, each of which has a part of the rows and all sets of factors that are new."""

    def __init__(self, molen, rows, arguments):
        self.molen, self.rows, self.arguments = molen, rows, arguments
        self.folder = tempfile.TemporaryDirectory()
        self.tables = [pathlib.Path(self.folder.name) / f"runs-{i}.csv" for i in range(WORKERS)]
        for i, table in enumerate(self.tables):
            with open(table, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, rows[0].keys())
                writer.writeheader()
                writer.writerows(rows[i::WORKERS])
        self.known, self.runs = {}, 0

    def part(self, table, sets):
        """Seconds by run_id, one for each set of factors."""
        with tempfile.NamedTemporaryFile("w", suffix=".json", dir=self.folder.name) as file:
            json.dump(sets + sets[-1:], file)  # several sets, also where there is one
            file.flush()
            found = run_molen(self.molen, table, [*self.arguments, "--factors", file.name])
        bad = [(run, line["error"]) for run, line in found.items() if "error" in line]
        if bad:
            raise SystemExit(f"{bad[0][0]}: {bad[0][1]}; rows without a prediction cannot be fitted")
        return {run: line["step_s"][: len(sets)] for run, line in found.items()}

    def __call__(self, sets):
        """A row of log seconds for each set of factors."""
        keys = [tuple(sorted(values.items())) for values in sets]
        new = list({k: None for k in keys if k not in self.known})
        if new:
            self.runs += 1
            found = {}
            with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
                for part in pool.map(lambda table: self.part(table, [dict(k) for k in new]), self.tables):
                    found.update(part)
            logs = np.log([found[r["run_id"]] for r in self.rows]).T
            self.known.update(zip(new, logs))
        return np.array([self.known[k] for k in keys])


def print_factors(values, start, prior):
    print(f"\n{'factor':34}{'start':>12}{'fitted':>12}{'prior':>8}   deviations from the start")
    for name, value in values.items():
        print(f"{name:34}{start[name]:>12.5g}{value:>12.5g}{prior[name]:>8.3g}   {math.log(value / start[name]) / prior[name]:+.2f}")


def fit_command(args, rows, extra):
    shown = subprocess.run([args.molen, "plan", "--runs", str(args.runs), "--print-factors", *extra], capture_output=True, text=True)
    if shown.returncode != 0:
        raise SystemExit(f"molen plan --print-factors: exit code {shown.returncode}\n{shown.stderr.strip()}")
    fitted = {n: f for n, f in json.loads(shown.stdout).items() if f["fitted"]}
    bad = [n for n, f in fitted.items() if not (f["start"] > 0 and f["prior"] > 0)]
    if bad or not fitted:
        raise SystemExit(f"factors to fit need a value and a prior above 0: {', '.join(bad) or 'there is none'}")
    start, prior = ({n: f[key] for n, f in fitted.items()} for key in ("start", "prior"))
    whole = predictions_of(args.molen, args.runs, rows, extra)
    timed = [r for r in rows if r["score"] == "yes" and measured_s(r) and "step_s" in whole[r["run_id"]]]
    model = Model(args.molen, timed, extra)
    left_out, values = fit_all(model, timed, start, prior, args.strength, args.iterations, args.refresh)
    null, _ = null_times(timed)
    before, after = np.array([[math.exp(v) for v in logs] for logs in model([start, values])])
    tables = {"start": before, "fitted to all": after, "each source by a fit to the others": np.exp(left_out)}
    figures = {name: by_source(timed, predicted, null) for name, predicted in tables.items()}
    for name, table in figures.items():
        print_times(name, table)
    orders = {name: choices(timed, predicted, null) for name, predicted in tables.items()}
    for name, c in orders.items():
        print(f"layouts, {name}: {percent(c['regret'])} slower than the best on average; tau {c['tau']:.2f}" if c["tau"] is not None else f"layouts, {name}: none")
    print_factors(values, start, prior)
    args.fit.write_text(json.dumps(values, indent=1) + "\n")
    print(f"{args.fit}: {len(values)} factors after {model.runs} runs of molen")
    errors = np.exp(left_out) / np.array([measured_s(r) for r in timed])
    ratios = needed_ratios(errors, [whole[r["run_id"]] for r in timed])
    held = {"80 % interval holds": float(np.mean(ratios <= 1.0)), "80 % of errors are below": float(np.quantile(np.exp(abs(np.log(errors))) - 1, 0.8))}
    print("each source by a fit to the others: " + "; ".join(f"{name} {percent(share)}" for name, share in held.items()))
    print(f"the interval would hold 80 % if the spread of a class of ops were {np.quantile(ratios, 0.8):.3f} times what it is")
    return {"time": figures, "layouts": orders, "interval": held, "factors": values, "start": start, "prior": prior}


def kept_bounds(figures, command, record):
    """Whether the figures of predictions by fits to the other sources keep their bounds."""
    name = "each source by a fit to the others"
    of_all, order = figures["time"][name]["all"]["predicted"], figures["layouts"][name]
    measured = [(f"published/{x}", 100 * of_all[x], None) for x in ("median", "mean", "p90", "bias")]
    measured += [("published/regret", 100 * order["regret"], None), ("published/tau", order["tau"], None), ("published/interval", 100 * figures["interval"]["80 % interval holds"], None)]
    return records.report(measured, command, record)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("molen", nargs="?")
    parser.add_argument("--runs", type=pathlib.Path, default=HERE / "published" / "runs.csv")
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures as data")
    parser.add_argument("--fit", type=pathlib.Path, help="file for factors that are fitted to the table")
    parser.add_argument("--lambda", dest="strength", type=float, default=NOISE**2 / 2, help="weight of the prior; the default is that of errors of 10 %% (%(default)s)")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--refresh", type=int, default=1, help="iterations between fresh finite differences (%(default)s); each costs a run of molen for every factor")
    parser.add_argument("--record", action="store_true", help="adds the figures of --fit to docs/results/records.jsonl")
    parser.add_argument("--self-test", action="store_true")
    ours, separator, extra = sys.argv[1:], "--", []
    if separator in ours:
        ours, extra = ours[: ours.index(separator)], ours[ours.index(separator) + 1 :]
    args, unknown = parser.parse_known_args(ours)
    extra = unknown + extra
    if args.self_test:
        return self_test()
    if not args.molen:
        parser.error("name the molen program")
    if args.iterations < 1 or args.refresh < 1 or not args.strength >= 0:
        parser.error("--iterations and --refresh are at least 1, --lambda at least 0")
    rows = read_table(args.runs)
    if args.fit:
        figures = fit_command(args, rows, extra)
    else:
        figures = figures_of(rows, predictions_of(args.molen, args.runs, rows, extra))
        print_figures(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    if args.fit and not kept_bounds(figures, f"bench/published.py build/molen --fit FILE --iterations {args.iterations} --refresh {args.refresh}", args.record):
        sys.exit(1)


if __name__ == "__main__":
    main()
