#!/usr/bin/env python3
"""Predicted beside measured step time and memory, for shapes and rank counts that the calibration did not see.

usage: predict.py MOLEN [--layouts] [--calibration FILE] [--only TEXT] [--output FILE.json] [--record]
Calibrates this machine by one `molen calibrate` and (where there is mpirun) as two MPI ranks of one thread, then predicts and runs each shape
below: on one and two ranks, and on 3 and 4 ranks, which the calibration did not see. Each shape is run --rounds times,
in turn with the others, and the median step is what it took. Memory: the planned peak against the arena the executor used, which must be equal.
--layouts takes stages, tensor ranks, context ranks, offload and the like instead of the data-parallel shapes.
Exit status 1 where the median error or the memory misses its bound in docs/results/metrics.json; --record adds the figures to docs/results/records.jsonl.
"""
import argparse
import itertools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
import results as records  # noqa: E402

TINY = ["model.preset=llama-tiny", "data.sequence_length=256"]
L60M = ["model.preset=llama-60m", "data.sequence_length=512"]
D320 = ["model.family=llama", "model.hidden=320", "model.layers=5", "model.heads=10", "model.kv_heads=5", "model.ffn=900", "model.vocabulary=10000", "model.max_sequence=512",
        "data.sequence_length=200"]
D448 = ["model.family=llama", "model.hidden=448", "model.layers=4", "model.heads=7", "model.kv_heads=7", "model.ffn=1300", "model.vocabulary=5000", "model.max_sequence=512",
        "data.sequence_length=300"]


def batch(everyone, micro):
    return [f"batch.global={everyone}", f"batch.micro={micro}"]


# name, ranks, threads, communicator, what differs from the calibration's shapes
SHAPES = [
    ("llama-tiny, 4 x 256", 1, 2, "self", TINY + batch(4, 4)),
    ("llama-tiny, recompute", 1, 2, "self", TINY + batch(4, 4) + ['parallel.recompute="full"']),
    ("d 320, 5 layers", 1, 2, "self", D320 + batch(6, 6)),
    ("llama-60m, 2 x 512", 1, 2, "self", L60M + batch(2, 2)),
    ("d 448, V 5000, 4 x 300", 1, 2, "self", D448 + batch(4, 4)),
    ("llama-tiny, 2 micro", 1, 1, "self", TINY + batch(8, 4)),
    ("d 448, V 5000, 4 x 300", 1, 1, "self", D448 + batch(4, 4)),
    ("llama-tiny", 2, 1, "threads", TINY + batch(8, 4)),
    ("llama-tiny, ZeRO-1, 3 micro", 2, 1, "threads", ["model.preset=llama-tiny", "data.sequence_length=128", "parallel.zero=1"] + batch(24, 4)),
    ("llama-60m, ZeRO-1", 2, 1, "threads", L60M + batch(4, 2) + ["parallel.zero=1"]),
    ("the demo's step", 2, 1, "mpi", TINY + batch(16, 8) + ["model.vocabulary=16384", "parallel.zero=1"]),
    ("llama-60m", 2, 1, "mpi", L60M + batch(4, 2)),
    ("llama-tiny", 3, 1, "threads", TINY + batch(12, 4)),
    ("d 448, ZeRO-1", 3, 1, "threads", D448 + batch(6, 2) + ["parallel.zero=1"]),
    ("llama-tiny", 4, 1, "threads", TINY + batch(16, 4)),
    ("d 320, ZeRO-1, 2 micro", 4, 1, "threads", D320 + batch(16, 2) + ["parallel.zero=1"]),
    ("llama-tiny, ZeRO-1", 3, 1, "mpi", TINY + batch(12, 4) + ["parallel.zero=1"]),
    ("d 320", 3, 1, "mpi", D320 + batch(9, 3)),
    ("llama-tiny", 4, 1, "mpi", TINY + batch(16, 4)),
    ("d 448, ZeRO-1", 4, 1, "mpi", D448 + batch(8, 2) + ["parallel.zero=1"]),
]
BF16 = ["precision.compute=bf16"]
PP, TP, CP = ["parallel.pipeline=2"], ["parallel.tensor=2"], ["parallel.context=2"]
RING = [*CP, 'parallel.context_form="ring"']
# The same, for stages, tensor ranks, context ranks, offload, 16-bit messages, pieces and other optimizers.
LAYOUTS = [
    *[(f"llama-tiny, 2 stages, {s}", 2, 1, "threads", TINY + batch(16, 4) + PP + [f'parallel.schedule="{s}"']) for s in ("1f1b", "gpipe", "zb-h1")],
    ("d 448, 2 stages of 2 chunks", 2, 1, "threads", D448 + batch(8, 2) + PP + ["parallel.virtual_stages=2", 'parallel.schedule="interleaved"']),
    ("llama-60m, 2 stages", 2, 1, "threads", L60M + batch(4, 1) + PP),
    ("llama-tiny, TP 2", 2, 1, "threads", TINY + batch(8, 4) + TP + ["parallel.sequence=false"]),
    ("llama-tiny, TP 2, rows cut", 2, 1, "threads", TINY + batch(8, 4) + TP + ["parallel.sequence=true"]),
    ("llama-60m, TP 2 in 2 pieces", 2, 1, "threads", L60M + batch(2, 2) + TP + ["parallel.sequence=true", "parallel.tensor_chunks=2"]),
    ("llama-tiny, CP 2, gathered", 2, 1, "threads", TINY + batch(8, 4) + CP),
    ("llama-60m, CP 2, ring", 2, 1, "threads", L60M + batch(2, 2) + RING),
    ("llama-tiny, ZeRO-2 in bf16", 2, 1, "threads", TINY + batch(8, 4) + ["parallel.zero=2", 'precision.reduce="bf16"']),
    ("d 320, FULL_SHARD, offload", 2, 1, "threads", D320 + batch(8, 4) + ["parallel.zero=3", 'parallel.offload=["optimizer","gradients","parameters","activations"]']),
    *[(f"llama-tiny, {kind}", 2, 1, "threads", TINY + batch(8, 4) + ["parallel.zero=1", f'optimizer.kind="{kind}"']) for kind in ("lion", "muon", "adafactor")],
    ("llama-tiny, 2 stages", 2, 1, "mpi", TINY + batch(16, 4) + PP),
    ("llama-tiny, TP 2, rows cut", 2, 1, "mpi", TINY + batch(8, 4) + TP + ["parallel.sequence=true"]),
    ("llama-tiny, CP 2, ring", 2, 1, "mpi", TINY + batch(8, 4) + RING),
    ("llama-tiny, 2 stages x 2", 4, 1, "threads", TINY + batch(16, 2) + PP + ["parallel.zero=1"]),
    ("llama-tiny, TP 2 x 2", 4, 1, "threads", TINY + batch(16, 4) + TP),
    ("llama-tiny, TP 2 x CP 2", 4, 1, "threads", TINY + batch(8, 4) + TP + RING),
    ("llama-tiny, 2 stages x TP 2", 4, 1, "threads", TINY + batch(16, 4) + PP + TP),
    ("llama-tiny, 2 stages, bf16", 2, 1, "threads", TINY + batch(16, 4) + PP + BF16),
    ("d 320, TP 2, bf16", 2, 1, "threads", D320 + batch(4, 2) + TP + BF16 + ["model.heads=10", "model.kv_heads=10"]),
]
MPI = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")


