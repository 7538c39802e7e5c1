"""Records the inputs of test_conformance.py: tiny jobs on CPU, each showing one behaviour of a recorder.

    python tests/conformance/record.py [NAME …]     writes inputs/NAME/rank0.json.gz and, of two ranks, rank1.json.gz

Needs torch (recorded with 2.13.0). Hosts and paths are replaced, so that two recordings differ in times alone.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

INPUTS = Path(__file__).parent / "inputs"
STEPS = 4
TWO_RANKS: dict[str, Callable[[Path], None]] = {}
ONE_RANK: dict[str, Callable[[Path], None]] = {}


def two_ranks(job: Callable[[Path], None]) -> Callable[[Path], None]:
    TWO_RANKS[job.__name__] = job
    return job


def one_rank(job: Callable[[Path], None]) -> Callable[[Path], None]:
    ONE_RANK[job.__name__] = job
    return job


def record(folder: Path, step: Callable[[int], None], *, before: int = 2, steps: int = STEPS, **options: Any) -> None:
    """Some steps that nothing records, then `steps` recorded ones."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    rank = int(os.environ.get("RANK", 0))
    options = {"record_shapes": True} | options
    for number in range(before):
        step(number)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=steps), **options
    ) as run:
        for number in range(steps + 1):
            step(number)
            if number < steps:
                run.step()
    save(run, folder / f"rank{rank}.json.gz")
    assert torch.is_tensor(torch.empty(0))


def save(run: Any, path: Path) -> None:
    plain = path.with_suffix("")
    run.export_chrome_trace(str(plain))
    text = plain.read_bytes().decode(errors="surrogateescape")
    plain.unlink()
    import socket

    for private, public in ((str(plain), plain.name), (str(Path(__file__)), Path(__file__).name), (sys.prefix, "/env")):
        text = text.replace(private, public)
    text = text.replace(f'"{socket.gethostname()}"', '"host"')
    path.write_bytes(gzip.compress(text.encode(errors="surrogateescape"), mtime=0))


def layers(width: int = 64, count: int = 3) -> Any:
    import torch

    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(count)])


def work(seconds: float) -> None:
    """Computes, as a late rank does."""
    import torch

    matrix = torch.ones(128, 128)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        matrix @ matrix


def averaged(model: Any) -> None:
    import torch.distributed as dist

    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def late_by_hand(folder: Path, between: Callable[[], None] = lambda: None) -> None:
    """Gradients averaged one by one; rank 1 computes 15 ms more."""
    import torch
    import torch.distributed as dist

    model, batch = layers(), torch.ones(32, 64)

    def step(_: int) -> None:
        model.zero_grad()
        model(batch).sum().backward()
        if dist.get_rank() == 1:
            work(0.015)
        between()
        averaged(model)

    record(folder, step)


@two_ranks
def debug_detail(folder: Path) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL adds sends, receives and gathers to every collective."""
    late_by_hand(folder)


@two_ranks
def monitored_barrier(folder: Path) -> None:
    """Is made of sends and receives."""
    import torch.distributed as dist

    late_by_hand(folder, dist.monitored_barrier)


@two_ranks
def reduce_scatter(folder: Path) -> None:
    """gloo's reduce-scatter is recorded as an all-reduce of the whole array."""
    import torch
    import torch.distributed as dist

    whole, part = torch.ones(8192), torch.empty(4096)

    def step(_: int) -> None:
        work(0.003)
        dist.reduce_scatter_single(part, whole)

    record(folder, step)


@two_ranks
def early_receive(folder: Path) -> None:
    """`gloo:recv` lasts from the call to the wait, over whatever runs meanwhile."""
    import torch
    import torch.distributed as dist

    other, sent, received = 1 - dist.get_rank(), torch.ones(1024), torch.empty(1024)

    def step(_: int) -> None:
        operations = [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, received, other)]
        requests = dist.batch_isend_irecv(operations)
        work(0.008)
        time.sleep(0.004)
        work(0.002)
        for request in requests:
            request.wait()

    record(folder, step)


