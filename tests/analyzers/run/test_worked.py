"""Small traces whose numbers follow from the definitions by hand (../shared/reference/worked): equal to the ns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gpuscope

CASES = (
    "01_breakdown",
    "02a_roles",
    "02b_roles_outlier",
    "02c_roles_often_long",
    "03_drained_queue",
    "04_slow_host",
    "05_host_stretch",
    "06a_straggler_data",
    "06b_bandwidth_slow_device",
    "07_one_rank_of_two",
    "08_one_gap_many_causes",
    "09a_sync_then_work",
    "09b_sync_then_more_work",
)
NOT_REPORTED = {"worked"}
"""Intermediate results, not part of the report."""


@pytest.fixture(scope="session")
def worked(shared_traces: Path) -> Path:
    return shared_traces.parent / "reference" / "worked"


@pytest.mark.parametrize("case", CASES)
def test_worked_by_hand(worked: Path, case: str) -> None:
    expected = json.loads((worked / case / "expected.json").read_text(encoding="utf-8"))
    report: Any = gpuscope.analyze(worked / case).report
    for key in expected.keys() - NOT_REPORTED:
        assert list(differences(key, expected[key], report[key])) == []


def test_reasons_of_stragglers(worked: Path) -> None:
    for case in ("06a_straggler_data", "06b_bandwidth_slow_device"):
        expected = json.loads((worked / case / "expected.json").read_text(encoding="utf-8"))
        (late,) = gpuscope.analyze(worked / case).report["stragglers"]
        assert late["reason"] == expected["worked"]["straggler_reason"]


def differences(where: str, expected: Any, found: Any) -> Any:
    """Only pinned keys count; of the causes of a pinned class, those that are not listed are 0."""
    if isinstance(expected, dict):
        causes = ".stall_ns." in where
        for key in expected.keys() | (found.keys() if causes else set()):
            yield from differences(f"{where}.{key}", expected.get(key, 0), found.get(key, 0 if causes else None))
    elif isinstance(expected, list):
        if len(expected) != len(found):
            yield f"{where}: {len(found)} entries, not {len(expected)}"
        for index, (one, other) in enumerate(zip(expected, found, strict=False)):
            yield from differences(f"{where}[{index}]", one, other)
    elif isinstance(expected, float):
        if abs(expected - found) > 1e-9:
            yield f"{where}: {found}, not {expected}"
    elif expected != found:
        yield f"{where}: {found}, not {expected}"
