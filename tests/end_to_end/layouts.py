#!/usr/bin/env python3
"""`molen verify`: every layout of some ranks beside one rank, by running them and by the verifier alone.

usage: layouts.py MOLEN
"""
import json
import re

from harness import EXHAUSTIVE, finish, ok, run, shards, work

shards()
small = [x for s in ["model.family=llama", "model.layers=2", "model.hidden=30", "model.ffn=44", "model.heads=6", "model.kv_heads=3", "model.head_dim=10", "model.vocabulary=71", "model.max_sequence=64", "data.sequence_length=23", "batch.global=12", "batch.micro=2"] for x in ("--set", s)]
eight = [x for s in ("model.layers=8", "model.hidden=30", "model.ffn=44", "model.heads=12", "model.head_dim=6", "model.vocabulary=71", "model.max_sequence=64", "data.sequence_length=12", "batch.global=24", "batch.micro=3") for x in ("--set", s)]
def proved(what, count, *options):
    """Runs layouts beside one rank; says how many there were, and how near the bound the worst came."""
    rows = json.loads(run("verify", *options, "--format", "json").stdout)
    ok(f"verify: {what}: {len(rows)} runs, the largest difference {max(r['ratio'] for r in rows):.4f} of its bound", len(rows) == count and all(r["same"] and 0 <= r["ratio"] <= 1 for r in rows), (len(rows), [r for r in rows if not r["same"]]))
    return [r["layout"] for r in rows]
