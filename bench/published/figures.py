"""Tables of published runs, what follows from their measured columns, and error figures of predictions (bench/published.py)."""
import collections
import csv
import itertools
import math
import re

import numpy as np

# Dense 16-bit peaks of the data sheets in TFLOP/s, for rows that do not say.
PEAKS = {"V100": 125.0, "A100": 312.0, "H100": 989.4, "MI250X-GCD": 191.5, "MI250X-128GB": 383.0}
LAYOUT = "tp pp vpp schedule pp_split dp cp sequence_parallel zero_stage shard_group mbs recompute".split()
JOB = "layers hidden ffn mlp heads kv_heads vocab tied_embeddings gpu gpus gbs seq precision".split()
BESIDE = {"device_used_nvidia_smi": "memory_bytes_per_gpu", "allocator_peak_max_over_ranks": "memory_allocator_bytes_per_gpu", "calculated": "memory_allocator_bytes_per_gpu"}


def number(row, column, blank=None):
    return float(row[column]) if row.get(column) else blank


def family(source):
    """What is left out together: tables of one paper or one page share their system, so a fit must not see any of them."""
    found = re.match(r"(.*?\b(?:19|20)\d\d)\b", source)
    return found[1] if found else source


def measured_s(row):
    """Seconds of a step, or None where the source has neither time nor tokens/s."""
    if row.get("step_s"):
        return number(row, "step_s")
    needed = [number(row, c) for c in ("tokens_per_s_per_gpu", "gbs", "seq", "gpus")]
    if None in needed:
        return None
    rate, batch, seq, gpus = needed
    return batch * seq / (rate * gpus)


def hardware_flops(row):
    """FLOPs of a step on all GPUs: attention counts as causal, and full recompute takes 4/3 of them."""
    layers, hidden, seq, batch = (number(row, c) for c in ("layers", "hidden", "seq", "gbs"))
    swiglu = row.get("mlp") == "swiglu"
    heads = number(row, "heads")
    ffn = number(row, "ffn", math.ceil(8 * hidden / 3 / 256) * 256 if swiglu else 4 * hidden)
    kv_width = hidden / heads * number(row, "kv_heads", heads)
    weights = layers * (2 * hidden**2 + 2 * hidden * kv_width + (3 if swiglu else 2) * hidden * ffn)
    attention = 4 * layers * seq * hidden
    head = 2 * hidden * number(row, "vocab", 51200)
    return (4 if row.get("recompute") == "full" else 3) * (2 * weights + attention / 2 + head) * batch * seq


def peak_of(row):
    known = [p for name, p in PEAKS.items() if row["gpu"].startswith(name)]
    return number(row, "peak_16bit_tflops", known[0] if known else None)


def null_times(rows, leave_out=True):
    """Seconds of each row from the median rate of its type of GPU in the other sources (in all rows without leave_out). A type that no other source has gets
    the median share of the peak of all other types. Also returns how many rows did."""
    rates = [hardware_flops(r) / measured_s(r) / number(r, "gpus") for r in rows]
    times, without = [], 0
    for row in rows:
        others = [(o, rate) for o, rate in zip(rows, rates) if not leave_out or family(o["source"]) != family(row["source"])]
        same = [rate for o, rate in others if o["gpu"] == row["gpu"]]
        if same:
            rate = np.median(same)
        elif others:
            without += 1
            rate = np.median([rate / peak_of(o) for o, rate in others]) * peak_of(row)
        else:
            raise SystemExit("the null model needs rows of at least two sources")
        times.append(hardware_flops(row) / (rate * number(row, "gpus")))
    return np.array(times), without


