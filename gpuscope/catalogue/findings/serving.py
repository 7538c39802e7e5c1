"""What makes an inference server slow: launching decode, gaps of the scheduler, prompts in the way, small messages."""

from __future__ import annotations

from gpuscope.catalogue.finding import Finding
from gpuscope.when_used import dataclass
from gpuscope.words import units


@dataclass(frozen=True)
class EagerDecode(Finding):
    """Decode steps launch their kernels one by one, more slowly than the device runs them. Its cost is the idle time
    within these steps; it is part of the cause `launch`.
    """

    code = "eager_decode"
    recognised = """decode steps of which graphs launch less than half of the kernels, in whose idle time launches are
    the cause, without the gap to the next step."""
    helps = """CUDA graphs for decode: servers capture them unless told not to (`--enforce-eager`,
    `--disable-cuda-graph`)."""
    misleads = "the profiler, which adds to every launch: compare with a server that is not recorded."

    steps: int
    launches: int
    """Per step."""
    step_ns: int
    waiting_ns: int
    """Of a step, what the device waits for launches."""

    def message(self) -> str:
        return (
            f"Decode runs without CUDA graphs: each step launches {units.plural(self.launches, 'kernel')} one by one, "
            f"and the device waits {units.duration(self.waiting_ns)} of {units.duration(self.step_ns)} for them"
        )


@dataclass(frozen=True)
class UncapturedBatch(Finding):
    """Decode steps of some batch sizes replay CUDA graphs, others launch kernel by kernel, because no captured size
    is as large. Its cost is the idle time within the latter; it is part of the cause `launch`.
    """

    code = "uncaptured_batch"
    recognised = """decode steps of which graphs launch less than half of the kernels, beside others with fewer requests
    that are replayed, in whose idle time launches are the cause."""
    helps = "capturing sizes up to the number of requests that run at once; or fewer of these."
    misleads = (
        "steps that are eager for another reason: prompts in the batch, requests with their own adapters or masks."
    )

    batches: list[int]
    """Requests in the steps that were not replayed, ascending."""
    captured: int
    """The largest batch that was."""
    steps: int
    step_ns: int
    waiting_ns: int

    def message(self) -> str:
        sizes = f"{self.batches[0]}" if len(self.batches) == 1 else f"{self.batches[0]} to {self.batches[-1]}"
        return (
            f"Decode of {sizes} requests runs without CUDA graphs, the largest batch replayed has {self.captured}: the "
            f"device waits {units.duration(self.waiting_ns)} of {units.duration(self.step_ns)} for launches"
        )


@dataclass(frozen=True)
class PrefillStallsDecode(Finding):
    """Requests that are being answered wait for prompts: the step that gives their next token works on many tokens of
    prompts too, or steps that prefill lie between. Its cost is what tokens wait longer than where nothing but decode
    runs; the device computes meanwhile, so no time is lost, but the answers stutter.
    """

    code = "prefill_stalls_decode"
    severity = "medium"
    within_compute = True
    recognised = """intervals between steps that decode of at least twice the one of decode alone; where no step decodes
    alone, mixed steps with at least as many tokens of prompts as of answers."""
    helps = "smaller chunks of prompts per step; prefill on servers of its own (disaggregation)."
    misleads = """a server whose users wait for whole answers: larger chunks give more tokens per second."""

    requests: float | None
    """Mean number that wait."""
    prompt_tokens: float | None
    """Mean of the steps in the way."""
    interval_ns: int
    """Median of the intervals with prompts."""
    alone_ns: int | None
    """Median of those without."""
    intervals: int

    def message(self) -> str:
        who = "requests" if self.requests is None else units.plural(round(self.requests), "request")
        work = (
            "prompts" if self.prompt_tokens is None else f"{units.count(round(self.prompt_tokens))} tokens of prompts"
        )
        than = f", {units.duration(self.alone_ns)} without prompts" if self.alone_ns is not None else ""
        return f"{who} wait {units.duration(self.interval_ns)} for the next token while {work} are prefilled{than}"


@dataclass(frozen=True)
class SchedulerGap(Finding):
    """Between steps the device is idle: the server reads the tokens, schedules the next batch and prepares its inputs
    before it launches. Its cost is part of the causes of idle time.
    """

    code = "scheduler_gap"
    recognised = """idle time from the last work of a step to the first of the next one, of at least 3 % of the judged
    time."""
    helps = """scheduling the next step while this one runs (asynchronous or overlap scheduling); cores beside the GPU
    for the server's processes; less work per request on the scheduler's thread (logging, tokenizing, grammars)."""
    misleads = "a server without requests to work on: gaps are then the load, not the scheduler."

    gap_ns: int
    """Mean per step."""
    step_ns: int
    """Mean."""
    steps: int
    phase: str
    """In whose steps most of it is."""

    def message(self) -> str:
        where = f", most of it after {self.phase}" if self.phase else ""
        return (
            f"The device is idle {units.duration(self.gap_ns)} between two steps (of {units.duration(self.step_ns)}): "
            f"the scheduler prepares the next batch meanwhile{where}"
        )


@dataclass(frozen=True)
class SmallAllReduces(Finding):
    """Decode sends a small message after every layer's attention and experts, and nothing runs beside it. Its cost
    is their exposed transfer in decode steps; it is part of the causes `latency` and `bandwidth`.
    """

    code = "small_all_reduces"
    recognised = """exposed transfers of at least a tenth of the decode steps' time, without waiting for late ranks."""
    helps = """all-reduces fused with the normalisation behind them; one-shot all-reduces (custom, symmetric memory);
    fewer GPUs per replica where the model fits."""
    misleads = "recordings of single ranks: what is transfer and what is waiting is then left open."

    per_step: float
    mean_ns: int
    """Of one message."""
    exposed_ns: int
    """Per decode step."""
    step_ns: int
    nccl: bool
    """Whether NCCL runs them."""

    def message(self) -> str:
        by = " by NCCL" if self.nccl else ""
        return (
            f"Each decode step sends {units.plural(round(self.per_step), 'small message')}{by} of "
            f"{units.duration(self.mean_ns)}: {units.duration(self.exposed_ns)} of {units.duration(self.step_ns)} in "
            "which the device does nothing else"
        )
