"""Rows of [model]: from TOML to the loss, beside PyTorch; to the tensors; and to the config.json of an export."""
import json
import math
import shutil

import numpy

import torch_model
from beside_torch import beside, peer, weights_agree
from effects import all_close, close, equal, row
from harness import work


def beside_model(case, model, counts=()):
    """Three steps with these [model] keys beside PyTorch."""
    return beside(case, {f"model.{k}": v for k, v in model.items()}, 3, counts=[f"model.{k}" for k in counts])[0]


def shapes(ran):
    return {n: t.shape for n, t in torch_model.read_safetensors(ran.checkpoint(0) / "rank-00000.safetensors")[0].items()}


def exported(case, ran, **expected):
    """config.json of the last checkpoint says what the TOML said."""
    out = work / f"{ran.path.name}-hf"
    case.molen("checkpoint", "export", ran.path, out)
    config = json.loads((out / "config.json").read_text())
    for key, value in expected.items():
        equal(f"config.json: {key}", config[key], value)


@row("model.family", "model.biases", "model.norm", "model.position", "model.activation", "model.tied")
def choices(case):
    plain = {n for n in shapes(beside_model(case, {})) if not n.startswith("optimizer.")}
    gpt = dict(family="gpt", kv_heads=4)
    ran = beside_model(case, gpt)
    exported(case, ran, model_type="gpt2", n_positions=64, activation_function="gelu_new", tie_word_embeddings=False)
    biased = dict(activation="gelu_tanh", biases=True)
    for model, tensor in (({"norm": "layer"}, "model.norm.bias"), ({"norm": "layer_plain"}, "model.norm.weight"), ({"position": "learned"}, "model.embed_positions.weight"), ({"position": "alibi"}, None),
                          (biased, "model.layers.1.self_attn.q_proj.bias"), ({"tied": True}, "lm_head.weight")):
        ran = beside_model(case, model, [k for k in model if k == "position"])
        changed = {n for n in shapes(ran) if not n.startswith("optimizer.")} ^ plain
        assert bool(changed) == bool(tensor) and (tensor is None or tensor in changed), f"{model}: {changed}"
    exported(case, ran, tie_word_embeddings=True)
    for model in ({"norm": "rms", "position": "rope", "biases": False}, {"activation": "swiglu", "biases": False, "tied": True}):
        beside_model(case, {**gpt, **model})
    case.refused("train", "tiny.toml", {"model.family": "mamba"}, says="mamba")
    case.refused("train", "tiny.toml", {"model.biases": True}, says=["model.biases", "SwiGLU"])


@row("model.qk_norm")
def qk_norm(case):
    for kind, sizes in (("head", (6, 6)), ("all", (24, 12))):
        ran = beside_model(case, {"qk_norm": kind}, ["qk_norm"])
        there = shapes(ran)
        for name, size in zip("qk", sizes):
            equal(name, there[f"model.layers.1.self_attn.{name}_norm.weight"], (size,))
        if kind == "head":
            exported(case, ran, model_type="qwen3", head_dim=6)
    plain = shapes(beside_model(case, {"qk_norm": "none"}))
    assert not any("_norm.weight" in n and "self_attn" in n for n in plain), "there are norms that are not asked for"
    case.refused("train", "tiny.toml", {"model.qk_norm": "all", "parallel.tensor": 2}, says=["parallel.tensor", "model.qk_norm"])


