"""Rows of train, bench, report, runs, energy, doctor and config."""
import csv
import datetime
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import torch_model
from effects import all_close, close, equal, lines_of, row
from harness import ENV, MOLEN, run, work
from packages import power_of_this_machine, processors

LLAMA = {"model.vocabulary": 320, "math.threads": 1, "data.sequence_length": 16, "data.train": [{"path": "data/train"}], "batch.global": 2, "train.until": "1 steps", "schedule.warmup": "1 steps", "precision.compute": "fp64", "energy.meters": ["none"]}


def formats(case, *words, shows, **more):
    """`shows`: what the JSON holds and the table, which is the default, must show."""
    text, value = case.molen(*words, **more).stdout, json.loads(case.molen(*words, "--format", "json", **more).stdout)
    again = case.molen(*words, "--format", "text", **more).stdout if len(words) < 3 else text
    assert text.count("\n") == again.count("\n") and not text.startswith(("{", "[")), f"{words}: {text}{again}"
    for word in shows(value):
        assert str(word) in text, f"{words}: {word} is not in\n{text}"
    return value


# --- train -------------------------------------------------------------------------------------------------------------------------
@row("train --model", "train --set")
def model_and_set(case):
    small = {"model.layers": 1, "model.hidden": 24, "model.heads": 4, "model.kv_heads": 2, "model.ffn": 40}
    ran = case.train({**LLAMA, **small, "run.name": "preset"}, "--model", "llama-tiny", config=None)
    start = lines_of(work / "runs/preset/events.jsonl")[0]
    assert start["arch"].startswith("llama-tiny") and "llama-tiny" in ran.out, start
    # Later ones stand over earlier ones, and all over the file.
    over = case.train({"optimizer.lr": 7e-3}, {"optimizer.lr": 5e-3, "schedule.kind": "constant"})
    equal("lr", over.column("lr"), [2.5e-3, 5e-3, 5e-3, 5e-3])
    case.refused("train", "tiny.toml", {"optimizer.rate": 1}, says=["optimizer.rate", "did you mean"])


@row("train --ranks")
def ranks(case):
    one, three = case.train(), case.train("--ranks", 3)
    equal("ranks", [r.events("start")[0]["ranks"] for r in (one, three)], [1, 3])
    equal("files of the ranks", len(list((three.path / "flight").glob("rank-*.bin"))), 3)
    all_close("losses", three.column("loss"), one.column("loss"), 1e-10)


# The parameters of tiny.toml's model, and the FLOPs of a token.
PARAMETERS = 2 * 320 * 24 + 2 * (24 * (24 + 2 * 12) + 24 * 24 + 3 * 24 * 40 + 2 * 24) + 24
RATES = {"palm": 6 * PARAMETERS + 12 * 2 * 24 * 16, "causal": 6 * (PARAMETERS - 320 * 24 - 5 * 24) + 6 * 2 * 24 * 16}


