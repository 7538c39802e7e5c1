"""A job's programs: what each rank's training loop does, step by step, under each kind of parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from simulator.instructions import (
    Allocate,
    Batch,
    Begin,
    End,
    Host,
    Kind,
    Launch,
    Reason,
    Record,
    Step,
    Synchronize,
    Work,
)
from simulator.job import Job
from simulator.machine import MAIN, Programs, execute
from simulator.recorded import Run
from simulator.script import (
    AUTOGRAD_THREAD,
    COMMUNICATION_STREAM,
    COMPUTE_STREAM,
    HIDDEN,
    MAIN_THREAD,
    Script,
)

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
SMALL = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl, std::array<char*, 2ul> >"
FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<AdamFunctor<float> >"
MEMORY_RATE = 2_000
"""Bytes per ns of the device's memory."""
RECV_STREAM, SEND_STREAM, SCATTER_STREAM = 20, 28, 36
BF16 = "c10::BFloat16"


def simulate(job: Job) -> Run:
    """Run the job."""
    return execute(programs(job), job.hardware())


def programs(job: Job) -> dict[int, Programs]:
    """What each rank does."""
    return {rank: {MAIN: _program(job, rank).out} for rank in range(job.ranks)}


def _program(job: Job, rank: int) -> Script:
    script = Script(job, rank)
    # Processes do not start at the same instant.
    script.add(Host(round(200_000 * job.noise(0.3, rank, "start"))))
    for step in range(job.steps):
        script.begin_step(step)
        script.add(Step(step))
        if job.mark:
            script.add(Begin(job.mark, "user_annotation"), End())
        _input(script)
        if step == 0 and job.compile_ns:
            script.held("_compile.compile_inner (dynamo_timed)", job.compile_ns, Reason.HOST_OTHER)
        if job.parallel == "pipeline":
            _pipeline_step(script)
        else:
            _data_parallel_step(script)
        _between(script)
    return script


