"""What another split and more micro-batches would bring: asked of the replay, which alone predicts."""

from __future__ import annotations

from gpuscope.analyzers.changes import EvenStages, MicroBatches, Predicted, Refused
from gpuscope.analyzers.facts.run_facts import WhatIf
from gpuscope.schema.pipeline_section import PipelineGain
from gpuscope.when_used import dataclass

EVEN = EvenStages()
MORE = 2
"""So many times the micro-batches."""


@dataclass(frozen=True)
class Gains:
    """What the replay predicts, or why it does not."""

    even_split: Predicted | Refused
    more_micro_batches: Predicted | Refused


def gains(what_if: WhatIf, micro_batches: int) -> Gains:
    """The answers for a pipeline of so many micro-batches."""
    return Gains(what_if.predict(EVEN), what_if.predict(MicroBatches(MORE * micro_batches)))


def entry(outcome: Predicted | Refused, micro_batches: int) -> PipelineGain:
    """An answer as the report holds it."""
    if isinstance(outcome, Refused):
        return {"micro_batches": micro_batches, "step_factor": None, "predicted": None, "why_not": outcome.why}
    return {
        "micro_batches": micro_batches,
        "step_factor": outcome.after / outcome.before if outcome.before else None,
        "predicted": {
            "step_ns_before": outcome.before, "step_ns_after": outcome.after, "low_ns": outcome.low,
            "high_ns": outcome.high, "basis": outcome.basis, "provenance": outcome.provenance,
        },
        "why_not": "",
    }  # fmt: skip