def scalars(folder):
    """Returns what TensorBoard itself reads: tag -> values by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [e.value for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def samples(text):
    """Name -> value of a Prometheus text."""
    return {line.split("{")[0]: float(line.split()[-1]) for line in text.splitlines() if not line.startswith("#")}


@row("train --ranks")
def records(case):
    """The numbers of a step on two ranks, each from what it is made of, and the same in every view."""
    ran = case.train({"precision.compute": "fp32", "batch.global": 512, "train.trace_steps": [3], "data.validation": [{"path": "held/heldout"}], "train.validate_batches": 1}, "--ranks", 2)
    peak, steps, tokens = ran.events("start")[0]["device_peak"]["flops_per_s"], ran.steps, 512 * 16
    planned = json.loads(case.molen("program", "tiny.toml", "--ranks", 2, {"precision.compute": "fp32", "batch.global": 512}, "--format", "json").stdout)["peak_bytes"]
    traced = [e for e in json.loads((ran.path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    equal("traced", {e["args"]["step"] for e in traced}, {3})
    for m in steps:
        close("tokens a second", m["tokens_per_s"] * m["step_s"], tokens)
        close("of a device", m["tokens_per_s_per_device"], m["tokens_per_s"] / 2)
        close("model FLOPs of both devices", 2 * m["model_tflops_per_device"] * 1e12 * m["step_s"], tokens * RATES["causal"])
        close("MFU", m["mfu"] * peak, m["model_tflops_per_device"] * 1e12)
        close("HFU", m["hfu"] * peak * m["step_s"], sum(e["args"]["flops"] for e in traced))
        equal("memory", (m["memory_planned_bytes"], 0 < m["memory_peak_bytes"] <= planned), (planned, True))
        assert 0 <= m["data_wait_s"] < m["step_s"] and sum(m["phase_s"].values()) < 2 * m["step_s"], m
    # A mean over ranks, which end a step together.
    took = (max(e["ts"] + e["dur"] for e in traced) - min(e["ts"] for e in traced)) * 1e-6
    assert steps[2]["step_s"] < 1.8 * took, (steps[2], took)
    state = json.loads((ran.checkpoint(4) / "state.json").read_text())["state"]
    equal("the state that is saved", {k: state[k] for k in ("step_done", "next_sample", "tokens_total", "total_steps", "ranks", "lr")},
          {"step_done": 4, "next_sample": 4 * 512, "tokens_total": 4 * tokens, "total_steps": 4, "ranks": 2, "lr": steps[-1]["lr"]})
    shown, held = scalars(ran.path / "tensorboard"), ran.events("validation")[-1]
    for tag, column, unit in (("loss_metrics/global_avg_loss", "loss", 1), ("grad_norm", "grad_norm", 1), ("lr", "lr", 1), ("throughput(tps)", "tokens_per_s", 1), ("tflops", "model_tflops_per_device", 1), ("mfu(%)", "mfu", 100),
                              ("hfu(%)", "hfu", 100), ("time_metrics/end_to_end(s)", "step_s", 1), ("time_metrics/data_loading(s)", "data_wait_s", 1), ("memory/max_active(GiB)", "memory_peak_bytes", 2**-30)):
        all_close(f"TensorBoard's {tag}", shown[tag], [m[column] * unit for m in steps], 1e-6)
    all_close("TensorBoard's validation", [shown["validation_metrics/loss"][-1], shown["validation_metrics/bits_per_byte/nl"][-1]], [held["loss"], held["bits_per_byte"]["nl"]], 1e-6)
    told, last = samples((ran.path / "metrics.prom").read_text()), steps[-1]
    for name, value in {"step": 4, "loss": last["loss"], "tokens_total": 4 * tokens, "tokens_per_second": last["tokens_per_s"], "step_seconds": last["step_s"], "memory_peak_bytes": last["memory_peak_bytes"],
                        "model_flops_per_second": last["model_tflops_per_device"] * 1e12, "mfu_ratio": last["mfu"], "hfu_ratio": last["hfu"], "device_peak_flops_per_second": peak}.items():
        close(f"Prometheus' {name}", told[f"molen_{name}"], value, 1e-5)


@row("train --resume", "train --allow-change", "train --save-initial")
def resume(case):
    whole = case.train({"checkpoint.every": "1 steps", "checkpoint.keep": 0}, "--save-initial", name="resumed")
    equal("--save-initial", whole.checkpoints(), [0, 1, 2, 3, 4])
    equal("without", case.train({"checkpoint.every": "1 steps", "checkpoint.keep": 0}).checkpoints(), [1, 2, 3, 4])
    changed = {"optimizer.lr": 2e-2, "schedule.min_lr": 0.0}
    case.refused("train", "tiny.toml", {"run.name": "resumed", **changed}, "--resume", 2, says=["optimizer.lr", "schedule.min_lr", "--allow-change"])
    case.refused("train", "tiny.toml", {"run.name": "resumed", **changed}, "--resume", 2, "--allow-change", "optimizer.lr", says=["schedule.min_lr"])
    # A warm-up that is derived stays the checkpoint's; one that is written is a change.
    case.refused("train", "tiny.toml", {"run.name": "resumed", "schedule.warmup": "1 steps"}, "--resume", 2, says=['schedule.warmup: "2 steps" in the checkpoint, "1 steps" now', "--allow-change schedule.warmup"])
    ran = case.train(changed, {"checkpoint.dir": "runs/resumed/checkpoints", "checkpoint.keep": 0}, "--resume", 2, "--allow-change", "optimizer.lr", "--allow-change", "schedule.min_lr")
    equal("step 2 is what it goes on from", (ran.events("resume")[0]["step"], [m["step"] for m in ran.steps]), (2, [3, 4]))
    close("the same state", ran.steps[0]["loss"], whole.steps[2]["loss"], 1e-12)
    all_close("with the changed rate", ran.column("lr"), [torch_model.learning_rate(s, 4, lr=2e-2, min_lr=0.0, warmup=2) for s in (3, 4)], 1e-12)
    short = case.train({"train.stop_after": "2 steps"}, name="again")
    on = case.train({}, "--resume", "auto", name="again")
    equal("auto goes on", ([m["step"] for m in on.steps], on.events("resume")[0]["step"], short.out.count("continues")), ([1, 2, 3, 4], 2, 0))
    fresh = case.molen("train", "tiny.toml", {"run.name": "again"}, "--resume", "never").stdout
    equal("never begins", ("continues" in fresh, on.events("start")[-1]["step"]), (False, 0))
    case.refused("train", "tiny.toml", {"run.name": "resumed"}, "--resume", 9, says=["--resume 9", "no checkpoint"])


@row("train --program")
def program(case):
    text = case.molen("program", "tiny.toml", {"parallel.recompute": "full"}).stdout
    (work / "again.txt").write_text(text)
    plain = case.train()
    ran = case.train({"parallel.recompute": "full"}, "--program", "again.txt")
    assert ran.steps[0]["phase_s"]["recompute"] > 0 == plain.steps[0]["phase_s"]["recompute"]
    equal("losses", ran.column("loss"), plain.column("loss"))
    case.refused("train", "tiny.toml", "--program", "again.txt", says=["another layout, batch, precision or kernels"])
    # A pipeline needs the texts of all stages. Here their messages are on another stream.
    staged = {"parallel.pipeline": 2}
    built = case.train(staged, "--ranks", 2)
    folder = work / "edited"
    folder.mkdir()
    names = ("program.txt", "program-stage-1.txt")
    for name in names:
        (folder / name).write_text(re.sub(r"stream=pp_comm", "stream=tp_comm", (built.path / name).read_text()))
    ran = case.train(staged, "--ranks", 2, "--program", "edited")
    equal("losses of the pipeline", ran.column("loss"), built.column("loss"))
    for name in names:
        text = (ran.path / name).read_text()
        equal(f"streams of {name}", ("stream=tp_comm" in text, "stream=pp_comm" in text), (True, False))
    case.refused("train", "tiny.toml", staged, "--ranks", 2, "--program", "edited/program.txt", says=["the program of one stage", "give a folder with program.txt and program-stage-1.txt"])
    second = (folder / "program-stage-1.txt").read_text()
    (folder / "program-stage-1.txt").write_text(re.sub(r"  %\d+ send [^\n]*\n", "", second, count=1))
    case.refused("train", "tiny.toml", staged, "--ranks", 2, "--program", "edited", says=["program-stage-1.txt"])
    (folder / "program-stage-1.txt").write_text((folder / "program.txt").read_text())
    case.refused("train", "tiny.toml", staged, "--ranks", 2, "--program", "edited", says=["is of stage 0 of the pipeline, not of stage 1"])


@row("train --mfu", "train --dry-run")
def said(case):
    for name, flops in RATES.items():
        for m in case.train("--mfu", name).steps:
            equal("formula", m["flops_formula"], name)
            close(f"FLOPs of a token by {name}", m["model_tflops_per_device"] * 1e12 * m["step_s"] / 64, flops)
    dry = case.molen("train", "tiny.toml", {"run.name": "never"}, "--dry-run").stdout
    assert f"{PARAMETERS} parameters" in dry and "4 steps of 4 sequences, 256 tokens" in dry and "is sound" in dry and not (work / "runs/never").exists(), dry


# --- bench --------------------------------------------------------------------------------------------------------------------------
@row("bench --model", "bench --set", "bench --ranks", "bench --steps")
def bench(case):
    fp32 = {"precision.compute": "fp32", "device.kind": "cpu"}
    times = {n: json.loads(case.molen("bench", "tiny.toml", "--steps", n, fp32).stdout) for n in (1, 2, 3)}
    spread = {n: len({t["min_s"], t["median_s"], t["max_s"]}) for n, t in times.items()}
    equal("of one step one time, of two the lesser and the greater, of three all", spread, {1: 1, 2: 2, 3: 3})
    rates = json.loads(case.molen("doctor", "--format", "json").stdout)["gemm_gflops"]
    faster, fp32_rate, bf16_rate = rates["bf16"] / rates["fp32"], times[3]["gemm_gflops"], times[3]["gemm_bf16_gflops"]
    assert fp32_rate != bf16_rate, times[3]
    if faster < 1 / 2 or faster > 3 / 2:  # so far apart that other numbers of threads, and other work, do not change which is faster
        assert (bf16_rate > fp32_rate) == (faster > 1), (times[3], rates)
    for t in times.values():
        close("model FLOPs of a step", t["gflops"] * 1e9 * t["median_s"], 64 * RATES["causal"])
        assert t["min_s"] <= t["median_s"] <= t["max_s"] and 0 < t["ready_at_s"] < t["first_step_at_s"], t
    two = json.loads(case.molen("bench", "tiny.toml", "--ranks", 2, "--steps", 1, fp32).stdout)
    equal("what two ranks do more", set(two["ops"]) - set(times[1]["ops"]), {"all_reduce", "reduce_scalars"})
    small = {**fp32, "model.layers": 1, "model.vocabulary": 320, "data.sequence_length": 16, "batch.global": 2, "math.threads": 1}
    preset = json.loads(case.molen("bench", "--model", "llama-tiny", small, "--steps", 1).stdout)
    planned = json.loads(case.molen("program", "--model", "llama-tiny", small, "--format", "json").stdout)["peak_bytes"]
    equal("its arena", preset["arena_bytes"], planned)
    assert planned != times[1]["arena_bytes"]
    # Pages of it: an op may leave some of its scratch.
    assert 0.95 * planned < preset["arena_touched_bytes"] <= planned, (preset["arena_touched_bytes"], planned)


@row("--version")
def version(case):
    said = re.search(r"VERSION (\d+\.\d+\.\d+)", (pathlib.Path(__file__).resolve().parents[2] / "CMakeLists.txt").read_text())
    equal("the version of the sources", case.molen("--version").stdout, f"molen {said[1]}\n")


# --- what looks at runs ----------------------------------------------------------------------------------------------------------------
run("train", "tiny.toml", "--set", "run.name=seen", "--set", 'run.tags=["looked-at"]', "--ranks", 2)
run("train", "tiny.toml", "--set", "run.name=longer", "--set", 'train.until="6 steps"')


@row("runs list --format", "runs list --tag", "runs show --format", "runs compare --format", "runs flight --format")
def runs(case):
    found = formats(case, "runs", "list", "--tag", "looked-at", shows=lambda v: [v[0]["run"], v[0]["steps"], "looked-at", f"{v[0]['loss']:.4f}"])
    equal("by tag", [r["run"] for r in found], ["seen"])
    equal("last step", formats(case, "runs", "show", "runs/longer", shows=lambda v: [v["step"], f"{v['loss']:.4f}", v["tokens_total"]])["tokens_total"], 6 * 64)
    shown = re.findall(r"([\d.]+) (?:s|ms|us|ns), ([\d.]+)% of the step", case.molen("runs", "show", "runs/longer").stdout)
    assert len(shown) > 3 and all(float(seconds) > 0 for seconds, _ in shown), f"seconds and shares of phases: {shown}"
    same = formats(case, "runs", "compare", "runs/seen", "runs/seen", shows=lambda v: ["identical", v["steps"]])
    case.train({"train.stop_after": "1 steps"}, name="single")
    assert "identical: 1 step\n" in case.molen("runs", "compare", "runs/single", "runs/single").stdout
    other = formats(case, "runs", "compare", "runs/seen", "runs/longer", shows=lambda v: [v["first_difference"]], code=1)
    equal("identical", (same["identical"], other["identical"]), (True, False))
    flight = formats(case, "runs", "flight", "runs/seen", shows=lambda v: [f"attempt {v['attempt']}", "rank  host", v["ranks"][1]["pid"], v["ranks"][1]["state"]])
    equal("ranks, which ended after the last step", [(r["state"], r["step"]) for r in flight["ranks"]], [("ended", 4)] * 2)


@row("energy account --by", "energy account --format", "energy account --since", "energy account --until", "energy account --job", "energy account --events")
def energy_account(case):
    """Sums are judged at energy.site (keys_run.py); here is what each option selects. The recording has 40 W."""
    (work / "account.jsonl").write_text("".join(json.dumps({"time_s": t, "energy_j": {"cpu-package0": 4e4 * t}}) + "\n" for t in (0.0, 1e5)))
    metered = {"energy.meters": ["replay:account.jsonl"], "run.tags": ["a", "b"]}
    first = case.train(metered)
    slurm = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3", "SLURM_JOB_ACCOUNT": "mill"}
    second = case.train(metered, env=slurm)
    both = [first.path, second.path]
    value = formats(case, "energy", "account", *both, shows=lambda v: [v["rows"][0]["key"], "node hours"])
    equal("by run", {r["key"] for r in value["rows"]}, {first.path.name, second.path.name})
    by = lambda key, *words: {r["key"]: r["attempts"] for r in json.loads(case.molen("energy", "account", *both, "--by", key, *words, "--format", "json").stdout)["rows"]}
    equal("by account", by("account"), {"mill": 1, "-": 1})
    equal("by job", by("job"), {"77": 1, "-": 1})
    equal("by tag", by("tag"), {"a": 2, "b": 2})
    start = second.events("start")[0]["wall_time_s"]
    of_first = first.events("start")[0]["wall_time_s"]
    stamp = lambda wall: datetime.datetime.fromtimestamp(wall, tz=datetime.timezone.utc).isoformat()
    early, between = stamp(of_first - 1), stamp((start + of_first) / 2)
    equal("--since before both", by("job", "--since", early), {"77": 1, "-": 1})
    equal("--until before both", by("job", "--until", early), {})
    equal("--since between them", by("job", "--since", between), {"77": 1})
    equal("--until between them", by("job", "--until", between), {"-": 1})
    rows = list(csv.DictReader(case.molen("energy", "account", *both, "--format", "csv").stdout.splitlines()))
    equal("csv", sorted((r["job_id"], r["step_id"], r["user_acc"], r["e_tag"]) for r in rows), [("", "", "", "a b"), ("77", "3", "mill", "a b")])
    for r in rows:
        close("its power", float(r["PCK_power"]), float(r["energy_J"]) / float(r["time"]), 1e-6)
        assert float(r["energy_J"]) > 0, r
    case.refused("energy", "account", "none", says="none: no such directory")
    case.refused("energy", "account", work / "data", says="neither a run directory")
    case.refused("energy", "account", *both, "--since", "monday", says="--since")
    case.refused("energy", "account", *both, "--by", "colour", says="--by")
    of_accounts = {r["user_acc"]: r for r in csv.DictReader(case.molen("energy", "account", *both, "--by", "account", "--format", "csv").stdout.splitlines())}
    equal("csv by account", set(of_accounts), {"mill", ""})
    of_mill = next(r for r in rows if r["user_acc"] == "mill")
    for name, value in (("energy_J", of_mill["energy_J"]), ("EDP", of_mill["EDP"]), ("power_W", of_mill["PCK_power"]), ("time", of_mill["time"])):
        close(name, float(of_accounts["mill"][name]), float(value), 1e-6)
    equal("--job", by("account", "--job", "77"), {"mill": 1})
    # The meter of the third run stops before its first step.
    (work / "brief.jsonl").write_text("".join(json.dumps({"time_s": t, "energy_j": {"cpu-package0": t}}) + "\n" for t in (0.0, 1e-6)))
    third = case.train({"energy.meters": ["replay:brief.jsonl"]}, env=slurm)
    happened = lambda *words: json.loads(case.molen("energy", "account", *both, third.path, "--events", "--format", "json", *words).stdout)["events"]
    unread = [e for e in happened() if e["kind"] == "unread"]
    equal("--events", [(e["run"], e["step"], e["job"]) for e in unread], [(third.path.name, 1, "77")])
    assert "cpu-package0: " in unread[0]["text"], unread
    equal("--events of another job", happened("--job", "78"), [])
    wall = next(json.loads(x)["wall_time_s"] for x in (work / third.path / "energy.jsonl").read_text().splitlines() if '"unread"' in x)
    of_kind = lambda *words: [e["run"] for e in happened(*words) if e["kind"] == "unread"]
    for option, before, after in (("--since", [third.path.name], []), ("--until", [], [third.path.name])):
        equal(f"--events {option} before it", of_kind(option, stamp(wall - 1e-3)), before)
        equal(f"--events {option} after it", of_kind(option, stamp(wall + 1e-3)), after)
    # A damaged line of one run leaves the events of all.
    with open(work / third.path / "metrics.jsonl", "a") as metrics:
        metrics.write('7\n{"step":1}\n')
    equal("--events beside damage", happened("--job", "77"), [e for e in happened() if e["job"] == "77"])
    equal("and all", of_kind(), [third.path.name])
    said = " ".join(case.molen("energy", "account", "--help").stdout.split())
    for words in ("with --events, only events since then", "with --events, only events before it", "with --events, only events of the job"):
        assert words in said, (words, said)
    shown = case.molen("energy", "account", third.path, "--events").stdout
    assert unread[0]["text"] in shown, shown
    listed = list(csv.DictReader(case.molen("energy", "account", third.path, "--events", "--format", "csv").stdout.splitlines()))
    equal("--events as csv", [(r["event_type"], r["app_id"], r["text"]) for r in listed if r["event_type"] == "unread"], [("unread", f"{third.path.name}/1", unread[0]["text"])])


@row("report --emissions", "report --model-card")
def report_documents(case):
    """Their figures are judged at energy.site (keys_run.py), whose runs measure energy."""
    case.refused("report", "runs/seen", "--emissions", "no.csv", says=["runs/seen", "no energy was measured"])
    equal("the card", case.molen("report", "runs/seen", "--model-card", "card.md").stdout.strip(), "card.md")
    card = (work / "card.md").read_text()
    assert card.startswith("---\n") and "co2_eq_emissions" not in card and "energy: not measured" in card, card
    case.refused("report", "runs/seen", "--emissions", "a.csv", "--model-card", "b.md", says="--emissions")
    case.refused("report", "runs/seen", "--model-card", "b.md", "--format", "json", says="--model-card")
    case.refused("report", "runs/seen", "--model-card", "", says="--model-card: the name of a file")
    case.refused("report", "runs/seen", "--emissions", "a.csv", "--output", "b.html", says="--emissions")
    assert not (work / "no.csv").exists()


@row("report --output", "report --format")
def report(case):
    equal("where it is", case.molen("report", "runs/seen", "--output", "page.html").stdout.strip(), "page.html")
    page = (work / "page.html").read_text()
    assert page.startswith("<!doctype html") or page[:200].lower().startswith("<!doctype html")
    assert not (work / "runs/seen/report.html").exists()
    equal("by default", case.molen("report", "runs/seen").stdout.strip(), "runs/seen/report.html")
    equal("text", case.molen("report", "runs/seen", "--format", "text").stdout.strip(), "runs/seen/report.html")
    value = json.loads(case.molen("report", "runs/seen", "--format", "json").stdout)
    assert f"{lines_of(work / 'runs/seen/metrics.jsonl')[-1]['loss']}"[:6] in json.dumps(value), value


@row("energy list --meters", "energy list --format", "energy live --meters", "energy live --format", "energy live --every", "energy live --count")
def energy(case):
    (work / "watts.jsonl").write_text("".join(json.dumps({"time_s": t, "energy_j": {"cpu-package0": 40 * t}}) + "\n" for t in (0.0, 1e5)))
    found = formats(case, "energy", "list", "--meters", "replay:watts.jsonl", shows=lambda v: [v["available"][0]["scope"], v["available"][0]["meter"]])
    equal("what is read", [a["scope"] for a in found["available"]], ["cpu-package0"])
    uncertainty = found["available"][0]["uncertainty"]
    equal("its uncertainty", (uncertainty["tick_j"], uncertainty["changes_every_s"], uncertainty["accuracy"]), (1e-6, 1e-6, None))
    equal("none", json.loads(case.molen("energy", "list", "--meters", "none", "--format", "json").stdout)["available"], [])
    # A busy machine may hold the program up by some milliseconds between a reading and its time.
    for every, count, within in ((0.05, 3, 0.5), (0.6, 2, 0.05)):
        start = time.monotonic()
        lines = [json.loads(x) for x in case.molen("energy", "live", "--meters", "replay:watts.jsonl", "--every", every, "--count", count, "--format", "json").stdout.splitlines()]
        took = time.monotonic() - start
        equal("lines", len(lines), count)
        assert all(every <= x["seconds"] < every + 1 for x in lines) and took >= every * count, (lines, took)
        for x in lines:
            close("watts", x["power_w"]["cpu-package0"], 40, within)
    text = case.molen("energy", "live", "--meters", "replay:watts.jsonl", "--every", 0.1, "--count", 1, "--format", "text").stdout
    close("the text's watts", float(re.search(r"cpu-package0 ([0-9.]+) W", text)[1]), 40, 0.5)
    case.molen("energy", "live", "--meters", "none", "--every", 0.01, "--count", 1, code=1)
    shown = case.terminal("energy", "live", "--meters", "replay:watts.jsonl", "--every", 0.05, "--count", 3)
    assert sum("mean W" in x for x in shown) == 3 and sum("\x1b[3F\x1b[J" in x for x in shown) == 2, f"a table of three lines that is shown anew: {shown}"


@row("energy list --model", "energy list --cluster", "energy live --model", "energy live --cluster")
def modelled(case):
    file = power_of_this_machine("power100.json", 100)
    listed = ["energy", "list", "--meters", "none"]
    value = json.loads(case.molen(*listed, "--model", file, "--format", "json").stdout)
    equal("what is modelled", [(p["scope"], p["source"], p["summed"]) for p in value["model"]["modelled"]], [("cpu-package0", "model", True)])
    equal("and not available", value["available"], [])
    text = case.molen(*listed, "--model", file).stdout
    assert "in no sum of measured joules" in text and "power100.json: measured on n1" in text, text
    value = json.loads(case.molen(*listed, "--model", "on", "--cluster", "snellius-h100", "--format", "json").stdout)
    equal("of a description", [p["scope"] for p in value["model"]["modelled"]], ["host"])
    assert "node.host_power" in value["model"]["modelled"][0]["figures"], value
    assert "model" not in json.loads(case.molen(*listed, "--format", "json").stdout)
    live = ["energy", "live", "--meters", "none", "--every", 0.5, "--count", 3]
    lines = [json.loads(x) for x in case.molen(*live, "--model", file, "--format", "json").stdout.splitlines()]
    for x in lines[1:]:
        close("watts", x["model"]["cpu-package0"]["power_w"], 100 * len(os.sched_getaffinity(0)) / processors(), 0.4)  # windows of 0.1 s
        equal("the total", (x["total_j"], x["energy_j"]), (None, {}))
    text = case.molen(*live, "--model", "on", "--cluster", "snellius-h100").stdout
    assert "model: host ~" in text, text
    case.refused(*listed, "--model", "on", says=["--model", "molen energy calibrate"])
    case.refused(*listed, "--cluster", "snellius-h100", says=["--cluster", "--model is off"])
    case.refused("energy", "live", "--model", "none.json", says=["--model", "none.json"])


@row("energy calibrate --output", "energy calibrate --meters", "energy calibrate --seconds", "energy calibrate --settle", "energy calibrate --rounds")
def power_calibration(case):
    """The figures are judged in src/energy/power_calibration_test.cpp. Other tests may keep this machine busy, which is then refused."""
    (work / "watts.jsonl").write_text("".join(json.dumps({"time_s": t, "energy_j": {"cpu-package0": 40 * t}}) + "\n" for t in (0.0, 1e5)))
    cpus = processors()
    loads = sorted({q * cpus // 4 for q in range(5)})
    for rounds, seconds, settle in ((1, 0.3, 0.0), (2, 0.1, 0.2)):
        words = case.words_of(["energy", "calibrate", "--output", "measured.json", "--meters", "replay:watts.jsonl", "--rounds", rounds, "--seconds", seconds, "--settle", settle])
        (work / "measured.json").unlink(missing_ok=True)
        start = time.monotonic()
        r = subprocess.run([MOLEN, *words], cwd=work, env=ENV, capture_output=True, text=True, timeout=240)
        took = time.monotonic() - start
        if len(os.sched_getaffinity(0)) < cpus:
            assert r.returncode == 1 and "a calibration loads all of them" in r.stderr, r.stderr
            continue
        equal("loads", [int(n) for n in re.findall(r"round \d+ of \d+: (\d+) of", r.stdout)], loads * rounds)
        assert took >= rounds * len(loads) * (seconds + settle), took
        if r.returncode == 0:
            written = json.loads((work / "measured.json").read_text())
            equal("of this machine", written["cpus"], cpus)
            for p in written["scopes"]["cpu-package0"]["points"]:
                close("watts", p["watts"], 40, 0.2)
            case.molen("energy", "list", "--meters", "none", "--model", "measured.json")
        else:
            assert r.returncode == 1 and "end other work on this machine" in r.stderr, r.stderr
            assert not (work / "measured.json").exists()
    case.refused("energy", "calibrate", "--output", "measured.json", "--meters", "watts", says="watts")
    case.refused("energy", "calibrate", "--output", "measured.json", "--rounds", 0, says="--rounds")


def journal_of(name, **changes):
    """A journal of a dead process of this machine; pid 999999999 is beyond the kernel's largest."""
    owner = dict(host=socket.gethostname(), boot=pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip(), pid_namespace=os.readlink("/proc/self/ns/pid"), pid=999999999, process_start=1, job="")
    folder = work / name
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / f"actuators-{owner['host']}-{owner['pid']}.json"
    file.write_text(json.dumps(dict(journal_version=1, owner=dict(owner, **changes), entries=[])))
    return file


