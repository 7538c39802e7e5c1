"""How quick a GPU computes and a link sends: published figures by default, measured where a run calibrates the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ATTENTION_EFFICIENCY = 0.5
"""Of the dense bf16 peak in fused causal attention, forward and backward together: FlashAttention-2, arXiv:2307.08691,
section 4.1, reaches 50 to 73 % forward and less backward on A100; FlashAttention-3, arXiv:2407.08608, figure 5, and
cuDNN beside it 60 to 65 % forward with heads of 128 on H100, less backward."""

EAGER, COMPILED, GRAPHS = "eager", "compiled", "graphs"
"""How kernels are launched: one by one from Python, by compiled code, or as captured CUDA graphs."""
LAUNCHED = (EAGER, COMPILED, GRAPHS)

COMPUTE_ERROR = 0.15
"""Of compute that no run measured: three quarters of the published rates keep to it (benchmarks/planner.py)."""


RANGE_ERROR = 0.22
"""Of compute and launching that no run measured: with it nine in ten of the measured steps of
`benchmarks.planner --measured` lie within the range."""


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

    gemm_frac: float | None = None
    """Of the dense peak in matrix multiplications, with what runs between them, as a run measured it; None for what is
    published for their shapes (`compute_time`)."""
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
    eager: bool = False
    """Whether each operator is a kernel of its own: PyTorch neither compiled nor with fused kernels."""
    flash_2: bool = False
    """Whether attention is FlashAttention-2, as in PyTorch's own, or the GPU's best."""
    launched: str = EAGER
    """How kernels are launched; a host that launches more slowly than the GPU computes sets the pace."""
    early_megatron: bool = False
    """Whether it is Megatron-LM of 2020 to 2022: attention of separate kernels that store the matrix of scores, no
    message hidden behind a product, and a host that waits for each hand-over between pipeline stages."""
    slower: float = 1.0
    """Times that compute takes as long: the ends of a range."""

    @property
    def error(self) -> float:
        """Of an estimate: as the run had it, or as published rates have it."""
        return self.error_frac or COMPUTE_ERROR

    def link(self, kind: str) -> Link | None:
        """What was measured for a kind."""
        return self.links.get(kind) or self.links.get("any")
