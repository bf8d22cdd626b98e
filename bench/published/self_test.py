"""Tests the arithmetic of the figures and of the fit on made-up rows and predictions (bench/published.py --self-test)."""
import math

import numpy as np
from figures import errors_of, family, figures_of, hardware_flops, kendall, measured_s, null_times, regret
from fit import Fit, fit_all, source_weights


def made_up_row(run, source, **more):
    row = dict(run_id=run, source=source, layers="2", hidden="8", heads="2", kv_heads="1", ffn="16", mlp="swiglu", vocab="10", seq="4", gpu="A100-SXM-80GB", gpus="2", gbs="6",
               recompute="none", step_s="1", score="yes", complete="yes", oom="no", tp="1", pp="1", dp="2", mbs="1")
    return {**row, **more}


def near(value, expected, what):
    if not (isinstance(value, (int, float)) and abs(value - expected) <= 1e-9 * max(1, abs(expected))):
        raise SystemExit(f"self-test: {what} is {value}, and should be {expected}")


def test_figures():
    f = errors_of([1.1, 0.8, 1.0, 2.0], [1, 1, 1, 1])
    for key, expected in {"n": 4, "median": 0.15, "mean": 0.325, "p90": 0.2 + 0.7 * 0.8, "bias": 0.05}.items():
        near(f[key], expected, key)
    near(errors_of([], [])["n"], 0, "n of nothing")
    # W = 2 (128 + 2 x 8 x 4 + 3 x 8 x 16) = 1152, A = 256, H = 160, 24 tokens
    near(hardware_flops(made_up_row("a", "s")), (3 * (2304 + 128) + 480) * 24, "FLOPs")
    near(hardware_flops(made_up_row("a", "s", recompute="full")), 4 * (2304 + 128 + 160) * 24, "FLOPs with recompute")
    near(hardware_flops(made_up_row("a", "s", ffn="", kv_heads="", mlp="gelu")), (3 * (2 * 2 * (256 + 2 * 8 * 32) + 128) + 480) * 24, "FLOPs with defaults")
    near(measured_s(made_up_row("a", "s", step_s="", tokens_per_s_per_gpu="6")), 2, "time from tokens/s")
    tau, score, pairs = kendall([1, 2, 3, 3], [1, 3, 2, 2])
    near(score, 1, "concordant less discordant pairs")
    near(pairs, 6, "pairs")
    near(tau, 1 / 5, "tau")
    near(regret([2, 1, 1], [10, 11, 13]), 0.2, "regret with a tie")
    families = {"Narayanan 2021 Table 2": "Narayanan 2021", "Megatron-LM README Sep 2020": "Megatron-LM README Sep 2020", "MosaicML llm-foundry": "MosaicML llm-foundry"}
    for source, expected in families.items():
        if family(source) != expected:
            raise SystemExit(f"self-test: {source} is of {family(source)}")


def test_null():
    rows = [made_up_row("a", "s 2020 one"), made_up_row("b", "s 2020 two", step_s="4"), made_up_row("c", "t", step_s="2"), made_up_row("d", "t", gpu="H100-SXM-80GB", step_s="1")]
    times, without = null_times(rows)
    near(without, 1, "rows whose type no other source has")
    for i, expected in enumerate([2, 2, 1 / np.median([1, 1 / 4]), 312 / 989.4 / np.median([1, 1 / 4])]):
        near(times[i], expected, f"null time {i}")
    near(null_times(rows, leave_out=False)[0][0], 2, "null time on the same rows")


def test_memory_interval():
    sizes = {"a": ("s 2020", 10), "b": ("s 2020", 8), "c": ("t", 10), "d": ("t", 20)}
    rows = [made_up_row(run, source, memory_gib=str(gib), memory_kind="calculated") for run, (source, gib) in sizes.items()]
    key = "memory_allocator_bytes_per_gpu"
    line = {key: 10 * 2**30, f"{key}_low": 8 * 2**30, f"{key}_high": 12.5 * 2**30, "fits": True, "step_s": 1.0, "step_s_low": 0.5, "step_s_high": 2.0, "step_errors": {"products": 1.0}}
    i = figures_of(rows, {run: line for run in sizes})["memory"]["interval_80"]
    near(i["share"], 0.75, "20 GiB is above 12.5")
    # Spreads of 0, 0.25, 0 and 1. The other source's quantiles are 0.8 for s and 0.2 for t.
    near(i["spread_for_80"], float(np.quantile([0, 0.25, 0, 1], 0.8)), "spread for 80 %")
    near(i["cross_validated"], 0.75, "held by the spread of the other source")