@row("model.experts", "model.experts_per_token", "model.expert_ffn", "model.norm_topk", "model.balance_loss", "model.z_loss")
def experts(case):
    sparse = dict(experts=4, experts_per_token=2)
    ran = beside_model(case, sparse)
    exported(case, ran, model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.005)
    ran = beside_model(case, dict(expert_ffn=20, norm_topk=False, balance_loss=0.3, z_loss=0.1, **sparse), ["norm_topk", "balance_loss", "z_loss"])
    there = shapes(ran)
    equal("router", there["model.layers.1.mlp.gate.weight"], (4, 24))
    for expert in range(4):
        equal("down", there[f"model.layers.1.mlp.experts.{expert}.down_proj.weight"], (24, 20))
    assert "model.layers.1.mlp.up_proj.weight" not in there, "there is an MLP beside the experts"
    beside_model(case, dict(experts=3, experts_per_token=1, norm_topk=False, qk_norm="head"))
    # All experts of three have the same load where each token meets three, and small initial logits are near 0.
    ran = beside_model(case, dict(experts=3, experts_per_token=3))
    assert all(abs(balance - 1) < 1e-5 for balance in ran.column("balance_loss")), ran.column("balance_loss")
    assert all(abs(z - math.log(3) ** 2) < 0.1 for z in ran.column("z_loss")), ran.column("z_loss")
    experts = {f"model.{k}": v for k, v in sparse.items()} | {"model.z_loss": 0.1}
    case.refused("train", "tiny.toml", experts, {"precision.compute": "fp16"}, says="precision.compute")
    case.refused("train", "tiny.toml", experts, {"parallel.tensor": 2, "parallel.sequence": True, "parallel.tensor_chunks": 2}, "--ranks", 2, says="parallel.tensor_chunks")
    whole = case.train(experts)
    for more in ({"parallel.zero": 3}, {"parallel.tensor": 2, "parallel.recompute": "full"}, {"parallel.context": 2}, {"parallel.pipeline": 2}):
        ran = case.train(experts, more, "--ranks", 2)
        for column in ("loss", "balance_loss", "z_loss"):
            all_close(f"{column} on two ranks with {more}", ran.column(column), whole.column(column), 1e-9)
    case.refused("train", "tiny.toml", {"model.experts": 4}, says="model.experts_per_token")
    case.refused("train", "tiny.toml", {"model.experts": 4, "model.experts_per_token": 5}, says="model.experts_per_token")
    case.refused("train", "tiny.toml", {"model.z_loss": 0.1}, says=["model.z_loss", "model.experts"])


@row("model.expert_capacity")
def expert_capacity(case):
    """Choices are dropped, as many as in PyTorch, and the metric says how many; with room for all, the model is the one without a capacity."""
    sparse = dict(experts=4, experts_per_token=2, expert_ffn=20)
    sets = {f"model.{k}": v for k, v in sparse.items()}
    ran, model, _ = beside(case, sets | {"model.expert_capacity": 0.75}, 3, counts=["model.expert_capacity"])
    layers = len(model.dropped) // 3
    shares = [sum(model.dropped[i * layers : (i + 1) * layers]) / layers for i in range(3)]
    all_close("dropped_share", ran.column("dropped_share"), shares, 1e-12)
    # An even share of 16 tokens is eight, and an expert takes six: a quarter of the choices and more goes without.
    assert all(0.25 <= share < 1 for share in shares), shares
    dropless = case.train(sets)
    assert all("dropped_share" not in step for step in dropless.steps), "a share of nothing"
    roomy = case.train(sets, {"model.expert_capacity": 2})
    equal("dropped with room for all", roomy.column("dropped_share"), [0.0] * len(roomy.steps))
    equal("loss with room for all", roomy.column("loss"), dropless.column("loss"))
    exported(case, ran, model_type="mixtral", num_local_experts=4)
    for more in ({"parallel.expert": 2, "parallel.zero": 1}, {"parallel.tensor": 2}, {"parallel.context": 2}, {"parallel.context": 2, "parallel.context_form": "ring"}):
        apart = case.train(sets, {"model.expert_capacity": 0.75, "train.until": "3 steps"}, more, "--ranks", 2)
        for column in ("loss", "dropped_share"):
            all_close(f"{column} with {more}", apart.column(column), ran.column(column), 1e-9)
    case.refused("train", "tiny.toml", sets, {"model.expert_capacity": -1.0}, says="model.expert_capacity")
    case.refused("train", "tiny.toml", {"model.expert_capacity": 1.25}, says=["model.expert_capacity", "model.experts"])


@row("model.dense_layers")
def dense_layers(case):
    sparse = dict(experts=4, experts_per_token=2, expert_ffn=20, qk_norm="head")
    ran = beside_model(case, dict(dense_layers=1, **sparse))
    there = shapes(ran)
    equal("the MLP of the first layer", there["model.layers.0.mlp.gate_proj.weight"], (40, 24))
    equal("an expert of the second", there["model.layers.1.mlp.experts.3.gate_proj.weight"], (20, 24))
    assert "model.layers.0.mlp.gate.weight" not in there and "model.layers.1.mlp.gate_proj.weight" not in there, sorted(there)
    exported(case, ran, model_type="qwen3_moe", mlp_only_layers=[0], intermediate_size=40, moe_intermediate_size=20)
    case.refused("train", "tiny.toml", {f"model.{k}": v for k, v in sparse.items()} | {"model.dense_layers": 2}, says="model.dense_layers")
    case.refused("train", "tiny.toml", {"model.dense_layers": 1}, says=["model.dense_layers", "model.experts"])


