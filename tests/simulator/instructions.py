"""What a thread of a training process does, one instruction after the other. All times are integer ns.

Ranges nest: `Begin` … `End` become one row of the trace. A program is a list of these for each thread that runs by
itself; threads that take turns (main and autograd) share a program and name the thread with `Turn`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    """Why a thread is busy or waits; but for OWN and LONG these are causes that cover the instant wherever it lies."""

    OWN = "own"
    LONG = "long"
    """Its own work, without a launch for far longer than usual."""
    INPUT = "input"
    GC = "gc"
    ALLOCATOR = "allocator"
    HOST_OTHER = "host_other"


class Kind(StrEnum):
    """Kinds of device work."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMORY = "memory"


@dataclass(frozen=True)
class Step:
    """A training step begins here; the end of the program ends the last."""

    number: int


@dataclass(frozen=True)
class Turn:
    """What follows runs on the thread `tid`; of two threads that take turns one waits for the other."""

    tid: int


@dataclass(frozen=True)
class Begin:
    """A range opens: a `cpu_op`, `user_annotation` or `python_function` row."""

    name: str
    category: str = "cpu_op"
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class End:
    """The innermost open range closes."""


@dataclass(frozen=True)
class Host:
    """The thread computes for `dur`, or is held up for `reason`."""

    dur: int
    reason: Reason = Reason.OWN


@dataclass(frozen=True)
class Batch:
    """The next batch is taken from `workers` loader processes with `prefetch` batches ahead each, which need `load`
    for one. `own` is what taking it costs the thread."""

    workers: int
    prefetch: int
    load: int
    own: int = 50_000
    apart: bool = False
    """When the recording begins, the processes are done one after the other."""


@dataclass(frozen=True)
class Work:
    """A kernel, copy or memset: `dur` on an idle device."""

    name: str
    dur: int
    stream: int = 7
    kind: Kind = Kind.COMPUTE
    category: str = "kernel"
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """A call that puts work on a stream. `load` is what loading the module costs within the call (first use);
    `blocks` holds the call until the work is done (a copy with a pageable side)."""

    work: Work
    call: str = "cudaLaunchKernel"
    dur: int = 3_500
    latency: int = 5_000
    """From the moment the call has its place in the queue until the device can see the work."""
    load: int = 0
    blocks: bool = False


@dataclass(frozen=True)
class Graph:
    """One launch of a CUDA graph: its nodes run one after the other."""

    nodes: Sequence[Work]
    dur: int = 12_000
    latency: int = 8_000


@dataclass(frozen=True)
class Collective:
    """A collective or point-to-point kernel; the `seq`-th of `group` on all of `ranks` belong together."""

    op: str
    bytes: int
    """Of the whole array."""
    group: str
    ranks: tuple[int, ...]
    seq: int
    stream: int = 20
    dur: int = 6_000
    latency: int = 7_000
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """cudaEventRecord: the event stands for all that was put on the stream so far."""

    event: str
    stream: int = 7
    dur: int = 1_200


@dataclass(frozen=True)
class StreamWait:
    """cudaStreamWaitEvent: what follows on the stream waits for the event as it was last recorded."""

    event: str
    stream: int = 7
    dur: int = 1_200


@dataclass(frozen=True)
class Synchronize:
    """The thread waits: for a stream (int), an event (str), or the device (None)."""

    target: int | str | None = None
    own: int = 2_000
    """What the call takes where there is nothing to wait for."""


@dataclass(frozen=True)
class Allocate:
    """cudaMalloc, cudaFree… of `dur`; `drains` waits for all the device's work first."""

    call: str
    dur: int
    drains: bool = False


Timed = Host | Batch | Launch | Graph | Collective | Record | StreamWait | Synchronize | Allocate
Instruction = Step | Turn | Begin | End | Timed
Program = Sequence[Instruction]
