#!/usr/bin/env python3
"""Data sharding on 2 ranks of one thread: each strategy of molen beside the same one of PyTorch over gloo, alternating in one run (56.4M Llama, fp32).

usage: sharding.py MOLEN [--rounds N] [--steps N] [--only STRATEGY] [--no-equal] [--no-hidden] [--record] [--output FILE.json]
Prints: 1. that PyTorch's strategies train the same thing (fp64, a small model, one rank beside two); 2. tokens/s and memory of the pairs;
3. the share of molen's communication that is hidden behind compute, per axis of the program, as `molen train` tells at its end (docs/formats/events.md).
Exit status 1 where a ratio misses its bound in docs/results/metrics.json, and where PyTorch's strategies differ. --record adds the figures to
docs/results/records.jsonl.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

import step

MPIRUN = ["mpirun", "-n", "2", "--bind-to", "none", "--oversubscribe"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
PEER = str(step.HERE / "peers/train_torch.py")
# molen's strategy, what sets it, the peer's
PAIRS = [
    ("NO_SHARD", "parallel.sharding=NO_SHARD", "ddp"),
    ("ZERO1", "parallel.zero=1", "zero1"),
    ("SHARD_GRAD_OP", "parallel.sharding=SHARD_GRAD_OP", "fsdp2_grad_op"),
    ("FULL_SHARD", "parallel.sharding=FULL_SHARD", "fsdp2_full"),
]
OURS = ["device.kind=cpu", "data.sequence_length=512", "batch.global=4", "batch.micro=2", "precision.compute=fp32", "math.threads=1"]
TOKENS = 4 * 512
WARMUP = 2  # the peer's steps that are left out, as its first ones are slower; molen leaves out one
SMALL = step.SIZES | {"vocab_size": 331, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}


def call(command, cwd):
    r = subprocess.run([str(x) for x in command], cwd=cwd, env=step.ENV, capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"{' '.join(map(str, command))}:\n{r.stdout}\n{r.stderr}")
    return r.stdout


def settings(*sets):
    return [x for s in sets for x in ("--set", s)]


def equal(folder):
    """PyTorch's strategies, and one rank, in fp64: sums of this size keep 1e-12, a wrong average or a lost gradient does not keep 1e-3."""
    step.write_model(folder / "small", SMALL)
    step.write_tokens(folder / "small.bin", 331, 33)
    args = [PEER, "--model", "small", "--tokens", "small.bin", "--sequence", "32", "--global-batch", "4", "--micro", "1", "--threads", "1", "--steps", "6", "--dtype", "fp64", "--lr", "3e-3"]
    runs = {"one rank": [sys.executable, *args]} | {s: [*TORCHRUN, *args, "--strategy", s] for _, _, s in PAIRS}
    reference, differences = None, {}
    for name, command in runs.items():
        steps = [json.loads(line) for line in call(command, folder).splitlines() if '"step"' in line]
        reference = reference or steps
        differences[name] = max(abs(mine[key] / theirs[key] - 1) for mine, theirs in zip(steps, reference) for key in ("loss", "grad_norm"))
    print("PyTorch's strategies beside one rank, fp64, 6 steps of 2 micro-batches, largest relative difference of loss and gradient norm: "
          + ", ".join(f"{name} {d:.1e}" for name, d in differences.items() if name != "one rank") + " (bound 1e-10)", flush=True)
    if not all(d <= 1e-10 for d in differences.values()):
        sys.exit("PyTorch's strategies do not train the same thing")
    return differences


def measure(molen, pairs, rounds, steps, folder):
    step.write_model(folder / "model", step.SIZES)
    step.write_tokens(folder / "tokens.bin", 32000, 513)
    peer = [*TORCHRUN, PEER, "--model", "model", "--tokens", "tokens.bin", "--sequence", "512", "--global-batch", "4", "--micro", "2", "--threads", "1", "--quiet",
            "--steps", steps + WARMUP, "--warmup-steps", WARMUP]
    runs = {name: {"molen": [], "torch": []} for name, _, _ in pairs}
    for i in range(rounds):
        for name, key, theirs in pairs:
            commands = {"molen": [*MPIRUN, molen, "bench", "--model", "llama-60m", *settings(*OURS, key), "--steps", steps], "torch": [*peer, "--strategy", theirs]}
            # Which goes first changes by round: a machine that slows down favours none.
            for who in ("molen", "torch") if i % 2 == 0 else ("torch", "molen"):
                runs[name][who].append(step.last_json([str(x) for x in commands[who]], folder))
            ours, peers = (runs[name][who][-1]["median_s"] for who in ("molen", "torch"))
            print(f"round {i + 1} of {rounds}, {name}: molen {ours:.3f} s, PyTorch {peers:.3f} s, {peers / ours:.2f}x", file=sys.stderr, flush=True)
    return runs


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": values}


