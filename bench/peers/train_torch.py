#!/usr/bin/env python3
"""The PyTorch peer: trains the same Llama from the same weights on the same batches, as an expert would write it in plain
PyTorch (scaled_dot_product_attention, fused AdamW, optional torch.compile; on several ranks DDP, ZeRO-1 or FSDP2 over gloo).

Weights and sizes come from a Hugging Face directory (`molen checkpoint export`), batches from a file of int32 tokens
[steps, global batch, S + 1]. Prints one JSON line a step: {"step", "loss", "grad_norm", "seconds"}, then a summary line
with the median step time after the warm-up steps, the last loss and gradient norm, the peak resident memory, when model and optimizer were ready
(ready_at_s on the monotonic clock), and when the first step had ended (first_step_at_s; torch.compile compiles in it).
"""
import argparse
import contextlib
import json
import math
import os
import resource
import statistics
import time

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

import experts_torch


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h, self.k, self.d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        hidden = c["hidden_size"]
        self.q_proj = nn.Linear(hidden, self.h * self.d, bias=False)
        self.k_proj = nn.Linear(hidden, self.k * self.d, bias=False)
        self.v_proj = nn.Linear(hidden, self.k * self.d, bias=False)
        self.o_proj = nn.Linear(self.h * self.d, hidden, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        q = self.q_proj(x).view(b, s, self.h, self.d).transpose(1, 2)
        k = self.k_proj(x).view(b, s, self.k, self.d).transpose(1, 2)
        v = self.v_proj(x).view(b, s, self.k, self.d).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.h != self.k)
        return self.o_proj(o.transpose(1, 2).reshape(b, s, self.h * self.d))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c, make_mlp):
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp_name, mlp = make_mlp()
        self.add_module(self.mlp_name, mlp)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + getattr(self, self.mlp_name)(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Names as in Hugging Face's LlamaForCausalLM or, with experts, MixtralForCausalLM, so that their safetensors load as they are."""

    def __init__(self, c, experts="loop", balance=0.0):
        super().__init__()
        self.c, self.balance, self.balance_losses = c, balance, []

        def make_mlp():
            return ("block_sparse_moe", experts_torch.FORMS[experts](c, self.balance_losses)) if "num_local_experts" in c else ("mlp", Mlp(c))

        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.model.layers = nn.ModuleList(Layer(c, make_mlp) for _ in range(c["num_hidden_layers"]))
        self.model.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        if c.get("tie_word_embeddings"):
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids, labels):
        s, d = ids.shape[1], self.c["head_dim"]
        dtype = self.lm_head.weight.dtype
        # Angles in double: the proof run compares in fp64.
        inv = self.c["rope_theta"] ** (-torch.arange(0, d, 2, dtype=torch.float64, device=ids.device) / d)
        angle = torch.outer(torch.arange(s, dtype=torch.float64, device=ids.device), inv)
        angle = torch.cat((angle, angle), dim=-1)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        logits = self.lm_head(self.model.norm(x))
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if not self.balance_losses:
            return loss, loss
        balance = torch.stack(self.balance_losses).mean()
        self.balance_losses.clear()
        return loss, loss + self.balance * balance


def distributed(net, strategy):
    """Returns the module that runs in the place of `net`. FSDP2 makes shards of net's parameters, so the optimizer is made after this.

    Its reduce-scatter, averaging and norm work over gloo as they are. There are no streams on the CPU: gathers overlap compute only as
    asynchronous operations that are asked for a layer ahead (backward asks by itself), and its reduce-scatter waits.
    """
    if strategy in ("ddp", "zero1"):
        return nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    from torch.distributed.fsdp import fully_shard  # here, as its import would count as start-up of one rank

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    again = strategy == "fsdp2_full"
    for layer in net.model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=again)
    # PyTorch's own choice for the root (None): never freed between forward and backward, as backward starts with it.
    fully_shard(net, mesh=mesh, reshard_after_forward=None if again else False)
    net._set_unshard_async_op(True)
    for layer, following in zip(net.model.layers, net.model.layers[1:]):
        layer.set_modules_to_forward_prefetch([following])
    return net


