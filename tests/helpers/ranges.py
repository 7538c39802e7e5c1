"""Whether a truth is where a prediction's range has it."""

from __future__ import annotations

from gpuscope.schema.provenance import Prediction


def holds(predicted: Prediction, truth: int) -> bool:
    """Inside the range, or a hundredth of the step beside it: by design one truth in ten is outside."""
    slack = predicted["step_ns_before"] // 100
    return predicted["low_ns"] - slack <= truth <= predicted["high_ns"] + slack
