#!/usr/bin/env python3
"""Compares a cuda device with the host: layouts, steps in each type, resumed runs, kernels of attention. Every check is made, also
after one has failed.

usage: gpu.py MOLEN [DEVICE [CHECK...]]   (skipped where there is no cuda device; DEVICE = cpu runs the checks themselves on a host beside itself;
                                           CHECK names a check, such as types, and leaves out those that are not named)
"""
import json
import math
import re
import sys
import traceback

from harness import finish, metrics, ok, run, shards, show_devices, skip, work

DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cuda"
failed = []
FAMILIES = {"llama": ["model.kv_heads=2"], "gpt": ["model.family=gpt"]}
SIZES = ["model.family=llama", "model.layers=4", "model.hidden=48", "model.ffn=80", "model.heads=4", "model.head_dim=12", "model.vocabulary=71", "model.max_sequence=64",
         "data.sequence_length=16", "batch.global=8", "batch.micro=2"]  # fmt: skip


def sets(*values):
    return [x for value in values for x in ("--set", value)]


def check(call):
    try:
        call()
    except Exception as e:  # the next check says something else
        failed.append(call.__name__)
        print(f"FAILED {call.__name__}: {e}", flush=True)
        if not isinstance(e, AssertionError):
            traceback.print_exc()


def train(name, *values, device=DEVICE):
    return run("train", "run.toml", *sets(f"run.name={name}", f'device.kind="{device}"', *values))


def near(name, of, beside, first, last):
    """Losses and gradient norms of two runs: the first step within `first`, all within `last`, relative."""
    a, b = (m if isinstance(m, dict) else metrics(m) for m in (of, beside))
    worst = max(abs(a[s][key] / b[s][key] - 1) if b[s][key] else math.inf for s in b for key in ("loss", "grad_norm"))
    start = abs(a[1]["loss"] / b[1]["loss"] - 1)
    ok(f"{name}: first loss within {first:g}, all within {last:g} (are {start:.2g}, {worst:.2g})", a.keys() == b.keys() and start <= first and worst <= last, (start, worst))


def layouts(family, ranks, *more):
    out = run("verify", *sets(*SIZES, *FAMILIES[family], f'device.kind="{DEVICE}"'), "--ranks", ranks, "--cover", "pairs", *more).stdout
    said = re.search(r"(\d+) layouts in fp64 and fp32, \d+ runs: (\d+) of them the same model; the largest difference is ([0-9.]+)", out)
    ok(f"layouts of {ranks} ranks, {family}: {said[0] if said else ''}", said and 0 < int(said[1]) == int(said[2]), out)


def layouts_llama():
    layouts("llama", 2)
    layouts("llama", 4)


def layouts_gpt():
    layouts("gpt", 2)
    layouts("gpt", 4)


# Each type beside the host. Rounding to bf16 is 2^-9 of a value, to fp16 2^-12, and a loss is a mean over many.
TYPES = {"fp32": (1e-6, 1e-3), "bf16": (2e-3, 5e-2), "fp16": (5e-4, 2e-2)}


def types():
    for kind, (first, last) in TYPES.items():
        for name, device in (("host", "cpu"), ("device", DEVICE)):
            train(f"{kind}-{name}", f"precision.compute={kind}", "model.head_dim=16", device=device)
        near(f"{kind} on the device beside the host", f"{kind}-device", f"{kind}-host", first, last)
    ok("it says where it ran", json.loads((work / "runs/bf16-device/environment.json").read_text())["device"] == DEVICE)


def kinds():
    for name, values in {
        "gpt": ["model.family=gpt", "model.kv_heads=4", "model.head_dim=16"],
        "alibi": ["model.position=alibi", "model.head_dim=16"],
        "documents": ["data.document_mask=true", "model.head_dim=16"],
        "odd heads": ["model.head_dim=12"],
        "tied": ["model.tied=true", "model.head_dim=16"],
    }.items():
        for kind in ("fp32", "bf16"):
            for place, device in (("host", "cpu"), ("device", DEVICE)):
                train(f"{name}-{kind}-{place}", f"precision.compute={kind}", *values, device=device)
            near(f"{name} in {kind}", f"{name}-{kind}-device", f"{name}-{kind}-host", *TYPES[kind])


def optimizers():
    for kind in ("muon", "lion", "adafactor"):
        for place, device in (("host", "cpu"), ("device", DEVICE)):
            train(f"{kind}-{place}", "precision.compute=fp32", f"optimizer.kind={kind}", "optimizer.lr=1e-3", device=device)
        near(kind, f"{kind}-device", f"{kind}-host", *TYPES["fp32"])


def same(name, a, b):
    out = run("runs", "compare", f"runs/{a}", f"runs/{b}").stdout
    ok(f"{name}: identical", "identical" in out, out)


def repeats():
    for kind in TYPES:
        for name in ("one", "two"):
            train(f"{name}-{kind}", f"precision.compute={kind}", "model.head_dim=16")
        same(f"the same run twice, {kind}", f"one-{kind}", f"two-{kind}")
    for name in ("one", "two"):
        train(f"{name}-documents", "precision.compute=bf16", "model.head_dim=16", "data.document_mask=true")
    same("the same run twice, bf16 with document masks", "one-documents", "two-documents")