@row("model.shared_experts")
def shared_experts(case):
    sparse = dict(experts=4, experts_per_token=2, expert_ffn=20)
    ran = beside_model(case, dict(shared_experts=2, **sparse), ["shared_experts"])
    there = shapes(ran)
    equal("one MLP of both", [there[f"model.layers.1.mlp.shared_experts.{n}_proj.weight"] for n in ("gate", "up", "down")], [(40, 24), (40, 24), (24, 40)])
    equal("routed ones", there["model.layers.1.mlp.experts.3.gate_proj.weight"], (20, 24))
    assert not any("shared" in n for n in shapes(beside_model(case, dict(shared_experts=0, **sparse)))), "there are shared experts that are not asked for"
    case.refused("checkpoint", "export", ran.path, "shared-hf", says=["no Hugging Face form", "shared experts"])
    case.refused("train", "tiny.toml", {"model.shared_experts": 1}, says=["model.shared_experts", "model.experts"])


@row("model.router_scores", "model.router_scale", "model.router_bias_rate")
def routers(case):
    sparse = dict(experts=4, experts_per_token=2, expert_ffn=20, qk_norm="head", router_scores="sigmoid")
    beside_model(case, sparse, ["router_scores"])
    beside_model(case, dict(router_scale=1.5, **sparse), ["router_scale"])
    keys = dict(router_scale=2.5, router_bias_rate=0.125, shared_experts=1, **sparse)
    ran, model, _ = beside(case, {f"model.{k}": v for k, v in keys.items()}, 3, counts=["model.router_bias_rate"], more={"checkpoint.every": "1 steps", "checkpoint.keep": 0})
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    for step in range(4):
        bias = torch_model.read_safetensors(ran.checkpoint(step) / "rank-00000.safetensors")[0][name]
        equal("an expert has a bias", bias.shape, (4,))
        assert (numpy.abs(bias) <= 0.125 * step).all() and (bias % 0.125 == 0).all() and (step % 2 == 0 or bias.any()), (step, bias)
    weights_agree(ran, model, 3)
    last = ran.checkpoint(3) / "rank-00000.safetensors"
    before = last.read_bytes()
    shutil.rmtree(last.parent)
    resumed = {f"model.{k}": v for k, v in keys.items()} | {"train.until": "3 steps", "checkpoint.every": "1 steps", "checkpoint.keep": 0, "checkpoint.dir": str(ran.path / "checkpoints")}
    case.train(resumed, "--resume", 2)
    equal("resumed, bit by bit", last.read_bytes() == before, True)
    exported(case, ran, model_type="dots1", n_shared_experts=1, routed_scaling_factor=2.5, first_k_dense_replace=0)
    for wrong, says in ((dict(router_scores="tanh"), "tanh"), (dict(router_scale=0.0), "model.router_scale"), (dict(z_loss=0.1), ["model.z_loss", "model.router_scores"]),
                        (dict(router_bias_rate=-1.0), "model.router_bias_rate")):
        case.refused("train", "tiny.toml", {f"model.{k}": v for k, v in {**sparse, **wrong}.items()}, says=says)
    case.refused("train", "tiny.toml", {"model.router_bias_rate": 0.1}, says=["model.router_bias_rate", "model.experts"])


