"""A decoder-only transformer by its shape: parameters, FLOPs, and what a layer keeps for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

ATTENTION_BACKWARD = 2.5
"""Backward by forward of fused attention: five multiplications where the forward pass has two (Dao, FlashAttention-2,
arXiv:2307.08691, section 2.3)."""


@dataclass(frozen=True)
class Model:
    """A transformer's shape. `gated`: three matrices in the feed-forward part (SwiGLU) instead of two."""

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

    @property
    def query(self) -> int:
        """Width of a head's queries and keys."""
        return self.head + self.rope_width

    @property
    def value(self) -> int:
        """Width of a head's values."""
        return self.value_width or self.head

    @property
    def kv(self) -> int:
        """Elements of a token's keys and values as attention reads them."""
        return (self.heads if self.kv_rank else self.kv_heads or self.heads) * (self.query + self.value)

    @property
    def attention(self) -> int:
        """Parameters of a layer's attention."""
        out = self.heads * self.value * self.width
        if not self.kv_rank:
            return self.width * self.heads * self.query + self.width * self.kv + out
        queries = self.heads * self.query
        asked = self.q_rank * (self.width + queries) if self.q_rank else self.width * queries
        compressed = self.width * (self.kv_rank + self.rope_width)
        return asked + compressed + self.kv_rank * self.heads * (self.head + self.value) + out

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def expert_width(self) -> int:
        """Width between an expert's matrices."""
        return self.expert_ffn or self.ffn

    @property
    def expert(self) -> int:
        """Parameters of one expert."""
        return self._matrices * self.width * self.expert_width

    @property
    def routed(self) -> float:
        """Parameters of a layer's routed experts, mean over all layers."""
        return self.experts * self.expert * self.moe_layers / self.layers

    @property
    def layer(self) -> float:
        """Parameters of a layer without its routed experts, mean over all layers: attention, two norms, the
        feed-forward part or the router and shared experts."""
        dense = (self.layers - self.moe_layers) * self._matrices * self.width * self.ffn
        sparse = self.moe_layers * (self.width * self.experts + self.shared_experts * self.expert)
        return self.attention + 2 * self.width + (dense + sparse) / self.layers

    @property
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
        12·layers·width·sequence for attention (Chowdhery et al., PaLM, arXiv:2204.02311, appendix B)."""
        return 6.0 * (self.layers * self.active + self.embedding) + 3 * self.layers * self.attention_flops

    def kept(self, *, selective: bool) -> float:
        """Elements of a token that a layer keeps for the backward pass, mean over all layers.

        Norms' inputs, attention's input, queries, keys, values and output, the feed-forward part's input and what
        lies between its matrices: for GPT (ffn 4·width, no grouping, no dropout) 16·width, which in two bytes are 32 of
        the 34·s·b·h of Korthikanti et al., arXiv:2205.05198, equation 1; the other two are dropout masks. Experts also
        keep their tokens' copies. `selective`: without the outputs of norms and activation functions, which are cheap
        to compute again.
        """
        outputs = 0 if selective else 1
        latent = self.q_rank + self.kv_rank + self.rope_width if self.kv_rank else 0
        attention = latent + self.heads * (self.query + self.value) + self.kv
        sparse = self.moe_layers / self.layers
        between = (2 if self.gated else 1) + outputs
        tokens = self.experts_per_token * (2 * self.width + between * self.expert_width)
        feed = (1 - sparse) * between * self.ffn
        feed += sparse * (tokens + self.shared_experts * between * self.expert_width)
        return (2 + 2 * outputs) * self.width + attention + feed

    @property
    def _matrices(self) -> int:
        return 3 if self.gated else 2
