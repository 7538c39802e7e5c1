"""The report's section `serving`: the steps of an inference server by phase."""

from __future__ import annotations

from typing import Literal

from gpuscope.trace.naming.serving_names import Phase
from gpuscope.when_used import TypedDict

Work = Literal["attention", "gemm", "communication", "other"]


class ServingWork(TypedDict):
    """The device's work of one kind in a step of a phase: means over its steps."""

    kind: Work
    dur_ns: int
    """Summed over streams."""
    floor_frac: float | None
    """What the kernels whose FLOPs or bytes are known would take at the device's peaks, by what these took; null where
    none is known."""
    known_frac: float
    """Share of the time whose work is known."""


class ServingBreakdown(TypedDict):
    compute: int
    exposed_communication: int
    exposed_memory: int
    idle: int


class ServingPhase(TypedDict):
    """The judged steps of one phase, of all ranks; of captures all. Times are means per step unless said otherwise."""

    phase: Phase | None
    """Null of steps whose phase the trace does not tell."""
    steps: int
    """Of all ranks together."""
    step_ns: int
    """Median."""
    share_frac: float
    """Of the judged time."""
    breakdown_ns: ServingBreakdown
    """As in `ranks[]`."""
    bound_by: Literal["cpu", "communication", "memory", "compute"]
    """Class, by the rule of the verdict, for these steps alone."""
    cause: str | None
    """Its largest cause."""
    cause_frac: float
    """Share of that class in the phase's time; of `compute`, what is no stall."""
    cpu_ns: int
    """Idle time with a cause of the class `cpu`."""
    gap_ns: int
    """From the end of the step's last work on the device to the begin of the next step's."""
    host_ns: int | None
    """From the first launch to the end of the last one; null where launches are not recorded."""
    launches: float
    """Launch calls, graphs included."""
    graphs: float
    """Of these, graphs."""
    graphed_frac: float
    """Share of the kernels that graphs launched."""
    call_ns: int
    """Time in launch calls."""
    prefill_requests: float | None
    """Mean, as the others: prompts, tokens of these, requests in decode; null where not told."""
    prefill_tokens: float | None
    decode_requests: float | None
    decode_tokens: float | None
    tokens_per_s: float | None
    """Tokens of the batch by the steps' time; null where not told."""
    work: list[ServingWork]


class ServingBatch(TypedDict):
    """Decode steps of one batch size."""

    requests: int
    steps: int
    step_ns: int
    """Median."""
    graphed_frac: float
    """As in `phases[]`."""
    launch_ns: int
    """Idle time with the cause `launch`, outside the gap to the next step, mean."""


class ServingInterval(TypedDict):
    """Times of one kind over the recording."""

    count: int
    median_ns: int
    p90_ns: int
    max_ns: int


class ServingSection(TypedDict):
    """[What the figures mean](serving.md)."""

    server: str | None
    """`vllm`, `sglang` or `tensorrt_llm`, where the trace shows it."""
    phases: list[ServingPhase]
    """The one with most time first."""
    batches: list[ServingBatch]
    """By the number of requests, where told."""
    token_interval: ServingInterval | None
    """From one step that decodes to the next one, whatever runs between: what a request waits for its next token (TPOT
    without the network and the queue)."""
    decode_alone_ns: int | None
    """The same where nothing but decode lies between: its median."""
    first_token: ServingInterval | None
    """Length of steps that prefill: what a prompt that fits one step waits for its first token at least (TTFT without
    the queue)."""
    captured: list[int]
    """Sizes that graphs were captured for in the recording."""


class ServingStep(TypedDict):
    """What was measured of one step of one device: what the section is made from, no part of the report."""

    rank: int
    device: int
    step: int
    gap_ns: int
    host_ns: int | None
    launches: int
    graphs: int
    kernels: int
    graphed: int
    """Kernels that graphs launched."""
    call_ns: int
    collectives: int
    """Kernels that communicate."""
    longest: str
    """Name of the one of these that takes longest; empty without one."""
    work: dict[str, list[int]]
    """By kind: ns, of these ns of kernels whose work is known, and their floor, ns."""
