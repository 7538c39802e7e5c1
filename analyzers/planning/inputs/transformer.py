"""A decoder-only transformer by its shape: parameters, FLOPs, and what a layer keeps for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

ATTENTION_BACKWARD = 2.5
"""Backward by forward of fused attention: five multiplications where the forward pass has two (Dao, FlashAttention-2,
arXiv:2307.08691, section 2.3)."""


@dataclass(frozen=True)
class Model:
    """A transformer's shape. `gated`: three matrices in the feed-forward part (SwiGLU) instead of two. Its sizes are
    kept, because a search asks for them some hundred thousand times."""

    layers: int
    width: int
    heads: int
    ffn: int
    vocabulary: int
    sequence: int
    kv_heads: int = 0
    """Heads of keys and values; 0 for as many as `heads`."""
    head_width: int = 0
    """Of one head; 0 for width by heads. With `kv_rank` its part without position."""
    gated: bool = False
    tied: bool = False
    """Whether the output layer is the embedding."""
    experts: int = 0
    experts_per_token: int = 2
    expert_ffn: int = 0
    """Of one expert; 0 for `ffn`."""
    shared_experts: int = 0
    """Experts that take every token, besides the routed ones."""
    expert_hosts: int = 0
    """Hosts at most to which a token's experts belong (DeepSeek-V3, arXiv:2412.19437, section 2.1.2: 4); 0 for any."""
    dense_layers: int = 0
    """First layers that have one feed-forward part instead of experts."""
    q_rank: int = 0
    kv_rank: int = 0
    """Ranks of compressed queries and of compressed keys and values: multi-head latent attention (DeepSeek-V2,
    arXiv:2405.04434, section 2.1); 0 for ordinary attention."""
    rope_width: int = 0
    """Of a head's part with position, in latent attention."""
    value_width: int = 0
    """Of a head's values; 0 for `head_width`."""

    @property
    def head(self) -> int:
        """Width of a head, of its part without position."""
        return self.head_width or self.width // self.heads

    @cached_property
    def query(self) -> int:
        """Width of a head's queries and keys."""
        return self.head + self.rope_width

    @cached_property
    def value(self) -> int:
        """Width of a head's values."""
        return self.value_width or self.head

    @cached_property
    def kv(self) -> int:
        """Elements of a token's keys and values as attention reads them."""
        return (self.heads if self.kv_rank else self.kv_heads or self.heads) * (self.query + self.value)

    @cached_property
    def attention(self) -> int:
        """Parameters of a layer's attention."""
        out = self.heads * self.value * self.width
        if not self.kv_rank:
            return self.width * self.heads * self.query + self.width * self.kv + out
        queries = self.heads * self.query
        asked = self.q_rank * (self.width + queries) if self.q_rank else self.width * queries
        compressed = self.width * (self.kv_rank + self.rope_width)
        return asked + compressed + self.kv_rank * self.heads * (self.head + self.value) + out

    @cached_property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def expert_width(self) -> int:
        """Width between an expert's matrices."""
        return self.expert_ffn or self.ffn

    @cached_property
    def expert(self) -> int:
        """Parameters of one expert."""
        return self._matrices * self.width * self.expert_width

    @cached_property
    def routed(self) -> float:
        """Parameters of a layer's routed experts, mean over all layers."""
        return self.experts * self.expert * self.moe_layers / self.layers

    @cached_property
    def layer(self) -> float:
        """Parameters of a layer without its routed experts, mean over all layers: attention, two norms, the
        feed-forward part or the router and shared experts."""
        dense = (self.layers - self.moe_layers) * self._matrices * self.width * self.ffn
        sparse = self.moe_layers * (self.width * self.experts + self.shared_experts * self.expert)
        return self.attention + 2 * self.width + (dense + sparse) / self.layers

    @cached_property
    def active(self) -> float:
        """Parameters of a layer that a token meets, mean over all layers."""
        return self.layer + self.experts_per_token * self.expert * self.moe_layers / self.layers

    @property
    def embedding(self) -> int:
        """Parameters of the embedding."""
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """All parameters; biases, a few thousandths, are left out."""
        ends = self.embedding * (1 if self.tied else 2) + self.width
        return round(self.layers * (self.layer + self.routed)) + ends

    @property
    def attention_flops(self) -> float:
        """Of a token in a layer, forward, every token looking at every other: 2·s·heads·(query + value) widths."""
        return 2.0 * self.sequence * self.heads * (self.query + self.value)

    @property
    def flops_per_token(self) -> float:
        """Forward and backward, nothing recomputed: 6 per active weight but the embedding, and for GPT
        6·layers·width·sequence for causal attention, of which the half above the diagonal is not computed
        (docs/definitions.md, MFU; Chowdhery et al., PaLM, arXiv:2204.02311, appendix B, counts both halves)."""
        return 6.0 * (self.layers * self.active + self.embedding) + 1.5 * self.layers * self.attention_flops

    def kept(self, *, selective: bool, operand: float = 2.0) -> float:
        """Bytes of a token that a layer keeps for the backward pass, mean over all layers.

        Norms' inputs, attention's input, queries, keys, values and output, the feed-forward part's input and what
        lies between its matrices: for GPT (ffn 4·width, no grouping, no dropout) 16·width, which in two bytes are 32 of
        the 34·s·b·h of Korthikanti et al., arXiv:2205.05198, equation 1; the other two are dropout masks. Experts also
        keep their tokens' copies, but not their results: a token's weights are applied before the last product. What
        only a matrix product needs again takes `operand` bytes, which is 1 in FP8 (DeepSeek-V3, section 3.3.3), the
        rest two. `selective`: without the outputs of norms and of experts'
        activation functions, which are cheap to compute again, and without what latent attention expands: what
        Megatron-Core's modules `layernorm`, `moe_act` and `mla_up_proj` do.
        """
        outputs, sparse = 0 if selective else 1, self.moe_layers / self.layers
        expanded = self.heads * self.query + self.kv
        if self.kv_rank:
            expanded = self.q_rank + self.kv_rank + self.rope_width + outputs * expanded
        experts = self.experts_per_token + self.shared_experts
        between = (1 - sparse) * self.ffn + sparse * experts * self.expert_width
        copies = sparse * self.experts_per_token * self.width
        plain = 2 * self.width + expanded + (self._matrices - 1) * between
        activated = between if outputs else (1 - sparse) * self.ffn
        operands = self.heads * self.value + outputs * 2 * self.width + activated + copies
        return 2 * plain + operand * operands

    @cached_property
    def _matrices(self) -> int:
        return 3 if self.gated else 2
