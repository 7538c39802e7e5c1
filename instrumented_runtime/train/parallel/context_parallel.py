"""Context parallelism: each rank holds a part of every sequence; attention joins the parts.

Ring: keys and values rotate while each rank attends with its own queries. Ulysses: an all-to-all turns
parts of the sequence into whole sequences of fewer heads, and back.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental._context_parallel import _attention as ring

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.ranges import span
from gpuscope.instrumented_runtime.train.model.gpt import Attend, Attention, causal_attention
from gpuscope.instrumented_runtime.train.parallel.all_to_all import all_to_all
from gpuscope.instrumented_runtime.train.parallel.build import Build
from gpuscope.instrumented_runtime.train.settings.parallelisms.context import CP, ContextConfig


def apply(build: Build) -> None:
    """Replace attention, and keep the positions [sequence / ranks] of this rank's tokens."""
    config, mesh = build.config[ContextConfig], build.mesh.of(CP)
    rank, ranks = mesh.get_local_rank(), mesh.size()
    build.positions = positions(build.config.data.sequence, rank, ranks, balanced=config.is_balanced)
    attend: Attend = RingAttention(config, mesh) if config.method == "ring" else UlyssesAttention(mesh)
    for attention in build.modules(Attention):
        attention.attend = attend
        attention.rotary.select(build.positions)


def positions(sequence: int, rank: int, ranks: int, *, balanced: bool) -> Tensor:
    """Positions of this rank's tokens in the sequence: one contiguous range, or chunk `rank` from each end.

    >>> positions(8, 0, 2, balanced=True).tolist()
    [0, 1, 6, 7]
    """
    if not balanced:
        return torch.arange(sequence).chunk(ranks)[rank]
    chunks = torch.arange(sequence).chunk(2 * ranks)
    return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])


class RingAttention:
    """Causal attention over [batch, heads, sequence / ranks, size], through PyTorch's ring template."""

    def __init__(self, config: ContextConfig, mesh: DeviceMesh) -> None:
        self.group = mesh.get_group()
        # The template reads these from its module, also in the backward thread.
        ring._cp_options.enable_load_balance = config.is_balanced
        ring.set_rotate_method(config.rotation)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if query.device.type == "cuda" and query.dtype == torch.float32:
            raise UsageError(
                "context.method: ring attention on a GPU needs half precision", hint="--set train.precision=bf16"
            )
        return _Ring.apply(query, key, value, self.group)  # type: ignore[no-any-return,no-untyped-call]


class _Ring(torch.autograd.Function):
    """The template's forward and backward as one differentiable function."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        forward, _ = _kernels(query.device.type)
        with span("ring_attention"):
            out, lse, *rest = ring._templated_ring_attention(group, 2, forward, query, key, value, is_causal=True)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.rest, ctx.group = rest, group
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        _, backward = _kernels(query.device.type)
        with span("ring_attention"):
            grads = ring._templated_ring_attention_backward(
                ctx.group,
                2,
                backward,
                gradients[0].contiguous(),
                "grad_out",
                query,
                key,
                value,
                out,
                lse,
                is_causal=True,
                dropout_p=0.0,
                **_flash_arguments(ctx.rest),
            )
        return grads[0], grads[1], grads[2], None


def _kernels(device_type: str) -> tuple[Any, Any]:
    aten = torch.ops.aten
    if device_type == "cpu":
        name = "_scaled_dot_product_flash_attention_for_cpu"
    else:
        name = "_scaled_dot_product_flash_attention"
    return getattr(aten, name).default, getattr(aten, f"{name}_backward").default


def _flash_arguments(rest: list[Any]) -> dict[str, Any]:
    """The forward's other results that the CUDA kernel's backward needs; the CPU kernel has none."""
    names = ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset")
    return dict(zip(names, rest, strict=False)) if rest else {}


class UlyssesAttention:
    """Causal attention by exchanging sequence for heads (DeepSpeed-Ulysses, arXiv:2309.14509)."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.group, self.ranks = mesh.get_group(), mesh.size()

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        whole = [self._heads_out_sequence_in(x) for x in (query, key, value)]
        return self._sequence_out_heads_in(causal_attention(*whole))

    def _heads_out_sequence_in(self, x: Tensor) -> Tensor:
        """[batch, heads, sequence / n, size] → [batch, heads / n, sequence, size]."""
        batch, heads, part, size = x.shape
        cut = x.reshape(batch, self.ranks, heads // self.ranks, part, size).movedim(1, 0)
        back = all_to_all(cut, self.group)
        return back.movedim(0, 2).reshape(batch, heads // self.ranks, self.ranks * part, size)

    def _sequence_out_heads_in(self, x: Tensor) -> Tensor:
        """[batch, heads / n, sequence, size] → [batch, heads, sequence / n, size]."""
        batch, heads, sequence, size = x.shape
        cut = x.reshape(batch, heads, self.ranks, sequence // self.ranks, size).movedim(2, 0)
        back = all_to_all(cut, self.group)
        return back.movedim(0, 1).reshape(batch, heads * self.ranks, sequence // self.ranks, size)
