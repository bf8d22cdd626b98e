#!/usr/bin/env python3
"""What molen predicts of two machines that it never ran on, beside what their users published.

usage: other_machines.py MOLEN [--frontier] [--gpt-nl] [--record]

Frontier (Dash et al., ISC 2024, arXiv 2312.12705; layouts, batches and joules: S. Dash, ORNL training series): one factor, the rate of matrix products, is fitted to
the 175 B run alone. With it: the 1 T and the 22 B run, and strong scaling from one and from two replicas to 1,024 and 3,072 GCDs, with micro-batches of 4 sequences
(docs/planner-accuracy.md says why). The power that the published joules imply is printed beside that of the description.
GPT-NL (30 B on 450 B tokens on 88 H100 of Snellius: 34 days, 14 tonnes of CO2; TNO and SURF, 12 December 2024): `molen simulate` without options but the cluster, then each assumption of
the cluster's description moved by its spread.
"""
import argparse
import csv
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))
import results as records  # noqa: E402

PEAK = 191.5e12  # of a GCD
# The layout of 22 B is not published: two nodes, the tensor ranks of a node. Vocabulary and sequence are those of GPT-3, as the authors' scripts have them.
SHAPES = {"22B": (48, 6144, 48), "175B": (96, 12288, 96), "1T": (128, 25600, 128)}
RUNS = {"22B": {"gpus": 16, "tp": 8, "pp": 1, "gbs": 128}, "175B": {"gpus": 1024, "tp": 4, "pp": 16, "gbs": 640 * 16}, "1T": {"gpus": 3072, "tp": 8, "pp": 64, "gbs": 1600 * 6}}
STRONG = {"175B": (64, 1024, 8000, 0.8993), "1T": (512, 3072, 8016, 0.8705)}  # GCDs of a replica and at the end, sequences, published efficiency
STRONG_MICRO = 4  # sequences of a micro-batch in these experiments: not published, but 8016 is the least multiple of 4 sequences times 6 replicas from 8000 on
MEASURED = {"22B": 0.3838, "175B": 0.3614, "1T": 0.3196}
JOULES = {"22B": 284e9, "175B": 17.65e12, "1T": 662e12}  # of training on 20 tokens a parameter


def row_of(name, size, gpus, gbs, micro=1):
    layers, hidden, heads = SHAPES[size]
    layout = RUNS[size]
    return {"run_id": name, "layers": layers, "hidden": hidden, "heads": heads, "seq": 2048, "vocab": 51200, "gpu": "MI250X-GCD-64GB", "gpus": gpus, "tp": layout["tp"], "pp": layout["pp"],
            "vpp": 1, "zero_stage": 1, "mbs": micro, "gbs": gbs, "recompute": "full", "precision": "fp16", "flash_attention": "yes", "sequence_parallel": "no"}


