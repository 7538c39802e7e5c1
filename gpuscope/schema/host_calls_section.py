"""The section `host_calls`: what the launching threads of a rank call in a judged step."""

from __future__ import annotations

from typing import Literal, NotRequired

from gpuscope.when_used import TypedDict


class BlockingCallEntry(TypedDict):
    """A place of the program that waits for the device, told apart by call, operator and copy."""

    call: str
    """Runtime call."""
    operator: str | None
    """The innermost operator or range around it."""
    within: str | None
    """The outermost one."""
    copy: str | None
    """`HtoD pageable`, `DtoH`…: the copy that the call makes or waits for; None where it makes none."""
    bytes: int | None
    """Of that copy, the median."""
    count: int
    """Calls in the judged part."""
    per_step: float
    dur_ns: int
    """Time in these calls over the judged part; the device may compute meanwhile."""
    behind: NotRequired[str]
    """The collective that its thread had launched last, which it waits for; absent where that was none."""


class HostCallsEntry(TypedDict):
    """One rank on one device over what is judged. What the threads that launch a rank's work call in a judged step;
    advice names places from here."""

    rank: int
    device: int | None
    runtime: Literal["cuda", "hip", "acl"] | None
    """Whose runtime its calls are."""
    steps: int
    """Judged steps that the figures are of; 1 where the whole window is judged."""
    steady: bool
    """Whether these are steady steps."""
    kernels_per_step: float
    """Compute kernels."""
    repeated_frac: float | None
    """Share of a steady step's kernels, by name and number, that the step before it ran too (median over pairs of
    steps); None with fewer than two steady steps."""
    blocking_calls: list[BlockingCallEntry]
    """Those that block longest first."""
    allocations_per_step: float
    """Calls that allocate device memory (cudaMalloc, hipMalloc…)."""
    frees_per_step: float
    least_allocations: int
    """In the judged step that has fewest."""
    least_frees: int
    maps_segments: bool
    """Whether memory is mapped by the driver's virtual memory calls, as expandable segments are."""
    caches: bool | None
    """Whether the framework's allocator reported memory that it holds; None where the recording has no such events."""
    frees_outside_per_step: float | None
    """Frees in each judged step that no operator made, as torch.cuda.empty_cache() makes them; None where a step has
    none, or operators were not recorded."""
    passes_per_step: int | None
    """Forward passes of DistributedDataParallel in a step, the median; None where there are none, or no steps."""
