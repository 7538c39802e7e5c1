"""The runs of the campaign: every fault in doses that matter, and every parallelism without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WINDOW = ("--steps", "12", "--set", "capture.wait=1", "--set", "capture.warmup=1", "--set", "capture.active=10")
"""Ten recorded steps: two ranks need five to tell a rank that is last from chance."""
LONG = ("--steps", "26", "--set", "capture.wait=1", "--set", "capture.warmup=1", "--set", "capture.active=24")


@dataclass(frozen=True)
class Case:
    """One run of `gpuscope train`."""

    name: str
    words: tuple[str, ...]
    causes: tuple[str, ...] = ()
    """Causes of which the verdict must be one; empty for a healthy run."""
    findings: tuple[str, ...] = ()
    """Codes of findings of which one must be there."""
    blames: bool = False
    """Whether a rank is at fault, and must be named."""
    first_advice: tuple[str, ...] = ()
    """Codes of suggestions that must precede all others of the pipeline and of ranks; empty: any."""

    @property
    def healthy(self) -> bool:
        """Whether nothing was injected."""
        return not self.causes and not self.findings

    @property
    def needs_root(self) -> bool:
        """Whether it makes a network namespace."""
        return any("slow_link" in word for word in self.words)


def _run(parallel: str, *words: str, processes: int = 2, window: Sequence[str] = WINDOW) -> tuple[str, ...]:
    return ("--parallel", parallel, "--nproc", str(processes), *window, *words)


def _fault(
    parallel: str, fault: str, *words: str, processes: int = 2, window: Sequence[str] = WINDOW
) -> tuple[str, ...]:
    return _run(parallel, *words, "--fault", fault, processes=processes, window=window)


_PP = ("--set", "data.batch=16")
_SMALL = ("--set", "data.batch=1", "--set", "data.sequence=32", "--set", "model.layers=6", "--set", "model.width=32")
"""Each parameter is a bucket of its own, of 16 KiB at most: on gloo a tenth of the fixed cost of a message or less."""
_MOE = ("--preset", "tiny-moe")
_WIDE = ("--set", "data.batch=2", "--set", "model.width=256")

FAULTS = (
    Case("slow rank, DDP", _fault("ddp", "slow_rank:ms=60"), ("straggler",), blames=True),
    Case("slow rank 0, DDP, 25 ms", _fault("ddp", "slow_rank:ms=25,rank=0"), ("straggler",), blames=True),
    Case(
        "slow rank, every third step, DDP",
        _fault("ddp", "slow_rank:ms=120,every=3", window=LONG),
        ("straggler",),
        blames=True,
    ),
    Case("slow rank 2 of 4, DDP", _fault("ddp", "slow_rank:ms=80,rank=2", processes=4), ("straggler",), blames=True),
    Case("slow rank, ZeRO-1", _fault("zero1", "slow_rank:ms=60"), ("straggler",), blames=True),
    Case("slow rank, FSDP", _fault("fsdp", "slow_rank:ms=60"), ("straggler",), blames=True),
    Case(
        "slow rank, every third step, FSDP",
        _fault("fsdp", "slow_rank:ms=120,every=3", window=LONG),
        ("straggler",),
        blames=True,
    ),
    Case("slow rank, TP", _fault("tp", "slow_rank:ms=60"), ("straggler",), blames=True),
    Case(
        "slow rank, Ulysses",
        _fault("cp", "slow_rank:ms=60", "--set", "context.method=ulysses"),
        ("straggler",),
        blames=True,
    ),
    Case("slow rank, EP", _fault("ep", "slow_rank:ms=60", *_MOE), ("straggler",), blames=True),
    Case("slow rank turning, DDP", _fault("ddp", "slow_rank:ms=60,rotate=1"), ("straggler",)),
    Case("slow rank, PP", _fault("pp", "slow_rank:ms=70", *_PP), ("pipeline_bubble", "straggler"), blames=True),
    Case(
        "slow rank 0, PP", _fault("pp", "slow_rank:ms=70,rank=0", *_PP), ("pipeline_bubble", "straggler"), blames=True
    ),
    Case("uneven sequences, DDP", _fault("ddp", "uneven_sequences:short=0.1"), ("straggler",), blames=True),
    Case("slow loader, DDP", _fault("ddp", "slow_loader:ms=15"), ("input",)),
    Case("slow loader on rank 1, DDP", _fault("ddp", "slow_loader:ms=15,rank=1"), ("straggler",), blames=True),
    Case("checkpoints, DDP", _fault("ddp", "host_stall:kind=checkpoint,ms=60"), ("host_other",)),
    Case("garbage collection, DDP", _fault("ddp", "host_stall:kind=gc,ms=60"), ("gc",)),
    Case("logging, DDP", _fault("ddp", "host_stall:kind=logging,ms=60"), ("host_other",)),
    Case("tiny buckets, DDP", _fault("ddp", "tiny_buckets", *_SMALL), ("latency",)),
    Case("slow link, DDP", _fault("ddp", "slow_link:mbit=100", *_WIDE), ("bandwidth",)),
    Case("slow link, FSDP", _fault("fsdp", "slow_link:mbit=100", *_WIDE), ("bandwidth",)),
    Case(
        "slow link, Ulysses",
        _fault("cp", "slow_link:mbit=100", *_WIDE, "--set", "context.method=ulysses"),
        ("bandwidth",),
    ),
    Case(
        "unbalanced stage, PP",
        _fault("pp", "unbalanced_stage:times=3", *_PP),
        ("pipeline_bubble",),
        ("pipeline_imbalance",),
        first_advice=("even_stages",),
    ),
    Case(
        "layers 3 and 1, PP",
        _run("pp", *_PP, "--set", "model.layers=4", "--set", "pipeline.layers_per_stage=3,1"),
        ("pipeline_bubble",),
        ("pipeline_imbalance",),
        first_advice=("even_stages",),
    ),
    Case(
        "few micro-batches, PP",
        _fault("pp", "few_micro_batches", *_PP, "--set", "pipeline.schedule=gpipe"),
        ("pipeline_bubble",),
        ("few_micro_batches",),
        first_advice=("micro_batches",),
    ),
)

HEALTHY = (
    Case("DDP", _run("ddp")),
    Case("DDP on 4", _run("ddp", processes=4)),
    Case("ZeRO-1", _run("zero1")),
    Case("ZeRO-2", _run("zero2")),
    Case("FSDP", _run("fsdp")),
    Case("HSDP on 4", _run("hsdp", processes=4)),
    Case("TP", _run("tp")),
    Case("ring attention", _run("cp")),
    Case("Ulysses", _run("cp", "--set", "context.method=ulysses")),
    Case("EP", _run("ep", *_MOE)),
    Case("PP 1F1B", _run("pp", *_PP)),
    Case("PP interleaved", _run("pp", *_PP, "--set", "pipeline.schedule=interleaved1f1b", "--set", "model.layers=4")),
    Case("PP zero bubble", _run("pp", *_PP, "--set", "pipeline.schedule=zbv", "--set", "model.layers=4")),
    Case("PP × FSDP on 4", _run("pp=2+fsdp", *_PP, processes=4)),
    Case("TP × FSDP on 4", _run("tp=2+fsdp", processes=4)),
)
"""Every parallelism without a fault. A healthy pipeline has its bubble: that is no accusation."""
