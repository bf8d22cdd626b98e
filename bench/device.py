#!/usr/bin/env python3
"""A step of molen on a cuda device beside PyTorch on it, eager and compiled, in bf16.

usage: device.py MOLEN [--rounds N] [--steps N]

A Llama of 4 layers as wide as Llama-3.2-1B, with a vocabulary of 32,000, from the same random weights on the same batches, 4 x 2048 tokens a step. PyTorch runs
autocast over fp32 weights, as molen keeps fp32 master weights, with flash attention and a fused AdamW. Losses of every step are compared. molen's figures are of
`molen train`, with its data and its records. The last lines are the records, for `tools/results.py add` where the repository is.
"""
import json
import pathlib
import statistics
import sys
import tempfile

import ratios

SEQUENCE = 2048
MODEL = {"device.kind": "cuda", "model.family": "llama", "model.layers": 4, "model.hidden": 2048, "model.ffn": 8192, "model.heads": 32, "model.kv_heads": 8, "model.head_dim": 64,
         "model.vocabulary": ratios.VOCABULARY, "model.max_sequence": SEQUENCE, "data.sequence_length": SEQUENCE}  # fmt: skip


def words_of(kind, steps, name):
    words = ratios.molen_words(kind, steps, name)
    at = words.index("model.preset=llama-60m")
    return [*words[: at - 1], *words[at + 1 :], *[w for key, value in MODEL.items() for w in ("--set", f"{key}={value}")]]


def main():
    a = ratios.options(__doc__)
    if a.record or a.types != "fp32,bf16":
        sys.exit("device.py: no --record (the machine with the device may lack the repository: the last lines are for `tools/results.py add`) and no --types (bf16 alone)")
    with tempfile.TemporaryDirectory(prefix="molen_device_") as scratch:
        folder = pathlib.Path(scratch)
        ratios.write_inputs(a.molen, folder, words_of("fp32", a.steps, "weights"), a.steps, ratios.VOCABULARY, SEQUENCE)
        alone = json.loads(ratios.run([a.molen, "bench", *words_of("bf16", a.steps, "bench"), "--steps", 3], folder))
        gflop, rate = alone["gflops"] * alone["median_s"], alone["gemm_bf16_gflops"]
        rows = {"molen": ratios.of_molen(a.molen, "bf16", a.steps, {}, words_of),
                "PyTorch": ratios.of_torch("bf16", a.steps, ["--device", "cuda"], {}, SEQUENCE),
                "PyTorch compiled": ratios.of_torch("bf16", a.steps, ["--device", "cuda", "--compile"], {}, SEQUENCE)}  # fmt: skip
        timed, losses = ratios.in_turns(rows, a.rounds, folder)
        medians = ratios.medians_of(timed)
        ratios.same_losses("bf16", a.steps, losses, "PyTorch")
        print(f"GEMM rate {rate / 1000:.0f} TFLOP/s; arena {alone['arena_bytes'] / 2**30:.2f} GiB, largest sum of the device's allocations {alone['device_peak_bytes'] / 2**30:.2f} GiB")
        columns = [("TFLOP/s", lambda s: f"{gflop / s / 1000:.0f}"), ("of GEMM", lambda s: f"{100 * gflop / s / rate:.0f}%")]
        ratio, spread, table = ratios.beside_best("bf16", medians, columns)
        share = 100 * gflop / statistics.median(medians["molen"]) / rate
        print(json.dumps({"device/ratio": ratio, "spread": spread, "rows": table}))
        print(json.dumps({"device/gemm_share": share, "device/beside_plan": alone["device_peak_bytes"] / alone["arena_bytes"]}))


if __name__ == "__main__":
    main()
