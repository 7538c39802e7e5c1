"""Predicted against gained: the suggestions of the run before, compared with the step of the run after."""

from __future__ import annotations

from gpuscope.errors import UsageError
from gpuscope.report.view.arrangement import step_ns
from gpuscope.schema.diff_document import Proof
from gpuscope.schema.document import Report, SuggestionEntry


def proofs(before: Report, after: Report, applied: str | None) -> list[Proof]:
    """One per suggestion; `applied` is the code of the one that was followed, which then comes first.

    The measured step is «the step» of AFTER, as predictions start from that of BEFORE. Raises `UsageError` for a code
    that BEFORE does not suggest.
    """
    suggestions = before["suggestions"]
    codes = list(dict.fromkeys(suggestion["code"] for suggestion in suggestions))
    if applied is not None and applied not in codes:
        known = f"it suggests: {', '.join(codes)}" if codes else "it holds no suggestions"
        raise UsageError(f"the run before does not suggest {applied!r}", hint=known)
    measured = step_ns(after)
    rows = [_proof(suggestion, measured, applied) for suggestion in suggestions]
    return sorted(rows, key=lambda row: row["applied"] is False)


def _proof(suggestion: SuggestionEntry, measured: int | None, applied: str | None) -> Proof:
    predicted = suggestion["predicted"]
    return {
        "code": suggestion["code"], "action": suggestion["action"],
        "applied": None if applied is None else suggestion["code"] == applied,
        "predicted_ns": predicted["step_ns_after"], "low_ns": predicted["low_ns"], "high_ns": predicted["high_ns"],
        "predicted_gain_ns": predicted["step_ns_before"] - predicted["step_ns_after"],
        "measured_ns": measured, "gained_ns": None if measured is None else predicted["step_ns_before"] - measured,
        "held": None if measured is None else "faster" if measured < predicted["low_ns"]
        else "slower" if measured > predicted["high_ns"] else "inside",
    }  # fmt: skip
