#!/usr/bin/env python3
"""State of real sizes: tensors of many read pieces, of several hash blocks and in several files, saved, resumed, exported and imported.

usage: large.py MOLEN

A table of 4.5 million elements and columns of 2.1 million; a checkpoint is read 2^18 elements at a time and hashed in blocks of 16 MiB.
"""
import filecmp
import json
import pathlib
import shutil
import sys

from harness import finish, ok, run, shards, work

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
import torch_model  # noqa: E402

shards()
(work / "large.toml").write_text("""
[model]
family = "llama"
layers = 1
hidden = 256
ffn = 8196
heads = 6
head_dim = 40
vocabulary = 17408
max_sequence = 64
tied = true
[data]
train = [{ path = "data/train" }]
tokenizer = "tok.json"
sequence_length = 16
[batch]
global = 4
micro = 1
[optimizer]
lr = 1e-2
[schedule]
warmup = "1 steps"
[train]
until = "2 steps"
[precision]
compute = "fp32"
[math]
threads = 1
[checkpoint]
keep = 0
[energy]
meters = ["none"]
""")
LAYOUTS = {"one": (1, []), "owned": (2, ["parallel.zero=1"]), "columns": (2, ["parallel.tensor=2"]), "triples": (3, ["parallel.tensor=3"])}
OTHERS = {"sharded": (2, ["parallel.sharding=FULL_SHARD"]), "thirds": (3, ["parallel.zero=1"]), "fourths": (4, ["parallel.sharding=FULL_SHARD"])}  # thirds end anywhere


def train(name, layout, *sets, words=()):
    ranks, more = (LAYOUTS | OTHERS)[layout]
    return run("train", "large.toml", "--ranks", ranks, *words, *(x for s in (*more, f"run.name={name}", *sets) for x in ("--set", s))).stdout


def digest(name, step):
    return json.loads(run("checkpoint", "verify", f"runs/{name}/checkpoints/step-{step:09}", "--digest", "--format", "json").stdout)["digest"]


def loaded(name):
    return [e["state_hash"] for e in map(json.loads, (work / f"runs/{name}/events.jsonl").read_text().splitlines()) if e["event"] == "resume"][-1]


def weights(folder):
    """The tensors of a Hugging Face directory, of all its files."""
    return {k: v for part in sorted((work / folder).glob("*.safetensors")) for k, v in torch_model.read_safetensors(part)[0].items()}


def same(a, b):
    return a.keys() == b.keys() and all(a[k].shape == b[k].shape and a[k].tobytes() == b[k].tobytes() for k in a)


# --- stopped and resumed: the same bits as in one go ----------------------------------------------------------------------------------
for layout, (ranks, _) in LAYOUTS.items():
    train(f"{layout}-whole", layout, words=["--save-initial"])
    train(f"{layout}-parts", layout, 'train.stop_after="1 steps"')
    before = digest(f"{layout}-parts", 1)
    train(f"{layout}-parts", layout)
    ok(f"{layout}: what is loaded is what was saved", loaded(f"{layout}-parts") == before, before)
    ok(f"{layout}: the last state is that of one go", digest(f"{layout}-parts", 2) == digest(f"{layout}-whole", 2))
    said = run("runs", "compare", f"runs/{layout}-whole", f"runs/{layout}-parts").stdout
    ok(f"{layout}: and the losses", "identical: 2 steps" in said, said)
    ok(f"{layout}: a file of each rank", len(list((work / f"runs/{layout}-parts/checkpoints/step-000000001").glob("*.safetensors"))) == ranks)

# --- on other layouts: the same state, tensor by tensor ----------------------------------------------------------------------------------
def export(name, step, folder, *more):
    run("checkpoint", "export", f"runs/{name}/checkpoints/step-{step:09}", folder, *more)
    return weights(folder)


for source, target in (("one", "columns"), ("columns", "one"), ("columns", "sharded"), ("owned", "columns"), ("columns", "thirds"), ("columns", "fourths"), ("triples", "one"), ("triples", "columns"), ("triples", "thirds"), ("triples", "fourths"), ("columns", "triples")):
    name = f"{source}-to-{target}"
    shutil.copytree(work / f"runs/{source}-parts/checkpoints/step-000000001", work / f"runs/{name}/checkpoints/step-000000001")
    train(name, target)
    ok(f"{name}: what is loaded is what was saved", loaded(name) == digest(f"{source}-parts", 1))

# --- the bytes themselves ----------------------------------------------------------------------------------------------------------------
stored, _ = torch_model.read_safetensors(work / "runs/one-parts/checkpoints/step-000000002/rank-00000.safetensors")
mine = {k: v for k, v in stored.items() if not k.startswith("optimizer.")}
ok("tensors are as large as they must be", mine["model.embed_tokens.weight"].nbytes > 2**24 and mine["model.layers.0.mlp.down_proj.weight"].size == 256 * 8196 > 2**21)
ok("no two pieces of a tensor are alike", len({mine["model.embed_tokens.weight"].reshape(-1)[i : i + 2**18].tobytes() for i in range(0, 17 * 2**18, 2**18)}) == 17)
ok("an export has the checkpoint's bytes", same(export("one-parts", 2, "hf"), mine))
# Every layout starts from the same bits, so that files of several ranks can be held against one rank's.
first, _ = torch_model.read_safetensors(work / "runs/one-whole/checkpoints/step-000000000/rank-00000.safetensors")
first = {k: v for k, v in first.items() if not k.startswith("optimizer.")}
for layout in LAYOUTS:
    ok(f"{layout}: the first weights, bit for bit", same(export(f"{layout}-whole", 0, f"{layout}-first"), first))
columns = export("columns-parts", 1, "columns")
parts = export("columns-parts", 1, "parts", "--max-shard-size", 10_000_000)
ok("in several files the same", len(list((work / "parts").glob("*.safetensors"))) > 2 and same(parts, columns))
run("checkpoint", "import", "parts", "back")
run("checkpoint", "export", "back/step-000000000", "again")
ok("in and out again: the same bytes", same(weights("again"), columns))
ok("and the same file", filecmp.cmp(work / "again/model.safetensors", work / "columns/model.safetensors", shallow=False))
narrow = export("one-parts", 2, "narrow", "--dtype", "fp16")
ok("narrowed, element by element", same(narrow, {k: v.astype("<f2") for k, v in mine.items()}))

# --- a flipped bit in the last block of a large tensor --------------------------------------------------------------------------------------
path = work / "runs/owned-parts/checkpoints/step-000000001/rank-00001.safetensors"
raw = bytearray(path.read_bytes())
raw[-5] ^= 1
path.write_bytes(raw)
r = run("checkpoint", "verify", "runs/owned-parts/checkpoints/step-000000001", code=1)
ok("a flipped bit is found", "rank-00001.safetensors" in r.stderr, r.stderr)
finish("large")