few = ("--steps", 2)  # all that passes from one step to the next; the nightly run takes ten
for family, more, ranks, runs in (("llama", ("model.kv_heads=3",), 8, 218), ("gpt", (), *((8, 218) if EXHAUSTIVE else (4, 134)))):
    names = proved(f"{family}, layouts of {ranks} ranks with every pair of choices", runs, *few, *eight, *[x for s in (f"model.family={family}", *more) for x in ("--set", s)], "--ranks", ranks, "--cover", "pairs")
    # Each way to share a model stands among them, with one micro-batch and with several.
    for way in ("tp 2", "tp 4", "sequence parallelism", "pp 2", "pp 4", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "cp 2", "recompute", "ZERO1", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD ", "HYBRID_SHARD_ZERO2", "optimizer over all") if ranks == 8 else ("tp 2", "sequence parallelism", "pp 2", "1f1b", "zb-h1", "cp 2", "recompute", "FULL_SHARD"):
        ok(f"verify: {family} with {way}, accumulating and not", {"micro-batches" in n for n in names if way in n} == {True, False}, names)
host = proved("with states and activations on the host, and without", 50, *few, *small, "--set", 'parallel.offload=["optimizer","gradients","parameters","activations"]', "--ranks", 2, "--cover", "pairs")
pieces = proved("with rows in pieces, and whole", 80, *few, *small, "--set", "parallel.tensor_chunks=3", "--ranks", 4, "--cover", "pairs")
tiles = proved("with experts in tiles, and whole", 54, *few, *small, *[x for s in ("model.experts=8", "model.experts_per_token=2", "model.expert_ffn=20", "parallel.expert_tiles=3") for x in ("--set", s)], "--ranks", 2, "--cover", "pairs")
ok("verify: some in tiles, some not", 5 <= sum("in 3 tiles" in n for n in tiles) < len(tiles), tiles)
for unit in ("half", 2):
    proved(f"with units of {unit}", 50, *few, *small, "--set", f"parallel.unit_layers={unit}", "--ranks", 2, "--cover", "pairs")
sparse = [x for s in ("data.sequence_length=24", "model.experts=8", "model.experts_per_token=2", "model.expert_ffn=20") for x in ("--set", s)]
names = proved("with experts, in units of 2 layers", 98, *few, *small, *sparse, "--set", "parallel.unit_layers=2", "--ranks", 4, "--cover", "pairs")
ok("verify: some of expert ranks gather these units", sum("ep" in n and "FULL_SHARD" in n for n in names) >= 4, names)
names = proved("with a capacity of experts", 98, *few, *small, *sparse, "--set", "model.expert_capacity=0.75", "--ranks", 4, "--cover", "pairs")
ok("verify: some of context ranks limit experts", {"gather", "ring"} <= {form for n in names for form in ("gather", "ring") if form in n}, names)
ok("verify: some with, some without", 10 <= sum("on the host" in n for n in host) < len(host) and 10 <= sum("in 3 pieces" in n for n in pieces) < len(pieces), (host, pieces))
# A configuration's own layout: in any order of axes, in stages as counted, along a ring, by a schedule from a file.
order = 'parallel.order=["dp-shard", "tp", "cp", "pp", "dp-replicate"]'
(work / "own.csv").write_text("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n")
for name, ranks, own in (("in stages of 5 and 3 layers", 4, ["parallel.pipeline=2", "parallel.stage_layers=[5, 3]", "parallel.tensor=2", "parallel.zero=1"]), ("of context ranks in a ring, stages inside data ranks", 8, ["parallel.pipeline=2", "parallel.context=2", "parallel.context_form=ring", "parallel.zero=3", order]), ("of shards across copies", 8, ["parallel.sharding=HYBRID_SHARD", "parallel.zero=1", "parallel.data_replicate=2", "parallel.tensor=2", order]), ("by a schedule from a file", 2, ["parallel.pipeline=2", "parallel.schedule=./own.csv", "batch.global=9"]), ("in interleaved stages of 4 chunks", 2, ["parallel.pipeline=2", "parallel.virtual_stages=4", "parallel.schedule=interleaved", "parallel.sharding=NO_SHARD"])):
    proved(f"a configuration's own layout, {name}", 2, *eight, "--set", "model.family=llama", "--set", "model.kv_heads=3", *[x for s in own for x in ("--set", s)], "--ranks", ranks, "--layouts", "given")
# Attention without tiles: the kernels that run, and what they cannot compute.
whole = ("--set", "math.flash_attention=false", "--set", "data.sequence_length=24")
said = run("verify", *small, *whole, "--ranks", 2, "--steps", 2, "--cover", "pairs", "--format", "json")
rows = json.loads(said.stdout)
ok("verify: unfused attention, without context ranks", rows and all(r["same"] and "cp 2" not in r["layout"] for r in rows) and "layouts are left out: unfused attention needs whole sequences" in said.stderr, (rows, said.stderr))
ok("verify --static: the same", "layouts are left out: unfused attention needs whole sequences" in run("verify", *small, *whole, "--ranks", 2, "--static").stderr)
ok("verify: nodes are for planning", "--static" in run("verify", *small, "--ranks", 2, "--ranks-per-node", 1, code=2).stderr)
ok("verify --static: tensor ranks do not share a node", "groups of 4 do not lie within a node of 2 ranks" in run("verify", *eight, "--set", "model.family=gpt", "--set", "parallel.tensor=4", "--static", "--layouts", "given", "--ranks", 8, "--ranks-per-node", 2, code=2).stderr)
ok("verify --static: HYBRID_SHARD shards within the node that is said", {r["parameters_bytes"] for r in json.loads(run("verify", *eight, "--set", "model.family=gpt", "--set", "parallel.sharding=HYBRID_SHARD", "--static", "--layouts", "given", "--ranks", 8, "--ranks-per-node", 2, "--format", "json").stdout)["stages"]} == {r["parameters_bytes"] for r in json.loads(run("verify", *eight, "--set", "model.family=gpt", "--set", "parallel.sharding=FULL_SHARD", "--static", "--layouts", "given", "--ranks", 2, "--format", "json").stdout)["stages"]})
said = run("verify", "run.toml", "--ranks", 2, "--layouts", "FULL_SHARD,ZERO1", "--steps", 2, "--set", "data.document_mask=true").stdout
ok("verify on the configuration's data and its documents", "data.train" in said and re.search(r"^36 layouts in fp64 and fp32, 72 runs: 36 of them the same model", said, re.M), said)
# A ring has an op for each rank, micro-batch and layer. The bounds of seconds here are wide, because other suites run beside this one and some
# machines have half the speed: they catch work that grows with the square of a size. `tools/nightly.sh static` judges the times themselves.
bound = lambda r: 30 if "ring" in r["layout"] else 10
rows = json.loads(run("verify", "--model", "llama3-8b", "--static", "--cover", "pairs", "--ranks", 10000, "--set", "batch.global=20000", "--format", "json").stdout)
ok("verify --static: 10,000 ranks in seconds", len(rows) == 342 and all(r["findings"] == [] and r["seconds"] < bound(r) for r in rows), (len(rows), [r for r in rows if r["findings"] or r["seconds"] >= bound(r)][:2]))
# The published layouts on Frontier (Dash et al. 2023, table of the best runs) and of Llama 3 on long sequences (Grattafiori et
# al. 2024, table 4), stage by stage.
for model, ranks, tensor, context, stages, batch, length in (("gpt-175b", 1024, 4, 1, 16, 640, 2048), ("gpt-1t", 3072, 8, 1, 64, 9600, 2048), ("llama3-405b", 16384, 8, 16, 16, 128, 131072)):
    said = json.loads(run("verify", "--model", model, "--static", "--layouts", "given", "--ranks", ranks, "--format", "json", *[x for s in (f"parallel.tensor={tensor}", f"parallel.context={context}", f"parallel.pipeline={stages}", "parallel.zero=1", f"batch.global={batch}", "batch.micro=1", "precision.compute=bf16", f"data.sequence_length={length}") for x in ("--set", s)]).stdout)
    ok(f"verify --static: {model} on {ranks} ranks, {said['seconds']:.1f} s, {max(r['peak_bytes'] for r in said['stages']) / 2**30:.1f} GiB", len(said["stages"]) == stages and not said["between_stages"] and all(r["findings"] == [] for r in said["stages"]) and said["seconds"] < 100, said["seconds"])
ok("verify: no such layout", "did you mean" in run("verify", *small, "--ranks", 4, "--layouts", "FULLSHARD", code=2).stderr)
finish("layouts")
