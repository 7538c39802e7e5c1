"""Waits and transfers from Flight Recorder dumps alone; times worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.flight_recorder import Group, dump, entry

import gpuscope

MS = 1_000_000
EPOCH = 1_700_000_000_000_000_000
COUNT = 20
Told = Callable[[int, int], dict[str, Any]]
"""What rank and collective add to an entry."""


def findings(folder: Path, told: Told, ranks: int = 4, count: int = COUNT) -> list[dict[str, Any]]:
    group: Group = ("0", "default_pg", list(range(ranks)))
    for rank in range(ranks):
        dump(folder, rank, [group], [entry(group, seq, done=True, **told(rank, seq)) for seq in range(1, count + 1)])
    report = gpuscope.analyze(folder).report
    return [dict(one) for one in report["findings"] if one["code"].endswith("_in_dumps")]


def device(late: int | None, wait: float, transfer: float) -> Told:
    """A collective each 100 ms; all but the late rank run `wait` ms longer than the transfer."""

    def told(rank: int, seq: int) -> dict[str, Any]:
        waited = 0.0 if late in (None, rank) else wait
        return {"time_created_ns": EPOCH + 100 * MS * seq, "duration_ms": transfer + waited}

    return told


def test_the_rank_with_the_shortest_durations_comes_last(tmp_path: Path) -> None:
    """The others wait 30 of each 100 ms for rank 2; the dumps span 19 of these."""
    (found,) = findings(tmp_path, device(2, 30.0, 1.5))
    assert (found["code"], found["ranks"], found["cost_ns"]) == ("late_in_dumps", [2], COUNT * 30 * MS)
    assert found["share_frac"] == pytest.approx(600 / 1900)
    assert "last to 20 of 20 collectives" in found["message"]
    assert "durations on the devices" in found["message"]


def test_a_rank_that_becomes_late_is_told_since_when(tmp_path: Path) -> None:
    """From number 13 on the others wait 30 ms for rank 2, before that all come nearly together."""

    def told(rank: int, seq: int) -> dict[str, Any]:
        wait = 0.01 * ((rank + seq) % 4) if seq < 13 else 30.0 * (rank != 2)
        return {"time_created_ns": EPOCH + 100 * MS * seq, "duration_ms": 1.5 + wait}

    (found,) = findings(tmp_path, told, count=40)
    assert (found["code"], found["ranks"], found["cost_ns"]) == ("late_in_dumps", [2], 28 * 30 * MS)
    assert "last to 28 of 28 collectives in the Flight Recorder's dumps since number 13," in found["message"]


def test_long_transfers(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, device(None, 0.0, 40.0))
    assert (found["code"], found["cost_ns"]) == ("transfers_in_dumps", COUNT * 40 * MS)
    assert "20 transfers (all_reduce, group 0) of 40.00 ms" in found["message"]


def hosts(late: int, by_ms: float, clock_ms: Callable[[int], float]) -> Told:
    """A collective each second that ends 0.5 s in; watchdogs see it up to 100 ms later, each at its own phase."""

    def told(rank: int, seq: int) -> dict[str, Any]:
        at = EPOCH + round((1000 * seq + clock_ms(rank)) * MS)
        seen = at + round((500 + (37 * seq + 61 * rank) % 100) * MS)
        created = at + (round(by_ms * MS) if rank == late else 0)
        return {"time_created_ns": created, "time_discovered_started_ns": created, "time_discovered_completed_ns": seen}

    return told


@pytest.mark.parametrize("clock", [lambda _: 0.0, lambda rank: 5_000.0 * rank])
def test_by_the_hosts_times_whatever_their_clocks(tmp_path: Path, clock: Callable[[int], float]) -> None:
    (found,) = findings(tmp_path, hosts(1, 400.0, clock))
    assert (found["code"], found["ranks"]) == ("late_in_dumps", [1])
    assert "to 100 ms" in found["message"]


@pytest.mark.parametrize(
    "told",
    [
        device(2, 0.5, 1.0),  # less than a millisecond
        device(2, 8.0, 1.0),  # eight of each hundred
        hosts(1, 150.0, lambda _: 0.0),  # less than the watchdog resolves
        hosts(1, 0.0, lambda rank: 900.0 * rank),  # only the clocks differ
        lambda _, seq: {"time_created_ns": EPOCH + seq * MS},  # no times
        # Each in turn.
        lambda rank, seq: {"time_created_ns": EPOCH + 100 * MS * seq, "duration_ms": 1 if rank == seq % 4 else 30},
        lambda *_: {"time_created_ns": EPOCH, "duration_ms": "long"},
    ],
)
def test_silent(tmp_path: Path, told: Told) -> None:
    assert findings(tmp_path, told) == []