class OneDnnProduct(torch.autograd.Function):
    """x W^T by oneDNN in all three products of a step, where PyTorch takes the BLAS that it was built with."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        rows, columns = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        to_input = torch.ops.mkldnn._linear_pointwise(gradient, weight.t().contiguous(), None, "none", [], "")
        return to_input, torch.ops.mkldnn._linear_pointwise(rows.t().contiguous(), columns.t().contiguous(), None, "none", [], "")


def use_onednn(net):
    for module in net.modules():
        if isinstance(module, nn.Linear):
            module.forward = (lambda m: lambda x: OneDnnProduct.apply(x, m.weight))(module)


def make_optimizer(net, strategy, lr):
    decay = [w for w in net.parameters() if w.dim() >= 2]
    plain = [w for w in net.parameters() if w.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    options = dict(lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
    if strategy == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(groups, optimizer_class=torch.optim.AdamW, parameters_as_bucket_view=True, **options)
    return torch.optim.AdamW(groups, **options)


def only_last_reduces(run, last):
    """Context of one micro-batch: gradients are summed over ranks after the last one alone."""
    if isinstance(run, nn.parallel.DistributedDataParallel):
        return contextlib.nullcontext() if last else run.no_sync()
    if hasattr(run, "set_requires_gradient_sync"):
        run.set_requires_gradient_sync(last)
    return contextlib.nullcontext()


def learning_rate(a, step):
    """The same warm-up and cosine as molen's optim/schedule.h."""
    if a.warmup > 0 and step <= a.warmup:
        return a.lr * step / a.warmup
    if a.schedule == "constant":
        return a.lr
    fraction = (min(step, a.horizon) - a.warmup) / max(1, a.horizon - a.warmup)
    return a.min_lr + 0.5 * (a.lr - a.min_lr) * (1 + math.cos(math.pi * fraction))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True, help="Hugging Face directory with config.json and model.safetensors")
    p.add_argument("--tokens", required=True, help="int32 file [steps, global, S+1]")
    p.add_argument("--sequence", type=int, required=True)
    p.add_argument("--global-batch", type=int, required=True)
    p.add_argument("--micro", type=int, required=True)
    p.add_argument("--steps", type=int, required=True)
    p.add_argument("--horizon", type=int, help="steps of the schedule (default: --steps)")
    p.add_argument("--dtype", choices=["fp64", "fp32", "bf16"], default="fp32")
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--min-lr", type=float, default=3e-5)
    p.add_argument("--warmup", type=int, default=0)
    p.add_argument("--schedule", choices=["cosine", "constant"], default="cosine")
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--compile", action="store_true")
    p.add_argument("--autocast", action="store_true", help="bf16 by torch.autocast over weights of --dtype")
    p.add_argument("--onednn", action="store_true", help="products of linear layers by oneDNN")
    p.add_argument("--experts", choices=list(experts_torch.FORMS), default="loop", help="form of sparse layers (experts_torch.py)")
    p.add_argument("--balance", type=float, default=0.0, help="factor of the balance loss of sparse layers")
    p.add_argument("--strategy", choices=["ddp", "zero1", "fsdp2_grad_op", "fsdp2_full"], default="ddp", help="what several ranks share (torchrun)")
    p.add_argument("--warmup-steps", type=int, default=2, help="left out of the median")
    p.add_argument("--device", default="cpu")
    p.add_argument("--quiet", action="store_true")
    a = p.parse_args()
    a.horizon = a.horizon or a.steps

    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if ranks > 1:
        dist.init_process_group("gloo")
    if a.threads:
        torch.set_num_threads(a.threads)
    with open(os.path.join(a.model, "config.json")) as f:
        c = json.load(f)
    c.setdefault("head_dim", c["hidden_size"] // c["num_attention_heads"])
    dtype = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}[a.dtype]
    net = Llama(c, a.experts, a.balance).to(dtype=dtype)   # before loading: fp64 weights must not pass through fp32
    missing, unexpected = net.load_state_dict(load_file(os.path.join(a.model, "model.safetensors")), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    net.to(device=a.device)
    if a.onednn:
        use_onednn(net)
    run = torch.compile(net) if a.compile else net
    if ranks > 1:
        run = distributed(run, a.strategy)
    opt = make_optimizer(net, a.strategy if ranks > 1 else None, a.lr)

    tokens = numpy.memmap(a.tokens, dtype=numpy.int32, mode="r").reshape(-1, a.global_batch, a.sequence + 1)
    rounds = a.global_batch // (a.micro * ranks)
    assert rounds * a.micro * ranks == a.global_batch
    ready_at = time.monotonic()
    times = []
    for step in range(1, a.steps + 1):
        start = time.perf_counter()
        for group in opt.param_groups:
            group["lr"] = learning_rate(a, step)
        batch = torch.from_numpy(tokens[(step - 1) % len(tokens)].astype(numpy.int64)).to(a.device)
        total = 0.0
        for m in range(rounds):
            first = (m * ranks + rank) * a.micro
            part = batch[first : first + a.micro]
            with only_last_reduces(run, m == rounds - 1):
                with torch.autocast(torch.device(a.device).type, dtype=torch.bfloat16, enabled=a.autocast):
                    loss, objective = run(part[:, :-1], part[:, 1:].contiguous())
                (objective / rounds).backward()
            total += loss.item() / rounds
        norm = nn.utils.clip_grad_norm_(net.parameters(), a.clip)
        if hasattr(norm, "full_tensor"):  # a DTensor, of FSDP2's shards
            norm = norm.full_tensor()
        opt.step()
        opt.zero_grad(set_to_none=True)
        if ranks > 1:
            t = torch.tensor(total, dtype=torch.float64)
            dist.all_reduce(t)
            total = t.item() / ranks
        seconds = time.perf_counter() - start
        if not times:
            first_step_at = time.monotonic()
        times.append(seconds)
        if rank == 0 and not a.quiet:
            print(json.dumps({"step": step, "loss": total, "grad_norm": norm.item(), "seconds": seconds}), flush=True)
    if rank == 0:
        timed = times[a.warmup_steps :] or times
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"median_s": statistics.median(timed), "min_s": min(timed), "max_s": max(timed), "loss": total, "grad_norm": norm.item(), "peak_rss_bytes": peak, "ready_at_s": ready_at, "first_step_at_s": first_step_at}), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
