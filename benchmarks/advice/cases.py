"""What is predicted and then really changed: a run with a problem, the change, and the same run without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuscope.analyzers.what_if_changes import (
    BucketSize,
    Change,
    KeepParameters,
    LoaderWorkers,
    MicroBatches,
    NoCollector,
    NoHostWork,
    RemovedSyncs,
    ReplacedRank,
    WireBytes,
)

MIB = 1 << 20


Garbage = Literal["collected", "left"]


@dataclass(frozen=True)
class Variant:
    """One side of a case, as arguments of `gpuscope train`."""

    settings: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    barrier: bool = False
    """A `dist.barrier()` in the middle of each step."""
    garbage: Garbage | None = None
    """Reference cycles made at the end of each step, and whether they are collected there."""


@dataclass(frozen=True)
class Case:
    """`before` as recorded, `after` with the change made. `common` settings and `parallel` are of both."""

    name: str
    parallel: str
    changes: tuple[Change, ...]
    before: Variant
    after: Variant
    common: tuple[str, ...] = ()


SMALL = ("data.batch=8", "data.sequence=64")
"""Steps of about a tenth of a second on two cores: the change affects a large part of them."""
PIPELINE = ("data.batch=16", "data.sequence=64")


def _buckets(name: str, before: float, after: float, common: tuple[str, ...] = SMALL) -> Case:
    return Case(
        name,
        "ddp",
        (BucketSize(round(after * MIB)),),
        Variant((f"ddp.bucket_cap_mb={before}",)),
        Variant((f"ddp.bucket_cap_mb={after}",)),
        common,
    )


def _faulty(name: str, change: Change, fault: str, after: Variant) -> Case:
    return Case(name, "ddp", (change,), Variant(faults=(fault,)), after, SMALL)


def _micro_batches(before: int, after: int, schedule: str = "gpipe", common: tuple[str, ...] = PIPELINE) -> Case:
    named = "" if schedule == "gpipe" else f", {schedule}"
    sized = "" if common == PIPELINE else ", another model"
    return Case(
        f"micro-batches {before} → {after}{named}{sized}",
        "pp",
        (MicroBatches(after),),
        Variant((f"pipeline.micro_batches={before}",)),
        Variant((f"pipeline.micro_batches={after}",)),
        (*common, f"pipeline.schedule={schedule}"),
    )


CASES = (
    _buckets("buckets 0.01 → 25 MiB", 0.01, 25),
    _buckets("buckets 0.05 → 0.5 MiB", 0.05, 0.5),
    _buckets("buckets 0.5 → 0.05 MiB", 0.5, 0.05),
    _buckets("buckets 0.2 → 2 MiB", 0.2, 2),
    _faulty("1 loader worker", LoaderWorkers(1), "slow_loader:ms=30", Variant(faults=("slow_loader:ms=30,workers=1",))),
    _faulty(
        "2 loader workers", LoaderWorkers(2), "slow_loader:ms=60", Variant(faults=("slow_loader:ms=60,workers=2",))
    ),
    Case(
        "barrier in the step removed", "ddp", (RemovedSyncs("c10d::barrier"),), Variant(barrier=True), Variant(), SMALL
    ),
    _faulty("logging off the step", NoHostWork(), "host_stall:kind=logging,ms=40", Variant()),
    Case(
        "no garbage collection", "ddp", (NoCollector(),), Variant(garbage="collected"), Variant(garbage="left"), SMALL
    ),
    _micro_batches(2, 4),
    _micro_batches(1, 4),
    _micro_batches(4, 2),
    _faulty("slow rank (30 ms) replaced", ReplacedRank(1), "slow_rank:ms=30", Variant()),
    _faulty("slow rank (80 ms) replaced", ReplacedRank(1), "slow_rank:ms=80", Variant()),
    _faulty("slow rank (50 ms) replaced", ReplacedRank(1), "slow_rank:ms=50", Variant()),
    _micro_batches(2, 4, "1f1b"),
    _micro_batches(4, 2, "1f1b"),
)

WIDER = ("model.layers=4", "model.width=192", "model.heads=6", "data.batch=4", "data.sequence=96")
FULLY_SHARDED = "fsdp.reshard_after_forward"
UNSEEN = (
    _buckets("buckets 0.02 → 25 MiB, another model", 0.02, 25, WIDER),
    _buckets("buckets 1 → 0.1 MiB, another model", 1, 0.1, WIDER),
    Case("fp16 gradients", "ddp", (WireBytes(0.5),), Variant(), Variant(("ddp.comm_hook=fp16",)), WIDER),
    Case(
        "parameters kept",
        "fsdp",
        (KeepParameters(),),
        Variant((f"{FULLY_SHARDED}=true",)),
        Variant((f"{FULLY_SHARDED}=false",)),
        SMALL,
    ),
    Case(
        "parameters kept, another model",
        "fsdp",
        (KeepParameters(),),
        Variant((f"{FULLY_SHARDED}=true",)),
        Variant((f"{FULLY_SHARDED}=false",)),
        WIDER,
    ),
    Case(
        "logging off the step, FSDP",
        "fsdp",
        (NoHostWork(),),
        Variant(faults=("host_stall:kind=logging,ms=25",)),
        Variant(),
        SMALL,
    ),
    Case(
        "barrier in the step removed, another model",
        "ddp",
        (RemovedSyncs("c10d::barrier"),),
        Variant(barrier=True),
        Variant(),
        WIDER,
    ),
    Case(
        "loader worker, and logging off the step",
        "ddp",
        (LoaderWorkers(1), NoHostWork()),
        Variant(faults=("slow_loader:ms=30", "host_stall:kind=logging,ms=30")),
        Variant(faults=("slow_loader:ms=30,workers=1",)),
        WIDER,
    ),
    Case(
        "buckets 0.01 → 25 MiB, and a slow rank replaced",
        "ddp",
        (BucketSize(25 * MIB), ReplacedRank(1)),
        Variant(("ddp.bucket_cap_mb=0.01",), ("slow_rank:ms=30",)),
        Variant(("ddp.bucket_cap_mb=25",)),
        SMALL,
    ),
    Case(
        "slow rank (25 ms) replaced, FSDP",
        "fsdp",
        (ReplacedRank(0),),
        Variant(faults=("slow_rank:ms=25,rank=0",)),
        Variant(),
        SMALL,
    ),
    _micro_batches(2, 8, "1f1b", (*WIDER[:3], "data.batch=16", "data.sequence=64")),
    _micro_batches(8, 4, "gpipe", ("model.layers=4", "data.batch=16", "data.sequence=48")),
)
"""With which nothing was developed."""
