"""What the replay predicts, in words: the same ones wherever a prediction is shown."""

from __future__ import annotations

from gpuscope.report.schema.document import NothingGainsEntry, PlanEntry
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


def plan(entry: PlanEntry) -> str:
    """`step 117.4 ms → 59.97 ms (58.27 ms to 61.67 ms): remove_syncs → 80.1 ms, then loader_workers → 59.97 ms`."""
    steps = (f"{one['code']} → {units.duration(one['step_ns_after'])}" for one in entry["steps"])
    return f"{step_change(entry['predicted'])}: {', then '.join(steps)}"


def nothing_gains(entry: NothingGainsEntry) -> str:
    """`launch takes 12.1 % of the time, and nothing tried gains: cuda_graphs → 117.2 ms`."""
    tried = ", ".join(f"{one['code']} → {units.duration(one['step_ns_after'])}" for one in entry["tried"])
    return f"{entry['finding']} takes {units.share(entry['share_frac'])} of the time, and nothing tried gains: {tried}"
