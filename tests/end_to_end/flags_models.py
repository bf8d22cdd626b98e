"""Rows of generate, eval and checkpoint: a model whose next tokens are known, and weights that are followed in and out."""
import json
import math

import numpy
import torch

import torch_model
from effects import TINY_MODEL, close, equal, row
from flags_data import threads_made
from flags_train import formats
from harness import run, work

torch.set_num_threads(1)
run("train", "tiny.toml", "--set", "run.name=weights", "--set", "checkpoint.every=2 steps", "--set", "precision.compute=fp32")
CHECKPOINT = work / "runs/weights/checkpoints/step-000000004"
VOCABULARY = json.loads((work / "tok.json").read_text())["model"]["vocab"]
END = json.loads((work / "data/train/manifest.json").read_text())["tokenizer"]["end_of_text"]


def chain(name, following):
    """A Hugging Face directory of a model that looks at the last token alone: `following` maps it to the next ones' probabilities."""
    size, hidden = 320, 64
    rng = numpy.random.default_rng(0)
    first = sorted(following)
    weights = {"model.norm.weight": numpy.ones(hidden), "model.embed_tokens.weight": numpy.zeros((size, hidden))}
    # Each known token is an axis; the norm makes it sqrt(hidden) long.
    for axis, token in enumerate(first):
        weights["model.embed_tokens.weight"][VOCABULARY[token], axis] = 1
    head = numpy.full((size, hidden), -100.0)
    for axis, token in enumerate(first):
        for other, p in following[token].items():
            head[END if other is None else VOCABULARY[other], axis] = math.log(p)
    weights["lm_head.weight"] = head / math.sqrt(hidden)
    for part, shape in (("self_attn.q_proj", (64, 64)), ("self_attn.k_proj", (64, 64)), ("self_attn.v_proj", (64, 64)), ("self_attn.o_proj", (64, 64)), ("mlp.gate_proj", (8, 64)), ("mlp.up_proj", (8, 64)), ("mlp.down_proj", (64, 8))):
        out = part in ("self_attn.o_proj", "mlp.down_proj")
        weights[f"model.layers.0.{part}.weight"] = numpy.zeros(shape) if out else rng.normal(0, 0.1, shape)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        weights[f"model.layers.0.{norm}.weight"] = numpy.ones(hidden)
    folder = work / name
    folder.mkdir()
    torch_model.write_safetensors(folder / "model.safetensors", {k: v.astype("<f4") for k, v in weights.items()})
    (folder / "config.json").write_text(json.dumps(dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=hidden, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4, vocab_size=size, max_position_embeddings=1100, rms_norm_eps=1e-12, tie_word_embeddings=False, bos_token_id=None, eos_token_id=END)))
    (folder / "tokenizer.json").write_bytes((work / "tok.json").read_bytes())
    return name


SHARES = {"a": 0.5, "b": 0.3, "c": 0.15, "d": 0.05}
DICE = chain("dice", {letter: SHARES for letter in SHARES})
LINE = chain("line", {"x": {"y": 1}, "y": {"z": 1}, "z": {None: 1}})


def drawn(case, *words, count=1000):
    text = case.molen("generate", DICE, "--threads", 1, "--prompt", "a", "--max-tokens", count, *words).stdout[1:-1]
    assert len(text) == count and set(text) <= set(SHARES), text
    return text


def as_shares(text, expected):
    """Counts of letters are those of independent draws: within five standard deviations."""
    total = sum(expected.values())
    for letter in SHARES:
        p = expected.get(letter, 0) / total
        assert abs(text.count(letter) - p * len(text)) <= 5 * math.sqrt(len(text) * p * (1 - p)), f"{letter}: {text.count(letter)} of {len(text)}, p {p}"


@row("generate --prompt", "generate --max-tokens", "generate --temperature", "generate --top-k", "generate --top-p", "generate --seed")
def sampling(case):
    equal("temperature 0: the most likely", case.molen("generate", DICE, "--threads", 1, "--prompt", "b", "--max-tokens", 7, "--temperature", 0).stdout, "b" + 7 * "a" + "\n")
    as_shares(drawn(case, "--temperature", 1), SHARES)
    as_shares(drawn(case, "--temperature", 2), {k: math.sqrt(p) for k, p in SHARES.items()})
    as_shares(drawn(case, "--temperature", 1, "--top-k", 2), {"a": 0.5, "b": 0.3})
    as_shares(drawn(case, "--temperature", 1, "--top-p", 0.75), {"a": 0.5, "b": 0.3})
    as_shares(drawn(case, "--temperature", 1, "--top-p", 0.9), {"a": 0.5, "b": 0.3, "c": 0.15})
    equal("top-p of less than the first", set(drawn(case, "--temperature", 1, "--top-p", 0.4, count=50)), {"a"})
    texts = [drawn(case, "--temperature", 1, "--seed", seed, count=100) for seed in (3, 3, 4)]
    equal("--seed", (texts[0] == texts[1], texts[0] == texts[2]), (True, False))
    as_shares(texts[0] + texts[2], SHARES)


@row("generate --stop", "generate --no-cache", "generate --threads")
def ending(case):
    equal("at the end of text", case.molen("generate", LINE, "--threads", 1, "--prompt", "x", "--max-tokens", 50, "--temperature", 0).stdout, "xyz\n")
    equal("before a stop string", case.molen("generate", LINE, "--threads", 1, "--prompt", "x", "--stop", "z", "--temperature", 0).stdout, "xy\n")
    equal("the first of two", case.molen("generate", LINE, "--threads", 1, "--prompt", "x", "--stop", "z", "--stop", "yz", "--temperature", 0).stdout, "x\n")
    words = ["generate", "runs/weights", "--prompt", "de molen", "--max-tokens", 20, "--temperature", 1, "--seed", 5]
    (cached, one), (again, three) = (threads_made(case, *words, "--threads", n) for n in (1, 3))
    equal("the text does not depend on threads", one, three)
    assert again > cached, (cached, again)
    equal("nor on the cache", case.molen(*words, "--no-cache").stdout, one)


