"""What a change without a figure can save at most."""

from __future__ import annotations

from copy import deepcopy

import pytest
from helpers.advice import finding, report

from gpuscope.analyzers.advice.prediction_cache import explained, step_bound
from gpuscope.analyzers.advice.suggesting import advise
from gpuscope.analyzers.what_if_changes import Predicted, Refused
from gpuscope.schema.document import Report

STEP = 100_000_000


def case(code: str, share: float, ranks: tuple[int, ...] = (0, 1)) -> Report:
    """Two ranks of two steps, each computing for 70 % of its time; the finding costs its ranks this share."""
    own = finding(code, ranks=ranks)
    own["cost_ns"], own["share_frac"] = round(share * 2 * STEP * len(ranks)), share
    found = report(own)
    [rank] = found["ranks"]
    rank["breakdown_ns"]["compute"] = 140_000_000
    found["ranks"] = [rank, {**deepcopy(rank), "rank": 1}]
    return found


@pytest.mark.parametrize(
    ("code", "share", "ranks", "low"),
    [
        ("unused_parameter_search", 0.4, (0, 1), 70),  # what the device computes takes as long as before
        ("single_precision", 0.4, (0, 1), 60),  # but for its own kernels
        ("unused_parameter_search", 0.1, (0, 1), 90),
        ("unused_parameter_search", 0.1, (1,), 90),  # of the time of that rank
    ],
)
def test_what_would_be_left(code: str, share: float, ranks: tuple[int, ...], low: int) -> None:
    found = case(code, share, ranks)
    bound = step_bound(found, found["findings"][0])
    assert bound is not None
    assert bound["step_ns_low"] == low * STEP // 100


def test_without_its_own_work_the_host_need_not_run_ahead_of_its_blocking_calls() -> None:
    found = case("host_other", 0.05)
    found["ranks"][0]["stall_ns"]["cpu"] |= {"sync": round(0.08 * found["ranks"][0]["window_ns"])}
    bound = step_bound(found, found["findings"][0])
    assert bound is not None
    assert bound["step_ns_low"] == 87 * STEP // 100


def test_what_a_finding_costs_bounds_the_promise_and_not_the_range() -> None:
    """All that a rank does beside computing is 30 % of its time on average: of single steps it may be more."""
    found = case("input", 0.2)
    told = Predicted(STEP, 40_000_000, 35_000_000, 60_000_000, "", saved={"idle": 60_000_000})
    promised = explained(found, found["findings"][0], told)
    assert (promised.after, promised.low, promised.high) == (70_000_000, 35_000_000, 90_000_000)


def test_what_is_paid_once_and_what_answers_a_part_has_no_bound() -> None:
    found = case("launch", 0.4)
    found["host_calls"] = []
    unpredicted = advise(found, lambda _: Refused("a test"))[1]["unpredicted"]
    bounds = {one["code"]: one.get("bound") for one in unpredicted}
    assert bounds["numa_binding"] is None
    assert bounds["cuda_graphs"] is not None


def test_bound_by_compute_a_likely_gain_of_kernels_is_named() -> None:
    found = case("single_precision", 0.4)
    found["verdict"]["bound_by"] = "compute"
    unsure = Predicted(STEP, 80_000_000, 60_000_000, 110_000_000, "a test")
    suggestions, _ = advise(found, lambda _: unsure)
    assert suggestions
    assert not any(one["certain"] for one in suggestions)
    stalls = case("gc", 0.4)
    assert advise(stalls, lambda _: unsure)[0]
    stalls["verdict"]["bound_by"] = "compute"
    assert not advise(stalls, lambda _: unsure)[0]