@row("energy restore --journals", "energy guard --journal")
def settings(case):
    """What they restore is judged in src/actuate/session_test.cpp, on a fake machine: real clocks are not for tests to set."""
    listed = json.loads(case.molen("energy", "list", "--format", "json").stdout)["settings"]
    text = case.molen("energy", "list").stdout
    assert all(u["reason"] in text for u in listed["unavailable"]) and all(a["files"] in text for a in listed["available"]), text
    equal("doctor", json.loads(case.molen("doctor", "--format", "json").stdout)["settings"], listed)
    assert all(u["reason"] in case.molen("doctor").stdout for u in listed["unavailable"][:1])
    dead = journal_of("dead")
    equal("guard", case.molen("energy", "guard", "--journal", dead).stdout, "ready\n")
    assert not dead.exists(), "all of it is restored"
    equal("no journal", case.molen("energy", "guard", "--journal", dead, code=1).stdout, f"{dead}: cannot be read: No such file or directory\n")
    of_init = journal_of("init", pid=1)
    assert "only that process may start its guardian" in case.molen("energy", "guard", "--journal", of_init, code=1).stdout and of_init.exists()
    mine = journal_of("mine", pid=os.getpid())
    guard = subprocess.Popen([MOLEN, "energy", "guard", "--journal", mine], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=work)
    equal("its first words", guard.stdout.readline(), b"ready\n")
    guard.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert guard.poll() is None and mine.exists(), "a guardian outlives the signals that end jobs"
    guard.stdin.close()
    equal("its status", guard.wait(60), 0)
    assert not mine.exists()
    equal("restore", case.molen("energy", "restore", "--journals", "nothing").stdout, "")
    before = journal_of("before", boot="another")
    assert "from before this machine was started" in case.molen("energy", "restore", "--journals", "before").stdout and not before.exists()
    cut = journal_of("cut")
    cut.write_text(cut.read_text()[:40])
    assert "it is kept as" in case.molen("energy", "restore", "--journals", "cut").stdout and not cut.exists() and cut.with_name(cut.name + ".damaged").exists()
    elsewhere = journal_of("elsewhere", host="elsewhere")
    equal("another host", case.molen("energy", "restore", "--journals", "elsewhere").stdout, "")
    assert elsewhere.exists()
    other = journal_of("other")
    other.write_text(other.read_text().replace('"entries": []', '"entries": [{"id": "cpufreq:cpu-package99", "parts": ["p"], "original": [1], "written": [[2]]}]'))
    assert "cpufreq:cpu-package99 cannot be restored" in case.molen("energy", "restore", "--journals", "other", code=1).stdout and other.exists()
    (work / "other").chmod(0o777)
    case.refused("energy", "restore", "--journals", "other", says="into which nobody else may write")


