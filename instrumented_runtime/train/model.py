"""A small GPT: RMS norm, rotary positions, GELU, no biases, head not tied to the embedding.

Every parallelism can partition it: projections are separate linear layers, positions are in one table that
context parallelism re-indexes, and any part may be `None` on a pipeline stage.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F  # noqa: N812

from gpuscope.instrumented_runtime.train.settings.config import ModelConfig

# The mixture-of-experts form of the MLP: a router, and experts whose weights are stacked.
#
# Dropless: each token goes to its `experts_per_token` best experts whatever their load, so the counts per
# expert are uneven, and so are the all-to-alls that `parallel.expert` puts around `Experts`.

Exchange = Callable[[Tensor, Tensor, "Experts"], Tensor]


class Experts(nn.Module):
    """MLPs with stacked weights [experts, in, out]; runs tokens that come sorted by expert."""

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.is_cut = False  # set by expert parallelism: the parameters hold this rank's experts only
        self.up = nn.Parameter(torch.empty(experts, width, 4 * width))
        self.down = nn.Parameter(torch.empty(experts, 4 * width, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.up, std=0.02)
        nn.init.normal_(self.down, std=0.02)

    def forward(self, tokens: Tensor, counts: list[int]) -> Tensor:
        """tokens [n, width], the first counts[0] of them for expert 0, and so on."""
        ups, downs = _local(self.up).unbind(), _local(self.down).unbind()
        parts = torch.split(tokens, counts)
        return torch.cat([F.gelu(x @ up) @ down for x, up, down in zip(parts, ups, downs, strict=True)])


def _local(parameter: Tensor) -> Tensor:
    """This rank's shard of a sharded parameter; any other unchanged."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def run_locally(tokens: Tensor, counts: Tensor, experts: Experts) -> Tensor:
    """Run all experts locally, without exchange. `counts` is [experts]."""
    return experts(tokens, counts.tolist())  # type: ignore[no-any-return]


class MoE(nn.Module):
    """Routes each token to its best experts and adds up their outputs by the router's weights."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.top = config.experts_per_token
        self.router = nn.Linear(config.width, config.experts, bias=False)
        self.experts = Experts(config.experts, config.width)
        self.exchange: Exchange = run_locally

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weight, expert = self.router(tokens).softmax(-1).topk(self.top)
        weight = weight / weight.sum(-1, keepdim=True)
        order = expert.flatten().argsort(stable=True)
        counts = expert.flatten().bincount(minlength=self.router.out_features)
        sorted_out = self.exchange(tokens[order // self.top], counts, self.experts)
        # Undo the sort by gathering through the inverse permutation, not by index_add, whose order of
        # additions varies on GPUs.
        inverse = order.argsort()
        out = sorted_out[inverse].view(*expert.shape, -1)
        return (out * weight.unsqueeze(-1)).sum(1).view_as(x)  # type: ignore[no-any-return]


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention of [batch, heads, sequence, size per head]."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class Rotary(nn.Module):
    """Rotates query and key by position. Tables are [sequence, size per head / 2]."""

    cos: Tensor
    sin: Tensor

    def __init__(self, size: int, sequence: int) -> None:
        super().__init__()
        self.size, self.sequence = size, sequence
        self.register_buffer("cos", torch.empty(sequence, size // 2), persistent=False)
        self.register_buffer("sin", torch.empty(sequence, size // 2), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill the tables."""
        frequency = 10_000.0 ** (-torch.arange(0, self.size, 2, dtype=torch.float32) / self.size)
        angle = torch.outer(torch.arange(self.sequence, dtype=torch.float32), frequency)
        with torch.no_grad():
            self.cos.copy_(angle.cos())
            self.sin.copy_(angle.sin())

    def select(self, positions: Tensor) -> None:
        """Keep the rows of this rank's positions only (context parallelism)."""
        self.cos, self.sin = self.cos[positions], self.sin[positions]

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[-2]
        cos, sin = self.cos[:rows].to(x.dtype), self.sin[:rows].to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Attention(nn.Module):
    """Causal self-attention; context parallelism replaces `attend`."""

    def __init__(self, config: ModelConfig, sequence: int) -> None:
        super().__init__()
        self.head_size = config.width // config.heads
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.width, bias=False)
        self.value = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.rotary = Rotary(self.head_size, sequence)
        self.attend: Attend = causal_attention

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, _ = x.shape
        # -1 heads: under tensor parallelism a rank holds only its own.
        query, key, value = (
            projection(x).view(batch, sequence, -1, self.head_size).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        attended = self.attend(self.rotary(query), self.rotary(key), value)
        return self.out(attended.transpose(1, 2).reshape(batch, sequence, -1))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Two linear layers with GELU between, four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and MLP (or MoE), each normalised before and added to the residual."""

    def __init__(self, config: ModelConfig, sequence: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width)
        self.attention = Attention(config, sequence)
        self.mlp_norm = nn.RMSNorm(config.width)
        self.mlp: nn.Module
        if config.experts:
            self.mlp = MoE(config)
        else:
            self.mlp = MLP(config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Tokens [batch, sequence] → logits [batch, sequence, vocabulary].

    A pipeline stage keeps a slice of `blocks`; without `embedding` the input is hidden states, without
    `head` so is the output.
    """

    def __init__(self, config: ModelConfig, sequence: int) -> None:
        super().__init__()
        self.config = config
        self.embedding: nn.Module | None = nn.Embedding(config.vocabulary, config.width)
        # A dict, so that a stage's blocks keep the names they have in the whole model's checkpoint.
        self.blocks = nn.ModuleDict({str(i): Block(config, sequence) for i in range(config.layers)})
        self.norm: nn.Module | None = nn.RMSNorm(config.width)
        self.head: nn.Module | None = nn.Linear(config.width, config.vocabulary, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise in place."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x) if self.embedding is not None else x
        for block in self.blocks.values():
            x = block(x)
        x = self.norm(x) if self.norm is not None else x
        return self.head(x) if self.head is not None else x


def cut(model: GPT, layers: range, *, first: bool, last: bool) -> GPT:
    """A pipeline stage: the given layers of `model`, its embedding if `first`, norm and head if `last`."""
    stage = GPT.__new__(GPT)
    nn.Module.__init__(stage)
    stage.config = model.config
    stage.embedding = model.embedding if first else None
    stage.blocks = nn.ModuleDict({str(i): model.blocks[str(i)] for i in layers})
    stage.norm = model.norm if last else None
    stage.head = model.head if last else None
    return stage


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of logits [batch, sequence, vocabulary] and labels [batch, sequence]."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def flops_per_token(config: ModelConfig, sequence: int) -> int:
    """Model FLOPs of forward and backward per token: 6 per active weight that multiplies, plus attention.

    The 6·N rule of Kaplan et al. 2020 with the attention term of Chowdhery et al. 2022 (PaLM, appendix
    B), 12·layers·width·sequence, unhalved for causality as there. Recomputation does not count.
    """
    attention = 4 * config.width**2
    experts = config.experts_per_token if config.experts else 1
    mlp = 8 * config.width**2 * experts + config.width * config.experts
    weights = config.layers * (attention + mlp) + config.width * config.vocabulary
    return 6 * weights + 12 * config.layers * config.width * sequence
