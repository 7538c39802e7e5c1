"""The report's section `job_log`: what the log of a job says of its steps, its start and the time it loses."""

from __future__ import annotations

from typing import Literal, NotRequired

from gpuscope.when_used import TypedDict


class LogLine(TypedDict):
    """A line of a log as evidence."""

    file: str
    line: int
    """Its number, from 1."""
    text: str
    """The beginning of the line; empty where only its number was kept."""


class LogShift(TypedDict):
    """A step from which on all steps take longer, or shorter, than before."""

    step: int
    """The first step of the new pace."""
    from_ns: int
    """Median before."""
    to_ns: int
    """Median after."""
    beside: list[str]
    """What the log has near it: events, and figures that change with it."""
    lines: list[LogLine]
    """The last line before it and the first one after it."""


class LogPart(TypedDict):
    """A part of the start-up, or a kind of time that no step has."""

    name: str
    dur_ns: int
    count: int
    lines: list[LogLine]


class LogLongSteps(TypedDict):
    """Steps that take much longer than the others, and what they cost."""

    count: int
    cost_ns: int
    """What they take beyond the steady median, in all."""
    period: int | None
    """Steps from one to the next, where they return regularly."""
    longest_ns: int
    beside: list[str]
    """What the log has near them."""
    lines: list[LogLine]


class LogGrowth(TypedDict):
    """Steps that take ever longer."""

    first_ns: int
    last_ns: int
    steps: int
    figure: str | None
    """What of the logged figures grows with them; null where none does, or none is logged."""
    figure_times: float | None
    """How many times that grows."""


class LogRestart(TypedDict):
    """A start of the job after its first."""

    step: int | None
    """The first step after it."""
    lost_ns: int | None
    """From the last step line before it to the first one after it; null without a clock."""
    repeated_steps: int
    """Steps that were run again."""
    lines: list[LogLine]


class LogRank(TypedDict):
    """A rank whose steps, or whose start, are later than the others'."""

    rank: int
    step_ns: int
    others_ns: int


class LogServer(TypedDict):
    """What the log of an inference server says; medians over its lines."""

    lines: int
    prompt_tokens_per_s: float | None
    generated_tokens_per_s: float | None
    running: float | None
    waiting: float | None
    waiting_max: float | None
    cache_used_frac: float | None
    cache_used_max_frac: float | None
    prefix_hit_frac: float | None
    preemptions: int
    time_to_first_token_ns: int | None


class LogAdvice(TypedDict):
    """What to do about something that the log shows."""

    code: str
    action: str
    gain_frac: float | None
    """Of the job's time: what it costs now; null where the log has no figure."""


class JobLogSection(TypedDict):
    """One job's log."""

    format: str
    """By whose lines it is read: `mlperf`, `megatron-lm`, `torchtitan`, `nemo`, `deepspeed`, `hf-trainer`, `lightning`,
    `accelerate`, `tqdm`, `vllm`, `sglang`…, `plain`."""
    basis: Literal["step_time", "rate", "throughput", "time_stamps", "none"]
    """What the step times are from: logged themselves; the rate of a progress bar; the global batch by a throughput;
    the time stamps of lines."""
    samples: int
    """Step times read."""
    steps: int
    """Steps that the job ran, as far as their numbers tell."""
    step_ns: int | None
    """Their steady median: without warm-up and long steps, and after the last shift."""
    spread_ns: int | None
    """From the 5th to the 95th percentile of the same steps."""
    startup_ns: int | None
    """From `init_start` to `run_start`; of other logs from the first line to the first step's beginning."""
    startup_parts: list[LogPart]
    evaluation_ns: int
    evaluations: int
    checkpoint_ns: int
    checkpoints: int
    restarts: int
    attempts: list[LogRestart]
    goodput_frac: float | None
    """The steps' time by `total_ns`."""
    steps_ns: int | None
    """The time of all steps."""
    total_ns: int | None
    """From `init_start` to `run_stop`, or from the first line to the last; null where lines have no time."""
    availability_frac: float | None
    """Of `total_ns`, what no restart took."""
    mttr_ns: int | None
    """Mean time from the last step before a restart to the first one after it."""
    shifts: list[LogShift]
    long_steps: LogLongSteps | None
    growth: LogGrowth | None
    late_ranks: list[LogRank]
    tokens_per_s: float | None
    mfu_frac: float | None
    server: LogServer | None
    advice: list[LogAdvice]
    next: str
    """Which trace or option would tell the rest, for this framework."""
    step_times: NotRequired[list[tuple[int, int]]]
    """(step, ns) for pictures: at most 2,000, the median of each stretch."""
    lines: list[LogLine]
    """Where the figures above are from: the first and the last step line, start and stop."""
