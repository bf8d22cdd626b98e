"""Sparse layers of the PyTorch peer in the two forms in which PyTorch users write them. Weights load from the names of Hugging Face's MixtralForCausalLM.

Looped: each expert multiplies the rows that chose it, and adds to them (transformers' eager form). Grouped: the weights of all experts are one tensor, rows
are put in the order of experts, and torch.nn.functional.grouped_mm multiplies all of them in one call (transformers' grouped form, torchtitan).
"""
import torch
import torch.nn.functional as F
from torch import nn


class Router(nn.Module):
    """Chooses experts and collects in `losses` the balance loss of each call: per sequence, as molen's (arXiv 2412.19437, equations 17 to 20)."""

    def __init__(self, c, losses):
        super().__init__()
        self.count, self.chosen, self.losses = c["num_local_experts"], c["num_experts_per_tok"], losses
        self.gate = nn.Linear(c["hidden_size"], self.count, bias=False)

    def forward(self, x):
        b, s, d = x.shape
        scores = self.gate(x).float().softmax(-1)
        weights, choice = scores.topk(self.chosen, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        share = torch.zeros(b, self.count, device=x.device).scatter_add_(1, choice.flatten(1), torch.ones(b, s * self.chosen, device=x.device))
        self.losses.append((share * (self.count / (self.chosen * s)) * scores.mean(1)).sum(-1).mean())
        return self.experts_of(x.reshape(-1, d), choice.reshape(-1, self.chosen), weights.reshape(-1, self.chosen)).view(b, s, d)


class Expert(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.w1 = nn.Linear(hidden, width, bias=False)  # gate
        self.w2 = nn.Linear(width, hidden, bias=False)  # down
        self.w3 = nn.Linear(hidden, width, bias=False)  # up

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LoopedExperts(Router):
    def __init__(self, c, losses):
        super().__init__(c, losses)
        self.experts = nn.ModuleList(Expert(c["hidden_size"], c["intermediate_size"]) for _ in range(self.count))

    def experts_of(self, rows, choice, weights):
        out = torch.zeros_like(rows)
        for e, expert in enumerate(self.experts):
            token, slot = torch.where(choice == e)
            if len(token):
                out.index_add_(0, token, (expert(rows[token]) * weights[token, slot, None]).to(out.dtype))
        return out


class GroupedExperts(Router):
    def __init__(self, c, losses):
        super().__init__(c, losses)
        hidden, width = c["hidden_size"], c["intermediate_size"]
        self.gate_up = nn.Parameter(torch.empty(self.count, 2 * width, hidden))
        self.down = nn.Parameter(torch.empty(self.count, hidden, width))
        self.register_load_state_dict_pre_hook(self.stack)

    @staticmethod
    def stack(self, state, prefix, *_):
        def taken(name):
            return torch.stack([state.pop(f"{prefix}experts.{e}.{name}.weight") for e in range(self.count)])

        state[prefix + "gate_up"] = torch.cat((taken("w1"), taken("w3")), 1)
        state[prefix + "down"] = taken("w2")

    def experts_of(self, rows, choice, weights):
        order = choice.flatten().argsort(stable=True)
        token = order // self.chosen
        ends = choice.flatten().bincount(minlength=self.count).cumsum(0).to(torch.int32)
        autocast = torch.is_autocast_enabled(rows.device.type)  # which leaves grouped_mm alone
        kind = torch.get_autocast_dtype(rows.device.type) if autocast else rows.dtype
        gate, up = F.grouped_mm(rows[token].to(kind), self.gate_up.to(kind).transpose(1, 2), offs=ends).chunk(2, -1)
        down = F.grouped_mm(F.silu(gate) * up, self.down.to(kind).transpose(1, 2), offs=ends)
        return torch.zeros_like(rows).index_add_(0, token, (down * weights.flatten()[order, None]).to(rows.dtype))


FORMS = {"loop": LoopedExperts, "grouped": GroupedExperts}