def run(*command):
    r = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=MPI)
    if r.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {r.stderr}")
    return r.stdout


def launched(ranks, communicator):
    """Returns the words before the command, and those after it."""
    if communicator == "mpi":
        return ["mpirun", "-n", ranks, "--bind-to", "none", "--oversubscribe"], []
    return [], ["--ranks", ranks] if ranks > 1 else []


def calibrate(molen, file, shapes):
    """All of this machine in one call, as a user does it, and two MPI ranks where a shape needs them."""
    calls = [[molen, "calibrate", "--output", file]]
    if len(os.sched_getaffinity(0)) != 2:  # the call has other numbers of threads than the shapes
        calls = [[*calls[0], "--ranks", ranks, "--threads", threads] for ranks, threads in ((1, 2), (2, 1), (1, 1))]
    if any(s[3] == "mpi" for s in shapes):
        calls.append([*launched(2, "mpi")[0], molen, "calibrate", "--output", file, "--threads", 1, "--compute", "fp32"])
    for call in calls:
        begun = time.monotonic()
        said = run(*call)
        print(*(line for line in said.splitlines() if line.startswith("calibrated")), sep="\n")
        print(f"{' '.join(map(str, call))}: {time.monotonic() - begun:.0f} s", flush=True)


def measure(molen, shapes, file, steps, rounds):
    rows = []
    for name, ranks, threads, communicator, sets in shapes:
        flags = [x for s in ["precision.compute=fp32", *sets, f"math.threads={threads}", "device.kind=cpu"] for x in ("--set", s)]
        said = json.loads(run(molen, "simulate", *flags, "--ranks", ranks, "--communicator", communicator, "--cluster", file, "--format", "json"))
        before, after = launched(ranks, communicator)
        rows.append({"shape": name, "ranks": ranks, "threads": threads, "communicator": communicator, "predicted_s": said["step_s"], "extrapolated": said["extrapolated"],
                     "planned_bytes": said["memory_bytes"], "steps_s": [], "command": [*before, molen, "bench", *flags, *after, "--steps", steps], "predicted_ops": said["ops"]})
    for _ in range(rounds):
        for row in rows:
            said = json.loads(run(*row["command"]).splitlines()[-1])
            row["steps_s"].append(said["median_s"])
            row["touched_bytes"] = said["arena_touched_bytes"]
            row["measured_ops"] = said["ops"]
    for row in rows:
        del row["command"]
        row["measured_s"] = statistics.median(row["steps_s"])
        row["error"] = row["predicted_s"] / row["measured_s"] - 1
    return rows


