"""A job's programs: what each rank's training loop does, step by step, under each kind of parallelism."""

from __future__ import annotations

from typing import Any

from simulator.instructions import Allocate, Batch, Begin, End, Host, Reason, Step
from simulator.job import Job
from simulator.machine import MAIN, Programs, execute
from simulator.recorded import Run
from simulator.script import (
    AUTOGRAD_THREAD,
    COMMUNICATION_STREAM,
    HIDDEN,
    MAIN_THREAD,
    Script,
)  # fmt: skip

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
SMALL = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl, std::array<char*, 2ul> >"
FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<AdamFunctor<float> >"
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
        load = round(job.loader_ns * job.noise(job.host_jitter, script.rank, script.step, "load"))
        kind = "_MultiProcessing" if job.workers else "_SingleProcess"
        script.add(Begin(f"enumerate(DataLoader)#{kind}DataLoaderIter.__next__", "user_annotation"))
        script.add(Batch(job.workers, 2, load) if job.workers else Host(load, Reason.INPUT))
        script.add(End())
    for number in range(job.copies if job.copy_bytes else 0):
        script.copy_batch(number)


def _between(script: Script) -> None:
    """What the loop does behind the optimizer."""
    job = script.job
    if job.gc_ns and (job.gc_ranks is None or script.rank in job.gc_ranks):
        script.held("Python GC", job.gc_ns, Reason.GC, "python_function")
    named = job.host_work_ranks is None or script.rank in job.host_work_ranks
    if job.host_work_ns and named and not job.host_work.startswith("Optimizer"):
        script.held(job.host_work, job.host_work_ns, Reason.HOST_OTHER)
    if script.step == job.outlier_step:
        script.held("save_checkpoint", job.outlier_ns, Reason.HOST_OTHER)


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
    script.turn(MAIN_THREAD)
    for event in pending:
        script.wait_for(event)
    optimizer(script)
    if job.empty_cache:
        script.flush()
        script.add(*(Allocate("cudaFree", job.allocation_ns, drains=True) for _ in range(job.empty_cache)))