def pipeline(folder: Path, schedule_name: str, stages_per_rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed import pipelining

    rank, batch = dist.get_rank(), torch.ones(16, 256)
    stages = [
        pipelining.PipelineStage(layers(256), rank + 2 * chunk, 2 * stages_per_rank, torch.device("cpu"))
        for chunk in range(stages_per_rank)
    ]
    loss = torch.nn.functional.mse_loss
    kind = getattr(pipelining, schedule_name)
    schedule = kind(stages if stages_per_rank > 1 else stages[0], 4, loss_fn=loss)
    record(folder, lambda _: schedule.step(batch) if rank == 0 else schedule.step(target=batch))


@two_ranks
def pipeline_gpipe(folder: Path) -> None:
    """Ranges «Forward 0», «Backward 0»."""
    pipeline(folder, "ScheduleGPipe", 1)


@two_ranks
def pipeline_1f1b(folder: Path) -> None:
    """No range at all."""
    pipeline(folder, "Schedule1F1B", 1)


@two_ranks
def pipeline_interleaved(folder: Path) -> None:
    """Ranges «PP:2F0», «PP:2SEND_F0»."""
    pipeline(folder, "ScheduleInterleaved1F1B", 2)


@two_ranks
def dtensor(folder: Path) -> None:
    """Each operator is recorded for the whole tensor and for the shard."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, batch = layers(512, 2), torch.ones(64, 512)
    parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "1": RowwiseParallel()})
    record(folder, lambda _: model(batch).sum().backward())


@two_ranks
def ddp_first_steps(folder: Path) -> None:
    """Recorded from the very first step on: one bucket, bitmaps and a broadcast of the new buckets come once."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model, batch = DistributedDataParallel(layers(), static_graph=True), torch.ones(32, 64)
    record(folder, lambda _: model(batch).sum().backward(), before=0, steps=6)


@two_ranks
def join_left(folder: Path) -> None:
    """A job that once used join(): two all-reduces of one element more per step."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model, batch = DistributedDataParallel(layers()), torch.ones(32, 64)
    with model.join():
        model(batch).sum().backward()
    record(folder, lambda _: model(batch).sum().backward())


@one_rank
def closure(folder: Path) -> None:
    """The optimizer's range holds forward and backward."""
    import torch

    model, batch = layers(256), torch.ones(64, 256)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def loss() -> Any:
        optimizer.zero_grad()
        result = model(batch).sum()
        result.backward()
        return result

    record(folder, lambda _: optimizer.step(loss))


@one_rank
def checkpointed(folder: Path) -> None:
    """The forward of a checkpointed part runs again within the backward of another operator."""
    import torch
    from torch.utils.checkpoint import checkpoint

    model, batch = layers(256), torch.ones(64, 256, requires_grad=True)
    record(folder, lambda _: checkpoint(model, batch, use_reentrant=False).sum().backward())


@one_rank
def strange_names(folder: Path) -> None:
    """Quotes break the file, tabs and letters beyond ASCII lose the name."""
    from torch.profiler import record_function

    def step(_: int) -> None:
        for name in ('layer "3"', "a\tb", "größe", "a\\b", "two\nlines"):
            with record_function(name):
                work(0.001)

    record(folder, step)


@one_rank
def metadata_quotes(folder: Path) -> None:
    """A value with quotes, handed to add_metadata, breaks the file."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as run:
        work(0.005)
        run.add_metadata("command", 'train.py --name "base"')
    save(run, folder / "rank0.json.gz")
    assert torch.is_tensor(torch.empty(0))


@one_rank
def stacks(folder: Path) -> None:
    """Ranges that begin in one Python frame and end in another."""
    from torch.profiler import record_function

    def parts() -> Any:
        with record_function("load"):
            work(0.002)
            yield
            work(0.002)
        yield

    def step(_: int) -> None:
        generator = parts()
        next(generator)
        with record_function("between"):
            work(0.002)
            next(generator)

    record(folder, step, with_stack=True, steps=2)


@one_rank
def cut_cycle(folder: Path) -> None:
    """The loop ends within a cycle: the last ProfilerStep is of a step that never ran."""
    from torch.profiler import ProfilerActivity, profile, schedule

    last = folder / "rank0.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=5),
        on_trace_ready=lambda run: save(run, last),
    ) as run:
        for _ in range(11):
            work(0.004)
            run.step()


@one_rank
def paused(folder: Path) -> None:
    """Collection is switched off within each step; nothing in the file says so."""
    from torch.profiler import ProfilerActivity, profile, schedule

    activities = [ProfilerActivity.CPU]
    with profile(activities=activities, schedule=schedule(wait=0, warmup=1, active=4)) as run:
        for number in range(5):
            work(0.004)
            if number:
                run.toggle_collection_dynamic(False, activities)
            work(0.004)
            if number:
                run.toggle_collection_dynamic(True, activities)
            work(0.001)
            if number < 4:
                run.step()
    save(run, folder / "rank0.json.gz")


@one_rank
def attention(folder: Path) -> None:
    """with_flops counts no attention and writes nothing into the file."""
    import torch

    heads = torch.ones(2, 4, 128, 64)
    record(folder, lambda _: torch.nn.functional.scaled_dot_product_attention(heads, heads, heads), with_flops=True)


def run_job(name: str) -> None:
    import torch

    torch.set_num_threads(1)
    folder = INPUTS / name
    folder.mkdir(parents=True, exist_ok=True)
    if name in ONE_RANK:
        ONE_RANK[name](folder)
        return
    import torch.distributed as dist

    dist.init_process_group("gloo")
    TWO_RANKS[name](folder)
    dist.destroy_process_group()


def main() -> None:
    names = sys.argv[1:] or [*TWO_RANKS, *ONE_RANK]
    if os.environ.get("CONFORMANCE_JOB"):
        run_job(os.environ["CONFORMANCE_JOB"])
        return
    for name in names:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if name in TWO_RANKS else []
        debug = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if name == "debug_detail" else {}
        environment = os.environ | {"CONFORMANCE_JOB": name, "OMP_NUM_THREADS": "1"} | debug
        print(name, flush=True)
        subprocess.run([sys.executable, *launcher, __file__], env=environment, check=True)


if __name__ == "__main__":
    main()
