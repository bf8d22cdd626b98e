#!/usr/bin/env python3
"""molen against PyTorch (bench/peers/train_torch.py): same weights, batches, AdamW, schedule, clipping and accumulation.

usage: torch_parity.py MOLEN
50 steps in fp64: every loss within 1e-9. 500 steps in fp32: the last losses (mean of 20) within 0.5 %.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

MOLEN = str(pathlib.Path(sys.argv[1]).resolve())
PEER = pathlib.Path(__file__).resolve().parents[2] / "bench/peers/train_torch.py"


def molen(*args, cwd):
    r = subprocess.run([MOLEN, *map(str, args)], cwd=cwd, capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"molen {' '.join(map(str, args))}: {r.stderr}{r.stdout[-2000:]}")
    return r.stdout


def compare(work, name, steps, dtype, sizes, extra):
    sets = [f"run.name={name}", f'train.until="{steps} steps"', f"precision.compute={dtype}", *extra]
    if dtype == "fp64":
        sets.append("math.kernels=reference")
    flags = [x for s in sets for x in ("--set", s)]
    molen("train", "run.toml", *flags, "--save-initial", cwd=work)
    molen("checkpoint", "export", f"runs/{name}/checkpoints/step-000000000", f"hf_{name}", cwd=work)
    molen("data", "batches", "run.toml", *flags, "--steps", steps, "--output", f"{name}.bin", cwd=work)
    peer = subprocess.run(
        [sys.executable, str(PEER), "--model", f"hf_{name}", "--tokens", f"{name}.bin", "--sequence", str(sizes["sequence"]), "--global-batch", "8",
         "--micro", "2", "--steps", str(steps), "--dtype", dtype, "--lr", "0.003", "--min-lr", "0.0003", "--warmup", "5", "--clip", "1.0", "--threads", "1"],
        cwd=work, capture_output=True, text=True)
    if peer.returncode:
        sys.exit(peer.stderr)
    theirs = [r for r in map(json.loads, peer.stdout.splitlines()) if "step" in r]  # the last line sums up
    ours = [json.loads(x) for x in (work / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    assert len(ours) == len(theirs) == steps
    return ours, theirs


def main():
    with tempfile.TemporaryDirectory(prefix="molen_torch_") as folder:
        work = pathlib.Path(folder)
        rng = random.Random(3)
        words = [f"w{i}" for i in range(60)]
        with open(work / "t.jsonl", "w") as f:
            for _ in range(700):
                f.write(json.dumps({"text": " ".join(rng.choice(words) for _ in range(90))}) + "\n")
        molen("tokenizer", "train", "t.jsonl", "--vocabulary", 300, "--output", "tok.json", cwd=work)
        molen("data", "prepare", "t.jsonl", "--language", "en", "--licence", "CC0-1.0", "--output", "data", "--tokenizer", "tok.json", cwd=work)
        (work / "run.toml").write_text("""
[model]
family = "llama"
layers = 2
hidden = 48
ffn = 88
heads = 6
kv_heads = 2
head_dim = 8
vocabulary = 311
max_sequence = 40
[data]
train = [{ path = "data/train" }]
sequence_length = 33
[batch]
global = 8
micro = 2
[optimizer]
lr = 3e-3
[schedule]
warmup = "5 steps"
[checkpoint]
every = "100000 steps"
[math]
threads = 1
""")
        sizes = {"sequence": 33}
        ours, theirs = compare(work, "proof", 50, "fp64", sizes, [])
        worst = max(abs(a["loss"] - b["loss"]) for a, b in zip(ours, theirs))
        norms = max(abs(a["grad_norm"] - b["grad_norm"]) / b["grad_norm"] for a, b in zip(ours, theirs))
        print(f"fp64, 50 steps: largest difference of the loss {worst:.2e} (bound 1e-9), of the gradient norm {norms:.2e}")
        assert worst <= 1e-9
        ours, theirs = compare(work, "long", 500, "fp32", sizes, [])
        a, b = (sum(m["loss"] for m in x[-20:]) / 20 for x in (ours, theirs))
        print(f"fp32, 500 steps: final loss {a:.5f} here, {b:.5f} in PyTorch: {100 * abs(a - b) / b:.4f} % (bound 0.5 %); it was {ours[0]['loss']:.3f} at first")
        assert abs(a - b) <= 0.005 * b and b < 0.8 * ours[0]["loss"]


if __name__ == "__main__":
    main()
