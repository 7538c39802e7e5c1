"""Labelled jobs: what was injected, and (from the simulation) which class and cause that makes.

Two strengths of each cause alone, then combinations, healthy jobs, stragglers by reason, and recordings that hold less
than the job did.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.job import MIB, Job
from simulator.judged import Case
from simulator.kineto_rows import Profiler

MS = 1_000_000
COMPUTE = Job(layers=4, gemms=3, smalls=3)
"""About 8 ms of device work a step, the host far ahead."""
SMALL = Job(layers=4, gemms=3, smalls=4, gemm_ns=45_000, small_ns=14_000, layer_bytes=2 * MIB, optimizer_ns=12_000)
"""About 3 ms of device work a step in operations not much longer than launching them."""
NARROW = replace(SMALL, gemm_ns=24_000, small_ns=16_000, items=1)
"""Operations little longer than launching them, so that a drained queue fills slowly."""
TALKATIVE = replace(SMALL, bucket_bytes=1, layer_bytes=MIB // 4, overlap=False)
"""A small all-reduce for each gradient, behind the backward pass."""
TINY = replace(SMALL, gemm_ns=9_000, small_ns=4_000, parallel="single", ranks=1, optimizer_ns=5_000)
"""Operations shorter than launching them."""
READ_LOSS = replace(COMPUTE, items=1)
"""The loss is read once a step, so the host is never a whole step ahead."""


def _job(base: Job, name: str, **changed: object) -> Job:
    return replace(base, name=name, **changed)  # type: ignore[arg-type]


def _alone() -> list[Case]:
    return [
        Case(_job(COMPUTE, "input_strong", loader_ns=44 * MS, workers=2), "two loader workers need twice the step"),
        Case(_job(NARROW, "input_weak", loader_ns=MS, workers=0), "batches loaded on the training thread"),
        Case(_job(NARROW, "sync_strong", items=4, device_syncs=4, item_own_ns=150_000), "eight blocking calls"),
        Case(_job(NARROW, "sync_weak", items=4, item_own_ns=40_000), "four .item() in the forward pass"),
        Case(_job(TINY, "launch_strong"), "kernels of 4 to 9 us, 14 us to launch one"),
        Case(_job(TINY, "launch_weak", gemm_ns=16_000, small_ns=10_000), "kernels of 10 to 16 us, 14 us to launch one"),
        Case(_job(NARROW, "gc_strong", gc_ns=3 * MS), "the garbage collector runs in every step"),
        Case(_job(NARROW, "gc_weak", gc_ns=6 * MS // 5), "the same, shorter"),
        Case(_job(READ_LOSS, "host_strong", host_work_ns=9 * MS), "a checkpoint in every step"),
        Case(
            _job(NARROW, "host_weak", host_work_ns=6 * MS // 5, host_work="Optimizer.step#Shampoo.step"),
            "the optimizer computes in Python for 1.2 ms",
        ),
        Case(_job(COMPUTE, "bandwidth_strong", rate=20.0), "32 MiB a layer over a slow link"),
        Case(_job(COMPUTE, "bandwidth_weak", rate=32.0), "the same, over a faster link"),
        Case(_job(TALKATIVE, "latency_strong", alpha_ns=90_000), "one a gradient"),
        Case(_job(TALKATIVE, "latency_weak", alpha_ns=40_000), "the same, shorter"),
        Case(
            _job(COMPUTE, "bubble_strong", parallel="pipeline", ranks=4, layers=1, micro_batches=2),
            "four stages, two micro-batches",
        ),
        Case(
            _job(COMPUTE, "bubble_weak", parallel="pipeline", ranks=2, layers=2, micro_batches=4),
            "two stages, four micro-batches",
        ),
        Case(_job(COMPUTE, "copy_strong", copy_bytes=192 * MIB), "192 MiB of pinned input on the compute stream"),
        Case(_job(COMPUTE, "copy_weak", copy_bytes=80 * MIB), "the same with 80 MiB"),
        Case(_job(SMALL, "allocator_strong", allocations=4, allocation_ns=400_000), "in each layer"),
        Case(_job(SMALL, "allocator_weak", allocations=2, allocation_ns=200_000), "half of it, half as long"),
    ]


def _combined() -> list[Case]:
    pageable = {"copy": "pageable", "copy_bytes": 24 * MIB}
    return [
        Case(_job(SMALL, "pageable_copies", **pageable), "pageable copies block and drain the queue"),
        Case(_job(NARROW, "tiny_pageable_copies", copy="pageable", copy_bytes=8, copies=12, items=0), "8 bytes each"),
        Case(_job(COMPUTE, "input_and_bandwidth", rate=30.0, loader_ns=28 * MS, workers=2), "loader and link"),
        Case(_job(SMALL, "sync_and_allocator", items=4, item_own_ns=400_000, allocations=1), "both drain the queue"),
        Case(_job(READ_LOSS, "read_then_work", item_own_ns=2 * MS), "the device could hide what follows the .item()"),
        Case(_job(READ_LOSS, "read_then_long_work", item_own_ns=16 * MS), "more than the device could hide"),
        Case(_job(COMPUTE, "fsdp_slow_loader", parallel="fsdp", loader_ns=40 * MS, workers=2), "all ranks' loaders"),
        Case(_job(TINY, "launch_and_gc", gc_ns=MS // 2), "launching, and a short collection"),
        Case(
            _job(COMPUTE, "copy_and_latency", copy_bytes=96 * MIB, bucket_bytes=50 * MIB, alpha_ns=300_000, rate=6e2),
            "pinned input, and fixed costs of collectives",
        ),
        Case(_job(COMPUTE, "contended", rate=26.0, compute_slow=1.25, transfer_slow=1.3), "both slow each other"),
        Case(_job(COMPUTE, "fsdp_no_prefetch", parallel="fsdp", prefetch=0, rate=60.0), "parameters are waited for"),
        Case(_job(COMPUTE, "tensor_parallel", parallel="tensor", ranks=4, tensor_bytes=48 * MIB), "two groups"),
    ]


def _healthy() -> list[Case]:
    return [
        Case(_job(COMPUTE, "healthy_single", parallel="single", ranks=1), "compute-bound"),
        Case(_job(COMPUTE, "healthy_ahead", layers=5, items=0), "the host runs steps ahead"),
        Case(
            _job(COMPUTE, "healthy_full_queue", layers=6, gemms=6, smalls=9, gemm_ns=90_000, steps=8),
            "so far ahead that launches block",
        ),
        Case(_job(COMPUTE, "healthy_overlap", layers=8, rate=60.0), "communication hidden beside the backward pass"),
        Case(_job(COMPUTE, "healthy_fsdp", parallel="fsdp", prefetch=1), "parameters gathered ahead"),
        Case(_job(COMPUTE, "healthy_loader", loader_ns=12 * MS, workers=4), "the loader keeps up"),
        Case(_job(TINY, "healthy_graphs", graphs=True, gemm_ns=18_000, small_ns=10_000), "tiny kernels"),
        Case(_job(READ_LOSS, "healthy_reads_loss"), "one .item() a step"),
        Case(
            _job(READ_LOSS, "healthy_slow_start", compile_ns=400 * MS, first_use_ns=3 * MS, warmup_factor=3.0),
            "compilation and module loading in the first step",
        ),
        Case(_job(READ_LOSS, "healthy_checkpoint_once", outlier_step=3, outlier_ns=60 * MS, steps=8), "one checkpoint"),
    ]


def _stragglers() -> list[Case]:
    return [
        Case(_job(COMPUTE, "slow_device_strong", device_slow={1: 1.5}), "slower clocks", straggler=(1, "device")),
        Case(_job(COMPUTE, "slow_device_weak", device_slow={1: 1.35}), "slower clocks", straggler=(1, "device")),
        Case(_job(COMPUTE, "long_batches", data_scale={0: 1.6}), "longer sequences", straggler=(0, "data")),
        Case(_job(READ_LOSS, "late_host_gc", gc_ns=12 * MS, gc_ranks=(1,), ranks=3), "GC", straggler=(1, "host")),
        Case(
            _job(COMPUTE, "late_host_logging", host_work_ns=9 * MS, host_work_ranks=(0,), items=1, ranks=4),
            "one host of four writes logs",
            straggler=(0, "host"),
        ),
        Case(
            _job(COMPUTE, "slow_host", ranks=16, layers=2, steps=9, device_slow=dict.fromkeys(range(4, 8), 1.3)),
            "four of sixteen ranks have slower clocks",
        ),
        Case(_job(COMPUTE, "two_slow_of_four", ranks=4, layers=3, device_slow={1: 1.3, 3: 1.3}), "slower clocks"),
        Case(
            _job(
                READ_LOSS,
                "late_every_fourth_step",
                host_work_ns=9 * MS,
                host_work_every=4,
                host_work_ranks=(1,),
                parallel="fsdp",
                steps=16,
            ),
            "one rank writes logs in every fourth step",
        ),
        Case(
            _job(COMPUTE, "loader_of_one_rank", loader_ns=40 * MS, workers=2, loader_ranks=(0,)),
            "one slow loader",
            straggler=(0, "host"),
        ),
        Case(
            _job(COMPUTE, "slow_rank_of_two_steps", steps=3, device_slow={1: 1.4}),
            "two steps are judged",
            straggler=(1, "device"),
        ),
        Case(_job(COMPUTE, "rotating_batches", rotating=1.8, items=1, steps=8), "each rank in turn has the long batch"),
    ]


def _recordings() -> list[Case]:
    slow, link = (
        _job(COMPUTE, "one_rank_missing", device_slow={1: 1.5}),
        _job(COMPUTE, "one_rank_missing_link", rate=20.0),
    )
    return [
        Case(slow, "the slow rank was not recorded", Profiler(left_out=(1,))),
        Case(link, "one rank of a bandwidth-bound job", Profiler(left_out=(1,))),
        Case(_job(SMALL, "thinned", layers=10, items=4), "three operators in ten kept", Profiler(kept=0.3)),
        Case(_job(COMPUTE, "two_clocks", rate=20.0), "hosts' clocks 3 ms apart", Profiler(clock_offsets={1: 3 * MS})),
        Case(_job(NARROW, "no_sync_rows", items=4, item_own_ns=150_000), "no waits told", Profiler(cuda_sync=False)),
        Case(_job(COMPUTE, "no_arguments", rate=20.0), "no sizes", Profiler(collective_arguments=False)),
    ]


CASES = [*_alone(), *_combined(), *_healthy(), *_stragglers(), *_recordings()]
