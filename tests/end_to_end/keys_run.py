"""Rows of [precision], [math], [checkpoint], [energy], [run] and [device], and of train.hang_timeout."""
import csv
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import statistics
import subprocess
import time

import huggingface_hub
from effects import all_close, close, equal, lines_of, row
from harness import ENV, MOLEN, started, work
from packages import LimitedPackage, power_of_this_machine, processors, until

HELD = {"data.validation": [{"path": "held/heldout"}]}
FP32 = {"precision.compute": "fp32"}


# --- types and kernels ------------------------------------------------------------------------------------------------------------
@row("precision.compute", "precision.master")
def types(case):
    exact = case.train({})
    # A type's unit roundoff is the least that a mean of 64 rounded losses may be off, a hundred of them the most.
    for name, bits, width in (("fp32", 24, 4), ("bf16", 8, 2), ("fp16", 11, 2)):
        sets = {"precision.compute": name, "model.init_std": 0.02}
        p, ran = case.program(sets), case.train(sets)
        equal(f"{name}: the program", (p.setting["compute"], p.setting["master"], p.buffers["x.1"][0]), (name, "fp32", name))
        equal(f"{name}: masters", "master.layer.0" in p.buffers and p.buffers["master.layer.0"][0] == "fp32", width == 2)
        off = abs(ran.column("loss")[0] / exact.column("loss")[0] - 1)
        assert 2.0 ** -(bits + 14) < off < 100 * 2.0**-bits, f"{name}: {off}"
    p = case.program({"precision.compute": "fp64", "precision.master": "fp64"})
    equal("fp64", (p.setting["compute"], p.setting["master"]), ("fp64", "fp64"))
    ran = case.train({"precision.compute": "auto"})
    line = next(x for x in (ran.path / "config.toml").read_text().splitlines() if x.startswith("compute = "))
    assert "measured on 20" in line and any(f'"{t}"' in line for t in ("fp32", "bf16")), line
    fp32, bf16 = (float(line.split(f"{t} ")[1].split()[0].rstrip(",")) for t in (": fp32", ", bf16"))
    equal("the faster", '"bf16"' in line, bf16 > fp32)
    equal("fp32 masters are the default", case.program(FP32, {"precision.master": "fp32"}).text, case.program(FP32).text)
    case.refused("program", "tiny.toml", FP32, {"precision.master": "fp64"}, says="precision.master")
    case.refused("program", "tiny.toml", {"precision.master": "fp32"}, says="precision.master")


