#!/usr/bin/env python3
"""Interop with Hugging Face transformers: tiny random models go in, out, and through both forward passes.

usage: hf_interop.py MOLEN [--keep DIR] [--skip-logits]

For each model: transformers saves it; `molen checkpoint import` and `export` bring it in and out; every tensor must be bit-equal,
and what transformers computes from the exported directory must equal what it computes from its own. `molen eval logits`
must agree with transformers within 1e-5 of the largest logit, in fp32. Directories that molen must refuse are offered too: it
must exit with 2 and leave nothing behind.
Prints one line a model; exits with 1 at the first disagreement.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers import Dots1Config, Dots1ForCausalLM, MixtralConfig, MixtralForCausalLM, OlmoeConfig, OlmoeForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

LOGIT_TOLERANCE = 1e-5  # of the largest logit
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)


def llama(**changes):
    sizes = dict(vocab_size=97, hidden_size=36, intermediate_size=52, num_hidden_layers=3, num_attention_heads=6,
                 num_key_value_heads=2, head_dim=10, max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0,
                 bos_token_id=1, eos_token_id=2, initializer_range=0.2)
    return LlamaForCausalLM(LlamaConfig(**(sizes | changes)))


def qwen3(**changes):
    sizes = dict(vocab_size=97, hidden_size=36, intermediate_size=52, num_hidden_layers=3, num_attention_heads=6,
                 num_key_value_heads=2, head_dim=10, max_position_embeddings=64, rms_norm_eps=1e-6, rope_theta=1000000.0,
                 bos_token_id=1, eos_token_id=2, initializer_range=0.2)
    return Qwen3ForCausalLM(Qwen3Config(**(sizes | changes)))


SPARSE = dict(vocab_size=97, hidden_size=36, intermediate_size=52, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
              max_position_embeddings=64, bos_token_id=1, eos_token_id=2, initializer_range=0.2, num_experts_per_tok=2)


def mixtral(**changes):
    return MixtralForCausalLM(MixtralConfig(**(SPARSE | dict(num_local_experts=5, rope_theta=1000000.0) | changes)))


def olmoe(**changes):
    return OlmoeForCausalLM(OlmoeConfig(**(SPARSE | dict(num_experts=7, pad_token_id=None) | changes)))


def qwen3_moe(**changes):
    sizes = dict(num_experts=5, moe_intermediate_size=28, head_dim=10, num_key_value_heads=2, decoder_sparse_step=1)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**(SPARSE | sizes | changes)))


def dots1(**changes):
    sizes = dict(n_routed_experts=7, n_shared_experts=2, moe_intermediate_size=28, head_dim=10, num_key_value_heads=2, first_k_dense_replace=1,
                 norm_topk_prob=True, routed_scaling_factor=2.5, sliding_window=None)
    model = Dots1ForCausalLM(Dots1Config(**(SPARSE | sizes | changes)))
    for layer in model.model.layers[model.config.first_k_dense_replace:]:  # a buffer, which training moves
        layer.mlp.gate.e_score_correction_bias.normal_(0.0, 0.5)
    return model


def gpt2(**changes):
    sizes = dict(vocab_size=97, n_embd=30, n_layer=3, n_head=5, n_positions=48, bos_token_id=0, eos_token_id=0,
                 initializer_range=0.2)
    return GPT2LMHeadModel(GPT2Config(**(sizes | changes)))


MODELS = {
    "llama-gqa-untied": (llama, {}),
    "llama-gqa-tied": (llama, dict(tie_word_embeddings=True)),
    "llama3-rope-scaling": (llama, dict(rope_theta=500000.0, rope_scaling=LLAMA3)),
    "llama-mha": (llama, dict(num_key_value_heads=6)),
    "llama-sharded": (llama, {}),
    "qwen3-untied": (qwen3, {}),
    "qwen3-tied": (qwen3, dict(tie_word_embeddings=True)),
    "mixtral": (mixtral, {}),
    "mixtral-sharded": (mixtral, dict(tie_word_embeddings=True)),
    "olmoe": (olmoe, {}),
    "olmoe-norm-topk": (olmoe, dict(norm_topk_prob=True, num_experts_per_tok=3)),
    "qwen3-moe": (qwen3_moe, {}),
    "qwen3-moe-norm-topk": (qwen3_moe, dict(norm_topk_prob=True)),
    "qwen3-moe-dense": (qwen3_moe, dict(mlp_only_layers=[0])),
    "dots1": (dots1, {}),
    "dots1-no-norm-topk": (dots1, dict(norm_topk_prob=False, first_k_dense_replace=0, n_shared_experts=1, num_experts_per_tok=3)),
    "gpt2": (gpt2, {}),
    "gpt2-inner": (gpt2, dict(n_inner=44)),
    "gpt2-sharded": (gpt2, {}),
}


def randomise(model):
    """Norms and biases are ones and zeros at first: a swapped or lost one must show."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def must(*command):
    code, text = run(*command)
    if code != 0:
        sys.exit(f"failed ({code}): {' '.join(map(str, command))}\n{text}")


def tensors_of(directory):
    tensors = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def check_bits(name, before, after):
    a, b = tensors_of(before), tensors_of(after)
    if a.keys() != b.keys():
        sys.exit(f"{name}: tensor names differ: {sorted(a.keys() ^ b.keys())}")
    for key, tensor in a.items():
        if tensor.dtype != b[key].dtype or tensor.shape != b[key].shape:
            sys.exit(f"{name}: {key}: dtype or shape differs")
        if not torch.equal(tensor.contiguous().view(torch.uint8), b[key].contiguous().view(torch.uint8)):
            sys.exit(f"{name}: {key}: bits differ")
    return len(a)