def _forward_and_backward(script: Script, sync: bool) -> list[str]:
    """Returns the events that the optimizer waits for."""
    job = script.job
    if job.parallel == "ddp":
        script.add(Begin("DistributedDataParallel.forward", "user_annotation"))
    gathered: dict[int, str] = {}
    every = max(1, job.layers // job.items) if job.items else 0
    for layer in range(job.layers):
        if job.parallel == "fsdp":
            with script.range(f"FSDP::pre_forward (layers.{layer})", "user_annotation"):
                _gather(script, gathered, layer, range(layer + 1, job.layers))
        forward(script, layer)
        if job.parallel == "tensor":
            _tensor_reduce(script)
        if every and layer % every == every - 1:
            script.item()
        if layer < job.allocations:
            script.allocate()
    if job.parallel == "ddp":
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
        script.op(("aten::linear", "aten::addmm"), work, shapes=shapes)
    for n in range(job.smalls):
        work = script.kernel(SMALL, round(job.small_ns * slow / part), tag, layer, "s", n)
        script.op(("aten::gelu",), work)


def backward(script: Script, layer: int, part: int = 1, tag: str = "b") -> None:
    """The elementwise part of a layer's backward pass; the matrix products are `backward_gemm`'s."""
    slow = script.job.stage_slow.get(script.rank, 1.0)
    for n in range(script.job.smalls):
        work = script.kernel(SMALL, round(script.job.small_ns * slow / part), tag, layer, "s", n)
        name = "autograd::engine::evaluate_function: GeluBackward0"
        script.op((name, "GeluBackward0", "aten::gelu_backward"), work)


def backward_gemm(script: Script, layer: int, n: int, part: int = 1, tag: str = "b") -> None:
    """The gradients of one matrix product, by its input and by its weight."""
    job, slow = script.job, script.job.stage_slow.get(script.rank, 1.0)
    rows = script.tokens // part
    for side, dims in (("x", [[rows, HIDDEN], [HIDDEN, HIDDEN]]), ("w", [[HIDDEN, rows], [rows, HIDDEN]])):
        work = script.kernel(GEMM, round(job.gemm_ns * slow / part), tag, layer, n, side)
        names = ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", "aten::mm")
        script.op(names, work, shapes={"Input Dims": dims, "Input type": [BF16] * 2})


def _backward(script: Script, sync: bool = True) -> list[str]:
    """Returns the events that the optimizer waits for."""
    job = script.job
    pending: list[str] = []
    held: list[int] = []
    late: list[int] = []
    gathered: dict[int, str] = {}
    tensor = job.layer_bytes // job.gemms
    for layer in reversed(range(job.layers)):
        if job.parallel == "fsdp" and not job.keep_parameters:
            name = "autograd::engine::evaluate_function: ViewBackward0"
            with script.range(name), script.range(f"FSDP::pre_backward (layers.{layer})", "user_annotation"):
                _gather(script, gathered, layer, range(layer - 1, -1, -1))
        if layer < job.device_syncs:
            script.synchronize()
        backward(script, layer)
        if job.parallel == "tensor":
            _tensor_reduce(script)
        for n in reversed(range(job.gemms)):
            backward_gemm(script, layer, n)
            last = layer == 0 and n == 0
            held.append(tensor)
            full = (sum(held) >= job.bucket_bytes or last) and job.parallel in ("ddp", "tensor") and sync
            _accumulate(script, tensor, sum(held) if full and job.overlap else 0, pending)
            if full:
                late += [sum(held)] if not job.overlap else []
                held = []
        if job.parallel == "fsdp":
            pending.append(_scatter(script, layer))
    return pending + [_reduce(script, size) for size in late]


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
    for other in (layer, *coming[: job.prefetch]):
        if other not in gathered:
            with script.range(f"FSDP::all_gather (layers.{other})", "user_annotation"):
                gathered[other] = script.collective("all_gather", job.layer_bytes)
    script.wait_for(gathered[layer])


def _scatter(script: Script, layer: int) -> str:
    """A layer's gradients to the ranks that keep them."""
    name = "RegisterPostBackwardFunctionBackward"
    with script.range(f"autograd::engine::evaluate_function: {name}"), script.range(name):  # noqa: SIM117
        with script.range(f"FSDP::post_backward_reduce (layers.{layer})", "user_annotation"):
            stream = SCATTER_STREAM if script.job.scatter_apart else COMMUNICATION_STREAM
            return script.collective("reduce_scatter", script.job.layer_bytes, stream=stream, gradient=True)


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
        if name == job.host_work and named:
            script.flush()
            script.add(Host(job.host_work_ns, Reason.HOST_OTHER))
        for n in range(job.optimizer_kernels):
            script.op(("aten::_foreach_add_",), script.kernel(FOREACH, job.optimizer_ns, "o", n, batch=False))
        script.flush()


def _pipeline_step(script: Script) -> None:
    """GPipe: all micro-batches forward, then all backward, one rank a stage."""
    job, rank = script.job, script.rank
    count, size = job.micro_batches, job.activation_bytes // job.micro_batches
    for micro in range(count):
        if rank > 0:
            script.wait_for(_receive(script, size, rank - 1))
        with script.range(f"PP:{rank}F{micro}", "user_annotation"):
            for layer in range(job.layers):
                forward(script, layer, count, f"f{micro}")
        if rank < job.ranks - 1:
            _send(script, size, rank + 1)
    script.turn(AUTOGRAD_THREAD)
    for micro in range(count):
        if rank < job.ranks - 1:
            script.wait_for(_receive(script, size, rank + 1))
        with script.range(f"PP:{rank}B{micro}", "user_annotation"):
            for layer in reversed(range(job.layers)):
                backward(script, layer, count, f"b{micro}")
                for n in reversed(range(job.gemms)):
                    backward_gemm(script, layer, n, count, f"b{micro}")
        if rank > 0:
            _send(script, size, rank - 1)
    script.turn(MAIN_THREAD)
    optimizer(script)


def _pair(one: int, other: int) -> tuple[str, tuple[int, ...]]:
    return f"pp{one}to{other}", tuple(sorted((one, other)))


def _receive(script: Script, size: int, peer: int) -> str:
    group, ranks = _pair(peer, script.rank)
    return script.collective("recv", size, group, ranks, RECV_STREAM, peer=peer)


def _send(script: Script, size: int, peer: int) -> str:
    group, ranks = _pair(script.rank, peer)
    return script.collective("send", size, group, ranks, SEND_STREAM, peer=peer)
