"""Rows of data and tokenizer."""
import json
import random
import subprocess

import numpy

import sample_order
from effects import close, equal, row
from flags_train import formats
from harness import run, work

END = "<|endoftext|>"
# One document in each language, and one that names the token which ends documents.
(work / "some.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in (f"de molen draait {END} en de wind waait over het land", "het water is diep en de wind is koud in het land")))
(work / "dutch.jsonl").write_text(json.dumps({"text": "Dit is een gewone Nederlandse tekst over de molens die langs het water staan. Elke morgen wordt het graan gemalen, en wie dat wil zien kan er gratis naar binnen."}) + "\n")
TEAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
/* Each thread that the process makes leaves a byte in $THREADS_MADE. */
int pthread_create(pthread_t* t, const pthread_attr_t* a, void* (*f)(void*), void* x) {
  int (*next)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) = dlsym(RTLD_NEXT, "pthread_create");
  int fd = open(getenv("THREADS_MADE"), O_WRONLY | O_APPEND | O_CREAT, 0644);
  if (fd >= 0 && write(fd, "x", 1) == 1) close(fd);
  return next(t, a, f, x);
}
"""
(work / "team.c").write_text(TEAM)
subprocess.run(["cc", "-shared", "-fPIC", "-o", work / "team.so", work / "team.c", "-ldl"], check=True)


def threads_made(case, *words, **more):
    """How many threads the command makes, and its output."""
    case.runs += 1
    log = work / f"{case.name}-threads-{case.runs}"
    out = case.molen(*words, env={"LD_PRELOAD": str(work / "team.so"), "THREADS_MADE": str(log)}, **more).stdout
    return (log.stat().st_size if log.exists() else 0), out


def as_many_threads(case, *words, **more):
    """`--threads N` has N at work: each one more makes one more, and what comes out is the same."""
    made = [threads_made(case, *words, "--threads", n, **more) for n in (1, 2, 4)]
    counts, outs = [m[0] for m in made], {m[1] for m in made}
    step = counts[1] - counts[0]
    assert step > 0 and counts[2] - counts[1] == 2 * step, counts
    equal("what comes out", len(outs), 1)


def manifest(folder):
    return json.loads((work / folder / "manifest.json").read_text())


# --- data ------------------------------------------------------------------------------------------------------------------------------
@row("data fetch --list", "data fetch --output", "data fetch --format")
def fetch(case):
    sets = formats(case, "data", "fetch", "--list", shows=lambda v: [v[0]["set"], v[0]["packages"][0]])
    packages = sets[0]["packages"]
    # The packages are there already, made here: nothing is downloaded.
    folder = work / "fetched"
    (folder / "archives").mkdir(parents=True)
    for name in packages:
        root = work / f"deb-{name}"
        (root / "DEBIAN").mkdir(parents=True)
        (root / f"usr/share/doc/{name}").mkdir(parents=True)
        (root / "DEBIAN/control").write_text(f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: made up\n")
        (root / f"usr/share/doc/{name}/copyright").write_text("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\nCopyright: 2026 x\nLicense: CC0-1.0\n")
        subprocess.run(["dpkg-deb", "--build", "--root-owner-group", "-Znone", root, folder / f"archives/{name}_1_all.deb"], check=True, capture_output=True)
    said = json.loads(case.molen("data", "fetch", sets[0]["set"], "--output", "fetched", "--format", "json").stdout)
    equal("packages", [p["package"] for p in said["packages"]], packages)
    equal("--output", json.loads((folder / "fetch.json").read_text())["packages"], said["packages"])
    text = case.molen("data", "fetch", sets[0]["set"], "--output", "fetched", "--format", "text").stdout
    assert packages[0] in text and str(len(packages)) in text, text


@row("data prepare --output", "data prepare --tokenizer", "data prepare --language", "data prepare --licence", "data prepare --license", "data prepare --split", "data prepare --format", "data prepare --threads")
def prepare(case):
    said = json.loads(case.molen("data", "prepare", "some.jsonl", "--licence", "MIT OR CC0-1.0", "--language", "fy", "--output", "made/here", "--tokenizer", "tok.json", "--format", "json").stdout)
    made = manifest("made/here/train")
    equal("licence, language", [(s["licence"]["spdx"], s["language"]) for s in made["shards"]], [("MIT OR CC0-1.0", "fy")])
    assert str(made["shards"][0]["tokens"]) in json.dumps(said), said
    tokens = sample_order.tokens_of(work / "made/here/train")
    # The end of text ends documents; its name within one is ordinary text.
    equal("ends of text", int((tokens == made["tokenizer"]["end_of_text"]).sum()), 2)
    text = case.molen("tokenizer", "decode", "--tokenizer", "tok.json", stdin=" ".join(map(str, tokens[:-1]))).stdout
    equal("the text is there", text.count(END), 2)
    case.molen("data", "prepare", "dutch.jsonl", "--license", "CC0-1.0", "--split", "heldout", "--output", "held-too", "--tokenizer", "tok.json", "--format", "text")
    equal("split", [p.name for p in sorted((work / "held-too").iterdir()) if (p / "manifest.json").exists()], ["heldout"])
    equal("--license is --licence", {s["licence"]["spdx"] for s in manifest("held-too/heldout")["shards"]}, {"CC0-1.0"})
    equal("the language of the text", {s["language"] for s in manifest("held-too/heldout")["shards"]}, {"nl"})
    case.molen("data", "prepare", "some.jsonl", "--licence", "CC0-1.0", "--output", "text-only")
    equal("without a tokenizer text alone", sorted(p.name for p in (work / "text-only").iterdir()), [".prepare.lock", "text"])
    case.refused("data", "prepare", "some.jsonl", "--output", "nothing", says="licence")
    rng = random.Random(1)
    words = [f"molen{rng.random()}" for _ in range(2000)]
    with open(work / "long.jsonl", "w") as f:
        f.writelines(json.dumps({"text": " ".join(rng.choices(words, k=200))}) + "\n" for _ in range(12000))
    for stage in ("text", "tokens"):
        case.progress(f"prepare {stage}", "data", "prepare", "long.jsonl", "--licence", "CC0-1.0", "--language", "nl", "--tokenizer", "tok.json", "--output", f"shown-{stage}")
    # Text of several batches (16 MiB): each document comes once, as it does by itself.
    shard, = manifest("shown-tokens/train")["shards"]
    with open(work / f"shown-tokens/text/train/{shard['name']}.jsonl") as f:
        texts = [json.loads(line)["text"] for line in f]
    equal("documents of a long text", (shard["documents"], shard["text_bytes"]), (len(texts), sum(len(t.encode()) for t in texts)))
    tokens, end = sample_order.tokens_of(work / "shown-tokens/train"), manifest("shown-tokens/train")["tokenizer"]["end_of_text"]
    equal("their ends", int((tokens == end).sum()), len(texts))
    last = case.molen("tokenizer", "encode", "--tokenizer", "tok.json", stdin=texts[-1]).stdout.split()
    equal("the last of them", [str(t) for t in tokens[-len(last) - 1 : -1]], last)
    made = [threads_made(case, "data", "prepare", "some.jsonl", "--licence", "CC0-1.0", "--tokenizer", "tok.json", "--output", f"by{n}", "--threads", n)[0] for n in (1, 2, 4)]
    equal("--threads", (made[0] < made[1], (work / "by1/train").is_dir(), sample_order.tokens_of(work / "by1/train").tolist()), (True, True, sample_order.tokens_of(work / "by4/train").tolist()))


@row("data inspect --format", "data verify --format", "data verify --tokenizer", "data baseline --format")
def look(case):
    made = manifest("data/train")
    formats(case, "data", "inspect", "data", shows=lambda v: ["nl", "CC0-1.0"])
    said = json.dumps(json.loads(case.molen("data", "inspect", "data", "--format", "json").stdout))
    assert str(made["shards"][0]["tokens"]) in said and str(made["shards"][0]["documents"]) in said, said
    formats(case, "data", "verify", "data", shows=lambda v: [f"{v['tokens']:,} tokens"])
    case.molen("data", "verify", "data", "--tokenizer", "tok.json")
    run("tokenizer", "train", "held.jsonl", "--vocabulary", 305, "--output", "alien.json")
    case.refused("data", "verify", "data", "--tokenizer", "alien.json", says="tokenizer")
    run("data", "prepare", "train.jsonl", "--licence", "CC0-1.0", "--output", "baseline")
    run("data", "prepare", "held.jsonl", "--licence", "CC0-1.0", "--split", "heldout", "--output", "baseline-held")
    rows = formats(case, "data", "baseline", "two-sided", shows=lambda v: [f"{v[0]['bits_per_byte']:.3f}", v[0]["language"]]) if two_sided() else None
    equal("3-gram and 5-gram", [r["order"] for r in rows], [3, 5])
    assert 0 < rows[1]["bits_per_byte"] < 3 and rows[0]["bytes"] == rows[1]["bytes"], rows
    assert abs(rows[0]["bits_per_byte"] / rows[1]["bits_per_byte"] - 1) > 1e-3, rows  # each order has a model of its own


def two_sided():
    """Text of both splits, as `data fetch` would give it: two calls into one folder."""
    run("data", "prepare", "train.jsonl", "--licence", "CC0-1.0", "--output", "two-sided")
    source, target = work / "two-sided/text", work / "baseline-held/text"
    texts = json.loads((source / "text.json").read_text())
    texts["texts"] += json.loads((target / "text.json").read_text())["texts"]
    (source / "text.json").write_text(json.dumps(texts))
    (target / "heldout").rename(source / "heldout")
    return True


@row("data batches --model", "data batches --set", "data batches --first", "data batches --steps", "data batches --output")
def batches(case):
    circle = sample_order.tokens_of(work / "data/train")
    for first, steps, length in ((1, 1, 16), (3, 2, 16), (1, 2, 24)):
        case.molen("data", "batches", "tiny.toml", "--first", first, "--steps", steps, "--output", "b.bin", {"data.sequence_length": length})
        rows = numpy.fromfile(work / "b.bin", "<i4").reshape(-1, length + 1)
        expected = sample_order.samples([circle], [1], 0, length, 4 * steps, 4 * (first - 1))
        assert rows.shape == expected.shape and (rows == expected).all(), (first, steps, length)
    case.molen("data", "batches", "--model", "llama-tiny", {"data.train": [{"path": "data/train"}], "data.sequence_length": 16, "batch.global": 4}, "--output", "m.bin")
    assert (numpy.fromfile(work / "m.bin", "<i4").reshape(-1, 17) == sample_order.samples([circle], [1], 0, 16, 4)).all()
    case.refused("data", "batches", "--model", "llama-tiny", {"data.train": [{"path": "data/train"}], "model.vocabulary": 100}, "--output", "n.bin", says="vocabulary")


# --- tokenizer -------------------------------------------------------------------------------------------------------------------------
@row("tokenizer train --output", "tokenizer train --vocabulary", "tokenizer train --threads", "tokenizer train --jsonl")
def train(case):
    for size in (290, 305):
        case.molen("tokenizer", "train", "train.jsonl", "--vocabulary", size, "--output", f"v{size}.json")
        made = json.loads((work / f"v{size}.json").read_text())
        equal("entries", len(made["model"]["vocab"].keys() | {t["content"] for t in made["added_tokens"]}), size)
    lines = (work / "train.jsonl").read_text()
    case.molen("tokenizer", "train", "--jsonl", "--vocabulary", 305, "--output", "in.json", stdin=lines)
    equal("--jsonl: documents of standard input", (work / "in.json").read_bytes(), (work / "v305.json").read_bytes())
    case.molen("tokenizer", "train", "--vocabulary", 305, "--output", "raw.json", stdin=lines)
    assert (work / "raw.json").read_bytes() != (work / "in.json").read_bytes()
    # Documents of several batches (64 MiB) are counted once.
    many = "".join(json.dumps({"text": f"de molen {i % 977} " * 4000}) + "\n" for i in range(1400))
    size = sum(len(f"de molen {i % 977} " * 4000) for i in range(1400))
    said = case.molen("tokenizer", "train", "--jsonl", "--vocabulary", 290, "--output", "many.json", stdin=many)
    assert size > 68e6 and f"from {size} bytes" in (said.stderr + said.stdout).replace(",", ""), (size, said.stderr, said.stdout)
    made = [threads_made(case, "tokenizer", "train", "train.jsonl", "--vocabulary", 305, "--output", f"t{n}.json", "--threads", n)[0] for n in (1, 4)]
    equal("--threads", (made[1] > made[0], (work / "t1.json").read_bytes() == (work / "t4.json").read_bytes()), (True, True))


@row("tokenizer encode --tokenizer", "tokenizer encode --jsonl", "tokenizer encode --allow-special", "tokenizer encode --template", "tokenizer encode --threads", "tokenizer decode --tokenizer", "tokenizer decode --jsonl", "tokenizer decode --skip-special")
def encode(case):
    end = manifest("data/train")["tokenizer"]["end_of_text"]
    ids = lambda *words, stdin: list(map(int, case.molen("tokenizer", "encode", "--tokenizer", "tok.json", *words, stdin=stdin).stdout.split()))
    plain, special = ids(stdin=f"de {END}"), ids("--allow-special", stdin=f"de {END}")
    equal("special tokens are text, or matched", (end in plain, special[-1], len(plain) > len(special)), (False, end, True))
    lines = [json.loads(x)["ids"] for x in case.molen("tokenizer", "encode", "--tokenizer", "tok.json", "--jsonl", stdin='{"text": "de wind"}\n{"text": "water"}\n').stdout.splitlines()]
    equal("--jsonl", lines, [ids(stdin="de wind"), ids(stdin="water")])
    # A tokenizer whose template begins with a token.
    tokenizer = json.loads((work / "tok.json").read_text())
    tokenizer["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": END, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                                   "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {END: {"id": END, "ids": [end], "tokens": [END]}}}
    (work / "begins.json").write_text(json.dumps(tokenizer))
    with_template = case.molen("tokenizer", "encode", "--tokenizer", "begins.json", "--template", stdin="water").stdout.split()
    without = case.molen("tokenizer", "encode", "--tokenizer", "begins.json", stdin="water").stdout.split()
    equal("--template", with_template, [str(end), *without])
    many = "".join(json.dumps({"text": f"de wind {i} waait over het water"}) + "\n" for i in range(3000))
    as_many_threads(case, "tokenizer", "encode", "--tokenizer", "tok.json", "--jsonl", stdin=many)
    text = lambda *words, stdin: case.molen("tokenizer", "decode", "--tokenizer", "tok.json", *words, stdin=stdin).stdout
    inside = " ".join(map(str, [*ids(stdin="de"), end, *ids(stdin=" wind")]))
    equal("decode", (text(stdin=inside), text("--skip-special", stdin=inside)), (f"de{END} wind", "de wind"))
    equal("decode --jsonl", [json.loads(x)["text"] for x in text("--jsonl", stdin="".join(json.dumps({"ids": i}) + "\n" for i in lines)).splitlines()], ["de wind", "water"])
    other = case.molen("tokenizer", "encode", "--tokenizer", "begins.json", stdin="de wind").stdout
    assert other.split() == [str(i) for i in lines[0]]
    close("round trip", len(text(stdin=" ".join(map(str, lines[0])))), len("de wind"))