@row("doctor --format", "config reference --format", "config show --format", "config show --set", "config show --model")
def machine_and_config(case):
    doctor = formats(case, "doctor", shows=lambda v: [v["cpu"], v["libtorch"], v["energy"]["partial"], *(u["reason"] for u in v["energy"]["unavailable"])])
    listed = json.loads(case.molen("energy", "list", "--format", "json").stdout)
    assert [u["scope"] for u in doctor["energy"]["unavailable"]] == [u["scope"] for u in listed["unavailable"]], "doctor names the meters that are missing here"
    keys = formats(case, "config", "reference", shows=lambda v: [k["meaning"] for k in v])
    assert len(keys) > 80
    value = formats(case, "config", "show", "tiny.toml", {"optimizer.lr": 0.125}, shows=lambda v: ["lr = 0.125                                        # --set"])
    equal("--set", value["optimizer"]["lr"], 0.125)
    assert 'preset = "gpt2"' in case.molen("config", "show", "--model", "gpt2").stdout


@row("doctor --measure")
def measured_anew(case):
    """Rates are kept from one call to the next, and measured anew where that is asked for."""
    own = {"XDG_CACHE_HOME": str(work / "measured")}  # rows beside this one measure too
    rates = lambda *words: json.loads(case.molen("doctor", *words, "--format", "json", env=own).stdout)["gemm_gflops"]
    first = rates("--measure")
    libraries = {"fp32_aten"} | {f"fp32_{json.loads(case.molen('doctor', '--format', 'json', env=own).stdout)['gemm_library']}"}
    assert libraries <= set(first) <= {"fp32", "bf16", "fp32_aten", "fp32_onednn"}, first
    kept = [rates() for _ in range(2)]
    assert all(k[t] == first[t] for k in kept for t in ("fp32", "bf16")), (first, kept)
    anew = rates("--measure")
    assert anew["fp32"] != first["fp32"] and anew["bf16"] != first["bf16"], (first, anew)


