"""Ranks that are late alike: named, blamed and mended as one group. The jobs are simulated, the truth with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulator.catalogue import COMPUTE, MS, READ_LOSS
from simulator.job import MIB, Job
from simulator.judged import Case
from simulator.kineto_rows import Profiler

import gpuscope
from gpuscope.analyzers.collectives.lateness import Late
from gpuscope.analyzers.collectives.stragglers import Places, late_groups
from gpuscope.report.view.first_lines import first_lines
from gpuscope.schema.document import Report
from gpuscope.words.units import ordinal


def told(folder: Path, job: Job, **profiler: Any) -> tuple[Report, float]:
    """The report of a job, and its true step, ns."""
    case = Case(job, "", Profiler(**profiler))
    report = gpuscope.analyze(case.write(folder)).report
    verdict = report["verdict"]
    assert (verdict["bound_by"], verdict["cause"]) == case.expected
    return report, case.truth.step_ns


def late(report: Report) -> list[int]:
    return sorted(entry["rank"] for entry in report["stragglers"] if entry["recurrent"])


@pytest.mark.parametrize("steps", [3, 8])
def test_four_ranks_of_one_host_are_one_group(tmp_path: Path, steps: int) -> None:
    """Sixteen ranks on four hosts, those of the second a quarter slower: mending all four brings the healthy job's
    step, mending one nothing."""
    job = replace(COMPUTE, ranks=16, layers=2, steps=steps, device_slow=dict.fromkeys(range(4, 8), 1.25), name="host")
    report, _ = told(tmp_path / "slow", job, per_host=4)
    assert late(report) == [4, 5, 6, 7]
    assert [entry["group"] for entry in report["stragglers"] if entry["recurrent"]] == [
        {"ranks": [4, 5, 6, 7], "by": "host", "name": "node1"}
    ] * 4
    (finding,) = [one for one in report["findings"] if one["code"] == "straggler"]
    assert finding["ranks"] == [4, 5, 6, 7]
    assert "ranks 4-7 (host node1) are consistently late" in finding["message"]
    assert first_lines(report).what.startswith("Ranks 4-7 are late")
    first = report["suggestions"][0]
    assert (first["code"], first["action"].split(",")[0]) == ("slow_rank", "Check the device of ranks 4-7 (host node1)")
    healthy = Case(replace(job, device_slow={}), "").truth.step_ns
    assert first["predicted"]["step_ns_after"] == pytest.approx(healthy, rel=0.03)


def test_two_slow_ranks_of_four(tmp_path: Path) -> None:
    """Half of all ranks, with nothing in common but the reason."""
    job = replace(COMPUTE, ranks=4, layers=3, device_slow={1: 1.25, 3: 1.25}, name="two")
    report, _ = told(tmp_path, job)
    assert late(report) == [1, 3]
    assert report["stragglers"][0]["group"] == {"ranks": [1, 3], "by": "reason", "name": "device"}
    assert report["suggestions"][0]["action"].startswith("Check the device of ranks 1,3,")
    healthy = Case(replace(job, device_slow={}), "").truth.step_ns
    assert report["suggestions"][0]["predicted"]["step_ns_after"] == pytest.approx(healthy, rel=0.03)


def test_the_partner_of_a_late_rank_is_not_late(tmp_path: Path) -> None:
    """Rank 0 waits in each layer for rank 1, so its data-parallel peer waits for both."""
    job = replace(COMPUTE, parallel="tensor", ranks=4, tensor_bytes=16 * MIB, device_slow={1: 1.25}, name="tensor")
    assert late(told(tmp_path, job)[0]) == [1]


def test_ranks_that_take_turns_are_nobody_to_blame(tmp_path: Path) -> None:
    job = replace(COMPUTE, ranks=4, layers=2, rotating=1.8, items=1, steps=10, name="turns")
    report, _ = told(tmp_path, job)
    assert late(report) == []
    assert first_lines(report).what.startswith("Ranks take turns being late")


@pytest.mark.parametrize(
    ("usual", "places", "groups"),
    [
        # Host b has a rank that is not late, but nobody else is.
        ({2: 10, 3: 9}, Places({0: "a", 1: "a", 2: "b", 3: "b", 4: "b"}, {}, {}), [((2, 3), "host", "b")]),
        # All of host b, and a rank of host a for the same reason.
        (
            {0: 8, 2: 10, 3: 9},
            Places({0: "a", 1: "a", 2: "b", 3: "b"}, {}, dict.fromkeys(range(4), "device")),
            [((2, 3), "host", "b")],
        ),
        # One host is no place to tell ranks apart by.
        ({0: 8, 2: 10}, Places(dict.fromkeys(range(4), "a"), {}, {}), []),
        ({0: 8, 2: 10}, Places({}, {0: 1, 1: 0, 2: 1, 3: 1}, {}), [((0, 2), "stage", "1")]),
        ({0: 8, 2: 10}, Places({}, {}, {0: "data", 2: "data"}), [((0, 2), "reason", "data")]),
        ({0: 8, 2: 10}, Places({}, {}, {0: "data", 2: "host"}), []),
        # Far less late: another matter.
        ({0: 4, 2: 10}, Places({}, {}, {0: "data", 2: "data"}), []),
    ],
)
def test_what_a_group_shares(usual: dict[int, int], places: Places, groups: list[Any]) -> None:
    found = late_groups({rank: Late(ns, 1) for rank, ns in usual.items()}, places)
    assert sorted({(one.ranks, one.by, one.name) for one in found.values()}) == groups
    assert all(rank in one.ranks for rank, one in found.items())


def test_other_periods_are_other_groups() -> None:
    assert late_groups({0: Late(9, 1), 1: Late(9, 4)}, Places({}, {}, {0: "host", 1: "host"})) == {}


@pytest.mark.parametrize(("period", "steps", "ranks"), [(4, 14, 4), (5, 22, 4), (4, 14, 2), (3, 14, 4)])
def test_a_period_has_its_name(tmp_path: Path, period: int, steps: int, ranks: int) -> None:
    """Rank 1 writes a checkpoint in every so-manieth step, the first of which is warm-up; of every fifth step the late
    ones are outliers."""
    job = replace(READ_LOSS, parallel="fsdp", ranks=ranks, layers=2, host_work_ns=20 * MS, host_work_ranks=(1,))
    job = replace(job, host_work_every=period, steps=steps, name="period")
    report = gpuscope.analyze(Case(job, "").write(tmp_path)).report
    assert {one["rank"]: one.get("period") for one in report["stragglers"] if one["recurrent"]} == {1: period}
    (finding,) = [one for one in report["findings"] if one["code"] == "straggler"]
    assert f"rank 1 is late in every {ordinal(period)} step" in finding["message"]


@pytest.mark.parametrize(("workers", "items", "load"), [(1, 0, 24), (0, 1, 8)])
def test_the_loader_of_one_rank_makes_it_late(tmp_path: Path, workers: int, items: int, load: int) -> None:
    """Advice on the loader comes first, whether most of the time is its own waiting or the others' for it."""
    job = replace(COMPUTE, loader_ns=load * MS, workers=workers, loader_ranks=(0,), items=items, ranks=4, name="loader")
    report, _ = told(tmp_path, job)
    assert late(report) == [0]
    (entry,) = [one for one in report["stragglers"] if one["rank"] == 0]
    assert entry["reason"] == "host"
    assert "data loader (input)" in entry["reason_why"]
    assert report["suggestions"][0]["finding"] == "input"


@pytest.mark.parametrize(("prefetch", "workers", "load"), [(1, 1, 24), (0, 0, 12)])
def test_a_loader_that_is_slow_everywhere_is_the_cause_and_no_rank(
    tmp_path: Path, prefetch: int, workers: int, load: int
) -> None:
    job = replace(COMPUTE, parallel="fsdp", prefetch=prefetch, loader_ns=load * MS, workers=workers, name="everywhere")
    report, _ = told(tmp_path, replace(job, items=1 - workers, ranks=4, layers=2))
    assert report["verdict"]["cause"] == "input"
    assert late(report) == []
