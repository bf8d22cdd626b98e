"""Rows of [parallel]: what each key changes in the step program, and that the run does it: the same losses, with the traffic of that program."""
import json

from effects import all_close, equal, row
from harness import work

MATRICES, NORMS = 4608, 48  # elements of tiny.toml's layer
TOKENS = 2 * 16  # of a micro-batch


def filled(elements):
    """A unit ends at a multiple of 32 elements."""
    return -(-elements // 32) * 32


LAYER = filled(MATRICES + NORMS)


def at(case, ranks, *words, **keys):
    """The program of a rank under these keys of [parallel]."""
    return case.program(set_of(keys), "--ranks", ranks, *words)


def set_of(keys):
    return {f"{'parallel' if '__' not in k else k.split('__')[0]}.{k.split('__')[-1]}": v for k, v in keys.items()}


def same_training(case, ranks, axis, ops, **keys):
    """The run has the losses of one rank, and rank 0 moved over `axis` with these calls."""
    model = {k: v for k, v in set_of(keys).items() if not k.startswith("parallel.")}
    ran, alone = case.train(set_of(keys), "--ranks", ranks), case.train(model)
    for column in ("loss", "grad_norm"):
        all_close(f"{keys}: {column}", ran.column(column), alone.column(column), 1e-10)
    equal("ranks", ran.events("start")[0]["ranks"], ranks)
    moved = {t["op"] for t in ran.events("stop")[0]["traffic"] if t["axis"] == axis}
    assert ops <= moved, f"{keys}: {ran.events('stop')[0]['traffic']}"


def bytes_of(case, ranks, *words, **keys):
    return json.loads(case.molen("program", "tiny.toml", set_of(keys), "--ranks", ranks, *words, "--format", "json").stdout)


@row("parallel.tensor", "parallel.sequence", "parallel.tensor_chunks")
def tensor(case):
    one, two = at(case, 1, tensor=1), at(case, 2, tensor=2)
    equal("a rank's layer: half of the matrices, all of the norms", two.buffers["param.layer.0"][1], filled(MATRICES // 2 + NORMS))
    equal("one rank's", one.buffers["param.layer.0"][1], LAYER)
    # In each of two micro-batches these are the sums behind two projections of two layers, forward and backward, and of the embedding and the head.
    sums = sum(two.count("all_reduce", axis="tp", payload=m) for m in ("x", "mid", "d_x", "d_mid"))
    equal("sums", sums, 2 * (2 * 2 * 2 + 2))
    equal("bytes of a sum", two.moved("all_reduce", axis="tp", payload="x"), 6 * TOKENS * 24 * 8)
    rows = at(case, 2, tensor=2, sequence=True)
    equal("rows of a rank", rows.buffers["x.1"][1] * 2, two.buffers["x.1"][1])
    equal("sums become scatters", (rows.count("all_reduce", axis="tp", payload="x"), rows.count("reduce_scatter", axis="tp", payload="x")), (0, 6))
    for pieces in (2, 4):
        cut = at(case, 2, tensor=2, sequence=True, tensor_chunks=pieces)
        equal(f"{pieces} pieces", [cut.count("forward", part="norm_qkv"), cut.count("reduce_scatter", axis="tp", payload="mid")], [pieces * rows.count("forward", part="norm_qkv"), pieces * rows.count("reduce_scatter", axis="tp", payload="mid")])
    same_training(case, 2, "tp", {"all_reduce"}, tensor=2)
    same_training(case, 2, "tp", {"reduce_scatter", "all_gather"}, tensor=2, sequence=True, tensor_chunks=2)
    case.refused("program", "tiny.toml", {"parallel.tensor": 2}, says="parallel.tensor")


@row("parallel.pipeline", "parallel.virtual_stages", "parallel.stage_layers", "parallel.schedule")
def pipeline(case):
    base = dict(pipeline=2, model__layers=4, batch__micro=1)

    def layers(rank, **keys):
        return sorted(int(b.split(".")[2]) for b in at(case, 2, "--rank", rank, **{**base, **keys}).buffers if b.startswith("param.layer."))

    # The head counts as some layers: tiny.toml's 320 words are more than three of them.
    first, last = layers(0), layers(1)
    assert first + last == [0, 1, 2, 3] and len(first) > len(last), (first, last)
    equal("stage_layers", (layers(0, stage_layers=[1, 3]), layers(1, stage_layers=[1, 3])), ([0], [1, 2, 3]))
    equal("two chunks a stage", (layers(0, virtual_stages=2, schedule="interleaved"), layers(1, virtual_stages=2, schedule="interleaved")), ([0, 2], [1, 3]))
    equal("zb-v: a stage has the first and the last", (layers(0, schedule="zb-v"), layers(1, schedule="zb-v")), ([0, 3], [1, 2]))

    def computes(**keys):
        """The order of the first stage: 0F 1F ... 0B, or I and W."""
        letters = {"forward": "F", "backward": "B", "input": "I", "weights": "W"}
        words = at(case, 2, **{**base, **keys}).schedule
        return [w.split(":")[1] + letters[w.split(".")[0]] for w in words if w.split(".")[0] in letters]

    equal("gpipe", computes(schedule="gpipe"), "0F 1F 2F 3F 0B 1B 2B 3B".split())
    equal("1f1b", computes(schedule="1f1b"), "0F 1F 0B 2F 1B 3F 2B 3B".split())
    equal("1f1b is the default", computes(), computes(schedule="1f1b"))
    equal("zb-h1", sorted(computes(schedule="zb-h1")), sorted(f"{m}{k}" for m in range(4) for k in "FIW"))
    (work / "own.csv").write_text("0F0,0F1,0F2,0B0,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n")
    equal("from a file", computes(schedule="./own.csv"), "0F 1F 2F 0B 1B 3F 2B 3B".split())
    same_training(case, 2, "pp", {"send", "recv"}, **base, stage_layers=[1, 3], schedule="gpipe")
    same_training(case, 2, "pp", {"send", "recv"}, **base, virtual_stages=2, schedule="interleaved")


@row("parallel.context", "parallel.context_form")
def context(case):
    gather, ring = at(case, 2, context=2), at(case, 2, context=2, context_form="ring")
    equal("tokens of a rank", gather.buffers["ids"][1] * 2, TOKENS)
    # Keys and values of the last layer are still there when its backward begins.
    equal("gathered", (gather.count("all_gather", axis="cp", payload="keys") > 0, gather.count("ring_exchange", axis="cp")), (True, 0))
    equal("passed on", (ring.count("all_gather", axis="cp"), ring.count("ring_exchange", axis="cp", payload="keys") > 0), (0, True))
    same_training(case, 2, "cp", {"all_gather", "reduce_scatter"}, context=2)
    same_training(case, 2, "cp", {"send", "recv"}, context=2, context_form="ring")


@row("parallel.expert")
def expert_ranks(case):
    sparse = dict(model__experts=4, model__experts_per_token=2, model__expert_ffn=20)
    here, apart = at(case, 2, **sparse), at(case, 2, expert=2, **sparse)
    matrices = filled(4 * 3 * 20 * 24)
    equal("half of the experts on a rank", apart.buffers["param.layer.1.experts"][1], matrices // 2)
    equal("all else whole", apart.buffers["param.layer.1"][1] + matrices, here.buffers["param.layer.1"][1])
    # On each of two layers: there and home, forward and backward.
    equal("exchanges", [apart.count("all_to_all", axis="ep", payload=m) for m in ("expert_rows", "expert_out", "d_expert_out", "d_expert_rows")], [2] * 4)
    equal("bytes of an exchange", apart.moved("all_to_all", axis="ep", payload="expert_rows"), 2 * TOKENS * 2 * 24 * 8)
    equal("without expert ranks", here.count("all_to_all", axis="ep"), 0)
    same_training(case, 2, "ep", {"all_to_all", "all_gather"}, expert=2, **sparse)
    same_training(case, 4, "expert_shard", {"reduce_scatter", "all_gather"}, expert=2, zero=3, batch__micro=1, **sparse)
    case.refused("program", "tiny.toml", set_of(dict(expert=2)), "--ranks", 2, says=["parallel.expert", "model.experts"])
    case.refused("program", "tiny.toml", set_of(dict(expert=2, **sparse)), "--ranks", 3, says="parallel.expert")
    case.refused("program", "tiny.toml", set_of(dict(expert=3, **sparse)), "--ranks", 3, says=["parallel.expert", "4 experts"])


@row("parallel.expert_tiles")
def expert_tiles(case):
    sparse = dict(expert=2, model__experts=8, model__experts_per_token=2, model__expert_ffn=20)
    for tiles in (1, 2, 3):
        cut = at(case, 2, expert_tiles=tiles, **sparse)
        sends = [cut.count("all_to_all", axis="ep", payload=m) for m in ("expert_rows", "expert_out", "d_expert_out", "d_expert_rows")]
        equal("exchanges of two layers", sends, [2 * tiles] * 4)
        equal("products of experts", cut.count("forward", part="expert_up"), 2 * tiles)
    first = at(case, 2, expert_tiles=4, **sparse)
    equal("bytes of a tile", first.moved("all_to_all", axis="ep", payload="expert_rows", expert_tile=0), 2 * TOKENS * 2 * 24 * 8 // 4)
    same_training(case, 2, "ep", {"all_to_all", "all_gather"}, expert_tiles=3, **sparse)
    case.refused("program", "tiny.toml", set_of(dict(sparse, expert_tiles=5)), "--ranks", 2, says=["parallel.expert_tiles", "4 experts"])
    case.refused("program", "tiny.toml", set_of(dict(sparse, expert=1, expert_tiles=2)), "--ranks", 2, says="parallel.expert_tiles")


@row("parallel.zero", "parallel.sharding", "parallel.data_replicate", "parallel.data_shard")
def sharding(case):
    whole = bytes_of(case, 4, zero=0)

    def shares(**keys):
        said = bytes_of(case, 4, **keys)
        return tuple(round(whole[k] / said[k], 1) for k in ("parameters_bytes", "gradients_bytes", "optimizer_bytes"))

    for keys, expected in (
        (dict(sharding="NO_SHARD"), (1, 1, 1)), (dict(zero=1), (1, 1, 4)), (dict(zero=2), (1, 4, 4)), (dict(zero=3), (4, 4, 4)),
        (dict(sharding="SHARD_GRAD_OP"), (1, 4, 4)), (dict(sharding="FULL_SHARD"), (4, 4, 4)),
        (dict(sharding="HYBRID_SHARD", data_shard=2), (2, 2, 2)), (dict(sharding="HYBRID_SHARD", data_replicate=2), (2, 2, 2)),
        (dict(sharding="HYBRID_SHARD_ZERO2", data_shard=2), (1, 2, 2)), (dict(sharding="HYBRID_SHARD", data_shard=2, zero=1), (2, 2, 4)),
        (dict(sharding="HYBRID_SHARD", data_shard="auto"), (4, 4, 4)),
    ):
        equal(str(keys), shares(**keys), expected)
    same_training(case, 2, "dp", {"reduce_scatter", "all_gather"}, zero=1)
    for key in (dict(data_shard=2), dict(data_replicate=2)):
        same_training(case, 4, "dp_replicate", {"all_reduce"}, sharding="HYBRID_SHARD", batch__micro=1, **key)
        same_training(case, 4, "dp_shard", {"reduce_scatter", "all_gather"}, sharding="HYBRID_SHARD", batch__micro=1, **key)
    case.refused("program", "tiny.toml", {"parallel.data_shard": 3}, "--ranks", 4, says="parallel.data_shard")
    case.refused("program", "tiny.toml", {"parallel.zero": 1, "parallel.sharding": "FULL_SHARD"}, "--ranks", 4, says="contradicts")


@row("parallel.order")
def order(case):
    axes = ["pp", "dp-replicate", "dp-shard", "cp", "tp"]
    turned = ["dp-replicate", "dp-shard", "cp", "pp", "tp"]

    def stages(**keys):
        return [at(case, 4, "--rank", r, pipeline=2, **keys).setting["stage"] for r in range(4)]

    equal("stages outermost, the default", (stages(order=axes), stages()), (["0", "0", "1", "1"],) * 2)
    equal("stages inside data ranks", stages(order=turned), ["0", "1", "0", "1"])
    same_training(case, 4, "pp", {"send"}, pipeline=2, order=turned, batch__micro=1)
    sparse = dict(model__experts=4, model__experts_per_token=2, expert=2)
    equal("expert ranks, outermost", at(case, 4, order=["ep", *axes], **sparse).setting["order"], "ep,pp,dp_replicate,dp_shard,cp,tp")
    case.refused("program", "tiny.toml", {"parallel.order": axes[1:]}, says="parallel.order")


@row("parallel.unit_layers", "parallel.prefetch")
def units(case):
    for value, names in ((1, ["layer.0", "layer.1"]), (2, ["layers.0-1"]), ("half", ["layer.0.attention", "layer.0.mlp", "layer.1.attention", "layer.1.mlp"])):
        p = at(case, 2, zero=3, unit_layers=value)
        equal(f"units of {value}", sorted(b[12:] for b in p.buffers if b.startswith("param_shard.layer")), names)
        equal(f"gradients of {value}", p.count("reduce_scatter", axis="dp_shard"), len(names) + 2)
    # The experts of each layer stay units of their own, between the uses of a unit that is gathered once in each pass.
    sparse = dict(model__experts=4, model__experts_per_token=2, expert=2)
    p = at(case, 4, zero=3, unit_layers=2, **sparse)
    gathered = [o["writes"] for o in p.ops if o["kind"] == "all_gather" and "param.layer" in o.get("writes", "")]
    equal("gathers of units of layers", [sum(name in w for w in gathered) for name in ("layers.0-1", "layer.0.experts", "layer.1.experts")], [2] * 3)
    same_training(case, 4, "expert_shard", {"all_gather", "reduce_scatter"}, zero=3, unit_layers=2, batch__micro=1, **sparse)

    def ahead(n):
        """Ops of the layer before between a layer's gathering in forward and its first use."""
        p = at(case, 2, zero=3, prefetch=n, model__layers=4)
        gathered = next(i for i, o in enumerate(p.ops) if o["kind"] == "all_gather" and o.get("writes", "").startswith("to:param.layer.3"))
        return sum(o["kind"] == "forward" and int(o.get("layer", -1)) < 3 and o["part"] == "down" for o in p.ops[gathered:]), p

    # A unit is gathered when that many others stand before it.
    distances = [ahead(n)[0] for n in (0, 1, 2)]
    equal("layers between gathering and use", distances, [0, 1, 2])
    slots = [bytes_of(case, 2, zero=3, prefetch=n, model__layers=4)["transient_bytes"] for n in (0, 1, 2)]
    equal("a unit more in memory each", [slots[1] - slots[0], slots[2] - slots[1]], [LAYER * 8] * 2)
    same_training(case, 2, "dp_shard", {"reduce_scatter"}, zero=3, unit_layers="half", prefetch=2)


@row("parallel.offload")
def offload(case):
    plain, deep = bytes_of(case, 1), bytes_of(case, 1, model__layers=6)
    states, weights = plain["optimizer_bytes"], plain["parameters_bytes"]
    for where, gone in ((["optimizer"], "optimizer_bytes"), (["optimizer", "gradients"], "gradients_bytes"), (["optimizer", "parameters"], "parameters_bytes")):
        there = bytes_of(case, 1, offload=where)
        equal(f"{where}", (there[gone], there["optimizer_bytes"]), (0, 0))
        equal(f"{where}: on the host, moments, masters and gradients", there["host_bytes"], states + 2 * weights)
    kept = bytes_of(case, 1, offload=["activations"], model__layers=6)
    assert kept["host_bytes"] >= 4 * 8 * TOKENS * (24 + 24 + 48 + 24 + 80 + 40) and kept["transient_bytes"] < 0.7 * deep["transient_bytes"], (kept, deep)
    one = case.train({"parallel.offload": ["optimizer", "gradients", "parameters", "activations"]})
    all_close("the same losses", one.column("loss"), case.train({}).column("loss"), 1e-12)
    assert one.steps[-1]["memory_peak_bytes"] < 0.7 * plain["peak_bytes"]


@row("parallel.recompute")
def recompute(case):
    parts = ["norm_qkv", "attention", "out_projection", "norm_up", "activation"]

    def again(value, **keys):
        p = at(case, 1, recompute=value, **keys)
        return {part: p.count("recompute", part=part) for part in parts}

    # Two micro-batches of four layers.
    for value, expected in (("none", [0] * 5), ("full", [8] * 5), ("full/2", [4] * 5), (["attention"], [0, 8, 0, 0, 0]), (["norm_up", "activation"], [0, 0, 0, 8, 8])):
        equal(f"{value}", list(again(value, model__layers=4).values()), expected)
    none, full = (bytes_of(case, 1, recompute=v)["peak_bytes"] for v in ("none", "full"))
    for budget in ((none + full) // 2000 + 1, none // 1000 + 1):
        peak = bytes_of(case, 1, recompute=f"{budget} kB")["peak_bytes"]
        assert (peak <= budget * 1000) and (peak == none) == (budget * 1000 >= none), (peak, budget, none, full)
    case.refused("program", "tiny.toml", {"parallel.recompute": "100 kB"}, says="parallel.recompute")
    ran = case.train({"parallel.recompute": "full"})
    equal("its memory", ran.steps[-1]["memory_peak_bytes"], full)
    all_close("the same losses", ran.column("loss"), case.train({}).column("loss"), 1e-12)
