"""What the replay predicts, in words: the same ones wherever a prediction is shown."""

from __future__ import annotations

from gpuscope.report.schema.pipeline_section import PipelineGain
from gpuscope.report.schema.replay_section import Prediction
from gpuscope.report.view import units


def step_change(predicted: Prediction) -> str:
    """`step 117.4 ms → 59.97 ms (58.27 ms to 61.67 ms)`."""
    before, after, low, high = (
        units.duration(predicted[key]) for key in ("step_ns_before", "step_ns_after", "low_ns", "high_ns")
    )
    return f"step {before} → {after} ({low} to {high})"


def outcome(gain: PipelineGain) -> str:
    """What a change of the pipeline would bring, or why that is not predicted."""
    predicted = gain["predicted"]
    if predicted is None:
        return f"not predicted: {gain['why_not']}"
    certain = predicted["high_ns"] < predicted["step_ns_before"]
    return step_change(predicted) + ("" if certain else ", gain uncertain")


def with_basis(gain: PipelineGain) -> str:
    """The same, and what it rests on."""
    predicted = gain["predicted"]
    return outcome(gain) + (f"; {predicted['basis']}" if predicted is not None else "")