def overflows():
    # 2^40 times the loss overflows: its scale is halved until it fits, and until then nothing is trained.
    for name, device in (("scaled-host", "cpu"), ("scaled-device", DEVICE)):
        train(name, "precision.compute=fp16", "model.head_dim=16", f"precision.loss_scale={2.0**40}", device=device)
    host, there = metrics("scaled-host"), metrics("scaled-device")
    fits = min(s for s in there if there[s]["grad_norm"] is not None)
    course = [there[s]["loss_scale"] == 2.0 ** (40 - sum(there[t]["grad_norm"] is None for t in there if t < s)) for s in there]
    ok(f"overflow in fp16: the scale is halved at each overflow until it fits at step {fits}", fits > 4 and all(course), there)
    beside = min(s for s in host if host[s]["grad_norm"] is not None)  # other kernels keep other intermediate values in fp16
    ok(f"on the host it fits at step {beside}, at most three away", abs(fits - beside) <= 3, host)
    before = range(1, min(fits, beside))  # losses of weights that no step has changed
    near("losses beside the host's before", *({s: {**m[s], "grad_norm": 1.0} for s in before} for m in (there, host)), TYPES["fp16"][0], TYPES["fp16"][0])
    ok("it trains after them", there[max(there)]["loss"] < 0.99 * there[1]["loss"], there)


def resumes():
    train("whole", "precision.compute=bf16", "model.head_dim=16")
    for stop in ("8 steps", ""):
        train("parts", "precision.compute=bf16", "model.head_dim=16", *([f'train.stop_after="{stop}"'] if stop else []))
    same("stopped and resumed", "whole", "parts")


def large():
    # Tensors of several blocks of 16 MiB, which a checkpoint reads from the device one by one.
    values = ["precision.compute=fp32", "model.layers=1", "model.hidden=192", "model.head_dim=48", "model.ffn=24000", 'checkpoint.every="1 steps"', 'train.until="2 steps"', 'schedule.warmup="1 steps"']
    train("large-whole", *values)
    train("large-parts", *values, 'train.stop_after="1 steps"')
    train("large-parts", *values)
    same("stopped and resumed with tensors of 17.6 MiB", "large-whole", "large-parts")


def moves():
    for name, a, b in (("to-device", "cpu", DEVICE), ("to-host", DEVICE, "cpu")):
        train(name, "precision.compute=fp32", 'train.stop_after="6 steps"', device=a)
        train(name, "precision.compute=fp32", device=b)
    train("stays", "precision.compute=fp32", device="cpu")
    near("begun on the host, ended on the device", "to-device", "stays", *TYPES["fp32"])
    near("begun on the device, ended on the host", "to-host", "stays", *TYPES["fp32"])


def memory_savers():
    train("plain", "precision.compute=bf16", "model.head_dim=16")
    for name, value in {
        "recompute": "parallel.recompute=full",
        "offload": 'parallel.offload=["optimizer","gradients","parameters","activations"]',
        "unit": "parallel.unit_layers=half",
    }.items():
        train(name, "precision.compute=bf16", "model.head_dim=16", value)
        near(name, name, "plain", 1e-6, 1e-3)


def generates():
    train("generates", "precision.compute=bf16", "model.head_dim=16")
    text = run("generate", "runs/generates", "--prompt", "de molen", "--max-tokens", 8, "--seed", 1).stdout
    ok("a checkpoint of the device generates", text.strip(), text)


def commands():
    fp32 = sets(f'device.kind="{DEVICE}"', "precision.compute=fp32")
    bench = json.loads(run("bench", "run.toml", *fp32, "--steps", 2).stdout)
    ok("bench runs on the device", bench["device"] == DEVICE and (DEVICE == "cpu") == (bench["arena_touched_bytes"] is not None), bench)
    entries = json.loads(run("calibrate", "--threads", 1, "--widest", 128, "--rounds", 1, "--output", "here.json", "--format", "json").stdout)
    ok("calibrate measures the host beside a device", all(e["costs"]["calibration_factor"] > 0 for e in entries) and entries, entries)
    refused = run("calibrate", *sets("device.kind=cuda"), code=2).stderr
    ok("and is refused for one", "device.kind" in refused and "measures processors" in refused, refused)


shards()
show_devices()
if DEVICE == "cuda" and not json.loads(run("doctor", "--format", "json").stdout).get("cuda"):
    skip("the device", "no cuda device")
    finish("gpu")
CHECKS = {check.__name__: check for check in (types, kinds, optimizers, repeats, overflows, resumes, large, moves, memory_savers, generates, commands, layouts_llama, layouts_gpt)}
if unknown := set(sys.argv[3:]) - CHECKS.keys():
    sys.exit(f"gpu: no check {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
for name, call in CHECKS.items():
    if not sys.argv[3:] or name in sys.argv[3:]:
        check(call)
if failed:
    sys.exit(f"gpu: failed: {', '.join(failed)}")
finish("gpu")