def table(runs, pairs):
    rows = {}
    print(f"\n56.4M Llama, fp32, 4 x 512 tokens a step, 2 ranks of 1 thread, tokens/s: median of {len(next(iter(runs.values()))['molen'])} rounds [lowest, highest]; memory of rank 0")
    print(f"{'':<15}{'molen':>6}{'':<14}{'PyTorch':>8} {'':<26}{'ratio':>7}{'':<13}{'molen':>13}{'PyTorch':>10}")
    for name, _, theirs in pairs:
        pair = runs[name]
        speed = {who: spread([TOKENS / r["median_s"] for r in pair[who]]) for who in pair}
        ratio = spread([t["median_s"] / m["median_s"] for m, t in zip(pair["molen"], pair["torch"])])
        memory = {who: max(r["peak_rss_bytes"] for r in pair[who]) for who in pair}
        rows[name] = {"peer": theirs, "tokens_per_s": speed, "ratio": ratio, "peak_rss_bytes": memory, "peer_loss": [r["loss"] for r in pair["torch"]]}
        cells = [f"[{speed[w]['min']:.0f}, {speed[w]['max']:.0f}]" for w in ("molen", "torch")]
        print(f"{name:<15}{speed['molen']['median']:>6.0f} {cells[0]:<13}{speed['torch']['median']:>8.0f} {cells[1]:<12} {theirs:<13}{ratio['median']:>6.2f}x "
              f"[{ratio['min']:.2f}, {ratio['max']:.2f}]{memory['molen'] / 2**30:>9.2f} GiB{memory['torch'] / 2**30:>6.2f} GiB")
    losses = [loss for row in rows.values() for loss in row["peer_loss"]]
    print(f"PyTorch's loss at the last step, all rounds: {min(losses):.6f} to {max(losses):.6f}", flush=True)
    # fp32 sums in another order move the loss in its seventh digit.
    if not max(losses) - min(losses) <= 1e-5 * max(losses):
        sys.exit("PyTorch's strategies do not train the same thing")
    return rows


def hidden(molen, pairs, folder):
    """A few steps of `molen train` on invented text; the run's end tells. Kernels do not depend on what the text is."""
    rng = random.Random(3)
    (folder / "t.jsonl").write_text("".join(json.dumps({"text": " ".join(f"w{rng.randrange(60)}" for _ in range(90))}) + "\n" for _ in range(700)))
    call([molen, "tokenizer", "train", "t.jsonl", "--vocabulary", 300, "--output", "tok.json"], folder)
    call([molen, "data", "prepare", "t.jsonl", "--language", "en", "--licence", "CC0-1.0", "--output", "data", "--tokenizer", "tok.json"], folder)
    (folder / "run.toml").write_text('[data]\ntrain = [{ path = "data/train" }]\n[train]\nuntil = "4 steps"\n[schedule]\nwarmup = "1 steps"\n')
    rows = {}
    print("\nmolen's communication in a step on rank 0, with waiting for the other rank, and the share of it that is hidden (computation runs meanwhile):")
    for name, key, _ in pairs:
        call([*MPIRUN, molen, "train", "run.toml", "--model", "llama-60m", *settings(*OURS, key, f"run.name={name}")], folder)
        end = [e for e in map(json.loads, (folder / "runs" / name / "events.jsonl").read_text().splitlines()) if e["event"] == "stop"][-1]
        rows[name] = {r["axis"]: {"seconds_a_step": r["seconds"], "hidden": r["hidden"]} for r in end["communication"]}
        print(f"{name:<15}" + ", ".join(f"axis {axis}: {r['seconds_a_step']:.3f} s, {100 * r['hidden']:.0f} % hidden" for axis, r in rows[name].items()), flush=True)
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("molen")
    p.add_argument("--rounds", type=int, default=5, help="0 leaves the throughput out")
    p.add_argument("--steps", type=int, default=3, help="timed ones in each round, after those that warm up")
    p.add_argument("--only", action="append", choices=[name for name, _, _ in PAIRS], help="may be repeated")
    p.add_argument("--no-equal", action="store_true", help="PyTorch's strategies are not compared in fp64")
    p.add_argument("--no-hidden", action="store_true", help="no share of hidden communication")
    p.add_argument("--record", action="store_true", help="adds the figures to docs/results/records.jsonl")
    p.add_argument("--output")
    a = p.parse_args()
    molen = str(pathlib.Path(a.molen).resolve())
    pairs = [pair for pair in PAIRS if not a.only or pair[0] in a.only]
    result = {"tokens_a_step": TOKENS}
    with tempfile.TemporaryDirectory(prefix="molen_sharding_") as name:
        folder = pathlib.Path(name)
        if not a.no_equal:
            result["peer_differences"] = equal(folder)
        if a.rounds:
            result["rows"] = table(measure(molen, pairs, a.rounds, a.steps, folder), pairs)
        if not a.no_hidden:
            result["hidden"] = hidden(molen, pairs, folder)
    measured = []
    for name, row in result.get("rows", {}).items():
        ours = row["tokens_per_s"]["molen"]
        measured += [(f"sharding/{name}", row["ratio"]["median"], [row["ratio"]["min"], row["ratio"]["max"]]), (f"sharding/{name}/tokens", ours["median"], [ours["min"], ours["max"]])]
    for name, axes in result.get("hidden", {}).items():  # the axis with nearly all of it
        measured.append((f"hidden/{name}", 100 * max(axes.values(), key=lambda r: r["seconds_a_step"])["hidden"], None))
    if a.output:
        pathlib.Path(a.output).write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if step.records.report(measured, f"bench/sharding.py build/molen --rounds {a.rounds}", a.record) else 1)


if __name__ == "__main__":
    main()
