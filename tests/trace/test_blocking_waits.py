"""Waits of a training thread inside a node of autograd are communication; work there is compute. By hand (µs)."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.kineto import Event, op, write

import gpuscope

NODE = "autograd::engine::evaluate_function: FooBackward"


def breakdown(path: Path, *events: Event) -> tuple[int, int]:
    """(compute, exposed communication) in µs of a CPU rank."""
    write(path / "rank0.json", *events, rank=None, distributedInfo={"backend": "gloo", "rank": 0, "world_size": 2})
    (rank,) = gpuscope.analyze(path, advice=False).report["ranks"]
    own = rank["breakdown_ns"]
    return own["compute"] // 1000, own["exposed_communication"] // 1000


def gloo(ts: int, dur: int) -> Event:
    return {**op(ts, dur, "gloo:all_gather", tid=9), "cat": "user_annotation"}


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (780, (220, 780)),
        (90, (1000, 0)),  # the collective ends at 200, the pause 700 later: something else took the time
    ],
)
def test_a_node_that_waits_for_a_collective(tmp_path: Path, runs: int, expected: tuple[int, int]) -> None:
    """0–100 a product, 100–900 nothing while the collective runs from 110 on, 900–1000 a product; all in one node."""
    events = (op(0, 1000, NODE), op(0, 100), op(900, 100), gloo(110, runs))
    assert breakdown(tmp_path, *events) == expected


@pytest.mark.parametrize(
    "inside",
    [
        (op(100, 800, "aten::convolution_backward"),),  # an operator works meanwhile: the collective is hidden
        (op(100, 30), op(140, 30), op(180, 30), op(220, 700)),  # no pause is long enough
    ],
)
def test_a_node_that_works_meanwhile(tmp_path: Path, inside: tuple[Event, ...]) -> None:
    events = (op(0, 1000, NODE), op(0, 100), *inside, op(920, 80), gloo(110, 780))
    assert breakdown(tmp_path, *events) == (1000, 0)


def test_a_product_that_looks_at_its_inputs_first_computes(tmp_path: Path) -> None:
    """A product 100–900 with a look at its inputs 110–120 inside: it works on, and the collective is hidden."""
    inside = (op(100, 800, "aten::mm"), op(110, 10, "aten::resolve_conj"))
    assert breakdown(tmp_path, op(0, 1000, NODE), op(0, 100), *inside, op(920, 80), gloo(130, 760)) == (1000, 0)


def message(ts: int, dur: int, name: str = "gloo:recv") -> Event:
    return {**op(ts, dur, name, tid=9), "cat": "user_annotation"}


def test_a_message_is_waited_for_where_the_thread_is_blocked_on_it(tmp_path: Path) -> None:
    """Posted at 100, hidden by a product 100–300, under way during Python 300–600, waited for 600–900."""
    events = (op(0, 300), op(590, 10), op(900, 100), message(100, 800))
    assert breakdown(tmp_path, *events) == (410, 300)


def test_a_message_that_is_there_when_it_is_waited_for_costs_nothing(tmp_path: Path) -> None:
    """Python 300–800 while it is under way; the wait takes 10 µs."""
    events = (op(0, 300), op(790, 10), op(810, 190), message(100, 710))
    assert breakdown(tmp_path, *events) == (500, 0)


def test_handing_a_message_over_is_communication(tmp_path: Path) -> None:
    """c10d::send 300–500; its message is under way from 310 to 700, when nobody waits for it."""
    events = (op(0, 300), op(300, 200, "c10d::send"), op(690, 310), message(310, 390, "gloo:send"))
    assert breakdown(tmp_path, *events) == (620, 190)
