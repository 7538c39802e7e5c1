"""The report's section `pipeline`: stages, schedule, bubbles, and what would make them smaller."""

from __future__ import annotations

from typing import Literal, NotRequired

from gpuscope.schema.provenance import Provenance
from gpuscope.schema.replay_section import Prediction
from gpuscope.when_used import TypedDict

ScheduleName = Literal["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv", "unknown"]


class PipelineStage(TypedDict):
    """A rank's place."""

    pipeline: int
    """Number of the pipeline: its data-parallel replica."""
    stage: int
    """From 0."""
    rank: int
    model_chunks: list[int]
    """Chunks of the model that the rank holds, numbered in the order of the forward; empty where unknown."""


class PipelineSchedule(TypedDict):
    """The schedule, from the order of computations."""

    name: ScheduleName
    """`gpipe`, `1f1b`, `interleaved_1f1b`, `looped_bfs`, `interleaved_zero_bubble`, `zbv` or `unknown`."""
    stages: int
    """p."""
    micro_batches: int
    """m."""
    chunks_per_stage: int
    """v."""
    why: str
    """What it was recognised by, or where the order differs from those known."""
    ideal_bubble_frac: float | None
    """Bubble of that schedule where all computations of a kind take equal time; None where no formula is known."""
    ideal_basis: str
    """The formula and its source."""


class PipelineBubble(TypedDict):
    """Parts of a bubble; they sum to it."""

    warm_up: int
    steady: int
    drain: int
    imbalance: int


class PipelineRow(TypedDict):
    """One stage of one pipeline in one step."""

    pipeline: int
    stage: int
    rank: int
    step: int
    start_ns: int
    """First computation of any stage of the pipeline in the step."""
    dur_ns: int
    """From there to the last one's end: what the stage computes and its bubble."""
    compute_ns: int
    """The stage's own computing."""
    bubble_ns: PipelineBubble
    """The parts of its bubble."""


class PipelineComputation(TypedDict):
    """One computation of the step shown."""

    stage: int
    rank: int
    kind: Literal["forward", "backward", "weight"]
    """`forward`, `backward` (of the inputs alone where weights are apart) or `weight`."""
    micro_batch: int
    model_chunk: int
    start_ns: int
    """On the run's clock."""
    dur_ns: int


class PipelineTimeline(TypedDict):
    """The computations of one step of one pipeline: the one whose bubble is the median."""

    pipeline: int
    step: int
    computations: list[PipelineComputation]
    """One entry per computation."""
    ideal: list[PipelineComputation]
    """The same with an even split, all of a kind equally long, as the replay lays it out; empty where it predicts
    nothing."""


class PipelineGain(TypedDict):
    """What the replay predicts for a change, or why it does not."""

    micro_batches: int
    """As recorded for `even_split`, twice that for `more_micro_batches`."""
    step_factor: float | None
    """Predicted step / step before; None where nothing is predicted."""
    predicted: Prediction | None
    """As in `suggestions[].predicted`."""
    why_not: str
    """Why nothing is predicted, and what to record; empty where it is."""


class Pipeline(TypedDict):
    """Pipeline parallelism of the job ([what these mean](definitions.md#pipeline)). Where only the stages are known,
    `schedule` and all that follows it is absent; `incomplete` says why, and what to record."""

    basis: str
    """What the map of stages rests on."""
    provenance: Provenance
    """`measured` where timers or ranges name the stage, `inferred` from groups or messages."""
    stages: list[PipelineStage]
    """One entry per rank."""
    incomplete: str
    """What is unknown and what to record; empty where nothing is."""
    schedule: NotRequired[PipelineSchedule]
    bubble_frac: NotRequired[float]
    """Sum of bubbles / sum of lengths."""
    steps_left_out: NotRequired[int]
    """Steps of a pipeline without all computations."""
    rows: NotRequired[list[PipelineRow]]
    """One entry per pipeline, step and stage."""
    even_split: NotRequired[PipelineGain]
    """What the replay predicts for an even split of the stages, or why it does not."""
    more_micro_batches: NotRequired[PipelineGain]
    """What the replay predicts for twice the micro-batches of the same batch, or why it does not."""
    timeline: NotRequired[PipelineTimeline]
    """The step and pipeline with the median bubble, to draw."""