@row("eval logits --tokens", "eval logits --output", "eval logits --threads")
def logits(case):
    ids = [[5, 17, 300, 42], [7, 7, 0, 318]]
    (work / "ids.json").write_text(json.dumps(ids))
    made = [threads_made(case, "eval", "logits", "runs/weights", "--tokens", "ids.json", "--output", f"l{n}.safetensors", "--threads", n)[0] for n in (1, 3)]
    assert made[1] > made[0], made
    ours = torch_model.read_safetensors(work / "l1.safetensors")[0]["logits"]
    model = torch_model.Model(TINY_MODEL, torch_model.weights_of(CHECKPOINT))
    theirs = model.logits(torch.tensor(ids)).detach().numpy()
    equal("shape", ours.shape, (2, 4, 320))
    assert numpy.abs(ours - theirs).max() <= 1e-5 * numpy.abs(theirs).max()


@row("checkpoint list --format", "checkpoint verify --digest", "checkpoint verify --format")
def listed(case):
    found = formats(case, "checkpoint", "list", "runs/weights", shows=lambda v: [r["path"] for r in v])
    equal("steps", [r["step"] for r in found], [2, 4])
    digests = []
    for step in (2, 4):
        path = f"runs/weights/checkpoints/step-{step:09}"
        said = json.loads(case.molen("checkpoint", "verify", path, "--digest", "--format", "json").stdout)
        assert f"digest {said['digest']}" in case.molen("checkpoint", "verify", path, "--digest").stdout
        assert "digest" not in case.molen("checkpoint", "verify", path).stdout
        digests.append(said["digest"])
        assert len(said["digest"]) == 32 and said["digest"][:16] != said["digest"][16:], "128 bits, and no half that follows from the other"
        # Weights and two moments in fp32.
        equal("bytes", said["bytes"], 3 * 4 * sum(w.numel() for w in torch_model.weights_of(CHECKPOINT).values()))
    run("train", "tiny.toml", "--set", "run.name=moved-weights", "--set", "checkpoint.dir=runs/weights/checkpoints", "--set", "precision.compute=fp32", "--ranks", 2, "--set", "parallel.zero=1", "--set", "train.until=4 steps", "--set", "checkpoint.keep=0")
    resumed = [json.loads(x) for x in (work / "runs/moved-weights/events.jsonl").read_text().splitlines()][0]["state_hash"]
    equal("of the tensors, on any layout", (resumed, digests[0] != digests[1]), (digests[1], True))


@row("checkpoint export --dtype", "checkpoint export --max-shard-size", "checkpoint export --tokenizer", "checkpoint export --format", "checkpoint import --format")
def conversion(case):
    weights = {n: w.detach().numpy() for n, w in torch_model.weights_of(CHECKPOINT, torch.float32).items()}
    for dtype, name, numpy_type in (("fp32", "F32", None), ("fp16", "F16", numpy.float16), ("fp64", "F64", None), ("bf16", "BF16", "bf16")):
        case.molen("checkpoint", "export", CHECKPOINT, f"as-{dtype}", "--dtype", dtype)
        stored, header = torch_model.read_safetensors(work / f"as-{dtype}/model.safetensors")
        equal(f"{dtype}: types", {e["dtype"] for k, e in header.items() if k != "__metadata__"}, {name})
        for key, w in weights.items():
            expected = torch.tensor(w).to(torch.bfloat16).float().numpy() if numpy_type == "bf16" else w.astype(numpy_type) if numpy_type else w
            assert (stored[key] == expected).all(), f"{dtype}: {key}"
    most = 40_000
    case.molen("checkpoint", "export", "runs/weights", "in-parts", "--max-shard-size", most, "--tokenizer", "tok.json", "--format", "text")
    parts = sorted((work / "in-parts").glob("model-*.safetensors"))
    together = {}
    for part in parts:
        tensors, _ = torch_model.read_safetensors(part)
        assert sum(t.nbytes for t in tensors.values()) <= most, part
        together |= tensors
    assert len(parts) > 2 and together.keys() == weights.keys() and all((together[k] == w).all() for k, w in weights.items())
    run("tokenizer", "train", "held.jsonl", "--vocabulary", 303, "--output", "own.json")
    said = json.loads(case.molen("checkpoint", "export", "runs/weights", "own-tokenizer", "--tokenizer", "own.json", "--format", "json").stdout)
    equal("--tokenizer", (work / "own-tokenizer/tokenizer.json").read_bytes(), (work / "own.json").read_bytes())
    equal("parameters", said["parameters"], sum(w.size for w in weights.values()))
    back = json.loads(case.molen("checkpoint", "import", "as-fp32", "back", "--format", "json").stdout)
    assert back["parameters"] == said["parameters"] and (work / back["checkpoint"] / "state.json").exists()
    assert str(said["parameters"]) in case.molen("checkpoint", "import", "as-fp32", "back-too", "--format", "text").stdout
    close("the same", numpy.abs(torch_model.read_safetensors(work / back["checkpoint"] / "rank-00000.safetensors")[0]["lm_head.weight"] - weights["lm_head.weight"]).max(), 0)
