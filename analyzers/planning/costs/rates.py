"""How quick a GPU computes and a link sends: assumed by default, measured where a run calibrates the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

EFFICIENCY = 0.6
"""Of the dense peak in matrix multiplications, with what runs between them. With the communication and bubbles of their
layouts this gives the 38 to 52 % of the peak that published runs reach overall (Narayanan et al., arXiv:2104.04473,
table 1; Korthikanti et al., arXiv:2205.05198, table 5; Llama 3, arXiv:2407.21783, table 4)."""
ATTENTION_EFFICIENCY = 0.45
"""Of the dense peak in fused causal attention, forward and backward: FlashAttention-2, arXiv:2307.08691, section 4.1,
reaches 50 to 73 % forward and less backward on A100; FlashAttention-3, arXiv:2407.08608, likewise on H100."""


@dataclass(frozen=True)
class Link:
    """What a kind of communication was measured to give: a fixed cost and GB/s of busbw."""

    alpha_ns: float
    busbw_gbps: float
    ranks: int
    """Of the group that it was measured on."""


@dataclass(frozen=True)
class Rates:
    """Efficiencies, and links where they are measured. `error_frac` is a standard error of a step's compute."""

    gemm_frac: float = EFFICIENCY
    attention_frac: float = ATTENTION_EFFICIENCY
    links: Mapping[str, Link] = field(default_factory=dict)
    """By kind: `data`, `tensor`, `pipeline`, `context`, `expert`, and `any` for the others."""
    step_ns: float = 0.0
    """What every step takes besides: host, optimizer, loader."""
    overlap_frac: float | None = None
    """Of the gradients' communication, measured to be hidden; None for what the rules give."""
    activation_factor: float = 1.0
    """Of a GPU's memory besides the model's states, measured by estimated."""
    error_frac: float = 0.0

    def link(self, kind: str) -> Link | None:
        """What was measured for a kind."""
        return self.links.get(kind) or self.links.get("any")
