"""The tables that users of other profilers look up: operators, ranges, calls, copies, launches, streams, gaps.

All of them are over the whole recording, or over the steps asked for with `--steps`: like the same tables of `nsys
stats`, HTA or the TensorBoard plugin, and unlike the verdict, which is of the steady steps.
"""

from __future__ import annotations

from typing import Literal, NotRequired

from gpuscope.when_used import TypedDict


class KernelRankEntry(TypedDict):
    """One of the kernels that take longest, on one rank."""

    rank: int
    device: int | None
    name: str
    category: str
    operator: str | None
    """The operator or range that launches it, innermost first; of several, the one with most of its time."""
    count: int
    dur_ns: int
    mean_ns: int
    median_ns: int
    min_ns: int
    max_ns: int
    share_frac: float
    """Share of the rank's device-event time."""


class OperatorEntry(TypedDict):
    """All calls of one operator of the framework, over the ranks analysed. Device columns: None without a device."""

    name: str
    count: int
    host_ns: int
    """In its calls, with what they call."""
    host_self_ns: int
    """Without the operators and ranges in it."""
    device_ns: int | None
    """Durations of what was launched in its calls."""
    device_self_ns: int | None
    """Of what was launched in no operator or range within it."""
    kernels: int | None
    """Device events launched in its calls."""


class RangeEntry(TypedDict):
    """All ranges of one name on one rank: NVTX, `record_function`, modules. Device columns: None without a device."""

    rank: int
    name: str
    kind: Literal["range", "module"]
    phase: str | None
    """The phase of a step that its name stands for: data, forward, backward, optimizer, checkpoint."""
    count: int
    host_ns: int
    host_mean_ns: int
    host_max_ns: int
    update_ns: NotRequired[int]
    """Of an optimizer's steps that hold the forward and backward of a closure: the host's time behind these."""
    device_ns: int | None
    """Durations of what was launched in it, on whatever stream."""
    compute_ns: int | None
    communication_ns: int | None
    memory_ns: int | None
    device_span_ns: int | None
    """From the first start to the last end of what was launched in it, summed over its instances."""
    kernels: int | None


class PhaseEntry(TypedDict):
    """A phase of the step on one rank. Device columns: None without a device."""

    rank: int
    phase: str
    """data, forward, backward, optimizer, checkpoint; «before» one of them where no range covers it; or `none`."""
    host_ns: int
    """Time in which a thread is in a range of the phase."""
    device_ns: int | None
    """Durations of what was launched in it."""
    compute_ns: int | None
    communication_ns: int | None
    memory_ns: int | None


class ApiCallEntry(TypedDict):
    """Calls of one function of the CUDA, HIP or CANN runtime or driver by one rank."""

    rank: int
    name: str
    count: int
    dur_ns: int
    mean_ns: int
    median_ns: int
    min_ns: int
    max_ns: int
    share_frac: float
    """Share of the rank's time in such calls, over its threads."""


class CopyEntry(TypedDict):
    """Copies, memsets or migrations of one kind and size on one rank."""

    rank: int
    device: int | None
    kind: str
    least_bytes: int | None
    """Their sizes are from this on; None where sizes are not recorded."""
    below_bytes: int | None
    """And below this; None for the largest."""
    count: int
    bytes: int | None
    dur_ns: int
    median_ns: int
    max_ns: int
    bandwidth_gbps: float | None
    """Bytes over time, 1e9 B/s."""


class LaunchEntry(TypedDict):
    """How the host launches the kernels of one rank and device."""

    rank: int
    device: int | None
    launches: int
    """Kernels whose launching call is recorded; those of a graph share one."""
    call_ns: int
    """Time in these calls."""
    call_median_ns: int
    call_max_ns: int
    delay_median_ns: int
    """From the call's end to the kernel's start; 0 where it started earlier."""
    delay_max_ns: int
    kernel_median_ns: int
    short_kernels: int
    """Kernels shorter than their launching call."""
    slow_calls: int
    """Calls of 50 µs and more."""
    late_starts: int
    """Kernels that start 100 µs and more after their call."""


class QueueEntry(TypedDict):
    """The launch queue of a stream: what was issued and has not started."""

    rank: int
    device: int | None
    stream: int | None
    operations: int
    mean: float
    """Over time, from the first issue to the last start."""
    max: int
    empty_frac: float
    """Share of that time with nothing queued."""
    start_ns: int
    bin_ns: int
    """Length of a bin of the two lists, of which the first begins at `start_ns`."""
    mean_by_bin: list[float]
    max_by_bin: list[int]


class StreamEntry(TypedDict):
    """One stream of a device, from its first operation to its last."""

    rank: int
    device: int | None
    stream: int | None
    operations: int
    span_ns: int
    busy_ns: int
    idle_ns: int
    host_wait_ns: int
    """Idle: the next operation was not issued yet."""
    queued_wait_ns: int
    """Idle: it was issued, and waited for another stream, an event or the device."""
    longest_idle_ns: int
    compute_ns: int
    communication_ns: int
    memory_ns: int


class GapEntry(TypedDict):
    """One of the longest times in which all streams of a device were idle."""

    rank: int
    device: int | None
    start_ns: int
    dur_ns: int
    step: int | None
    cause: str | None
    """The cause that most of it has; None where causes can't be determined."""
    before: str | None
    """The operation that ends last before it."""
    after: str | None
    """The operation that ends it."""
    host: str | None
    """What the launching thread does in it: the innermost event over most of the gap, else the one over most of it."""
    host_ns: NotRequired[int]
    """How much of the gap that event covers, 0 where there is none; absent where no host events are recorded."""
