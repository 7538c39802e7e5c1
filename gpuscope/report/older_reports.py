"""Reports of older schema versions, brought to the present one: what can be told from their own numbers is added."""

from __future__ import annotations

from typing import Any, cast

from gpuscope.report.view import blame
from gpuscope.report.view.per_step import per_step_ns, with_per_step
from gpuscope.schema.document import SCHEMA_VERSION, Report

OLDEST = 2
"""The oldest version that is read."""
NOT_ASKED_IN_2 = "advice was not asked for"
"""What version 2 wrote in place of `advice.asked`."""


def is_readable(version: object) -> bool:
    """Whether a report of that schema version can be read."""
    return isinstance(version, int) and OLDEST <= version <= SCHEMA_VERSION


def brought_up(document: dict[str, Any]) -> dict[str, Any]:
    """A report of a version that is read, with the keys of the present one; it is changed in place. What is damaged is
    left as it is."""
    version = document.get("schema_version")
    if version == SCHEMA_VERSION or not is_readable(version):
        return document
    document["schema_version"] = SCHEMA_VERSION
    step = _the_step(document)
    try:
        document["findings"] = [with_per_step(finding, step) for finding in document.get("findings", [])]
        mean = _mean_step(document)
        for entry in document.get("stragglers", []):
            spent = entry.get("caused_wait_ns_per_step")
            entry["per_step_ns"] = per_step_ns(spent / mean, step) if spent is not None and mean else None
        if "suggestions" in document:
            found = cast(Report, document)
            found["suggestions"] = blame.in_order(found, found["suggestions"])
            found["advice"]["unpredicted"] = blame.answering_first(found, found["advice"]["unpredicted"])
            if found["advice"]["why"] == NOT_ASKED_IN_2:
                found["advice"]["asked"] = False
    except (KeyError, TypeError, AttributeError):  # who reads it checks its types, and says what is wrong
        pass
    return document


def _the_step(document: dict[str, Any]) -> int | None:
    """«The step»; of a job known by its operations alone, the recorded one: their mean, for these have no other."""
    spread, slowdown = document.get("step_time"), document.get("slowdown")
    if isinstance(spread, dict):
        return int(spread["median_ns"])
    if isinstance(slowdown, dict) and not document.get("ranks"):
        return slowdown.get("recorded_step_ns")
    return None


def _mean_step(document: dict[str, Any]) -> float:
    """Mean over ranks and judged steps, ns; 0 without steps."""
    steps = sum(entry["steps"] for entry in document["ranks"])
    return sum(entry["window_ns"] for entry in document["ranks"]) / steps if steps else 0.0
