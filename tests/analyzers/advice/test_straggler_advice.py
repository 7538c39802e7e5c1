"""Advice on late ranks follows the reason that the trace shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from helpers.advice import finding, report, steady

from gpuscope.analyzers.advice.suggesting import advise
from gpuscope.analyzers.frame.changes import Change, Predicted, ReplacedRank, SharedWork
from gpuscope.report.schema.document import Report


def gains(changes: Sequence[Change]) -> Predicted:
    assert changes in ((ReplacedRank(1),), (SharedWork(1),))
    return Predicted(100, 40, 30, 50, "a test")


def late(reason: str | None, recurrent: bool = True, ranks: int = 2, **causes: int) -> Report:
    """Rank 1 of so many is late."""
    case = report(finding("straggler", ranks=(1,)), bound_by="communication", cause="straggler")
    case["stragglers"] = [{"rank": 1, "caused_wait_ns": 9, "phase": None, "recurrent": recurrent, "reason": reason,
                           "reason_why": "so it is"}]  # type: ignore[list-item]  # fmt: skip
    first = case["ranks"][0]
    case["ranks"] = [{**first, "rank": rank, "stall_ns": {**first["stall_ns"], "cpu": {"launch": 5}}}
                     for rank in range(ranks)]  # fmt: skip
    case["ranks"][1]["stall_ns"]["cpu"] |= causes
    return case


def test_a_slow_device_is_checked_and_drained() -> None:
    [one], _ = advise(late("device"), gains)
    assert (one["code"], one["setting"]["value"]) == ("slow_rank", "without the one of rank 1, until it is checked")
    assert one["predicted"]["step_ns_after"] == 40


def test_more_data_is_shared_by_all_ranks() -> None:
    asked: list[Change] = []

    def shared(changes: Sequence[Change]) -> Predicted:
        asked.extend(changes)
        return gains(changes)

    [one], _ = advise(late("data"), shared)
    assert (one["code"], asked) == ("even_data", [SharedWork(1)])
    assert "replace" not in one["action"]


@pytest.mark.parametrize(("cause", "begins"), [("input", "Find out why batches"), ("gc", "Collect garbage")])
def test_a_late_host_gets_the_advice_of_its_own_cause(cause: str, begins: str) -> None:
    [one], _ = advise(late("host", **{cause: 50}), gains)
    assert one["code"] == "late_host"
    assert one["action"].startswith(begins)
    assert one["action"].endswith("on rank 1")


def test_without_a_reason_it_says_what_to_record() -> None:
    suggestions, advice = advise(late(None), gains)
    assert not suggestions
    [one] = advice["unpredicted"]
    assert "before replacing anything" in one["action"]
    assert one["setting"]["name"] == "torch.profiler.profile.record_shapes"


def test_nobody_is_to_blame_where_threads_wait_for_cores() -> None:
    case = late("device")
    case["findings"].append(finding("waits_for_core"))
    suggestions, advice = advise(case, gains)
    assert (suggestions, advice["unpredicted"]) == ([], [])


@pytest.mark.parametrize(
    ("reason", "caused", "blamed"),
    [
        ("data", {1: (5, 90), 2: (5, 90)}, True),  # the latest in both of two steps, too few for a test
        ("data", {1: (90, 5), 2: (5, 90)}, False),
        ("data", {1: (5, 90)}, False),
        (None, {1: (5, 90), 2: (5, 90)}, False),
    ],
)
def test_too_few_steps_for_a_test_of_chance(reason: str | None, caused: dict[int, Any], blamed: bool) -> None:
    case = steady(late(reason, recurrent=False), 1, 2)
    case["rank_steps"] = [{"rank": rank, "step": step, "step_ns": 100, "wait_caused_ns": waits[rank],
                           "wait_suffered_ns": 0} for step, waits in caused.items() for rank in (0, 1)]  # fmt: skip
    suggestions, _ = advise(case, gains)
    assert bool(suggestions) is blamed