@row("model.layers", "model.hidden", "model.ffn", "model.heads", "model.kv_heads", "model.head_dim", "model.vocabulary", "model.max_sequence")
def sizes(case):
    ran = beside_model(case, dict(layers=3, hidden=32, ffn=56, heads=6, kv_heads=3, head_dim=10, vocabulary=333, max_sequence=20))
    there = shapes(ran)
    equal("layers", 1 + max(int(n.split(".")[2]) for n in there if n.startswith("model.layers")), 3)
    for name, shape in {"model.embed_tokens.weight": (333, 32), "lm_head.weight": (333, 32), "model.layers.2.self_attn.q_proj.weight": (60, 32), "model.layers.2.self_attn.v_proj.weight": (30, 32),
                        "model.layers.0.self_attn.o_proj.weight": (32, 60), "model.layers.0.mlp.gate_proj.weight": (56, 32), "model.layers.0.mlp.down_proj.weight": (32, 56)}.items():
        equal(name, there[name], shape)
    exported(case, ran, num_hidden_layers=3, hidden_size=32, intermediate_size=56, num_attention_heads=6, num_key_value_heads=3, head_dim=10, vocab_size=333, max_position_embeddings=20)
    equal("learned positions", shapes(beside_model(case, dict(family="gpt", kv_heads=4, max_sequence=20)))["model.embed_positions.weight"], (20, 24))
    # Keys whose values follow from other keys if they are not given.
    (work / "derived.toml").write_text((work / "tiny.toml").read_text().replace("ffn = 40\n", "").replace("kv_heads = 2\n", "").replace("head_dim = 6\n", ""))
    arch = case.program(config="derived.toml").arch
    equal("derived", (arch["ffn"], arch["kv_heads"], arch["head_dim"]), (96, 4, 6))
    case.refused("train", "tiny.toml", {"model.max_sequence": 15}, says="max_sequence")


@row("model.preset")
def preset(case):
    # As published: OpenAI's GPT-2, and Meta's Llama 3.
    for name, parameters in (("gpt2", 124_439_808), ("llama3-8b", 8_030_261_248)):
        said = json.loads(case.molen("program", {"model.preset": name, "precision.compute": "fp32"}, "--format", "json").stdout)
        arch = json.loads(said["text"].split("arch ")[1].splitlines()[0])
        equal("name", arch["name"], name)
        close(f"{name}: bytes of the parameters", said["parameters_bytes"], 4 * parameters, 1e-4)
        equal(name, json.loads(case.molen("model", "show", name, "--format", "json").stdout)["parameters"], parameters)
    (work / "preset.toml").write_text('[model]\npreset = "gpt2"\nlayers = 2\n')
    equal("keys over the preset", json.loads(case.molen("program", "preset.toml", "--format", "json").stdout)["text"].count("buffer param.layer."), 2)


@row("model.rope_theta", "model.rope_scaling")
def rope(case):
    theta = beside_model(case, {"rope_theta": 50.0}, ["rope_theta"])
    exported(case, theta, rope_theta=50.0)
    scaling = dict(factor=4.0, low_freq_factor=1.5, high_freq_factor=9.0, original_max_sequence=64)
    ran = beside_model(case, {"rope_theta": 100.0, "rope_scaling": scaling}, ["rope_scaling"])
    exported(case, ran, rope_scaling=dict(rope_type="llama3", factor=4.0, low_freq_factor=1.5, high_freq_factor=9.0, original_max_position_embeddings=64))
    # Each of the four counts.
    course = peer(ran, {"model.rope_theta": 100.0, "model.rope_scaling": scaling}, 3)[0]
    for part, value in dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_sequence=8192).items():
        other = peer(ran, {"model.rope_theta": 100.0, "model.rope_scaling": {**scaling, part: value}}, 3)[0]
        assert abs(other[-1][0] / course[-1][0] - 1) > 1e-8, f"{part} cannot be seen"


@row("model.norm_eps", "model.init_std")
def numbers(case):
    exported(case, beside_model(case, {"norm_eps": 0.3}, ["norm_eps"]), rms_norm_eps=0.3)
    for std in (0.02, 0.11):
        ran = case.train({"model.init_std": std, "model.hidden": 96, "model.head_dim": 24}, "--save-initial")
        tensors, _ = torch_model.read_safetensors(ran.checkpoint(0) / "rank-00000.safetensors")
        for name, values in tensors.items():
            if values.ndim != 2 or name.startswith("optimizer."):
                continue
            expected = std / math.sqrt(2 * 2) if "o_proj" in name or "down_proj" in name else std
            # The standard deviation of n draws is off by one in sqrt(2 n), as a rule.
            assert abs(numpy.std(values) / expected - 1) < 5 / math.sqrt(2 * values.size), f"{name}: {numpy.std(values)} for {expected}"
            assert abs(numpy.mean(values)) < 5 * expected / math.sqrt(values.size), name
        exported(case, ran, initializer_range=std)