def test_report():
    rows = [
        made_up_row("a", "s 2020", memory_gib="2", memory_kind="device_used_nvidia_smi"),
        made_up_row("b", "s 2020", tp="2", dp="1", step_s="2"),
        made_up_row("c", "s 2020", tp="2", dp="1", step_s="4"),
        made_up_row("d", "t", step_s="2", complete="no"),
        made_up_row("e", "t", score="no"),
        made_up_row("f", "t", score="memory", oom="yes", step_s="7"),
        made_up_row("g", "t", gbs="12"),
    ]
    line = lambda s: dict(step_s=s, step_s_low=s / 1.5, step_s_high=s * 1.5, fits=True, memory_bytes_per_gpu=3 * 2**30, memory_bytes_per_gpu_low=2.5 * 2**30, memory_bytes_per_gpu_high=4 * 2**30, memory_allocator_bytes_per_gpu=2**30, step_errors={"device.bandwidth": 0.3, "memory": 0.32, "products": 0.24})  # noqa: E731
    f = figures_of(rows, {"a": line(1.2), "b": line(1.1), "c": line(1.1), "d": line(2), "e": line(9), "f": line(1), "g": {"error": "x"}})
    near(f["time"]["all"]["predicted"]["n"], 4, "rows predicted")
    near(f["time"]["all"]["unpredicted"], 1, "rows not predicted")
    near(f["time"]["t"]["predicted"]["median"], 0, "median of t")
    near(f["time_complete"]["all"]["predicted"]["n"], 3, "complete rows predicted")
    near(f["time"]["s 2020"]["predicted"]["median"], 0.45, "median of s")
    c = f["layouts"]
    near(c["jobs"], 1, "jobs")
    near(c["layouts"], 2, "layouts")
    near(c["regret"], 2, "regret")  # the layout of b and c took 3 s in the median
    near(c["random_regret"], 1, "regret of a random choice")
    near(c["tau"], -1, "tau")
    near(f["memory"]["device_used_nvidia_smi"]["median"], 0.5, "error of memory")
    i = f["memory"]["interval_80"]
    near(i["n"], 1, "rows with memory")
    near(i["share"], 0, "2 GiB is below 2.5")
    near(i["spread_for_80"], 0.5, "3 beside 2")
    near(f["memory"]["ran"]["n"], 4, "rows that ran")
    near(f["memory"]["out_of_memory"]["called_fitting"], 1, "rows out of memory called fitting")
    near(f["interval_80"]["share"], 0.5, "share in the interval")
    # Errors of 1.2, 1.1 / 2, 1.1 / 4 and 1 / 1 need classes of 0, sqrt(0.818^2 - 0.3^2) and sqrt(2.636^2 - 0.3^2) in place of 0.4.
    needed = [0.0, math.sqrt((0.9 / 1.1) ** 2 - 0.09) / 0.4, math.sqrt((2.9 / 1.1) ** 2 - 0.09) / 0.4, 0.0]
    near(f["interval_80"]["ratio_for_80"], float(np.quantile(needed, 0.8)), "growth of the classes")
    if f["errors"] != {"g": "x"}:
        raise SystemExit("self-test: errors")


def test_fit():
    """Rows of a law with known factors: the fit finds them in spite of an outlier, and a strong prior keeps the start."""
    random = np.random.default_rng(1)
    parts = random.uniform(0.5, 2, (40, 3))
    law = lambda values: np.log(parts[:, 0] / values["a"] + np.maximum(parts[:, 1] * values["b"], parts[:, 2] * values["c"]))  # noqa: E731
    model = lambda sets: np.array([law(v) for v in sets])  # noqa: E731
    truth = {"a": 0.6, "b": 1.4, "c": 0.9}
    rows = [made_up_row(str(i), f"s{i % 4}", step_s=str(t)) for i, t in enumerate(np.exp(law(truth)))]
    start, wide = {"a": 0.5, "b": 1.0, "c": 1.0}, dict.fromkeys("abc", 0.5)
    for refresh, outlier, bound in ((1, 1, 1e-3), (3, 1, 1e-3), (1, 10, 0.05)):
        some = [{**row, "step_s": str(outlier * float(row["step_s"]))} if row["run_id"] == "7" else row for row in rows]
        left_out, values = fit_all(model, some, start, wide, 1e-7, 12, refresh, say=lambda text: None)
        for name, value in truth.items():
            if not abs(values[name] / value - 1) < bound:
                raise SystemExit(f"self-test: the fit finds {values}, and the law has {truth}")
        if not np.median(abs(left_out - law(truth))) < bound:
            raise SystemExit("self-test: a source that is left out is not predicted")
    _, kept = fit_all(model, rows, start, dict.fromkeys("abc", 1e-4), 1, 4, 1, say=lambda text: None)
    for name in start:
        if not abs(kept[name] / start[name] - 1) < 1e-3:
            raise SystemExit(f"self-test: a strong prior gives {kept}")
    other = [{**row, "step_s": str(2 * float(row["step_s"]))} if row["source"] == "s2" else row for row in rows]
    own = np.array([row["source"] == "s2" for row in rows])
    fits = [fit_all(model, some, start, wide, 1e-3, 6, 1, say=lambda text: None)[0] for some in (rows, other)]
    if not (abs(fits[0] - fits[1])[own].max() < 1e-12 < abs(fits[0] - fits[1])[~own].min()):
        raise SystemExit("self-test: a source that is left out changes its own prediction")
    fit, weights = Fit(model, law(truth), {"a": 0.2, "b": 3.0, "c": 0.3}, wide, 0.1), np.ones(40)
    x = fit.run(weights, 40, 1)
    loss = lambda place: fit.loss(place, model([fit.values(place)])[0] - fit.measured, weights)  # noqa: E731
    if not min(loss(x + 2e-3 * unit) for unit in [*np.eye(3), *-np.eye(3)]) > loss(x):
        raise SystemExit("self-test: the fit with a prior ends beside the least loss")
    near(source_weights(["x", "x", "x", "x", "y"])[:4].sum(), 2, "weight of a source of 4 rows")
    fit = Fit(model, np.zeros(40), start, wide, 0.5)
    near(fit.loss(fit.start + 0.5, np.array([0.05, -0.3]), np.array([1.0, 2.0])), 0.00125 + 2 * 0.1 * 0.25 + 0.5 * 3, "loss")


def self_test():
    for test in (test_figures, test_null, test_memory_interval, test_report, test_fit):
        test()
    print("self-test: ok")
