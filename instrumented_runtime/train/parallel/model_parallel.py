"""Tensor parallelism: column- and row-sharded linear layers, with sequence and loss parallelism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.ranges import Span, span
from gpuscope.instrumented_runtime.train.measures import EXPOSED
from gpuscope.instrumented_runtime.train.mesh import Mesh
from gpuscope.instrumented_runtime.train.model import (
    GPT,
    Attend,
    Attention,
    Experts,
    MoE,
    causal_attention,
    cut,
    next_token_loss,
)
from gpuscope.instrumented_runtime.train.parallel.compose import Build, Hooks
from gpuscope.instrumented_runtime.train.settings.parallelisms.built_in import (
    CP,
    EP,
    PP,
    TP,
    ContextConfig,
    PipelineConfig,
    TensorConfig,
    layers_of_stages,
    stages_per_rank,
)
from gpuscope.instrumented_runtime.train.settings.sections import DATA

# A differentiable all-to-all with even or uneven splits along the first dimension.

Splits = list[int] | None


def all_to_all(x: Tensor, group: dist.ProcessGroup, sent: Splits = None, received: Splits = None) -> Tensor:
    """Send the i-th split of `x` to rank i and concatenate what comes back; even splits by default."""
    return _AllToAll.apply(x, group, sent, received)  # type: ignore[no-any-return,no-untyped-call]


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, sent: Splits, received: Splits) -> Tensor:
        ctx.group, ctx.sent, ctx.received = group, sent, received
        return _exchange(x, group, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # Each token's gradient takes the reverse path.
        return _exchange(gradients[0], ctx.group, ctx.received, ctx.sent), None, None, None


def _exchange(x: Tensor, group: dist.ProcessGroup, sent: Splits, received: Splits) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x) if received is None else x.new_empty(sum(received), *x.shape[1:])
    with span("all_to_all", nbytes=x.numel() * x.element_size()), EXPOSED.waiting(x):
        dist.all_to_all_single(out, x, received, sent, group=group)
    return out


# Context parallelism: each rank holds a part of every sequence; attention joins the parts.
#
# Ring: keys and values rotate while each rank attends with its own queries. Ulysses: an all-to-all turns
# parts of the sequence into whole sequences of fewer heads, and back.


def context_parallel_apply(build: Build) -> None:
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


# Expert parallelism: each rank holds some experts; tokens are sent to theirs and back by all-to-all.


def expert_parallel_apply(build: Build) -> None:
    """Shard the experts, and average their gradients over the ranks that hold the same ones."""
    mesh = build.mesh.of(EP)
    exchange = TokenExchange(mesh.get_group())
    cut: list[nn.Parameter] = []
    for moe in build.modules(MoE):
        moe.exchange = exchange
        for name, parameter in moe.experts.named_parameters():
            moe.experts.register_parameter(name, nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)])))
        moe.experts.is_cut = True
        cut.extend(moe.experts.parameters())
    everyone, same = build.mesh.averaged, same_experts(build.mesh)
    sharded = same is not None and DATA[build.config.parallel.data].shards_parameters
    if everyone is not None and not sharded:  # the data parallelism that shards them divides them too
        build.after_backward.append(ExpertGradients(cut, same, everyone.size()).synchronize)


def same_experts(mesh: Mesh) -> DeviceMesh | None:
    """The ranks that hold the same experts and average their gradients."""
    return mesh.view(*(axis for axis in mesh.averaging if axis is not EP))


class TokenExchange:
    """Sends tokens, sorted by expert, to the ranks of their experts and brings the results back."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.ranks = group, dist.get_world_size(group)

    def __call__(self, tokens: Tensor, counts: Tensor, experts: Experts) -> Tensor:
        """tokens [n, width] and counts [experts] in; [n, width] in the same order out."""
        here = torch.empty_like(counts)  # [ranks × experts held here]: who sends how many for which
        with span("all_to_all", nbytes=counts.numel() * counts.element_size()), EXPOSED.waiting(counts):
            dist.all_to_all_single(here, counts, group=self.group)
        by_source = here.view(self.ranks, -1)
        sent = counts.view(self.ranks, -1).sum(1).tolist()
        received = by_source.sum(1).tolist()
        arrived = all_to_all(tokens, self.group, sent, received)
        # They arrive by source, then expert; the experts take them by expert, then source.
        expert = torch.arange(by_source.shape[1], device=here.device).repeat(self.ranks)
        order = expert.repeat_interleave(here, output_size=len(arrived)).argsort(stable=True)
        done = experts(arrived[order], by_source.sum(0).tolist())
        return all_to_all(done[order.argsort()], self.group, received, sent)