def _input(script: Script) -> None:
    job = script.job
    if job.loader_ns:
        own = job.loader_ranks is None or script.rank in job.loader_ranks
        load = round(
            (job.loader_ns if own else job.loader_ns // 100)
            * job.noise(job.host_jitter, script.rank, script.step, "load")
        )
        kind = "_MultiProcessing" if job.workers else "_SingleProcess"
        script.add(Begin(f"enumerate(DataLoader)#{kind}DataLoaderIter.__next__", "user_annotation"))
        script.add(Batch(job.workers, 2, load, apart=job.workers_apart) if job.workers else Host(load, Reason.INPUT))
        script.add(End())
    for number in range(job.copies if job.copy_bytes else 0):
        script.copy_batch(number)


def _between(script: Script) -> None:
    """What the loop does behind the optimizer."""
    job = script.job
    if job.gc_ns and (job.gc_ranks is None or script.rank in job.gc_ranks):
        script.held("Python GC", job.gc_ns, Reason.GC, "python_function")
    named = job.host_work_ranks is None or script.rank in job.host_work_ranks
    named = named and script.step % job.host_work_every == 0
    if job.host_work_ns and named and not job.host_work.startswith("Optimizer"):
        script.held(job.host_work, job.host_work_ns, Reason.HOST_OTHER)
    if script.step == job.outlier_step and job.outlier_ranks in (None, (script.rank,)):
        script.held(job.outlier_work, job.outlier_ns, Reason.HOST_OTHER)


def _data_parallel_step(script: Script) -> None:
    job = script.job
    with script.range("Optimizer.zero_grad#AdamW.zero_grad", "user_annotation"):
        script.add(Host(20_000))
    for _ in range(job.empty_cache):
        with script.range("aten::empty"):
            script.add(Allocate("cudaMalloc", job.allocation_ns))
    pending: list[str] = []
    for micro in range(job.accumulate):
        if micro:
            script.turn(MAIN_THREAD)
        pending = _forward_and_backward(script, sync=not job.no_sync or micro == job.accumulate - 1)
    if not job.gradient_copies:
        script.turn(MAIN_THREAD)
    for event in pending:
        script.wait_for(event)
    if job.gradient_copies:
        _copy_gradients(script)
        script.turn(MAIN_THREAD)
    optimizer(script)
    script.read()
    if job.empty_cache:
        script.flush()
        script.add(*(Allocate("cudaFree", job.allocation_ns, drains=True) for _ in range(job.empty_cache)))


def _copy_gradients(script: Script) -> None:
    """As DDP's reducer does at the end of the backward pass, on autograd's thread: each gradient read and written."""
    job = script.job
    for _ in range(job.layers * job.gemms):
        dur = max(2_000, round(2 * job.layer_bytes / job.gemms / MEMORY_RATE))
        work = Work(
            "Memcpy DtoD (Device -> Device)",
            dur,
            COMPUTE_STREAM,
            Kind.MEMORY,
            "gpu_memcpy",
            {"bytes": job.layer_bytes // job.gemms},
        )
        with script.range("torch.distributed.ddp.reducer::copy_bucket_to_grad"), script.range("aten::copy_"):
            script.add(Host(job.op_ns), Launch(work, "cudaMemcpyAsync"))


def _forward_and_backward(script: Script, sync: bool) -> list[str]:
    """Returns the events that the optimizer waits for."""
    job = script.job
    if job.parallel == "ddp" and job.wrapped:
        script.add(Begin("DistributedDataParallel.forward", "user_annotation"))
    if job.parallel == "fsdp":
        root = "FullyShardedDataParallel._to_kwargs" if job.fsdp1 else "FSDP::root_pre_forward"
        script.add(Begin(root, "user_annotation"), End())
    gathered: dict[int, str] = {}
    every = max(1, job.layers // job.items) if job.items else 0
    for layer in range(job.layers):
        if job.parallel == "fsdp":
            name = "FullyShardedDataParallel._pre_forward" if job.fsdp1 else f"FSDP::pre_forward (layers.{layer})"
            with script.range(name, "user_annotation"):
                _gather(script, gathered, layer, range(layer + 1, job.layers))
        forward(script, layer)
        _freed(script, "forward", layer)
        if job.parallel == "tensor":
            _tensor_reduce(script)
        if every and layer % every == every - 1:
            script.item()
        if layer < job.allocations:
            script.allocate()
    if job.parallel == "ddp" and job.wrapped:
        if job.search_ns:
            with script.range("torch.distributed.ddp.reducer::search_unused_parameters"):
                script.add(Host(job.search_ns))
        script.flush()
        script.add(End())
    script.turn(AUTOGRAD_THREAD)
    return _backward(script, sync)


def forward(script: Script, layer: int, part: int = 1, tag: str = "f") -> None:
    """A layer's forward pass on one of `part` parts of the batch."""
    job, slow = script.job, script.job.stage_slow.get(script.rank, 1.0)
    shapes = {"Input Dims": [[HIDDEN], [script.tokens // part, HIDDEN], [HIDDEN, HIDDEN]], "Input type": [BF16] * 3}
    for n in range(job.gemms):
        work = script.kernel(GEMM, round(job.gemm_ns * slow / part), tag, layer, n)
        names = ("aten::matmul", "aten::bmm") if job.batched else ("aten::linear", "aten::addmm")
        script.op(names, work, shapes=shapes)
    for n in range(job.smalls):
        work = script.kernel(SMALL, round(job.small_ns * slow / part), tag, layer, "s", n)
        script.op((f"aten::{job.small_op}",), work)


def backward(script: Script, layer: int, part: int = 1, tag: str = "b") -> None:
    """The elementwise part of a layer's backward pass; the matrix products are `backward_gemm`'s."""
    slow = script.job.stage_slow.get(script.rank, 1.0)
    for n in range(script.job.smalls):
        work = script.kernel(SMALL, round(script.job.small_ns * slow / part), tag, layer, "s", n)
        node = f"{script.job.small_op.capitalize()}Backward0"
        names = (f"autograd::engine::evaluate_function: {node}", node, f"aten::{script.job.small_op}_backward")
        script.op(names, work)


def backward_gemm(script: Script, layer: int, n: int, part: int = 1, tag: str = "b") -> None:
    """The gradients of one matrix product, by its input and by its weight."""
    job, slow = script.job, script.job.stage_slow.get(script.rank, 1.0)
    rows = script.tokens // part
    for side, dims in (("x", [[rows, HIDDEN], [HIDDEN, HIDDEN]]), ("w", [[HIDDEN, rows], [rows, HIDDEN]])):
        work = script.kernel(GEMM, round(job.gemm_ns * slow / part), tag, layer, n, side)
        names = ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", "aten::mm")
        if job.batched:
            names = ("autograd::engine::evaluate_function: BmmBackward0", "BmmBackward0", "aten::bmm")
        script.op(names, work, shapes={"Input Dims": dims, "Input type": [BF16] * 2})


def _backward(script: Script, sync: bool = True) -> list[str]:
    """Returns the events that the optimizer waits for."""
    job = script.job
    pending: list[str] = []
    held: list[int] = []
    sent = False
    late: list[int] = []
    gathered: dict[int, str] = {}
    tensor = job.layer_bytes // job.gemms
    for layer in reversed(range(job.layers)):
        if job.parallel == "fsdp" and not job.keep_parameters:
            name = "autograd::engine::evaluate_function: ViewBackward0"
            own = "FullyShardedDataParallel._pre_backward_hook" if job.fsdp1 else f"FSDP::pre_backward (layers.{layer})"
            with script.range(name), script.range(own, "user_annotation"):
                _gather(script, gathered, layer, range(layer - 1, -1, -1))
        if layer < job.device_syncs:
            script.synchronize()
        backward(script, layer)
        if job.parallel == "tensor":
            _tensor_reduce(script)
        for n in reversed(range(job.gemms)):
            backward_gemm(script, layer, n)
            for size in filter(None, (job.bias_bytes, tensor)):
                last = layer == 0 and n == 0 and size == tensor
                held.append(size)
                limit = job.first_bucket if job.first_bucket and not sent else job.bucket_bytes
                full = (sum(held) >= limit or last) and job.parallel in ("ddp", "tensor") and sync
                _accumulate(script, size, sum(held) if full and job.overlap else 0, pending)
                if full:
                    late += [sum(held)] if not job.overlap else []
                    sent, held = True, []
        if job.parallel == "fsdp" and sync:
            pending.append(_scatter(script, layer))
        _freed(script, "backward", layer)
    if job.each_waited:
        script.turn(MAIN_THREAD)
        for size in reversed(late):
            _averaged(script, size)
        return []
    return pending + [_reduce(script, size) for size in late]


def _averaged(script: Script, size: int) -> None:
    """`all_reduce(parameter.grad); parameter.grad /= world_size`."""
    script.wait_for(_reduce(script, size))
    script.op(("aten::div_",), script.kernel(SMALL, max(2_000, 2 * size // MEMORY_RATE), "divide", size, batch=False))


def _accumulate(script: Script, size: int, bucket: int, pending: list[str]) -> None:
    """A gradient is there; where it fills a bucket, that is sent."""
    with script.range("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"):
        dims: dict[str, Any] = {"Input Dims": [[size // 4]], "Input type": ["float"]}
        with script.range("torch::autograd::AccumulateGrad", **dims):
            script.add(Host(0 if script.job.graphs else 3_000))
        if bucket:
            pending.append(_reduce(script, bucket))


def _reduce(script: Script, size: int) -> str:
    if script.job.parallel != "tensor":
        return script.collective("all_reduce", size, gradient=True)
    column = script.rank % 2
    return script.collective("all_reduce", size, f"dp{column}", script.job.group[column::2], gradient=True)


def _gather(script: Script, gathered: dict[int, str], layer: int, coming: range) -> None:
    """Parameters of a layer and of those `prefetch` ahead, each once. A gather begins behind what the compute stream
    has by then: without prefetch behind the layer before, else beside it."""
    job = script.job
    backward = coming.step < 0
    for other in (layer, *coming[: job.prefetch]):
        ahead = job.fsdp1 and backward and other != layer
        if other not in gathered:
            if ahead:
                script.add(Begin("FullyShardedDataParallel._pre_backward_prefetch", "user_annotation"))
            if job.limited:
                _wait_for_room(script, "backward" if backward else "forward", other + 2 if backward else other - 2)
            name = "nccl_gather" if job.fsdp1 else f"FSDP::all_gather (layers.{other})"
            with script.range(name, "user_annotation"):
                gathered[other] = script.collective("all_gather", job.bytes_of(other))
            if ahead:
                script.add(End())
    script.wait_for(gathered[layer])


def _freed(script: Script, way: str, layer: int) -> None:
    """A module's parameters are given back behind its compute."""
    if script.job.limited:
        script.flush()
        script.add(Record(f"free {script.step} {way} {layer}", COMPUTE_STREAM))


def _wait_for_room(script: Script, way: str, layer: int) -> None:
    """FSDP1's limit: the gather waits until the module two before has given back its own."""
    if 0 <= layer < script.job.layers:
        with script.range("FullyShardedDataParallel.rate_limiter", "user_annotation"):
            script.add(Synchronize(f"free {script.step} {way} {layer}"))


def _scatter(script: Script, layer: int) -> str:
    """A layer's gradients to the ranks that keep them."""
    name = "RegisterPostBackwardFunctionBackward"
    with script.range(f"autograd::engine::evaluate_function: {name}"), script.range(name):
        own = f"FSDP::post_backward_reduce (layers.{layer})"
        own = "FullyShardedDataParallel._post_backward_reduce" if script.job.fsdp1 else own
        with script.range(own, "user_annotation"):
            stream = SCATTER_STREAM if script.job.scatter_apart else COMMUNICATION_STREAM
            return script.collective("reduce_scatter", script.job.bytes_of(layer), stream=stream, gradient=True)


def _tensor_reduce(script: Script) -> None:
    first = script.rank // 2 * 2
    done = script.collective("all_reduce", script.job.tensor_bytes, f"tp{first // 2}", (first, first + 1), 32)
    script.wait_for(done)


def optimizer(script: Script) -> None:
    """Optimizer.step()."""
    job = script.job
    name = job.host_work if job.host_work.startswith("Optimizer") else "Optimizer.step#AdamW.step"
    with script.range(name, "user_annotation"):
        script.add(Host(30_000))
        named = job.host_work_ranks is None or script.rank in job.host_work_ranks
        named = named and script.step % job.host_work_every == 0
        if name == job.host_work and named:
            script.flush()
            script.use(job.host_work_ns)
        for n in range(job.optimizer_kernels):
            script.op(("aten::_foreach_add_",), script.kernel(FOREACH, job.optimizer_ns, "o", n, batch=False))
        script.flush()


def _pipeline_step(script: Script) -> None:
    """GPipe (all micro-batches forward, then all backward) or 1F1B, one rank a stage."""
    order = _computations(script.job, script.rank)
    posted: dict[int, list[int]] = {place: [] for place in range(len(order))}
    for place, (kind, _) in enumerate(order):
        if _peer(script, kind, -1) is not None:
            posted[_posted(script, order, place) if script.job.ahead else place].append(place)
    done: dict[int, str] = {}
    for place, (kind, micro) in enumerate(order):
        if kind == "B":
            script.turn(AUTOGRAD_THREAD)
        for other in posted[place]:
            done[other] = _receive(script, _peer(script, order[other][0], -1))
        if place in done:
            script.wait_for(done[place])
        with _computing(script, f"PP:{script.rank}{kind}{micro}"):
            _compute_stage(script, kind, micro)
        if (peer := _peer(script, kind, 1)) is not None:
            _send(script, peer)
        if kind == "B":
            script.turn(MAIN_THREAD)
    optimizer(script)


def _computations(job: Job, rank: int) -> list[tuple[str, int]]:
    """Kinds and micro-batches of a stage's computations, in their order."""
    count = job.micro_batches
    ahead = min(count, job.ranks - rank) if job.one_by_one else count
    order = [("F", micro) for micro in range(ahead)]
    for micro in range(count):
        order += [("B", micro), *([("F", ahead + micro)] if ahead + micro < count else [])]
    return order


def _peer(script: Script, kind: str, way: int) -> int | None:
    """The stage that a computation sends to (`way` 1) or receives from (−1); None at the pipeline's ends."""
    peer = script.rank + (way if kind == "F" else -way)
    return peer if 0 <= peer < script.job.ranks else None


def _posted(script: Script, order: Sequence[tuple[str, int]], place: int) -> int:
    """The computation before which the receive for a later one is posted: the first behind the message before."""
    place = max(place - 1, 0)
    while place and _peer(script, order[place][0], -1) is None and _peer(script, order[place - 1][0], 1) is None:
        place -= 1
    return place


def _compute_stage(script: Script, kind: str, micro: int) -> None:
    job, count = script.job, script.job.micro_batches
    for layer in range(job.layers) if kind == "F" else reversed(range(job.layers)):
        if kind == "F":
            forward(script, layer, count, f"f{micro}")
            continue
        backward(script, layer, count, f"b{micro}")
        for n in reversed(range(job.gemms)):
            backward_gemm(script, layer, n, count, f"b{micro}")


def _computing(script: Script, name: str) -> AbstractContextManager[None]:
    return script.range(name, "user_annotation") if script.job.pipeline_ranges else nullcontext()


def _pair(one: int, other: int) -> tuple[str, tuple[int, ...]]:
    return f"pp{one}to{other}", tuple(sorted((one, other)))


def _receive(script: Script, peer: int | None) -> str:
    assert peer is not None
    group, ranks = _pair(peer, script.rank)
    return script.collective("recv", script.job.message_bytes, group, ranks, RECV_STREAM, peer=peer)


def _send(script: Script, peer: int) -> str:
    group, ranks = _pair(script.rank, peer)
    return script.collective("send", script.job.message_bytes, group, ranks, SEND_STREAM, peer=peer)