def predicted(molen, rows, factors):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        with open(folder / "runs.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        (folder / "factors.json").write_text(json.dumps(factors))
        subprocess.run([molen, "plan", "--runs", folder / "runs.csv", "--output", folder / "out.jsonl", "--factors", folder / "factors.json"], check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    for line in lines:
        if "error" in line:
            sys.exit(f"{line['run_id']}: {line['error']}")
    return {line["run_id"]: line["step_s"] for line in lines}


def share_of_peak(size, gpus, gbs, seconds):
    """Hardware FLOPs with whole attention and one more forward of the layers (bench/published/README.md: hardware_full)."""
    layers, hidden, _ = SHAPES[size]
    weights, attention, head = 12 * layers * hidden**2, 4 * layers * 2048 * hidden, 2 * hidden * 51200
    return gbs * 2048 * (4 * (2 * weights + attention) + 3 * head) / (seconds * gpus * PEAK)


def fitted_rate(molen):
    """The factor `gemm` at which the 175 B run has its published share of the peak."""
    size, run = "175B", RUNS["175B"]
    low, high = 0.2, 1.5
    for _ in range(12):
        rate = math.sqrt(low * high)
        seconds = predicted(molen, [row_of(size, size, run["gpus"], run["gbs"])], {"gemm": rate})[size]
        low, high = (rate, high) if share_of_peak(size, run["gpus"], run["gbs"], seconds) < MEASURED[size] else (low, rate)
    return math.sqrt(low * high)


def frontier(molen):
    rate = fitted_rate(molen)
    rows = [row_of(size, size, run["gpus"], run["gbs"]) for size, run in RUNS.items()]
    rows += [row_of(f"{size} on {gpus}", size, gpus, gbs, STRONG_MICRO) for size, (one, most, gbs, _) in STRONG.items() for gpus in (one, 2 * one, most)]
    seconds = predicted(molen, rows, {"gemm": rate})
    print(f"Frontier: factor gemm {rate:.4f}, fitted to 175 B alone")
    measured = []
    for size, run in RUNS.items():
        share = share_of_peak(size, run["gpus"], run["gbs"], seconds[size])
        error = share / MEASURED[size] - 1
        print(f"{size:>5} on {run['gpus']} GCDs, tp {run['tp']}, pp {run['pp']}, {run['gbs']} sequences: {100 * share:.2f} % of the peak; published {100 * MEASURED[size]:.2f} % ({100 * error:+.1f} %)")
        tokens_per_s = run["gbs"] * 2048 / seconds[size]
        billions = {"22B": 22e9, "175B": 175e9, "1T": 1e12}[size]
        days = 20 * billions / tokens_per_s / 86400
        print(f"      {20 * billions:.3g} tokens take {days:.1f} days; the published {JOULES[size]:.4g} J are {JOULES[size] / (days * 86400) / (run['gpus'] / 2):.0f} W for each MI250X, whose description has 90 to 560 W")
        if size != "175B":
            measured.append((f"frontier/{size.lower()}", 100 * abs(error), None))
    for size, (one, most, gbs, published) in STRONG.items():
        worst = 0.0
        for least in (one, 2 * one):
            efficiency = seconds[f"{size} on {least}"] * least / (seconds[f"{size} on {most}"] * most)
            print(f"{size:>5}, strong scaling from {least} to {most} GCDs at {gbs} sequences, micro-batches of {STRONG_MICRO}: {100 * efficiency:.1f} %; published {100 * published:.1f} %, from an unknown number")
            worst = max(worst, 100 * abs(efficiency - published))
        measured.append((f"frontier/strong_{size.lower()}", worst, None))
    return measured


GPT_NL = """[model]
family = "llama"
layers = 60
hidden = 6656
ffn = 17920
heads = 52
kv_heads = 13
vocabulary = 128256
max_sequence = 4096
[data]
sequence_length = 4096
[batch]
global = 1760
micro = 4
[parallel]
sharding = "FULL_SHARD"
recompute = "full"
"""


def simulated(molen, folder, cluster):
    done = subprocess.run([molen, "simulate", folder / "gpt-nl.toml", "--cluster", cluster, "--ranks", "88", "--format", "json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())
    said = json.loads(done.stdout)
    steps = 450e9 / (1760 * 4096)
    return said["step_s"] * steps / 86400, said["cluster"]["kg_co2e"] * steps / 1000


def gpt_nl(molen):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "gpt-nl.toml").write_text(GPT_NL)
        days, tonnes = simulated(molen, folder, "snellius-h100")
        print(f"\nGPT-NL, 30 B on 450 B tokens, 88 H100 (sequences of 4,096 and batches of 1,760 are assumed): {days:.1f} days and {tonnes:.1f} t CO2e; published 34 days and 14 t")
        text = (HERE.parent / "clusters" / "snellius-h100.toml").read_text()
        for match in re.finditer(r"^(\w+) = \{ value = ([0-9.e+-]+), spread = ([0-9.]+), source = \"assumption", text, re.M):
            section = re.findall(r"^\[+(\w+)\]+(?:\nname = \"([^\"]+)\")?", text[: match.start()], re.M)[-1]
            name, value, spread = f"{section[1] or section[0]}: {match[1]}", float(match[2]), float(match[3])
            said = []
            for moved in (value / (1 + spread), value * (1 + spread)):
                (folder / "moved.toml").write_text(text[: match.start(2)] + repr(moved) + text[match.end(2) :])
                said.append(simulated(molen, folder, folder / "moved.toml"))
            print(f"  {name} -{100 * spread / (1 + spread):.0f} % or +{100 * spread:.0f} %: {said[0][0]:.1f} or {said[1][0]:.1f} days, {said[0][1]:.1f} or {said[1][1]:.1f} t")
    return [("gpt-nl/days", days, None), ("gpt-nl/tonnes", tonnes, None)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("molen")
    parser.add_argument("--frontier", action="store_true", help="Frontier alone")
    parser.add_argument("--gpt-nl", action="store_true", help="GPT-NL alone")
    parser.add_argument("--record", action="store_true", help="adds the figures to docs/results/records.jsonl")
    args = parser.parse_args()
    both = args.frontier == args.gpt_nl
    measured = []
    if both or args.frontier:
        measured += frontier(args.molen)
    if both or args.gpt_nl:
        measured += gpt_nl(args.molen)
    if not records.report(measured, "bench/other_machines.py build/molen", args.record):
        sys.exit(1)


if __name__ == "__main__":
    main()