class ExpertGradients:
    """Averages the gradients of sharded experts where nothing else does (single replica or DDP).

    A sharded expert has seen the tokens of all expert-parallel ranks, each through a loss averaged over that
    rank's own tokens: the sum over the ranks that hold the same expert, divided by all data ranks, is
    the gradient of the mean loss.
    """

    def __init__(self, parameters: list[nn.Parameter], same: DeviceMesh | None, divisor: int) -> None:
        self.parameters, self.same, self.divisor = parameters, same, divisor

    def synchronize(self) -> None:
        """Sum and divide, once, after the last backward of a step."""
        for parameter in self.parameters:
            grad = parameter.grad
            if grad is None:
                continue
            local = grad.to_local() if isinstance(grad, DTensor) else grad
            if self.same is not None:
                with span("all_reduce", nbytes=local.numel() * local.element_size()), EXPOSED.waiting(local):
                    dist.all_reduce(local, group=self.same.get_group())
            local.div_(self.divisor)


# A pipeline stage whose computations, sends and receives are ranges with stage and micro-batch.
#
# PyTorch's stages add no annotations to a trace.

_TAG = "_gpuscope_transfer"


class RangedStage(PipelineStage):
    """Ranges `forward`, `backward`, `backward_weight`; its P2P operations record what they carry."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with span("forward", micro_batch=fwd_chunk_id, stage=self.stage_index):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with span("backward", micro_batch=bwd_chunk_id, stage=self.stage_index):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with span("backward_weight", micro_batch=bwd_chunk_id, stage=self.stage_index):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._tag("recv_forward", fwd_chunk_id, super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._tag("recv_backward", bwd_chunk_id, super().get_bwd_recv_ops(bwd_chunk_id))

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._tag("send_forward", fwd_chunk_id, super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._tag("send_backward", bwd_chunk_id, super().get_bwd_send_ops(bwd_chunk_id))

    def _tag(self, name: str, micro_batch: int, operations: list[dist.P2POp]) -> list[dist.P2POp]:
        for operation in operations:
            setattr(operation, _TAG, (name, micro_batch, self.stage_index))
        return operations


def range_transfers() -> None:
    """Put the schedules' waits for sends and receives inside ranges, and measure them.

    The wait blocks the rank, and only the schedule's own helper knows when, so that helper is wrapped.
    A PyTorch without it loses only these ranges.
    """
    start = getattr(schedules, "_batch_p2p", None)
    if start is None or hasattr(start, _TAG):
        return

    def ranged(operations: list[dist.P2POp], desc: str | None = None) -> list[Any]:
        if not operations:
            return start(operations, desc)  # type: ignore[no-any-return]
        with EXPOSED.waiting(operations[0].tensor):  # gloo writes to the socket before it returns
            works = start(operations, desc)
        tagged = [operation for operation in operations if hasattr(operation, _TAG)]
        if len(tagged) != len(operations) or not works:
            return works  # type: ignore[no-any-return]
        if len(works) == len(operations):
            return [_RangedWork(work, [op]) for work, op in zip(works, operations, strict=True)]
        # Coalesced by NCCL: one wait for all; the receives are what it waits for.
        receives = [op for op in operations if op.op is dist.irecv] or operations
        return [_RangedWork(work, receives) for work in works]

    setattr(ranged, _TAG, True)
    schedules._batch_p2p = ranged  # type: ignore[assignment]


class _RangedWork:
    """A `Work` whose wait is a range."""

    def __init__(self, work: dist.Work, operations: list[dist.P2POp]) -> None:
        self.work, self.operations = work, operations

    def wait(self, *args: Any) -> Any:
        with self._range(), EXPOSED.waiting(self.operations[0].tensor):
            return self.work.wait(*args)

    def _range(self) -> Span:
        name, micro_batch, stage = getattr(self.operations[0], _TAG)
        nbytes = sum(op.tensor.numel() * op.tensor.element_size() for op in self.operations)
        return span(name, micro_batch=micro_batch, stage=stage, nbytes=nbytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)


# Pipeline parallelism: the model cut into stages, micro-batches sent through them on a schedule.

_SCHEDULES: dict[str, Callable[..., Any]] = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved1f1b": schedules.ScheduleInterleaved1F1B,
    "interleaved_zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
}


def pipeline_parallel_apply(build: Build) -> None:
    """Replace the model by this rank's stages of it; one, or several under the looped and V schedules."""
    config, mesh, [model] = build.config, build.mesh.of(PP), build.models
    rank, ranks = mesh.get_local_rank(), mesh.size()
    count = ranks * stages_per_rank(config)
    layers = layers_of_stages(config.model.layers, count, config[PipelineConfig].layers_per_stage)
    down_and_up = config[PipelineConfig].schedule == "zbv"
    mine = [rank, count - 1 - rank] if down_and_up else list(range(rank, count, ranks))
    build.models = [cut(model, layers[i], first=i == 0, last=i == count - 1) for i in mine]
    build.make_micro_step = lambda build: PipelineMicroStep(mine, build, mesh)


