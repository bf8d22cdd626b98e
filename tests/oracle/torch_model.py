"""The models that molen trains and their training, in a few lines of PyTorch with autograd: what the tests compare molen with.

Sizes and choices come from a dictionary of [model] keys, as a user would write them, never from what molen resolved. Tensors have the
names and shapes of molen's checkpoints.
"""
import json
import math
import pathlib
import struct

import numpy
import torch
import torch.nn.functional as F

DEFAULTS = dict(rope_theta=10000.0, rope_scaling=None, tied=False, norm_eps=1e-5, qk_norm="none", experts=0, dense_layers=0, shared_experts=0, router_scores="softmax", router_scale=1.0, router_bias_rate=0.0, expert_capacity=0.0, norm_topk=True, balance_loss=0.01, z_loss=0.0)
FAMILIES = {
    "llama": dict(norm="rms", position="rope", activation="swiglu", biases=False),
    "gpt": dict(norm="layer", position="learned", activation="gelu_tanh", biases=True),
}


def architecture(keys):
    a = {**DEFAULTS, **FAMILIES[keys["family"]], **keys}
    a.setdefault("kv_heads", a["heads"])
    a.setdefault("head_dim", a["hidden"] // a["heads"])
    a.setdefault("ffn", 4 * a["hidden"])
    a.setdefault("expert_ffn", a["ffn"])
    return a


TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}


def read_safetensors(path):
    """name -> array (bf16 widened to fp32), and the header."""
    raw = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header, tensors = json.loads(raw[8 : 8 + size]), {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        data = raw[8 + size + first : 8 + size + last]
        if entry["dtype"] == "BF16":
            values = (numpy.frombuffer(data, "<u2").astype(numpy.uint32) << 16).view(numpy.float32)
        else:
            values = numpy.frombuffer(data, TYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors, header


def write_safetensors(path, tensors):
    names = {numpy.dtype(v): k for k, v in TYPES.items()}
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t.tobytes() for t in tensors.values()))


def weights_of(checkpoint, dtype=torch.float64):
    """Parameters of a checkpoint that one rank wrote, as leaves."""
    stored, _ = read_safetensors(pathlib.Path(checkpoint) / "rank-00000.safetensors")
    return {n: torch.tensor(t, dtype=dtype, requires_grad=True) for n, t in stored.items() if not n.startswith("optimizer.")}


def inverse_frequencies(a):
    """Llama 3.1's change of the frequencies as in its paper's code: long waves are divided, short ones kept, between them blended."""
    inverse = a["rope_theta"] ** (-torch.arange(0, a["head_dim"], 2, dtype=torch.float64) / a["head_dim"])
    if a["rope_scaling"]:
        s = a["rope_scaling"]
        wave = 2 * math.pi / inverse
        blend = ((s["original_max_sequence"] / wave - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])).clamp(0, 1)
        inverse = inverse * (blend + (1 - blend) / s["factor"])
    return inverse


def turn(x, angle):
    half = x.shape[-1] // 2
    cos, sin = torch.cat((angle, angle), -1).cos().to(x.dtype), torch.cat((angle, angle), -1).sin().to(x.dtype)
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def slopes(heads):
    """Press et al. 2022: powers of 2^(-8/n), and for a number that is no power of two every second one of the next."""
    def of_power(n):
        return [2 ** (-8 * (i + 1) / n) for i in range(n)]

    below = 2 ** int(math.log2(heads))
    return of_power(below) + of_power(2 * below)[0::2][: heads - below]


