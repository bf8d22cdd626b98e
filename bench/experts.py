#!/usr/bin/env python3
"""A step of a model with 16 experts, 4 of them for each token, beside the same in PyTorch, whose experts are looped or grouped, in fp32 and bf16.

usage: experts.py MOLEN [--rounds N] [--steps N] [--types fp32,bf16] [--record]

58.8M parameters: 8 layers of width 512, experts of width 224, 8,192 tokens in the vocabulary. 4 x 512 tokens a step, 2 threads, all programs in turn in each
round, from the same random weights on the same batches, with the balance loss. Losses of every step are compared: a program that computes something else is no
peer. In bf16, PyTorch runs under autocast over fp32 weights, as molen keeps fp32 master weights. The ratio that counts is beside the best row of each type.
"""
import pathlib
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


def main():
    a, measured = ratios.options(__doc__), []
    with tempfile.TemporaryDirectory(prefix="molen_experts_") as scratch:
        folder = pathlib.Path(scratch)
        ratios.write_inputs(a.molen, folder, words_of("fp32", a.steps, "weights"), a.steps, VOCABULARY)
        for kind in a.types.split(","):
            timed, losses = ratios.in_turns(rows_of(a.molen, kind, a.steps), a.rounds, folder)
            ratios.same_losses(kind, a.steps, losses, "PyTorch, loop")
            print(f"\n{kind}: 58.8M parameters, 4 of 16 experts, {BATCH} x {SEQUENCE} tokens a step; all losses within {ratios.NEAR[kind]:g}")
            measured.append((f"experts/{kind}", *ratios.beside_best(kind, ratios.medians_of(timed))))
    ratios.finish("bench/experts.py", a, measured)


if __name__ == "__main__":
    main()