class PipelineMicroStep:
    """One run of the schedule: forwards and backwards of all micro-batches of one loader batch."""

    def __init__(self, stages: list[int], build: Build, mesh: DeviceMesh) -> None:
        config, pipeline = build.config, build.config[PipelineConfig]
        count = mesh.size() * stages_per_rank(config)
        self.around = build.around
        self.parts = pipeline.micro_batches * config.train.accumulate
        self.is_first = 0 in stages
        self.knows_loss = count - 1 in stages
        ranged = [
            RangedStage(module, stage, count, build.world.device, group=mesh.get_group())
            for stage, module in zip(stages, build.parts, strict=True)
        ]
        range_transfers()
        kind = _SCHEDULES[pipeline.schedule]
        # Scaled here and not by the schedule, which would scale what earlier micro-steps added up again.
        self.schedule: Any = kind(
            ranged[0] if kind in (schedules.ScheduleGPipe, schedules.Schedule1F1B) else ranged,
            pipeline.micro_batches,
            loss_fn=lambda output, labels: next_token_loss(output, labels) / self.parts,
            scale_grads=False,
        )

    def __call__(self, inputs: Tensor, labels: Tensor, hooks: Hooks, *, last: bool) -> Tensor | None:  # noqa: ARG002
        """See `local.MicroStep`. Gradients are synchronised in each call: the schedule knows no other."""
        losses: list[Tensor] = []
        hooks.before_forward()
        with self.around():
            self.schedule.step(
                *([inputs] if self.is_first else []),
                target=labels if self.knows_loss else None,
                losses=losses if self.knows_loss else None,
                return_outputs=False,
            )
        hooks.before_backward(None)
        return torch.stack(losses).mean().detach() * self.parts if self.knows_loss else None


class ReplicatedNorm(ParallelStyle):
    """A norm that every rank computes in full: its weight becomes a replicated DTensor."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        from torch.distributed.tensor import distribute_module

        return distribute_module(
            module,
            device_mesh,
            # Both may return a replacement by their documentation, unlike their annotation.
            input_fn=_as_replicated,  # type: ignore[arg-type]
            output_fn=_as_local,  # type: ignore[arg-type]
        )


def _as_replicated(_: nn.Module, inputs: tuple[Tensor], mesh: DeviceMesh) -> DTensor:
    return DTensor.from_local(inputs[0], mesh, [Replicate()])


def _as_local(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:  # noqa: ARG001
    return output.to_local()


def _gathered(between: Placement) -> PrepareModuleInput:
    return PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))


def apply(build: Build) -> None:
    """Shard the layers of each model, and the loss."""
    config, mesh = build.config[TensorConfig], build.mesh.of(TP)
    for model in build.models:
        _shard(model, config, mesh)
    if config.loss_parallel:
        build.contexts.append(loss_parallel)


def _shard(model: GPT, config: TensorConfig, mesh: DeviceMesh) -> None:
    """Shard a model or a pipeline stage, in place.

    Between layers the activations are whole on each rank, or with sequence parallelism each rank's
    slice of the sequence: then an all-gather and a reduce-scatter replace each all-reduce.
    """
    between: Placement = Shard(1) if config.sequence_parallel else Replicate()
    norm = SequenceParallel() if config.sequence_parallel else ReplicatedNorm()
    for block in model.blocks.values():
        plan: dict[str, ParallelStyle] = {
            "attention_norm": norm,
            "attention": _gathered(between),
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.out": RowwiseParallel(output_layouts=between),
            "mlp_norm": norm,
            "mlp": _gathered(between),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(output_layouts=between),
        }
        parallelize_module(block, mesh, plan)
    ends: dict[str, ParallelStyle] = {}
    if model.embedding is not None:
        ends["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if model.norm is not None and model.head is not None:
        ends["norm"] = norm
        ends["head"] = ColwiseParallel(
            input_layouts=between,
            output_layouts=Shard(-1) if config.loss_parallel else Replicate(),
            use_local_output=not config.loss_parallel,
        )
    parallelize_module(model, mesh, ends)