class Model:
    def __init__(self, keys, weights):
        self.a, self.w, self.router_losses, self.loads, self.dropped = architecture(keys), weights, 0.0, {}, []
        self.biases = [n for n in weights if n.endswith(".e_score_correction_bias")]  # no parameters

    def linear(self, name, x):
        return F.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def norm(self, name, x):
        a, size = self.a, (x.shape[-1],)
        if a["norm"] == "rms":
            return F.rms_norm(x, size, self.w[name + ".weight"], a["norm_eps"])
        return F.layer_norm(x, size, self.w.get(name + ".weight"), self.w.get(name + ".bias"), a["norm_eps"])

    def attention(self, p, x, mask):
        a, (b, s, _) = self.a, x.shape
        q, k, v = (self.linear(f"{p}.{n}_proj", x) for n in "qkv")
        if a["qk_norm"] == "all":
            q, k = (F.rms_norm(t, t.shape[-1:], self.w[f"{p}.{n}_norm.weight"], a["norm_eps"]) for n, t in (("q", q), ("k", k)))
        q, k, v = (t.view(b, s, -1, a["head_dim"]) for t in (q, k, v))
        if a["qk_norm"] == "head":
            q, k = (F.rms_norm(t, t.shape[-1:], self.w[f"{p}.{n}_norm.weight"], a["norm_eps"]) for n, t in (("q", q), ("k", k)))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        at = torch.arange(s)
        if a["position"] == "rope":
            angle = torch.outer(at.to(torch.float64), inverse_frequencies(a))
            q, k = turn(q, angle), turn(k, angle)
        bias = torch.zeros(b, a["heads"], s, s, dtype=q.dtype)
        if a["position"] == "alibi":
            bias = bias + torch.tensor(slopes(a["heads"]), dtype=q.dtype).view(-1, 1, 1) * (at[None, :] - at[:, None])
        bias = bias.masked_fill(~mask[:, None], -math.inf)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=a["heads"] != a["kv_heads"])
        return self.linear(p + ".o_proj", o.transpose(1, 2).reshape(b, s, -1))

    def mlp(self, p, h):
        up = self.linear(p + ".up_proj", h)
        up = F.silu(self.linear(p + ".gate_proj", h)) * up if self.a["activation"] == "swiglu" else F.gelu(up, approximate="tanh")
        return self.linear(p + ".down_proj", up)

    def experts(self, p, h):
        """A sum over all experts, most of whose weights are 0. The losses of the router: of each sequence (DeepSeek-V3, equations 17 to
        20), and of each token (ST-MoE, equation 5)."""
        a = self.a
        router = self.linear(p + ".gate", h)
        scores = router.softmax(-1) if a["router_scores"] == "softmax" else router.sigmoid()
        unbiased = chosen = router.topk(a["experts_per_token"], -1).indices
        if p + ".gate.e_score_correction_bias" in self.w:
            chosen = (scores + self.w[p + ".gate.e_score_correction_bias"]).topk(a["experts_per_token"], -1).indices
            self.loads[p + ".gate.e_score_correction_bias"] = chosen.flatten().bincount(minlength=a["experts"])
        weights = scores.gather(-1, chosen)
        if a["norm_topk"]:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights * self.taken(chosen)
        weights = torch.zeros_like(scores).scatter(-1, chosen, weights * a["router_scale"])
        share = torch.zeros_like(scores).scatter(-1, unbiased, 1.0).mean(1) * a["experts"] / a["experts_per_token"]
        scores = scores / scores.sum(-1, keepdim=True)
        balance, z = (share * scores.mean(1)).sum(-1).mean(), router.logsumexp(-1).square().mean()
        self.router_losses = self.router_losses + (a["balance_loss"] * balance + a["z_loss"] * z) / (a["layers"] - a["dense_layers"])
        routed = sum(weights[..., e : e + 1] * self.mlp(f"{p}.experts.{e}", h) for e in range(a["experts"]))
        return routed + self.mlp(p + ".shared_experts", h) if a["shared_experts"] else routed

    def taken(self, chosen):
        """1 where an expert has room: for so many of a sequence's choices, one position after another."""
        a = self.a
        b, s, k = chosen.shape
        if not a["expert_capacity"]:
            return torch.ones(())
        room = math.ceil(a["expert_capacity"] * k * s / a["experts"] - 1e-9)
        order = F.one_hot(chosen.reshape(b, s * k), a["experts"]).cumsum(1)
        taken = order.gather(-1, chosen.reshape(b, s * k, 1)).view(b, s, k) <= room
        self.dropped.append(1 - taken.double().mean().item())
        return taken.to(next(iter(self.w.values())).dtype)

    def logits(self, ids, end_of_text=None):
        """Attention within documents where `end_of_text`, the last token of each, is given; positions count on."""
        a, s, self.router_losses = self.a, ids.shape[1], 0.0
        mask = torch.ones(s, s, dtype=torch.bool).tril().expand(len(ids), s, s)
        if end_of_text is not None:
            ends = (ids == end_of_text).long()
            document = ends.cumsum(1) - ends
            mask = mask & (document[:, :, None] == document[:, None, :])
        x = F.embedding(ids, self.w["model.embed_tokens.weight"])
        if a["position"] == "learned":
            x = x + self.w["model.embed_positions.weight"][:s]
        for i in range(a["layers"]):
            p = f"model.layers.{i}"
            x = x + self.attention(p + ".self_attn", self.norm(p + ".input_layernorm", x), mask)
            h = self.norm(p + ".post_attention_layernorm", x)
            x = x + (self.experts if a["experts"] and i >= a["dense_layers"] else self.mlp)(p + ".mlp", h)
        head = self.w["model.embed_tokens.weight" if a["tied"] else "lm_head.weight"]
        return F.linear(self.norm("model.norm", x), head)

    def loss(self, rows, end_of_text=None):
        """Mean over the next tokens of rows of S + 1; without the losses of routers."""
        rows = torch.as_tensor(rows, dtype=torch.long)
        return F.cross_entropy(self.logits(rows[:, :-1], end_of_text).flatten(0, 1), rows[:, 1:].flatten())


