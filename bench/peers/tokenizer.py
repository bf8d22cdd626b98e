#!/usr/bin/env python3
"""Tokenizer speed of molen beside tiktoken and Hugging Face `tokenizers`, one core, alternating, medians.

usage: tokenizer.py --tool build/release/tests/tokenizer_tool [--text FILE.jsonl] [--vocabulary 32000] [--rounds 5] [--json OUT] [--record]

All three encode the same documents with the same vocabulary: ours, trained on the text; tiktoken's Encoding is built from
its ranks. The molen figure is with an empty word cache at the start of each round. Without --text, the Python library's
sources are the text. Exit status 1 where the number of tokens or what training gives differs from the peers', or a bound of docs/results/metrics.json is missed;
--record adds the figures to docs/results/records.jsonl.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tiktoken  # noqa: E402
import tokenizers  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import results as records  # noqa: E402

CHAR_TO_BYTE = {}
_next = 0x100
for _b in range(256):
    if 0x21 <= _b <= 0x7E or 0xA1 <= _b <= 0xAC or _b >= 0xAE:
        CHAR_TO_BYTE[chr(_b)] = _b
    else:
        CHAR_TO_BYTE[chr(_next)] = _b
        _next += 1
R50K = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


def documents(path):
    if path:
        return [json.loads(line)["text"].replace("\f", " ") for line in open(path, encoding="utf8")]
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))[:1200]
    return [f.read_bytes().decode("utf8", errors="replace").replace("\f", " ") for f in files]


def tiktoken_of(model):
    """Ranks are ids minus the specials; a byte-level BPE trained here has its bytes first, then its merges in order."""
    special = {t["content"] for t in model["added_tokens"]}
    ranks = {
        bytes(CHAR_TO_BYTE[c] for c in token): i - len(special)
        for token, i in model["model"]["vocab"].items()
        if token not in special
    }
    return tiktoken.Encoding("molen", pat_str=R50K, mergeable_ranks=ranks, special_tokens={})


def spread(values):
    return [min(values), max(values)]


def timed(work):
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", required=True, help="the program built from tests/oracle/tokenizer_tool.cpp")
    parser.add_argument("--text")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--record", action="store_true", help="adds the figures to docs/results/records.jsonl")
    args = parser.parse_args()

    texts = documents(args.text)
    size = sum(len(t.encode()) for t in texts) / 1e6
    folder = Path(tempfile.mkdtemp())
    lines, raw, made = folder / "text.jsonl", folder / "text", folder / "tokenizer.json"
    lines.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    raw.write_text("\f".join(texts), encoding="utf8")
    train = [args.tool, "train", "--output", str(made), "--vocab", str(args.vocabulary), "--threads", "1", str(lines)]

    def hf_train():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.train_from_iterator(
            texts,
            trainers.BpeTrainer(
                vocab_size=args.vocabulary,
                min_frequency=2,
                special_tokens=["<|endoftext|>"],
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                show_progress=False,
            ),
        )
        return tokenizer

    figures = {"encode": {"molen": [], "tiktoken": [], "tokenizers": []}, "train": {"molen": [], "tokenizers": []}}
    for _ in range(max(1, args.rounds // 2)):
        figures["train"]["molen"].append(size / timed(lambda: subprocess.run(train, check=True, stderr=subprocess.DEVNULL))[0])
        seconds, theirs = timed(hf_train)
        figures["train"]["tokenizers"].append(size / seconds)
    model = json.loads(made.read_text())
    reference = json.loads(theirs.to_str())["model"]
    same = reference["vocab"] == model["model"]["vocab"] and reference["merges"] == model["model"]["merges"]

    fast, peer = tiktoken_of(model), Tokenizer.from_file(str(made))
    for _ in range(args.rounds):
        with open(raw, "rb") as given:
            out = subprocess.run(
                [args.tool, "bench", "--tokenizer", str(made)], stdin=given, stdout=subprocess.PIPE, check=True, text=True
            ).stdout.split("\n")
        figures["encode"]["molen"].append(statistics.median(float(line.split()[0]) for line in out if line))
        ours = int(out[0].split()[1])
        seconds, ids = timed(lambda: [fast.encode_ordinary(t) for t in texts])
        figures["encode"]["tiktoken"].append(size / seconds)
        seconds, hf = timed(lambda: peer.encode_batch_fast(texts, add_special_tokens=False))
        figures["encode"]["tokenizers"].append(size / seconds)
    counts = {"molen": ours, "tiktoken": sum(map(len, ids)), "tokenizers": sum(len(e.ids) for e in hf)}

    print(f"{size:.1f} MB, {len(texts)} documents, vocabulary {len(model['model']['vocab'])}, one core, median of {args.rounds}")
    print(f"tokenizers {tokenizers.__version__}, tiktoken {tiktoken.__version__}; tokens {counts}; same training result: {same}")
    medians = {}
    for what, values in figures.items():
        medians[what] = {name: statistics.median(v) for name, v in values.items()}
        for name, value in medians[what].items():
            ratio = medians[what]["molen"] / value
            print(f"{what:7} {name:11} {value:8.2f} MB/s   molen is {ratio:.2f}x   (spread {min(values[name]):.1f}-{max(values[name]):.1f})")
    if args.json:
        Path(args.json).write_text(json.dumps({"megabytes": size, "tokens": counts, "same_training": same, "mb_per_s": medians}, indent=1))
    if not same or len(set(counts.values())) != 1:
        sys.exit(f"not the same: tokens {counts}, training result the same: {same}")
    encode, train = medians["encode"], medians["train"]
    measured = [("tokenizer/encode", encode["molen"], spread(figures["encode"]["molen"])), ("tokenizer/train", train["molen"], spread(figures["train"]["molen"])),
                ("tokenizer/encode_tiktoken", encode["molen"] / encode["tiktoken"], None), ("tokenizer/encode_hf", encode["molen"] / encode["tokenizers"], None),
                ("tokenizer/train_hf", train["molen"] / train["tokenizers"], None)]
    command = f"bench/peers/tokenizer.py --tool build/release/tests/tokenizer_tool --rounds {args.rounds}"
    sys.exit(0 if records.report(measured, command, args.record) else 1)


main()