@row("precision.reduce")
def reduce(case):
    def ran(value):
        r = case.train(FP32, {"precision.reduce": value, "train.until": "2 steps"}, "--ranks", 2)
        return r, max(t["payload_bytes"] for t in r.events("stop")[0]["traffic"] if t["axis"] == "dp")

    (wide, full), (short, half) = ran("fp32"), ran("bf16")
    weights = json.loads(case.molen("program", "tiny.toml", FP32, "--format", "json").stdout)["parameters_bytes"]
    equal("bytes between ranks: gradients and a few scalars", (full // weights, full - half), (1, weights // 2))
    assert 0 < abs(wide.column("grad_norm")[0] / short.column("grad_norm")[0] - 1) < 2**-8
    equal("auto", ran("auto")[1], full)
    case.refused("program", "tiny.toml", {"precision.reduce": "bf16"}, says=["precision.reduce", "narrower"])


@row("precision.loss_scale", "precision.loss_scale_window")
def loss_scale(case):
    fp16 = {"precision.compute": "fp16", "train.until": "7 steps"}
    equal("65536 where not set", case.train(fp16).column("loss_scale"), [65536] * 7)
    a = case.train({**fp16, "precision.loss_scale": 32, "precision.loss_scale_window": 3})
    equal("from 32, doubled after each three", a.column("loss_scale"), [32, 32, 32, 64, 64, 64, 128])
    # 2^40 times the loss overflows: halved until it fits.
    b = case.train({**fp16, "precision.loss_scale": 2.0**40})
    equal("halved where it overflows", b.column("loss_scale"), [2.0 ** (40 - i) for i in range(7)])
    case.refused("train", "tiny.toml", {"precision.loss_scale": 32}, says=["precision.loss_scale", "fp16"])


@row("math.kernels", "math.flash_attention")
def kernels(case):
    fused, plain = ((case.program(FP32, {"math.kernels": k}), case.train(FP32, {"math.kernels": k})) for k in ("fused", "reference"))
    equal("in the program", (fused[0].setting["kernels"], plain[0].setting["kernels"]), ("fused", "reference"))
    all_close("losses", fused[1].column("loss"), plain[1].column("loss"), 1e-4)
    assert fused[1].column("grad_norm") != plain[1].column("grad_norm"), "the very same bits: another kernel did not run"
    equal("attention in tiles is the default", case.train(FP32, {"math.flash_attention": True}).column("loss"), fused[1].column("loss"))
    whole = {**FP32, "math.flash_attention": False}
    equal("attention alone has other kernels", case.program(whole).setting["other_kernels"], "attention:unfused")
    scores = case.train(whole)
    all_close("losses without tiles", scores.column("loss"), fused[1].column("loss"), 1e-4)
    assert scores.column("grad_norm") != fused[1].column("grad_norm"), "the very same bits: attention ran in tiles"
    case.refused("program", "tiny.toml", {**whole, "parallel.context": 2}, "--ranks", 2, says=["math.flash_attention", "whole sequences"])
    case.refused("train", "tiny.toml", {"math.kernels": "fused"}, says=["math.kernels", "fp64"])


def running(case, name, *sets, launcher=()):
    """A training of steps without end, once five of them are done."""
    sets = [x for s in ({"run.name": name, "train.until": "100000000 steps"}, *sets) for k, v in s.items() for x in ("--set", f"{k}={json.dumps(v)}")]
    case.note(["train", "tiny.toml", *sets])
    job = started([*launcher, MOLEN, "train", "tiny.toml", *sets], env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    path, end = work / f"runs/{name}/metrics.jsonl", time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < 5:
        assert time.monotonic() < end and job.poll() is None, job.communicate()
        time.sleep(0.02)
    return job


@row("math.threads")
def threads(case):
    count = {}
    # Products of such a size that the team has work.
    big = {**FP32, "model.hidden": 192, "model.head_dim": 48, "data.sequence_length": 64}
    for n in (1, 2, 3):
        job = running(case, f"threads{n}", big, {"math.threads": n})
        count[n] = len(os.listdir(f"/proc/{job.pid}/task"))
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 0, job.stderr.read()
        equal("environment.json", json.loads((work / f"runs/threads{n}/environment.json").read_text())["threads_per_rank"], n)
    # A team for each library with loops of its own.
    more = count[2] - count[1]
    assert more > 0 and count[3] - count[2] == more, count
    cores = len(os.sched_getaffinity(0))
    for ranks in (1, 2):
        equal(f"0 divides the cores over {ranks}", case.program({"math.threads": 0}, "--ranks", ranks).setting["threads"], str(max(1, cores // ranks)))


@row("train.hang_timeout")
def hang(case):
    """A rank that stands still is noticed after so long."""
    took = {}
    for seconds in (1.0, 3.0):
        name = f"hang{seconds:g}"
        job = running(case, name, {"train.hang_timeout": f"{seconds:g} s"}, launcher=["mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none"])
        flight = json.loads(case.molen("runs", "flight", f"runs/{name}", "--format", "json").stdout)
        start = time.monotonic()
        os.kill(flight["ranks"][1]["pid"], signal.SIGSTOP)
        report = work / f"runs/{name}/flight/report-1.txt"
        while not report.exists():
            assert time.monotonic() < start + 60, "no report"
            time.sleep(0.02)
        took[seconds] = time.monotonic() - start
        _, err = job.communicate(timeout=60)
        assert job.returncode != 0 and "rank 1" in report.read_text(), err
    # At most a look a quarter of a second late, and what a busy machine adds.
    assert all(s - 0.3 <= t < s + 4 for s, t in took.items()) and took[3.0] - took[1.0] > 1, took
    line = next(x for x in (work / "runs/hang1/config.toml").read_text().splitlines() if x.startswith("hang_timeout"))
    assert '"1 s"' in line, line
    case.refused("train", "tiny.toml", {"train.hang_timeout": "soon"}, says="train.hang_timeout")


# --- checkpoints ---------------------------------------------------------------------------------------------------------------------
@row("checkpoint.every", "checkpoint.keep", "checkpoint.dir")
def checkpoints(case):
    seven = {"train.until": "7 steps", "checkpoint.keep": 0}
    for every, steps in (("2 steps", [2, 4, 6, 7]), ("192 tokens", [3, 6, 7]), ("1000 steps", [7])):
        ran = case.train(seven, {"checkpoint.every": every})
        equal(every, (ran.checkpoints(), [e["step"] for e in ran.events("checkpoint")]), (steps, steps))
    for keep, steps in ((1, [7]), (2, [6, 7]), (3, [5, 6, 7])):
        equal(f"the newest {keep}", case.train(seven, {"checkpoint.every": "1 steps", "checkpoint.keep": keep}).checkpoints(), steps)
    equal("3 where not set", case.train({"train.until": "7 steps", "checkpoint.every": "1 steps"}).checkpoints(), [5, 6, 7])
    ran = case.train({"checkpoint.every": "0.2 s", "checkpoint.keep": 0, "train.until": "100000000 steps", "train.stop_after": "1.1 s"})
    times = [ran.events("start")[0]["wall_time_s"], *(e["wall_time_s"] for e in ran.events("checkpoint"))]
    gaps = [b - a for a, b in zip(times, times[1:])]
    # The clock runs before the run says that it starts; the last is the end's.
    assert 2 <= len(gaps) <= 6 and gaps[0] > 0.1 and min(gaps[1:-1], default=1) > 0.19, gaps
    ran = case.train({"checkpoint.dir": "elsewhere/deep"})
    equal("dir", (ran.checkpoints(), [p.name for p in (work / "elsewhere/deep").glob("step-*")]), ([], ["step-000000004"]))


# --- energy --------------------------------------------------------------------------------------------------------------------------
NVML = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
/* One device of 70 W without an energy counter; each question for its power leaves a byte in $NVML_ASKED. */
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* n) { return *n = 1, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** d) { return *d = (void*)1, (int)i; }
int nvmlDeviceGetUUID(void* d, char* s, unsigned n) { return snprintf(s, n, "GPU-0"), 0; }
int nvmlDeviceGetName(void* d, char* s, unsigned n) { return snprintf(s, n, "made up"), 0; }
int nvmlDeviceGetTotalEnergyConsumption(void* d, unsigned long long* mj) { return 3; }
const char* nvmlErrorString(int e) { return "not supported"; }
int nvmlDeviceGetPowerUsage(void* d, unsigned* mw) {
  int f = open(getenv("NVML_ASKED"), O_WRONLY | O_APPEND | O_CREAT, 0644);
  if (f >= 0 && write(f, "x", 1) == 1) close(f);
  return *mw = 70000, 0;
}
"""


@row("energy.meters", "energy.sample_every")
def meters(case):
    (work / "recorded.jsonl").write_text("".join(json.dumps({"time_s": t, "energy_j": {"cpu-package0": 50 * t, "dram0": 8 * t}}) + "\n" for t in (0.0, 1e5)))
    ran = case.train({"energy.meters": ["replay:recorded.jsonl"], "train.until": "30 steps"})
    joules, seconds = sum(sum(m["energy_j"].values()) for m in ran.steps), sum(m["step_s"] for m in ran.steps)
    close("58 W", joules / seconds, 58, 0.25)  # steps of milliseconds, whose edges count
    # A recording has ticks of 1 uJ and changes each microsecond.
    resolution = [m["energy_resolution_j"] for m in ran.steps]
    equal("of each scope", {tuple(r) for r in resolution}, {("cpu-package0", "dram0", "total")})
    close("of both together", statistics.median(r["total"] for r in resolution), 58e-6 + 2e-6, 0.3)
    totals = [e for e in lines_of(ran.path / "energy.jsonl") if e["event"] == "totals"][-1]
    close("of the run", totals["total_resolution_j"], 1e-6 * totals["total_j"] / totals["seconds"] + 2e-6, 0.3)
    none = case.train({"energy.meters": ["none"]})
    equal("none", (none.steps[0]["j_per_token"], none.events("meters")[0]["available"]), (None, {}))
    assert "no meter is asked for" in none.out
    case.refused("train", "tiny.toml", {"energy.meters": ["watts"]}, says="watts")
    # A device whose power has to be asked for again and again.
    (work / "nvml").mkdir()
    (work / "nvml/nvml.c").write_text(NVML)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", work / "nvml/libnvidia-ml.so.1", work / "nvml/nvml.c"], check=True)
    case.refused("train", "tiny.toml", {"energy.sample_every": "0.5 ms"}, says=["energy.sample_every", "would keep a core busy"])
    rates = {"0.05 s": 0.05, "0.25 s": 0.25}
    for every in rates:
        log = work / f"nvml/{every}"
        # Steps that are slow enough not to ask much themselves.
        slow = {"train.until": "1000000 steps", "train.stop_after": "1.5 s", "model.hidden": 192, "model.ffn": 512, "model.head_dim": 48, "data.sequence_length": 64, "batch.global": 16}
        ran = case.train({"energy.meters": ["nvml"], "energy.sample_every": every, **slow}, env={"LD_LIBRARY_PATH": str(work / "nvml"), "NVML_ASKED": str(log), "CUDA_VISIBLE_DEVICES": "0"})
        info = ran.events("meters")[0]["available"]
        assert "gpu0" in json.dumps(info), info
        took = ran.events("stop")[0]["wall_time_s"] - ran.events("meters")[0]["wall_time_s"]
        # And at the edges of steps and records.
        asked, due = log.stat().st_size, took / rates[every]
        assert 0.6 * due - 2 <= asked <= 1.1 * due + 4 * len(ran.steps) + 8, (every, asked, due, len(ran.steps))


@row("energy.model")
def power_model(case):
    (work / "memory.jsonl").write_text("".join(json.dumps({"time_s": t, "energy_j": {"dram0": 8 * t}}) + "\n" for t in (0.0, 1e5)))
    memory = {"energy.meters": ["replay:memory.jsonl"]}
    slow = {"train.until": "1000000 steps", "train.stop_after": "1.5 s", "model.hidden": 96, "model.ffn": 256, "model.head_dim": 24, "batch.global": 16}
    last = lambda ran, event: [e for e in lines_of(ran.path / "energy.jsonl") if e["event"] == event][-1:]
    share = len(os.sched_getaffinity(0)) / processors()
    off = case.train(memory, {"energy.model": "off"})
    assert not any("energy_model_j" in m for m in off.steps) and not last(off, "modelled") and not off.events("energy_model")
    for watts in (100, 300):
        ran = case.train({**memory, **slow, "energy.model": power_of_this_machine(f"{watts}.json", watts)})
        said = last(ran, "modelled")[0]
        equal("its words", (said["source"], list(said["energy_j"]), said["scopes"]["cpu-package0"]["summed"]), ("model", ["cpu-package0"], True))
        joules = said["energy_j"]["cpu-package0"]
        close(f"{watts} W", joules["joules"] / said["seconds"], watts * share, 0.25)  # windows of 0.1 s in some 2 s
        close("its least", joules["least"] / joules["joules"], 0.9, 1e-9)
        close("its most", joules["most"] / joules["joules"], 1.2, 1e-9)
        of_steps = sum(m["energy_model_j"]["cpu-package0"]["joules"] for m in ran.steps if m["energy_model_j"]["cpu-package0"])
        assert 0.5 * joules["joules"] < of_steps <= joules["joules"] * (1 + 1e-9), (of_steps, joules)
        # What is measured is that of the memory alone.
        totals = last(ran, "totals")[0]
        equal("in no total", (totals["summed"], totals["partial"], set(totals["energy_j"])), (["dram0"], off.steps[0]["energy_coverage"], {"dram0"}))
        close("8 W", totals["total_j"] / totals["seconds"], 8, 0.25)
        equal("in no step", {s for m in ran.steps for s in m["energy_j"]}, {"dram0"})
        out = " ".join(ran.out.split())
        assert f"{watts}.json: measured on n1" in out and "in no sum above: cpu-package0" in out, ran.out
    refused = lambda value, *says: case.refused("train", "tiny.toml", memory, {"energy.model": value}, says=["energy.model", *says])
    refused(power_of_this_machine("memory.json", 5, scope="dram0"), "cpu", "a meter reads dram0", "molen energy calibrate")
    refused(power_of_this_machine("larger.json", 5, cpus=4097), "4097 processors")
    refused("on", "--cluster names none", "molen energy calibrate")
    refused("none.json", "none.json")


@row("energy.site")
def site(case):
    """Emissions of the joules of a recording: those of the country, of a file, and of each hour."""
    (work / "site.jsonl").write_text("".join(json.dumps({"time_s": t, "energy_j": {"cpu-package0": 5e4 * t}}) + "\n" for t in (0.0, 1e5)))
    def ran(**sets):
        return case.train({"energy.meters": ["replay:site.jsonl"], **sets})

    def per_kwh(run):
        last = run.steps[-1]
        return 1e3 * last["kg_co2e_total"] / last["kwh_total"]

    def totals(run):
        return [e for e in lines_of(run.path / "energy.jsonl") if e["event"] == "totals"][-1]

    none = ran()
    equal("not set", (none.steps[-1]["kg_co2e_total"], totals(none)["kg_co2e"]), (None, None))
    dutch = ran(**{"energy.site": "NL"})
    close("a country", per_kwh(dutch), 268)
    close("in the totals", 3.6e9 * totals(dutch)["kg_co2e"] / totals(dutch)["total_j"], 268)
    said = [e for e in lines_of(dutch.path / "energy.jsonl") if e["event"] == "site"]
    equal("the event", (len(said), said[0]["name"], said[0]["pue"]["value"]), (1, "Netherlands", 1.0))
    close("a shipped cluster, with its PUE", per_kwh(ran(**{"energy.site": "lumi-g"})), 26 * 1.04)
    table = '[site]\npue = { value = 1.5, source = "t" }\nintensity_g_per_kwh = { value = 100, source = "t" }\nwater_l_per_kwh = { value = 2, source = "t" }\n'
    (work / "site.toml").write_text(table)
    of_file = ran(**{"energy.site": "site.toml"})
    close("a file", per_kwh(of_file), 150)
    # Contracts for electricity, and the making of the computers; spreads in quadrature.
    (work / "contracts.toml").write_text('[site]\npue = { value = 1.5, spread = 0.03, source = "t" }\nintensity_g_per_kwh = { value = 100, spread = 0.04, source = "t" }\n'
                                         'market_intensity_g_per_kwh = { value = 10, source = "t" }\nembodied_g_per_device_hour = { value = 36, source = "t" }\n')
    contracts = ran(**{"energy.site": "contracts.toml"})
    t, two_ranks = totals(contracts), totals(case.train({"energy.meters": ["replay:site.jsonl"], "train.until": "3 steps", "batch.global": 8, "energy.site": "contracts.toml"}, "--ranks", 2, name="two_ranks"))
    close("by location", per_kwh(contracts), 150)
    close("by contracts", t["spent_market_kg_co2e"], 1.5 * 10 * t["spent_total_j"] / 3.6e9)
    close("of making the computers: 36 g an hour of the one device", t["spent_embodied_kg_co2e"], t["spent_s"] * 36e-3 / 3600, 0.3)  # it is taken a little later
    close("and of two", two_ranks["spent_embodied_kg_co2e"], 2 * two_ranks["spent_s"] * 36e-3 / 3600, 0.3)
    foot = json.loads(case.molen("report", contracts.path, "--format", "json").stdout)["footprint"]
    all_close("in the report", (foot["market_kg_co2e"], foot["embodied_kg_co2e"]), (t["spent_market_kg_co2e"], t["spent_embodied_kg_co2e"]))
    close("spread", foot["kg_co2e_spread"], 0.05)
    # The present has one value, and the times before and after it have others.
    hour = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 1800))
    tomorrow = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86400))
    (work / "grid.csv").write_text(f"time,g_per_kwh\n2020-01-01,900\n{hour},40\n{tomorrow},700\n")
    (work / "hourly.toml").write_text(table + 'intensity_file = "grid.csv"\n')
    close("by the hour", per_kwh(ran(**{"energy.site": "hourly.toml"})), 60)
    (work / "grid.csv").write_text("time,g_per_kwh\n2020-01-01,900\n2020-01-02,40\n")
    past = ran(**{"energy.site": "hourly.toml"})
    close("a file that ended years ago: the site's own figure", per_kwh(past), 150)
    equal("which is said once", sum("no carbon intensity for the present" in e["text"] for e in past.events("note")), 1)
    # The documents of the run.
    row, = csv.DictReader(case.molen("report", of_file.path, "--emissions", "emissions.csv") and (work / "emissions.csv").open())
    t = totals(of_file)
    close("emissions.csv: emissions", float(row["emissions"]), t["kg_co2e"], 1e-6)
    close("emissions.csv: energy with the PUE", float(row["energy_consumed"]), 1.5 * t["total_j"] / 3.6e6, 1e-6)
    close("emissions.csv: water", float(row["water_consumed"]), 2 * t["total_j"] / 3.6e6, 1e-6)
    case.molen("report", of_file.path, "--model-card", "card.md")
    card = huggingface_hub.ModelCard.load(work / "card.md")
    close("the model card, read by Hugging Face", card.data.co2_eq_emissions["emissions"], 1e3 * t["kg_co2e"], 1e-5)
    equal("where", card.data.co2_eq_emissions["geographical_location"], "site.toml")
    case.refused("report", of_file.path, "--model-card", "card.md", says=["card.md", "the file exists"])
    # A run that goes on at another site: each attempt has the figures of its own.
    moved = {"energy.meters": ["replay:site.jsonl"], "train.until": "6 steps", "checkpoint.every": "3 steps"}
    first = case.train({**moved, "energy.site": "site.toml", "train.stop_after": "3 steps"}, name="moved")
    one = [e for e in lines_of(first.path / "energy.jsonl") if e["event"] == "totals"][0]  # as the checkpoint has them
    second = case.train({**moved, "energy.site": "NL"}, name="moved")
    two = totals(second)
    more = two["spent_total_j"] - one["spent_total_j"]
    assert more > 0, (one, two)
    # The first attempt writes its checkpoint after these totals; the joules of that count at the second site.
    close("energy with both sites", two["spent_site_j"], 1.5 * one["spent_total_j"] + more)
    close("emissions of both sites", two["spent_kg_co2e"], (150 * one["spent_total_j"] + 268 * more) / 3.6e9)
    equal("water of both is not known", (one["spent_water_l"] > 0, two["spent_water_l"]), (True, None))
    equal("both are named", json.loads(case.molen("report", second.path, "--format", "json").stdout)["footprint"]["sites"], "site.toml, Netherlands")
    page = case.molen("report", of_file.path, "--format", "json").stdout
    close("report", json.loads(page)["footprint"]["kg_co2e"], t["kg_co2e"])
    case.refused("report", none.path, "--emissions", "no.csv", says="energy.site")
    # The account of these runs: each has its joules, and the sum is theirs.
    rows = {r["key"]: r for r in json.loads(case.molen("energy", "account", of_file.path, none.path, dutch.path, "--format", "json").stdout)["rows"]}
    equal("a line for each run", len(rows), 3)
    close("the joules of a run", rows[of_file.path.name]["energy_j"], t["total_j"])
    close("with its PUE", rows[of_file.path.name]["site_j"], 1.5 * t["total_j"])
    equal("without a site", (rows[none.path.name]["site_j"], rows[none.path.name]["kg_co2e"]), (None, None))
    user, = json.loads(case.molen("energy", "account", of_file.path, dutch.path, "--by", "user", "--format", "json").stdout)["rows"]
    close("of a user: their sum", user["energy_j"], rows[of_file.path.name]["energy_j"] + rows[dutch.path.name]["energy_j"])
    equal("who that is", user["key"], pwd.getpwuid(os.geteuid()).pw_name)
    case.refused("train", "tiny.toml", {"energy.site": "XX"}, says=["energy.site", "XX"])
    case.refused("train", "tiny.toml", {"energy.site": "none.toml"}, says=["energy.site", "none.toml"])
    case.refused("train", "tiny.toml", {"energy.site": "lumi"}, says=["energy.site", "did you mean 'lumi-g'"])


@row("energy.policy", "energy.slowdown", "energy.power_budget")
def policies(case):
    """A budget is kept on a package that stands in for the machine's; the limit is restored, also after SIGKILL; no bit of the loss differs."""
    plain = case.train({"energy.policy": "none", "energy.slowdown": 0, "energy.power_budget": "none"})
    long = {"train.until": "250 steps", "energy.meters": ["rapl-powercap"], "batch.global": 16}
    with LimitedPackage(work / "sys") as package:
        free = case.train(long, env=package.env)
        kept = case.train(long, {"energy.power_budget": "120 W"}, env=package.env)
        equal("the limit at the end", package.limit(), 250)
        watts = {name: [s["energy_j"]["cpu-package0"] / s["step_s"] for s in r.steps if s["energy_j"]["cpu-package0"]] for name, r in (("free", free), ("kept", kept))}
        middle = {name: statistics.median(w[len(w) // 2:]) for name, w in watts.items()}
        assert middle["free"] > 180 and middle["kept"] <= 126, middle
        equal("no setting without a budget", {"policy_setting" in s for s in free.steps}, {False})
        settings = [s["policy_setting"] for s in kept.steps]
        equal("the first step", settings[0], 250)
        assert all(60 <= x <= 120 for x in settings[-10:]), settings
        equal("the losses", [s["loss"] for s in kept.steps], [s["loss"] for s in free.steps])
        equal("the event", [(e["policy"], e["kind"]) for e in kept.events("policy")], [("power_budget", "power limit")])
        begun, = kept.events("policy_settings")
        equal("what it can set, at the start", (begun["unit"], begun["settings"], begun["budget_w"]), ("W", kept.events("policy")[0]["settings"], 120))
        # A killed run leaves its limit to the guardian.
        words = case.words_of([{"run.name": "killed", "train.until": "100000 steps", "energy.meters": ["rapl-powercap"], "energy.power_budget": "60 W"}])
        run = started([MOLEN, "train", "tiny.toml", *words], env={**ENV, **package.env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: 0 < package.limit() < 100)
        run.kill()
        until(lambda: package.limit() == 250)
        equal("its unit is recorded", [e["unit"] for e in lines_of(work / "runs/killed/events.jsonl") if e["event"] == "policy_settings"], ["W"])
        # A policy that searches tries a lower limit in its first seconds, and says at the end that it claims nothing yet.
        searched = case.train(long, {"energy.policy": "min_energy", "energy.slowdown": 0.2, "train.until": "100000 steps", "train.stop_after": "4 s"}, env=package.env)
        assert len({s["policy_setting"] for s in searched.steps}) > 1
        equal("what it saved", [e["savings"]["joules"] for e in searched.events("policy")], [None])
        equal("its limit at the end", package.limit(), 250)
        case.refused("train", "tiny.toml", {"energy.policy": "min_energy", "energy.meters": ["none"]}, env=package.env, says=["energy.policy", "joules"])
        estimated = {"energy.meters": ["none"], "energy.model": power_of_this_machine("estimated.json", 100)}
        case.refused("train", "tiny.toml", {"energy.policy": "min_energy", **estimated}, env=package.env, says=["energy.policy", "joules"])
        (package.zone / "constraint_0_power_limit_uw").unlink()
        case.refused("train", "tiny.toml", {"energy.policy": "sweep", "energy.meters": ["rapl-powercap"]}, env=package.env, says=["energy.policy", "can be set on all hosts", "constraint_0_power_limit_uw"])
    assert plain.steps
    case.refused("train", "tiny.toml", {"energy.policy": "race"}, says=["energy.policy", "min_energy"])
    # Variables of a batch system win over the file, and `--set` over them.
    asked = {"MOLEN_ENERGY_POLICY": "monitor", "MOLEN_ENERGY_POWER_BUDGET": "300 W"}
    of = lambda run, key: next(x for x in (run.path / "config.toml").read_text().splitlines() if x.startswith(f"{key} ")).split("#")
    value, origin = of(case.train({"energy.power_budget": "none"}, env=asked), "policy")
    equal("a variable", (value.split("=")[1].strip(), origin.strip()), ('"monitor"', "MOLEN_ENERGY_POLICY"))
    equal("--set wins", of(case.train({"energy.policy": "none", "energy.power_budget": "none"}, env=asked), "policy")[1].strip(), "--set")
    case.refused("train", "tiny.toml", {"energy.meters": ["none"]}, env=asked, says=["MOLEN_ENERGY_POWER_BUDGET: energy.power_budget", "joules"])
    case.refused("train", "tiny.toml", estimated, env=asked, says=["MOLEN_ENERGY_POWER_BUDGET: energy.power_budget", "joules"])
    case.refused("train", "tiny.toml", env={"MOLEN_ENERGY_POLICY": "race"}, says=["MOLEN_ENERGY_POLICY: energy.policy", "min_energy"])
    # A launcher need not pass variables on to other hosts: what rank 0 has holds on all ranks, and none waits for another one.
    only_on = lambda rank: ["mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none", "sh", "-c", f'[ $OMPI_COMM_WORLD_RANK = {rank} ] || unset {" ".join(asked)}; exec "$@"', "sh"]
    with LimitedPackage(work / "sys-ranks") as package:
        for rank, settings, policy in ((0, True, '"monitor"'), (1, False, '"none"')):
            ran = case.train({"energy.meters": ["rapl-powercap"]}, launcher=only_on(rank), env={**package.env, **asked})
            equal(f"variables on rank {rank}", ({"policy_setting" in s for s in ran.steps}, of(ran, "policy")[0].split("=")[1].strip()), ({settings}, policy))
    # A run goes on with the variables of the present job, which say where a value is from even if it is the default.
    folder = case.train({"train.stop_after": "1 steps", "energy.policy": "monitor"}).path
    shown = lambda env, *more: next(x for x in case.molen("config", "show", folder, *more, env=env).stdout.splitlines() if x.startswith("policy "))
    assert shown({"MOLEN_ENERGY_POLICY": "none"}).endswith("# MOLEN_ENERGY_POLICY"), shown({"MOLEN_ENERGY_POLICY": "none"})
    case.refused("train", "tiny.toml", {"energy.slowdown": "5 %"}, says=["energy.slowdown", "min_energy"])
    case.refused("train", "tiny.toml", {"energy.power_budget": "300 W", "energy.policy": "sweep"}, says=["energy.power_budget", "monitor"])


def constant_meter(name, watts=1000):
    (work / name).write_text("".join(json.dumps({"time_s": t, "energy_j": {"cpu-package0": watts * t}}) + "\n" for t in (0.0, 1e5)))
    return {"energy.meters": [f"replay:{name}"], "train.until": "1000000 steps", "checkpoint.every": "1000000 steps"}


def joules_for(case, plan, steps=500):
    """The joules that so many steps take at the meter's 1 kW by this machine's pace, and 4 kJ at least: enough losses for a power law, however busy the machine is."""
    pace = case.train({**plan, "train.until": "60 steps"}, name="pace").steps
    return max(4000, round(1e3 * steps * sum(s["step_s"] for s in pace[20:]) / len(pace[20:])))


def begun_within(run, budget, total, used):
    """No step is begun that the budget does not pay for. How far the last one, and the save after it, go beyond the budget depends on this machine, which may stall for a while."""
    begun = run.steps[-2][total]
    assert begun < budget and used > 0.9 * budget, (begun, used, budget)


@row("energy.energy_budget", "energy.co2_budget")
def budgets(case):
    """A run ends with a checkpoint at the last step that its budget pays for, with exit status 3, and goes on once the budget is raised."""
    plan = constant_meter("budget.jsonl")
    held = {**plan, **HELD, "train.validate_every": "1000000 steps", "train.validate_batches": 1}
    joules = joules_for(case, plan)
    first = case.train(held, {"energy.energy_budget": f"{joules} J"}, name="budget", code=3)
    last, used = first.steps[-1]["step"], lambda run: run.events("budget")[-1]["used_j"]
    begun_within(first, joules / 3.6e6, "kwh_total", used(first) / 3.6e6)
    equal("the checkpoint at the end", first.checkpoints()[-1], last)
    equal("the validation at the end", first.events("validation")[-1]["step"], last)
    equal("what is said", [e["action"] for e in first.events("budget")], ["exceeds", "end"])
    said = first.events("budget")[0]
    equal("once measured, a checkpoint and a validation", (said["save_j"] > 0, said["validation_j"] > 0, said["planned_steps"]), (True, True, 1000000))
    assert f"stopped after step {last}: {last} of 1000000 steps; energy.energy_budget = {joules} J pays for no further one" in " ".join(first.out.split()), first.out[-2000:]
    # A machine that stalls for seconds leaves too few steps for a law, and the run says so.
    forecast = "By a power law through the run's own losses" if last >= 500 else "No forecast of the loss"
    assert forecast in " ".join(first.out.split()) or last < 500 and "By a power law" in first.out, first.out[-2000:]
    assert "kWh at the end" in first.out or "Wh at the end" in first.out, first.out[-2000:]
    law = first.events("budget")[0]["loss"]
    assert "why" in law or law["planned"]["value"] <= law["paid"]["value"], law
    row = first.steps[-1]
    assert row["kwh_at_end"]["low"] <= row["kwh_at_end"]["value"] <= row["kwh_at_end"]["high"] and row["kwh_at_end"]["value"] > 10 * row["kwh_total"], row
    again = case.train(held, {"energy.energy_budget": f"{joules} J"}, name="budget", code=3)
    equal("nothing more", again.steps[-1]["step"], last)
    assert "nothing to do" in again.out, again.out
    more = case.train(held, {"energy.energy_budget": f"{2 * joules} J"}, name="budget", code=3)
    assert more.steps[-1]["step"] > last, more.steps[-1]
    begun_within(more, 2 * joules / 3.6e6, "kwh_total", used(more) / 3.6e6)
    # The energy of a validation is measured, and kept for the one at the end: a fraction of the budget, however many there were.
    often = case.train({**held, "train.validate_every": "20 steps"}, {"energy.energy_budget": f"{joules} J"}, code=3)
    assert often.steps[-1]["step"] > 60 and often.events("budget")[-1]["validation_j"] < 0.2 * joules, often.events("budget")
    equal("without a budget nothing is said", case.train({**plan, "train.until": "4 steps"}).events("budget"), [])
    enough = case.train({**plan, "train.until": "1500 steps"}, {"energy.energy_budget": "10 MJ"})
    equal("one that does", ([e["action"] for e in enough.events("budget")], enough.steps[-1]["step"]), (["end"], 1500))
    close("its forecast in the last third", enough.steps[1200]["kwh_at_end"]["value"], enough.steps[-1]["kwh_total"], 0.5)
    html = (case.molen("report", enough.path) and enough.path / "report.html").read_text()
    assert "<h3>Budget</h3>" in html and "Forecast after step 1500" in html
    # 268 g CO2e/kWh.
    grams = 268 * joules / 3.6e6
    green = case.train(plan, {"energy.co2_budget": f"{grams:.6f} g", "energy.site": "NL"}, "--ranks", 2, code=3)
    begun_within(green, 1e-3 * grams, "kg_co2e_total", green.events("budget")[-1]["used_kg"])
    assert green.steps[-1]["kg_co2e_at_end"]["value"] > 10 * green.steps[-1]["kg_co2e_total"]
    case.refused("train", "tiny.toml", plan, {"energy.energy_budget": "0 kWh"}, says=["energy.energy_budget", "above zero"])
    case.refused("train", "tiny.toml", plan, {"energy.energy_budget": "-1 kWh"}, says=["energy.energy_budget", "an energy such as"])
    case.refused("train", "tiny.toml", plan, {"energy.co2_budget": "0 kg"}, says=["energy.co2_budget", "above zero"])
    case.refused("train", "tiny.toml", plan, {"energy.co2_budget": "1 kg"}, says=["energy.co2_budget", "energy.site"])
    case.refused("train", "tiny.toml", {"energy.energy_budget": "1 kWh"}, says=["energy.energy_budget", 'energy.meters is ["none"]'])
    case.refused("train", "tiny.toml", {"energy.energy_budget": "1 kWh", "energy.meters": ["auto"]}, env={"MOLEN_SYSFS": str(work / "none"), "MOLEN_ENERGY_SOCKET": ""}, says=["energy.energy_budget", "not measured: no meter"])
    # Emissions of a run that knew none before.
    weak = constant_meter("weak.jsonl", watts=1)  # millijoules, which are joules all the same
    case.train({**plan, **weak, "train.stop_after": "2 steps"}, name="unknown")
    case.refused("train", "tiny.toml", weak, {"run.name": "unknown", "energy.co2_budget": "1 kg", "energy.site": "NL"}, says=["energy.co2_budget", "named no site"])


def shrunk_to(joules):
    return {"energy.energy_budget": f"{joules} J", "energy.on_budget": "shrink"}


def shrunk_as_by_hand(case, plan, joules, kind, ranks, name):
    """A budget shortens the schedule of a run, whose losses are then those of the shorter schedules given by hand."""
    sets = {**plan, "schedule.kind": kind, "checkpoint.keep": 0}
    shrunk = case.train(sets, shrunk_to(joules), "--ranks", ranks, name=f"shrunk-{name}")
    events = [e for e in shrunk.events("budget") if e["action"] == "shrink"]
    assert events, shrunk.events("budget")
    assert shrunk.steps[-2]["kwh_total"] * 3.6e6 < joules, shrunk.steps[-2]
    last = events[-1]["paid_steps"]
    equal("the last step", (shrunk.steps[-1]["step"], shrunk.checkpoints()[-1]), (last, last))
    close("the rate at the end", shrunk.steps[-1]["lr"], 1e-3)
    config = (shrunk.path / "config.toml").read_text()
    assert f'until = "{last} steps"' in config and "energy.on_budget" in config, config
    until = "100000 steps"
    for event, after in zip(events, [e["step"] for e in events[1:]] + [None]):
        by_hand = lambda *more, **sets_: case.train({**plan, "schedule.kind": kind, "train.until": until, **sets_}, *more, "--ranks", ranks, name=f"by-hand-{name}")
        if until == "100000 steps":
            by_hand(**{"train.stop_after": f"{event['step']} steps"})
        until = f"{event['paid_steps']} steps"
        plain = by_hand("--allow-change", "train.until", **({"train.stop_after": f"{after} steps"} if after else {}))
    equal(f"{kind}: losses and rates", [(s["loss"], s["lr"]) for s in shrunk.steps], [(s["loss"], s["lr"]) for s in plain.steps])
    text = case.molen("runs", "compare", shrunk.path, plain.path).stdout
    assert f"a: after step {events[-1]['step']}, energy.on_budget = \"shrink\" has ended the learning-rate schedule at {last} instead of" in text, text


def shrunk_when_resumed(case, plan, joules, name):
    """A resume has the shorter schedule too, and --allow-change train.until goes back."""
    stopped = case.train({**plan, "train.stop_after": f"{joules / 2700:.2f} s"}, shrunk_to(joules), name=name)
    to = [e for e in stopped.events("budget") if e["action"] == "shrink"][-1]["paid_steps"]
    resumed = case.train({**plan, "train.until": "100000 steps"}, name=name)
    assert f"train.until is {to} steps instead of 100000 steps" in " ".join(resumed.out.split()), resumed.out
    equal("resumed", resumed.steps[-1]["step"], to)
    back = case.train({**plan, "train.stop_after": f"{to + 5} steps"}, "--allow-change", "train.until", name=name)
    equal("the first length again", back.steps[-1]["step"], to + 5)


def undisturbed(attempt, times=5):
    """Other work on this machine may lengthen a few steps so much that a run which shrinks must stop all the same, with exit status 3. Then, and only then, it is tried again."""
    for i in range(times):
        try:
            return attempt(i)
        except AssertionError as error:
            if ": exit 3, expected 0" not in str(error) or i + 1 == times:
                raise


@row("energy.on_budget")
def on_budget(case):
    plan = {**constant_meter("on-budget.jsonl"), "train.until": "100000 steps"}
    joules = joules_for(case, plan)
    for kind, ranks in (("cosine", 1), ("wsd", 2)):
        undisturbed(lambda i: shrunk_as_by_hand(case, plan, joules, kind, ranks, f"{kind}-{i}"))
    undisturbed(lambda i: shrunk_when_resumed(case, plan, joules, f"resumed-{i}"))
    # Slow: the reference until the forecast exceeds the budget, then a search as min_energy's.
    with LimitedPackage(work / "sys") as package:
        slow = {"energy.meters": ["rapl-powercap"], "energy.energy_budget": "3 kJ", "energy.on_budget": "slow", "batch.global": 16, "train.until": "1000000 steps"}
        ran = case.train(slow, {"train.stop_after": "6 s"}, env=package.env)
        event = next(e for e in ran.events("budget") if e["action"] == "slow")
        before, after = ({s["policy_setting"] for s in ran.steps if (s["step"] <= event["step"]) == first} for first in (True, False))
        equal("until then", before, {250})
        assert len(after) > 1, after
        equal("the limit at the end", package.limit(), 250)
        # A budget of 300 steps at the package's 200 W. Other work on this machine may use up all of it before the run knows what a step takes; only then it is tried again.
        reference = [s["step_s"] for s in ran.steps if s["step"] <= event["step"]]
        joules = max(600, round(200 * 300 * sum(reference) / len(reference)))
        for _ in range(5):
            stopped = case.train(slow, {"energy.energy_budget": f"{joules} J"}, env=package.env, code=3)
            if (actions := [e["action"] for e in stopped.events("budget")]) != ["end"]:
                break
        equal("and it stops where that is not enough", actions, ["slow", "end"])
        (package.zone / "constraint_0_power_limit_uw").unlink()
        case.refused("train", "tiny.toml", slow, env=package.env, says=["energy.on_budget", "can be set on all hosts", "constraint_0_power_limit_uw"])
    case.refused("train", "tiny.toml", {"energy.on_budget": "shrink"}, says=["energy.on_budget", "neither is set"])
    case.refused("train", "tiny.toml", {**shrunk_to(4000), "energy.on_budget": "pause"}, says=["energy.on_budget", "shrink"])
    case.refused("train", "tiny.toml", {**shrunk_to(4000), "energy.on_budget": "slow", "energy.policy": "sweep"}, says=["energy.on_budget", "energy.policy"])
    case.refused("train", "tiny.toml", {**shrunk_to(4000), "energy.on_budget": "slow", "energy.power_budget": "1 kW"}, says=["energy.on_budget", "energy.power_budget"])


# --- the run and its device ----------------------------------------------------------------------------------------------------------
@row("run.name", "run.dir", "run.tags")
def naming(case):
    case.molen("train", "tiny.toml", {"run.name": "so-called", "run.dir": "kept", "run.tags": ["dutch", "first"]})
    case.molen("train", "tiny.toml", {"run.name": "other", "run.dir": "kept", "run.tags": ["dutch"]})
    equal("where", sorted(p.name for p in (work / "kept").iterdir()), ["other", "so-called"])
    listed = {r["run"]: r["tags"] for r in json.loads(case.molen("runs", "list", "kept", "--format", "json").stdout)}
    equal("tags", listed, {"so-called": ["dutch", "first"], "other": ["dutch"]})
    for tags, runs in ((["dutch"], ["other", "so-called"]), (["first"], ["so-called"]), (["dutch", "first"], ["so-called"]), (["second"], [])):
        found = case.molen("runs", "list", "kept", *(x for t in tags for x in ("--tag", t)), "--format", "json").stdout
        equal(f"runs list --tag {tags}", [r["run"] for r in json.loads(found)], runs)
    case.refused("train", "tiny.toml", {"run.name": "../out"}, says="run.name")
    case.molen("train", "tiny.toml", {"run.dir": "unnamed"})
    (name,) = (p.name for p in (work / "unnamed").iterdir())
    assert re.fullmatch(r"custom-\d{8}T\d{6}Z", name), name
    # A requeued job without a name looks for a run that had none either.
    equal("named", [json.loads((work / run / "run.json").read_text())["named"] for run in ("kept/so-called", f"unnamed/{name}")], [True, False])


@row("run.lease")
def lease(case):
    """How long the next job waits for an owner of which nobody can see whether it lives: as long as that one's lease says."""
    took = {}
    for seconds in (1.0, 4.0):
        name = {"run.name": f"lease{seconds:g}"}
        case.molen("train", "tiny.toml", name, {"run.lease": f"{seconds:g} s", "train.stop_after": "2 steps"})
        file = next((work / f"runs/lease{seconds:g}").glob("lease-*.json"))
        file.write_text(json.dumps(json.loads(file.read_text()) | {"host": "node7", "boot": "another", "released": False}) + "\n")
        start = time.monotonic()
        said = case.molen("train", "tiny.toml", name).stderr
        took[seconds] = time.monotonic() - start
        assert f"on node7 was writing here; taking over if it shows no life for {seconds:g} s" in said, said
        equal("1 min where not set", json.loads(next((work / f"runs/lease{seconds:g}").glob("lease-*.json")).read_text())["period_s"], 60)
    assert all(t >= s for s, t in took.items()) and 2 < took[4.0] - took[1.0] < 5, took
    case.refused("train", "tiny.toml", {"run.lease": "soon"}, says="run.lease")


@row("device.kind", "device.communicator")
def device(case):
    for kind in ("auto", "cpu"):
        ran = case.train({"device.kind": kind})
        cuda = json.loads((ran.path / "environment.json").read_text())["device"] == "cuda"
        assert not cuda or kind == "auto"
    if not json.loads((ran.path / "environment.json").read_text())["cuda"]:
        case.refused("train", "tiny.toml", {"device.kind": "cuda"}, says=["device.kind", "no CUDA device"])
    for sets, ranks, expected in ((None, 1, "self"), ("self", 1, "self"), ("threads", 1, "threads"), ("auto", 2, "threads"), ("threads", 2, "threads")):
        ran = case.train({"device.communicator": sets} if sets else {}, "--ranks", ranks)
        equal(f"{sets} on {ranks}", ran.events("start")[0]["communicator"], expected)
    mpi = ["mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none"]
    equal("under a launcher", case.train({"device.communicator": "mpi"}, launcher=mpi).events("start")[0]["communicator"], "mpi")
    for value, ranks, says in (("self", 2, "is one rank"), ("mpi", 1, "needs a launcher"), ("nccl", 1, "needs a launcher")):
        case.refused("train", "tiny.toml", {"device.communicator": value}, "--ranks", ranks, says=["device.communicator", says])
