#!/usr/bin/env python3
"""A step of a model with 16 experts, 4 of them for each token, beside the same in PyTorch, whose experts are looped or grouped, in fp32 and bf16.

usage: experts.py MOLEN [--rounds N] [--steps N] [--types fp32,bf16] [--record]

58.8M parameters: 8 layers of width 512, experts of width 224, 8,192 tokens in the vocabulary. 4 x 512 tokens a step, 2 threads, all programs in turn in each
round, from the same random weights on the same batches, with the balance loss. Losses of every step are compared: a program that computes something else is no
peer. In bf16, PyTorch runs under autocast over fp32 weights, as molen keeps fp32 master weights. The ratio that counts is beside the best row of each type.
"""
import argparse
import pathlib
import statistics
import sys
import tempfile

import ratios

VOCABULARY, SEQUENCE, BATCH = 8192, ratios.SEQUENCE, ratios.BATCH
BALANCE = 0.01
MODEL = {"model.preset": "llama-60m", "model.vocabulary": VOCABULARY, "model.experts": 16, "model.experts_per_token": 4, "model.expert_ffn": 224, "model.balance_loss": BALANCE}


def words_of(kind, steps, name):
    return [*ratios.molen_words(kind, steps, name), *[w for key, value in MODEL.items() for w in ("--set", f"{key}={value}")]]


def rows_of(molen, kind, steps):
    """{name: measure}, with PyTorch's rows behind molen's."""
    rows = {"molen": ratios.of_molen(molen, kind, steps, {}, words_of)}
    huge = {"THP_MEM_ALLOC_ENABLE": "1"}
    for form in ("loop", "grouped"):
        for name, env in (("", {}), (", huge pages", huge)):
            rows[f"PyTorch, {form}{name}"] = ratios.of_torch(kind, steps, ["--experts", form, "--balance", BALANCE], env)
    return rows


def table(kind, steps, timed, losses):
    warm = 3
    medians = {name: [statistics.median(t[warm:]) for t in turns] for name, turns in timed.items()}
    ratios.same_losses(kind, steps, losses, "PyTorch, loop")
    peers = {name: statistics.median(m) for name, m in medians.items() if name != "molen"}
    best = min(peers, key=peers.get)
    print(f"\n{kind}: 58.8M parameters, 4 of 16 experts, {BATCH} x {SEQUENCE} tokens a step; all losses within {ratios.NEAR[kind]:g}")
    print(f"{'':<32}{'s/step':>8}{'min':>8}{'max':>8}{'beside molen':>14}")
    for name, m in medians.items():
        s = statistics.median(m)
        print(f"{name:<32}{s:>8.3f}{min(m):>8.3f}{max(m):>8.3f}{s / statistics.median(medians['molen']):>13.2f}x")
    per_round = [a / b for a, b in zip(medians[best], medians["molen"])]
    print(f"molen is {statistics.median(per_round):.2f}x the best row of PyTorch in {kind} ({best}; {min(per_round):.2f} to {max(per_round):.2f})")
    return [(f"experts/{kind}", statistics.median(per_round), [min(per_round), max(per_round)])]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("molen")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=9)
    p.add_argument("--types", default="fp32,bf16")
    p.add_argument("--record", action="store_true", help="adds the figures to docs/results/records.jsonl")
    a = p.parse_args()
    molen, measured = str(pathlib.Path(a.molen).resolve()), []
    with tempfile.TemporaryDirectory(prefix="molen_experts_") as scratch:
        folder = pathlib.Path(scratch)
        ratios.write_inputs(molen, folder, words_of("fp32", a.steps, "weights"), a.steps, VOCABULARY)
        for kind in a.types.split(","):
            timed, losses = ratios.in_turns(rows_of(molen, kind, a.steps), a.rounds, folder)
            measured += table(kind, a.steps, timed, losses)
    command = "bench/experts.py build/molen" + (f" --rounds {a.rounds}" if a.rounds != 3 else "") + (f" --types {a.types}" if a.types != "fp32,bf16" else "")
    sys.exit(0 if ratios.records.report(measured, command, a.record) else 1)


if __name__ == "__main__":
    main()