@torch.no_grad()
def logits_of(directory, tokens):
    model, notes = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if notes[kind]:
            sys.exit(f"{directory}: transformers reports {kind}: {notes[kind]}")
    return model.eval()(tokens).logits.float()


def compare_logits(name, molen, directory, tokens, reference, work):
    (work / "tokens.json").write_text(json.dumps(tokens.tolist()))
    output = work / "logits.safetensors"
    must(molen, "eval", "logits", directory, "--tokens", work / "tokens.json", "--output", output)
    got = load_file(output)["logits"]
    scale = reference.abs().max().item()
    difference = (got.double() - reference.double()).abs().max().item() if got.shape == reference.shape else float("nan")
    if not difference <= LOGIT_TOLERANCE * scale:
        sys.exit(f"{name}: logits differ by {difference:.3g}, allowed {LOGIT_TOLERANCE * scale:.3g} (shape {tuple(got.shape)})")
    return difference / scale


def check_model(name, build, changes, molen, work, skip_logits):
    torch.manual_seed(len(name))
    model = build(**changes)
    randomise(model)
    original, imported, exported = work / "original", work / "imported", work / "exported"
    limit = ["--max-shard-size", "20000"] if "sharded" in name else []
    model.save_pretrained(original, **({"max_shard_size": "20KB"} if limit else {}))
    must(molen, "checkpoint", "import", original, imported)
    must(molen, "checkpoint", "verify", imported)
    must(molen, "checkpoint", "export", imported, exported, *limit)
    count = check_bits(name, original, exported)
    shards = len(list(exported.glob("*.safetensors")))
    if limit and shards < 2:
        sys.exit(f"{name}: expected several shards")
    tokens = torch.randint(0, 97, (3, 41))
    reference = logits_of(original, tokens)
    if not torch.equal(reference, logits_of(exported, tokens)):
        sys.exit(f"{name}: transformers computes other logits from the exported directory")
    figure = "skipped"
    if not skip_logits:
        worst = max(compare_logits(name, molen, directory, tokens, reference, work) for directory in (original, exported))
        figure = f"{worst:.2e} of scale {reference.abs().max().item():.3g}"
    print(f"{name:22} {count:3} tensors bit-equal in {shards} file(s), max abs logit difference {figure}", flush=True)


def refused(molen, work):
    """Directories that must be refused: exit code 2, one clear line, nothing written."""
    good = work / "good"
    llama().save_pretrained(good)

    def config(directory, **changes):
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def pickled(directory):
        torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
        (directory / "model.safetensors").unlink()

    def truncated(directory):
        path = directory / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])

    def without(directory):
        path = directory / "model.safetensors"
        save_file({k: v for k, v in load_file(path).items() if "layers.1.mlp.up" not in k}, path)

    cases = {
        "auto_map": lambda d: config(d, auto_map={"AutoModelForCausalLM": "modeling.Model"}),
        "_attn_implementation_internal": lambda d: config(d, _attn_implementation_internal="someone/kernel"),
        "not implemented": lambda d: config(d, model_type="mistral"),
        "config.json implies": lambda d: config(d, intermediate_size=53),
        "pickled": pickled,
        "truncated": truncated,
        "is missing": without,
    }
    for why, harm in cases.items():
        bad, target = work / "bad", work / "never"
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(good, bad)
        harm(bad)
        code, text = run(molen, "checkpoint", "import", bad, target)
        if code != 2 or why not in text or target.exists():
            sys.exit(f"refusal '{why}': exit code {code}, expected 2 and the word in: {text}")
    print(f"{len(cases)} bad directories refused, nothing written")


# Files that molen refuses although the reference reads them (src/checkpoint/safetensors.h says why). Any other difference fails.
STRICTER = {"bad-dotdot", "bad-duplicate", "bad-leading-space"}


def reference_reads(path):
    try:
        with safe_open(path, "np") as file:
            return file.keys() is not None
    except Exception:
        return False


def seeds(molen, work, root):
    """The fuzz seeds' verdicts beside the reference implementation's: each stands as the weights of a model, so that molen
    must refuse it (exit code 2, nothing written): for its own sake, or, where it is sound, for not being that model's."""
    good = work / "seeded"
    llama().save_pretrained(good)
    bad = read = 0
    for seed in sorted((root / "tests/fuzz/seeds/safetensors").iterdir()):
        shutil.copyfile(seed, good / "model.safetensors")
        code, text = run(molen, "checkpoint", "import", good, work / "never")
        if code != 2 or (work / "never").exists():
            sys.exit(f"{seed.name}: exit code {code}, expected 2 and nothing written: {text}")
        accepted = "does not belong to the model" in text or "is missing" in text
        if seed.name.startswith("bad-") == accepted:
            sys.exit(f"{seed.name}: molen {'reads' if accepted else 'refuses'} it: {text}")
        reference = reference_reads(seed)
        if (accepted != reference) != (seed.name in STRICTER):
            sys.exit(f"{seed.name}: molen {'reads' if accepted else 'refuses'} it, the reference {'reads' if reference else 'refuses'} it: {text}")
        bad, read = bad + (not accepted), read + accepted
    print(f"{bad + read} safetensors seeds: {read} read by molen and by the reference, {bad} refused, of which the reference reads {len(STRICTER)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("molen", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, help="work here and leave everything")
    parser.add_argument("--skip-logits", action="store_true")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.keep or pathlib.Path(scratch)
        for name, (build, changes) in MODELS.items():
            (work / name).mkdir(parents=True)
            check_model(name, build, changes, arguments.molen.resolve(), work / name, arguments.skip_logits)
        refused(arguments.molen.resolve(), work)
        seeds(arguments.molen.resolve(), work, pathlib.Path(__file__).resolve().parents[2])
    print(f"models both ways: {len(MODELS)} checks passed")


if __name__ == "__main__":
    main()