@row("train --verbose")
def on_a_terminal(case):
    """One line that is rewritten, within 100 columns; full lines of the first and the last step, with --verbose of every one."""
    seen = {}
    for name, words in (("live", []), ("verbose", ["--verbose"])):
        seen[name] = case.terminal("train", "tiny.toml", {"run.name": f"terminal-{name}"}, *words)
        assert max(map(len, seen[name])) <= 100, seen[name]
        assert [x.split("]")[1].split(" ")[1] for x in seen[name] if x.startswith("[")][-1] == "4/4", seen[name]
    full = {name: sorted({x.split(" ")[1] for x in lines if x.startswith("step ")}) for name, lines in seen.items()}
    equal("a log has every step anyway", [case.train(*words).out.count("\nstep ") for words in ((), ("--verbose",))], [4, 4])
    equal("full lines", full, {"live": ["1/4", "4/4"], "verbose": ["1/4", "2/4", "3/4", "4/4"]})


@row("train --cluster")
def cluster(case):
    """The prediction beside the run is what `molen simulate` says of the same file."""
    from flags_plan import made_up

    made_up(work / "cluster-train.json", [dict(ranks=1, communicator="self", compute="fp32")], base=1e-3)
    sets = {"precision.compute": "fp32"}
    ran = case.train(sets, "--cluster", "cluster-train.json")
    prediction = json.loads((ran.path / "predicted.json").read_text())
    simulated = json.loads(case.molen("simulate", "tiny.toml", sets, "--cluster", "cluster-train.json", "--format", "json").stdout)
    close("predicted step", prediction["step_s"]["predicted"], simulated["step_s"], 1e-9)
    assert "predicted beside measured" in ran.out
    # This process is larger than molen; what it had resident must not count.
    memory = prediction["memory_bytes"]
    close("memory of the process", memory["process_predicted"], memory["process_measured"], 0.1)
    median = sorted(ran.column("step_s"))[len(ran.steps) // 2]
    close("measured: the median step", prediction["step_s"]["measured"], median, 0.5)
    for side in ("predicted", "measured"):
        close(f"the parts add up to the step, {side}", sum(p[f"{side}_s"] for p in prediction["parts"]), prediction["step_s"][side], 1e-9)
    equal("no communication on one rank", (prediction["axes"], prediction["later_stages"]), ([], []))
    assert not (case.train(sets).path / "predicted.json").exists()
    # Two stages: each has a comparison of its own, and messages between them that are exposed in part.
    made_up(work / "cluster-stages.json", [dict(ranks=2, communicator="threads", compute="fp32")], base=1e-3)
    staged = case.train({**sets, "parallel.pipeline": 2, "batch.micro": 1}, "--ranks", 2, "--cluster", "cluster-stages.json")
    prediction = json.loads((staged.path / "predicted.json").read_text())
    equal("streams of a pipeline", [[a["stream"] for a in stage["axes"]] for stage in (prediction, *prediction["later_stages"])], [["pp_comm"], ["pp_comm"]])
    assert "\nstage 1: predicted " in staged.out and "\nexposed communication of pp_comm: " in staged.out, staged.out
    kinds = [{op["kind"] for op in stage["ops"]} for stage in (prediction, *prediction["later_stages"])]
    assert "forward embed" in kinds[0] and "backward head" in kinds[1] and "forward embed" not in kinds[1], kinds
    case.refused("train", "tiny.toml", sets, "--cluster", "dgx-a100", says=["--cluster", "dgx-a100 describes", "processors"])
    # Any run can be compared afterwards: `molen simulate RUN` has the medians of its metrics beside the prediction, but not for another layout.
    bare = case.train({**sets, "parallel.pipeline": 2, "batch.micro": 1}, "--ranks", 2)
    after = lambda *words: json.loads(case.molen("simulate", bare.path, *words, "--cluster", "cluster-stages.json", "--format", "json").stdout)
    close("measured: the median step", after()["measured"]["step_s"], sorted(bare.column("step_s"))[len(bare.steps) // 2], 1e-12)
    equal("measured: phases", after()["measured"]["phase_s"].keys(), bare.steps[0]["phase_s"].keys())
    equal("another layout was not measured", after("--set", "batch.micro=2")["measured"], None)
    assert "beside the run's last 4 steps" in case.molen("simulate", bare.path, "--cluster", "cluster-stages.json").stdout


@row("report --cluster", "report --communicator")
def report_beside(case):
    """The page of any run takes a prediction: its step is that of `molen simulate`, its figures are the run's."""
    from flags_plan import made_up

    made_up(work / "report-two.json", [dict(ranks=2, communicator=c, compute="fp32") for c in ("threads", "mpi")], base=1e-3)
    constant = "".join(json.dumps({"time_s": t, "energy_j": {"cpu-package0": 100 * t}}) + "\n" for t in (0.0, 1e5))
    (work / "report-watts.jsonl").write_text(constant)
    ran = case.train({"precision.compute": "fp32", "energy.meters": ["replay:report-watts.jsonl"]}, "--ranks", 2)
    said = lambda *words: json.loads(case.molen("report", ran.path, *words, "--format", "json").stdout)["predicted"]
    simulated = lambda *words: json.loads(case.molen("simulate", ran.path, *words, "--format", "json").stdout)
    for words in (["--cluster", "report-two.json", "--communicator", "mpi"], ["--cluster", "dgx-a100"]):
        beside, predicted = said(*words), simulated(*words)
        close("the step", beside["step_s"]["predicted"], predicted["step_s"], 1e-12)
        equal("measured", beside["step_s"]["measured"], predicted["measured"]["step_s"])
        for phase in beside["phases"]:
            close(f"predicted {phase['phase']}", phase["predicted_s"], predicted["phase_s"].get(phase["phase"], 0), 1e-12)
            equal(f"measured {phase['phase']}", phase["measured_s"], predicted["measured"]["phase_s"].get(phase["phase"], 0))
        equal("memory", beside["memory_bytes"], {"planned": predicted["memory_bytes"], "measured": None})
    assert said("--cluster", "report-two.json")["step_s"]["predicted"] > 0
    close("the energy of a step", beside["step_j"]["predicted_devices"], predicted["cluster"]["devices_j"])
    close("measured joules of a step", beside["step_j"]["measured"], predicted["measured"]["step_j"])
    # A measurement of the devices alone stands beside what is predicted of them.
    (work / "report-gpu.jsonl").write_text(constant.replace("cpu-package0", "gpu0"))
    of_gpu = case.train({"precision.compute": "fp32", "energy.meters": ["replay:report-gpu.jsonl"]})
    text = case.molen("simulate", of_gpu.path, "--cluster", "dgx-a100").stdout
    devices = json.loads(case.molen("simulate", of_gpu.path, "--cluster", "dgx-a100", "--format", "json").stdout)["cluster"]["devices_j"]
    assert re.search(rf"energy +{re.escape(f'{devices:.4g} J')} +[0-9.]+ J \(gpu only\)", text), (devices, text)
    equal("the page", case.molen("report", ran.path, "--cluster", "dgx-a100", "--output", "beside.html").stdout.strip(), "beside.html")
    assert "Phases of a step" in (work / "beside.html").read_text()
    assert not (ran.path / "predicted.json").exists(), "the run stays as it was"
    case.refused("report", ran.path, "--communicator", "mpi", says=["--communicator", "--cluster"])
    case.refused("report", ran.path, "--cluster", "", says=["cluster"])
    case.refused("report", ran.path, "--cluster", "dgx-a10", says=["did you mean 'dgx-a100'"])
    case.refused("report", ran.path, "--cluster", "dgx-a100", "--emissions", "x.csv", says=["--emissions"])