def median_error(rows):
    return statistics.median(abs(r["error"]) for r in rows)


def worst_error(rows):
    """The error that nine of ten rows stay below."""
    errors = sorted(abs(r["error"]) for r in rows)
    return errors[max(0, len(errors) - max(1, len(errors) // 10) - 1)]


def tau(rows):
    """Kendall's tau of predicted and measured step times: of all pairs, those in the same order less those in the other one."""
    signs = [(a["predicted_s"] - b["predicted_s"]) * (a["measured_s"] - b["measured_s"]) for a, b in itertools.combinations(rows, 2)]
    return sum((x > 0) - (x < 0) for x in signs) / len(signs) if signs else 1.0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("molen")
    p.add_argument("--layouts", action="store_true", help="other layouts than data parallelism, on 2 and 4 ranks")
    p.add_argument("--calibration", help="used where it is there, else written")
    p.add_argument("--only", default="", help="shapes whose 'RANKS x THREADS COMMUNICATOR NAME' holds this text")
    p.add_argument("--output")
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--record", action="store_true", help="adds the figures to docs/results/records.jsonl")
    a = p.parse_args()
    shapes = [s for s in (LAYOUTS if a.layouts else SHAPES) if a.only in f"{s[1]} x {s[2]} {s[3]} {s[0]}" and (s[3] != "mpi" or shutil.which("mpirun"))]
    if not shapes:
        sys.exit(f"no shape holds '{a.only}'")
    with tempfile.TemporaryDirectory(prefix="molen_predict_") as folder:
        file = a.calibration or str(pathlib.Path(folder) / "here.json")
        if not pathlib.Path(file).exists():
            calibrate(a.molen, file, shapes)
        rows = measure(a.molen, shapes, file, a.steps, a.rounds)
    print(f"{'ranks x threads':<16}{'shape':<30}{'predicted':>11}{'measured':>11}{'error':>8}{'memory planned':>17}{'touched':>15}")
    for r in rows:
        ways = f"{r['ranks']} x {r['threads']} {r['communicator']}{'*' if r['extrapolated'] else ''}"
        print(f"{ways:<16}{r['shape']:<30}{r['predicted_s']:>10.3f}s{r['measured_s']:>10.3f}s{100 * r['error']:>+7.1f}%{r['planned_bytes']:>17,}{r['touched_bytes']:>15,}")
    unseen = [r for r in rows if r["extrapolated"]]
    if unseen:
        print(f"*: ranks that the calibration did not see: median error {100 * median_error(unseen):.1f}% over {len(unseen)}")
    # An op may leave some of its scratch, and the system gives memory by pages.
    differing = [r for r in rows if not 0.95 * r["planned_bytes"] < r["touched_bytes"] <= r["planned_bytes"]]
    print(f"median error {100 * median_error(rows):.1f}%, nine of ten within {100 * worst_error(rows):.1f}%, tau {tau(rows):.2f} over {len(rows)} shapes; "
          f"memory {'DIFFERS' if differing else 'touched as planned'}")
    if a.output:
        pathlib.Path(a.output).write_text(json.dumps({"median_error": median_error(rows), "memory_exact": not differing, "rows": rows}, indent=1) + "\n")
    kind = "layouts" if a.layouts else "step"
    measured = [(f"predict/{kind}", 100 * median_error(rows), None), ("predict/layouts_memory" if a.layouts else "predict/memory", len(differing), None)]
    measured += [(f"predict/{kind}_worst", 100 * worst_error(rows), None), (f"predict/{kind}_tau", tau(rows), None)]
    if not a.layouts and unseen:
        measured.append(("predict/unseen", 100 * median_error(unseen), None))
    sys.exit(0 if records.report(measured, f"bench/predict.py build/molen{' --layouts' * a.layouts} --rounds {a.rounds}", a.record) else 1)


if __name__ == "__main__":
    main()
