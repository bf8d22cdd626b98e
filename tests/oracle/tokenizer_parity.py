#!/usr/bin/env python3
"""Compares ids with Hugging Face `tokenizers` on more than 400,000 pairs of a tokenizer and a random or real string (with MOLEN_EXHAUSTIVE on more than a million): five small vocabularies (600 to 900
tokens, tests/golden), each of another kind, and one of 20,000 that is trained here.

usage: tokenizer_parity.py PROGRAM...      PROGRAM... is what stands before `encode`, for instance: build/molen tokenizer
"""
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer

EXHAUSTIVE = "MOLEN_EXHAUSTIVE" in os.environ  # more than a million pairs, as in `tools/nightly.sh exhaustive`; else a part of them
GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizer"
SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000"
PIECES = (
    ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'Re", "'\u017f", "'", "''", "\u2019s", " ", "  ", "   ", "\n"]
    + ["\r\n", "\n\n", " \n", "\n ", "\t", "the", " the", " de", " het", "een", "Hello", "WORLD", "\u00e9", "\u00df", "\u0301"]
    + ["1", "12", "123", "4567", "\u00b2", "\u00bd", "\u0663", "\u2167", ".", ",", "...", "!?", "(", ")", "=>", "_", "-", "/"]
    + ["\U0001f600", "\u200d", "\ufe0f", "\U0001f44d\U0001f3fd", "\u65e5\u672c", "\ud55c", "\u05d0", "\u0e01", "\u180e", "\u200b"]
    + ["\ufffd", "\x00", "\x7f", "\ufeff", "<|endoftext|>", "<|begin_of_text|>", "<pad>", "<mask>", "<word>", "<code>"]
    + ["<codeblock>", "Wor", "Word", "<|end", "|>", "\u0130", "\u212a", "\u01c5", "\u02b0", "\u00aa", "\U000105c0"]
    + list(SPACES)
)


def random_string(rng):
    kind = rng.random()
    if kind < 0.55:
        return "".join(rng.choices(PIECES, k=rng.randint(1, 9)))
    if kind < 0.7:
        return "".join(rng.choices(SPACES + "a1.", k=rng.randint(1, 12)))
    if kind < 0.85:
        return "".join(chr(rng.randrange(0x80)) for _ in range(rng.randint(1, 14)))
    points = (rng.randrange(0x3000) if rng.random() < 0.8 else rng.randrange(0x110000) for _ in range(rng.randint(1, 8)))
    return "".join(chr(c) if not 0xD800 <= c < 0xE000 else "\ufffd" for c in points)


def every_code_point():
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    forms = ["x%sy ", " %s", "%s1", "'%s ", "\n%s."]
    for i in range(0, len(points), 24):
        yield "".join(forms[(i // 24 + k) % len(forms)] % chr(c) for k, c in enumerate(points[i : i + 24]))


def real_strings(limit):
    """Lines and paragraphs of the Python library: code, English, and test files in many languages."""
    seen = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        text = path.read_bytes().decode("utf8", errors="replace")
        for piece in text.splitlines(keepends=True) if seen % 2 else text.split("\n\n"):
            if piece:
                yield piece[:2000]
                seen += 1
                if seen == limit:
                    return


def molen_ids(program, model, strings, flags):
    with tempfile.TemporaryFile() as given:
        given.write("".join(json.dumps({"text": s}, ensure_ascii=bool(len(s) % 2)) + "\n" for s in strings).encode())
        given.seek(0)
        command = [*program, "encode", "--tokenizer", str(model), "--jsonl", *flags]
        result = subprocess.run(command, stdin=given, stdout=subprocess.PIPE, check=True)
    return [json.loads(line)["ids"] for line in result.stdout.splitlines()]


def train(program, folder, strings, size):
    text, model = folder / "text.jsonl", folder / "trained.json"
    text.write_text("".join(json.dumps({"text": s}) + "\n" for s in strings))
    subprocess.run([*program, "train", text, "--vocabulary", str(size), "--output", model], stdout=subprocess.DEVNULL, check=True)
    tokens = json.loads(model.read_text())["model"]["vocab"]
    assert len(tokens) == size, len(tokens)
    return model


def compare(program, model, strings, special):
    name = model.stem
    oracle = Tokenizer.from_file(str(model))
    oracle.encode_special_tokens = not special
    got = molen_ids(program, model, strings, ["--allow-special", "--template"] if special else [])
    assert len(got) == len(strings), (len(got), len(strings))
    wrong = 0
    for i in range(0, len(strings), 20000):
        batch = strings[i : i + 20000]
        for text, ids, want in zip(batch, got[i:], oracle.encode_batch_fast(batch, add_special_tokens=special)):
            if ids != want.ids:
                wrong += 1
                if wrong <= 3:
                    print(f"  {name}: {text!r}\n    molen {ids}\n    HF    {want.ids}")
    print(f"{name:14} special {'on ' if special else 'off'} {len(strings):8} strings, {wrong} mismatches", flush=True)
    return len(strings), wrong


def invalid_bytes(program):
    """Bytes that are no UTF-8 count as Python's errors="replace" makes them."""
    rng = random.Random(5)
    parts = [b"a", b"\xc3", b"\xa9", b"\xe2", b"\x82", b"\xac", b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xff", b"\xc0", b"\xed"]
    lines = [b"".join(rng.choices(parts + [b" "], k=rng.randint(1, 9))) for _ in range(20000)]
    model = GOLDEN / "gpt2.json"
    given = b"".join(b'{"text": "' + line + b'"}\n' for line in lines)
    command = [*program, "encode", "--tokenizer", str(model), "--jsonl"]
    got = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True).stdout.splitlines()
    want = Tokenizer.from_file(str(model)).encode_batch_fast([line.decode("utf8", errors="replace") for line in lines])
    wrong = sum(json.loads(g)["ids"] != w.ids for g, w in zip(got, want)) + abs(len(got) - len(lines))
    print(f"{'invalid UTF-8':14} {len(lines):20} strings, {wrong} mismatches", flush=True)
    return len(lines), wrong


def main():
    program, start = sys.argv[1:], time.time()
    if not program:
        sys.exit(__doc__)
    rng = random.Random(20260)
    print(f"tokenizers {tokenizers.__version__}")
    everywhere, real = list(every_code_point()), list(real_strings(90000))
    results = [invalid_bytes(program)]
    for name, special, count in [
        ("gpt2", False, 260000),
        ("llama3", False, 260000),
        ("cased", False, 60000),
        ("gpt2_added", True, 120000),
        ("gpt2_added", False, 40000),
        ("llama3", True, 40000),
        ("gpt2_strings", False, 20000),
    ]:
        strings = [random_string(rng) for _ in range(count if EXHAUSTIVE else count // 4)]
        if not special and name != "gpt2_strings":
            strings += everywhere + real[:: (1 if EXHAUSTIVE else 4) if name in ("gpt2", "llama3") else 10]
        results.append(compare(program, GOLDEN / f"{name}.json", strings, special))
    with tempfile.TemporaryDirectory() as folder:
        trained = train(program, Path(folder), real[:60000], 20000)
        results.append(compare(program, trained, real[:: 1 if EXHAUSTIVE else 4] + [random_string(rng) for _ in range(20000)], False))
    count, wrong = (sum(column) for column in zip(*results))
    print(f"{count} pairs, {wrong} mismatches, {time.time() - start:.0f} s")
    print(f"tokenizers: {sum(bad == 0 for _, bad in results)} checks passed")
    sys.exit(0 if wrong == 0 and count >= (1_000_000 if EXHAUSTIVE else 400_000) else 1)


main()
