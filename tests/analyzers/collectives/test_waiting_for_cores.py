"""Late ranks on a machine whose cores others hold: by hand, two ranks over eight steps of 410 µs."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.collectives import collective
from helpers.kineto import Event, call, kernel, note, op, write

import gpuscope
from gpuscope.analyzers.collectives.lateness import beyond_peers, more_to_run
from gpuscope.analyzers.facts.run_facts import CoreTimes
from gpuscope.schema.document import Report

STEPS = 8


def rank(
    folder: Path,
    number: int,
    late: list[int],
    *,
    products: int = 1,
    waited: int = 0,
    ran: int = 200,
) -> None:
    """A product of 100 (or several in its place), the first `late[step]` longer; the all-reduce ends at 400 for all.
    In each step its thread runs `ran` and waits `waited` for a core."""
    events: list[Event] = []
    for step, delay in enumerate(late):
        at, first = 410 * step, 100 * step
        events.append(note(at, 410, f"ProfilerStep#{step}"))
        events += [call(at + 1, 1, first), kernel(at + 5, 10, first, "elementwise")]
        for turn in range(products):
            begin, number_of = at + 15 + (delay if turn else 0) + 100 * turn, first + 1 + turn
            events.append(op(begin - 5, 4, "aten::mm", **{"Input Dims": [[64, 64], [64, 64]]}))
            events += [call(begin - 4, 2, number_of), kernel(begin, 100 + (0 if turn else delay), number_of)]
        end = 15 + delay + 100 * products
        events.append(collective(at + end, 400 - end, 1 << 20, step))
    counted = {
        "columns": ["step", "ran_ns", "waited_ns"],
        "steps": [[step, ran * 1000, waited * 1000] for step in range(len(late))],
    }
    write(folder / f"rank{number}.json", *events, rank=number, world_size=2, gpuscope_cores=counted)


def analysed(folder: Path) -> Report:
    return gpuscope.analyze(folder, advice=False).report


def test_who_waits_for_each_other_as_long_as_for_cores_is_no_straggler(tmp_path: Path) -> None:
    """In turns 270 late, and both had no core for 300 of each step: the class stands, its cause does not."""
    rank(tmp_path, 0, [270, 0] * 4, waited=300)
    rank(tmp_path, 1, [0, 270] * 4, waited=300)
    report = analysed(tmp_path)
    assert report["verdict"]["bound_by"] == "communication"
    assert (report["verdict"]["cause"], report["verdict"]["cause_abstained"]) == (None, True)
    assert "no core" in report["verdict"]["why"]
    assert not any(entry["recurrent"] for entry in report["stragglers"])


@pytest.mark.parametrize(
    ("other", "late", "delay", "recurrent", "reason", "cause"),
    [
        # Rank 1 multiplies three times in place of once: 200 late for its data, whoever holds the cores.
        ({"waited": 300}, {"waited": 300, "products": 3}, 0, True, "data", "straggler"),
        ({"waited": 100}, {"waited": 400}, 270, False, "cores", None),
        # 270 late, of which its thread ran 150: so long the other would have waited with cores for all, and with the
        # waits for a core that running brings here, so long rank 1 is late.
        ({"waited": 300}, {"waited": 300, "ran": 350}, 270, True, "device", "straggler"),
        ({}, {}, 270, True, "device", "straggler"),
    ],
    ids=["more to compute", "no core for longer", "runs longer", "no waits for cores"],
)
def test_why_rank_1_is_late(
    tmp_path: Path,
    other: dict[str, int],
    late: dict[str, int],
    delay: int,
    recurrent: bool,
    reason: str,
    cause: str | None,
) -> None:
    rank(tmp_path, 0, [0] * STEPS, **other)
    rank(tmp_path, 1, [delay] * STEPS, **late)
    report = analysed(tmp_path)
    (entry,) = report["stragglers"]
    assert (entry["rank"], entry["recurrent"], entry["reason"]) == (1, recurrent, reason)
    assert entry["caused_wait_ns_per_step"] == (delay or 200) * 1000
    assert report["verdict"]["cause"] == cause


def test_slow_in_every_third_step(tmp_path: Path) -> None:
    """270 late in eight of 25 steps, 2 late in turns in the others: among all of them it is last in half, in those that
    wait longer than the mean always."""
    late = [270 if step % 3 == 0 else 2 * (step % 2) for step in range(25)]
    other = [0 if step % 3 == 0 else 2 * (1 - step % 2) for step in range(25)]
    rank(tmp_path, 0, other)
    rank(tmp_path, 1, late)
    named = {entry["rank"]: entry["recurrent"] for entry in analysed(tmp_path)["stragglers"]}
    assert named == {0: False, 1: True}


@pytest.mark.parametrize(
    ("first", "second", "beyond"),
    [
        (CoreTimes(100, 50), CoreTimes(200, 100), {0: 0, 1: 0}),  # twice the work waits twice as long
        (CoreTimes(100, 50), CoreTimes(100, 80), {0: 0, 1: 30}),
        (CoreTimes(None, 50), CoreTimes(None, 80), {0: 0, 1: 30}),  # recordings without the time on a core
    ],
)
def test_beyond_the_peers_rate(first: CoreTimes, second: CoreTimes, beyond: dict[int, float]) -> None:
    assert beyond_peers({0: first, 1: second}) == beyond


@pytest.mark.parametrize(
    ("first", "others", "more"),
    [
        (CoreTimes(100, 50), CoreTimes(200, 0), [0, 150]),  # 100 more, for which the other would wait 50
        (CoreTimes(100, 50), CoreTimes(100, 900), [0, 0]),
        (CoreTimes(None, 50), CoreTimes(200, 50), [0, 0]),
    ],
)
def test_more_to_run(first: CoreTimes, others: CoreTimes, more: list[float]) -> None:
    assert list(more_to_run({0: first, 1: others}).values()) == more