def read_table(path):
    with open(path, newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def errors_of(predicted, measured):
    """n, and median, mean, 90th percentile and bias (signed median) of predicted / measured - 1."""
    if len(measured) == 0:
        return {"n": 0}
    off = np.asarray(predicted, float) / np.asarray(measured, float) - 1
    return {"n": len(off), "median": float(np.median(abs(off))), "mean": float(np.mean(abs(off))), "p90": float(np.percentile(abs(off), 90)), "bias": float(np.median(off))}


def by_source(rows, predicted, null):
    """Error figures of each source and of all rows, by name."""
    table = {}
    groups = collections.defaultdict(list)
    for i, row in enumerate(rows):
        groups[row["source"]].append(i)
    measured = np.array([measured_s(r) for r in rows])
    for name, places in [*groups.items(), ("all", list(range(len(rows))))]:
        done = [i for i in places if not np.isnan(predicted[i])]
        table[name] = {"predicted": errors_of(predicted[done], measured[done]), "null": errors_of(null[done], measured[done]), "unpredicted": len(places) - len(done)}
    return table


def kendall(a, b):
    """Kendall's tau-b, and its numerator and number of pairs; tau is None where one of the two has only ties."""
    score = ties_a = ties_b = pairs = 0
    for (a1, b1), (a2, b2) in itertools.combinations(zip(a, b), 2):
        pairs += 1
        ties_a += a1 == a2
        ties_b += b1 == b2
        score += int(np.sign(a1 - a2) * np.sign(b1 - b2))
    scale = math.sqrt((pairs - ties_a) * (pairs - ties_b))
    return (score / scale if scale else None), score, pairs


def regret(predicted, measured):
    """How much slower the layout with the least predicted time is than the best one; the mean over layouts that tie."""
    predicted, measured = np.asarray(predicted, float), np.asarray(measured, float)
    return float(np.mean(measured[predicted <= predicted.min() * (1 + 1e-12)]) / measured.min() - 1)


def layout_groups(rows):
    """Places of the rows of each job that ran in several layouts, by layout. One layout may have been timed several times."""
    jobs = collections.defaultdict(lambda: collections.defaultdict(list))
    for i, row in enumerate(rows):
        jobs[(family(row["source"]), *(row.get(c, "") for c in JOB))][tuple(row.get(c, "") for c in LAYOUT)].append(i)
    return [list(layouts.values()) for layouts in jobs.values() if len(layouts) > 1]


def choices(rows, predicted, null):
    """How well predictions choose among and order the layouts of each job, beside a choice at random."""
    rows_measured = np.array([measured_s(r) for r in rows])
    found = {"jobs": 0, "layouts": 0, "regret": [], "random": [], "null_regret": [], "tau": [], "concordance": [0, 0]}
    for layouts in layout_groups(rows):
        layouts = [p for p in layouts if not np.isnan(predicted[p]).any()]
        if len(layouts) < 2:
            continue
        guess, blind, truth = ([float(np.median(times[p])) for p in layouts] for times in (predicted, null, rows_measured))
        found["jobs"] += 1
        found["layouts"] += len(layouts)
        found["regret"].append(regret(guess, truth))
        found["null_regret"].append(regret(blind, truth))
        found["random"].append(float(np.mean(truth) / min(truth) - 1))
        tau, score, pairs = kendall(guess, truth)
        if tau is not None:
            found["tau"].append(tau)
        found["concordance"][0] += score
        found["concordance"][1] += pairs
    mean = lambda values: float(np.mean(values)) if values else None  # noqa: E731
    score, pairs = found["concordance"]
    return {
        "jobs": found["jobs"],
        "layouts": found["layouts"],
        "regret": mean(found["regret"]),
        "worst_regret": max(found["regret"], default=None),
        "random_regret": mean(found["random"]),
        "null_regret": mean(found["null_regret"]),
        "tau": mean(found["tau"]),
        "pairs_tau": score / pairs if pairs else None,
    }


def memory_interval(rows, predictions):
    """How often the 80 % interval of bytes holds the measured ones; the spread that would hold 80 % of the rows; and how many rows of each source the spread of the others would hold."""
    held, needed = [], collections.defaultdict(list)
    for r in rows:
        key, p = BESIDE.get(r.get("memory_kind")), predictions[r["run_id"]]
        measured = number(r, "memory_gib")
        if key not in p or not measured:
            continue
        held.append(p[f"{key}_low"] <= measured * 2**30 <= p[f"{key}_high"])
        needed[family(r["source"])].append(math.exp(abs(math.log(p[key] / (measured * 2**30)))) - 1)
    if not held:
        return {"n": 0, "share": None, "spread_for_80": None, "cross_validated": None}
    of_all = [x for values in needed.values() for x in values]
    others = {s: [x for t, values in needed.items() if t != s for x in values] for s in needed}
    crossed = [x <= np.quantile(others[s], 0.8) for s, values in needed.items() if others[s] for x in values]
    return {"n": len(held), "share": float(np.mean(held)), "spread_for_80": float(np.quantile(of_all, 0.8)), "cross_validated": float(np.mean(crossed)) if crossed else None}


def memory_figures(rows, predictions):
    """Errors of predicted bytes by kind of measurement, and of `fits` for rows that ran and for rows that ran out of memory."""
    figures = {}
    for kind, key in BESIDE.items():
        pairs = [(predictions[r["run_id"]][key], number(r, "memory_gib") * 2**30) for r in rows if r.get("memory_kind") == kind and key in predictions[r["run_id"]]]
        figures[kind] = {"beside": key, **errors_of([p for p, _ in pairs], [m for _, m in pairs])}
    figures["interval_80"] = memory_interval(rows, predictions)
    for name, word in (("ran", "no"), ("out_of_memory", "yes")):
        said = [predictions[r["run_id"]]["fits"] for r in rows if r.get("oom") == word and "fits" in predictions[r["run_id"]]]
        figures[name] = {"n": len(said), "called_fitting": sum(said)}
    return figures


def needed_ratios(errors, predictions):
    """For each row, the ratio by which the spread of every class of ops (src/sim/factors.json) must grow until the 80 % interval just holds the measured time. `errors`: predicted over
    measured. A source of error whose name has a dot is a figure of the description, whose spread stays."""
    ratios = []
    for error, prediction in zip(errors, predictions):
        squares = {with_dot: sum(e**2 for name, e in prediction["step_errors"].items() if ("." in name) == with_dot) for with_dot in (True, False)}
        needed = (math.exp(abs(math.log(error))) - 1) ** 2 - squares[True]
        ratios.append(math.sqrt(max(0.0, needed) / squares[False]))
    return np.array(ratios)


def figures_of(rows, predictions):
    """All figures of a table with its predictions by run_id."""
    timed = [r for r in rows if r["score"] == "yes" and measured_s(r)]
    predicted = np.array([predictions[r["run_id"]].get("step_s", math.nan) for r in timed])
    null, without = null_times(timed)
    said = [(r, p) for r in timed if "step_s" in (p := predictions[r["run_id"]])]
    ratios = needed_ratios([p["step_s"] / measured_s(r) for r, p in said], [p for _, p in said])
    within = [p["step_s_low"] <= measured_s(r) <= p["step_s_high"] for r in timed if "step_s_low" in (p := predictions[r["run_id"]])]
    complete = np.array([r["complete"] == "yes" for r in timed], bool)
    some = [r for r, c in zip(timed, complete) if c]
    return {
        "time": by_source(timed, predicted, null),
        "time_complete": by_source(some, predicted[complete], null[complete]),
        "null_same_rows": errors_of(null_times(timed, leave_out=False)[0], [measured_s(r) for r in timed]),
        "null_without_its_gpu": without,
        "layouts": choices(timed, predicted, null),
        "memory": memory_figures([r for r in rows if r["score"] in ("yes", "memory")], predictions),
        "interval_80": {"n": len(within), "share": float(np.mean(within)) if within else None, "ratio_for_80": float(np.quantile(ratios, 0.8)) if within else None},
        "errors": {r["run_id"]: predictions[r["run_id"]]["error"] for r in rows if "error" in predictions[r["run_id"]]},
    }
