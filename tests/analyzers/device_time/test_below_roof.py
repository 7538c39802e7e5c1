"""Operators below their roofs on jobs of one kernel, whose truth is by formula (tests/simulator/kernel_faults.py)."""

from __future__ import annotations

import pytest

from benchmarks.roofs import Judged, judge_all


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    return judge_all()


def test_the_jobs_are_many(judged: list[Judged]) -> None:
    faulty = [one for one in judged if not one.case.healthy]
    assert len(faulty) >= 60
    assert len(judged) - len(faulty) == len(faulty)
    assert len({one.case.device.name for one in judged}) == 3


def test_operators_are_named_and_rated(judged: list[Judged]) -> None:
    faulty = [one for one in judged if not one.case.healthy]
    assert sum(one.named for one in faulty) >= 0.97 * len(faulty)
    assert sum(one.rated for one in faulty) >= 0.97 * len(faulty)


def test_reasons_are_right(judged: list[Judged]) -> None:
    faulty = [one for one in judged if not one.case.healthy]
    wrong = [one.case.name for one in faulty if not one.explained]
    assert len(wrong) <= 0.1 * len(faulty), wrong


def test_healthy_jobs_are_left_alone(judged: list[Judged]) -> None:
    assert [one.case.name for one in judged if one.case.healthy and not one.silent] == []