def learning_rate(step, steps, lr=3e-4, min_lr=None, warmup=0, kind="cosine", decay=None):
    """The course of src/optim/schedule.h, by its words."""
    low = lr / 10 if min_lr is None else min_lr
    step = min(step, steps)
    if step <= warmup:
        return lr * step / warmup
    if kind == "constant":
        return lr
    if kind == "wsd":
        length = max(1, steps // 10) if decay is None else decay
        first = max(warmup, steps - length)
        return lr if step <= first else lr + (low - lr) * (step - first) / (steps - first)
    done = (step - warmup) / (steps - warmup)
    return lr + (low - lr) * done if kind == "linear" else low + (lr - low) * (1 + math.cos(math.pi * done)) / 2


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of arXiv 2302.06675, as the authors' lion_pytorch.py writes it."""
    def __init__(self, groups, betas):
        super().__init__(groups, {"lr": 0.0, "betas": betas})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((m * beta1 + p.grad * (1 - beta1)).sign_(), alpha=-group["lr"])
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def zeropower_via_newtonschulz5(G, steps):
    """As github.com/KellerJordan/Muon has it, but for the rounding to bf16 (`X = G.bfloat16()`)."""
    a, b, c = (3.4445, -4.7750, 2.0315)
    X = G
    if G.size(-2) > G.size(-1):
        X = X.mT
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        A = X @ X.mT
        B = b * A + c * A @ A
        X = a * X + B @ X
    if G.size(-2) > G.size(-1):
        X = X.mT
    return X


def muon_update(grad, momentum, beta=0.95, ns_steps=5, nesterov=True, match_adamw=True):
    """As there, with the scale of Moonlight's adjust_lr_for_muon where `match_adamw`."""
    momentum.lerp_(grad, 1 - beta)
    update = grad.lerp_(momentum, beta) if nesterov else momentum
    update = zeropower_via_newtonschulz5(update, steps=ns_steps)
    update *= 0.2 * math.sqrt(max(grad.shape)) if match_adamw else max(1, grad.size(-2) / grad.size(-1)) ** 0.5
    return update


class Muon(torch.optim.Optimizer):
    """Keller Jordan's SingleDeviceMuonWithAuxAdam: of two learning rates in a fixed ratio."""
    def __init__(self, hidden, rest, momentum, match_adamw, weight_decay, **adam):
        super().__init__([{"params": hidden}, *rest], {"lr": 0.0})
        self.hidden, self.options, self.weight_decay = hidden, {"beta": momentum, "match_adamw": match_adamw}, weight_decay
        self.adam, self.rest_lr = torch.optim.AdamW(rest, **adam), 1.0

    @torch.no_grad()
    def step(self):
        lr = self.param_groups[0]["lr"]
        for p in self.hidden:
            update = muon_update(p.grad, self.state[p].setdefault("m", torch.zeros_like(p)), **self.options)
            p.mul_(1 - lr * self.weight_decay)
            p.add_(update, alpha=-lr)
        for group in self.adam.param_groups:
            group["lr"] = lr * self.rest_lr
        self.adam.step()


def optimizer_of(kind, w, matrices, others, beta1, beta2, eps, weight_decay, momentum=0.95, match_adamw=True, rest=1.0,
                 beta2_decay=-0.8, eps1=None, eps2=1e-3, update_clip=1.0):
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    if kind == "lion":
        return Lion(groups, (beta1, beta2))
    if kind == "muon":
        hidden = [p for n, p in w.items() if p.dim() == 2 and ".layers." in n]
        apart = {id(p) for p in hidden}
        tables = {"params": [p for p in matrices if id(p) not in apart], "weight_decay": weight_decay}
        muon = Muon(hidden, [tables, groups[1]], momentum, match_adamw, weight_decay, betas=(beta1, beta2), eps=eps)
        muon.rest_lr = rest
        return muon
    if kind == "adafactor":
        return torch.optim.Adafactor(groups, beta2_decay=beta2_decay, eps=(eps1, eps2), d=update_clip)
    assert kind == "adamw", kind
    return torch.optim.AdamW(groups, betas=(beta1, beta2), eps=eps)


def train(model, batches, lr_of, kind="adamw", beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0, end_of_text=None, loss=None, **only_of_kind):
    """With clipping, a step for each of `batches`; yields (loss, norm before clipping, learning rate)."""
    trained = {n: w for n, w in model.w.items() if n not in model.biases}
    matrices = [w for n, w in trained.items() if w.dim() >= 2 and "embed_positions" not in n]
    others = [w for n, w in trained.items() if w.dim() < 2 or "embed_positions" in n]
    optimizer = optimizer_of(kind, trained, matrices, others, beta1, beta2, eps, weight_decay, **only_of_kind)
    for step, rows in enumerate(batches, 1):
        optimizer.zero_grad()
        value = loss(rows) if loss else model.loss(rows, end_of_text)
        (value + model.router_losses).backward()
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), clip if clip > 0 else math.inf)
        for group in optimizer.param_groups:
            group["lr"] = lr_of(step)
        optimizer.step()
        with torch.no_grad():  # DeepSeek's balance without a loss (arXiv 2408.15664, algorithm 1)
            for name in model.biases:
                load = model.loads[name].double()
                model.w[name] += model.a["router_bias_rate"] * (load.mean() - load).sign()
        yield value.item(), norm.item(), lr_of(step)
