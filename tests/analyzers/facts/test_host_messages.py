"""Messages that the host carries out last until they are waited for; worked out by hand (µs)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import note, op, write

import gpuscope

SIZE = 4_000_000
"""10 Gbit/s need 3.4 ms for it, more than gloo's fixed cost of 1 ms: its bytes limit it."""


def message(ts: int, dur: int, kind: str, seq: int, size: int = SIZE) -> Any:
    """gloo's annotation of a message from rank 0 to rank 1, as gpuscope's recorder completes it."""
    event = note(ts, dur, f"gloo:{kind}", tid=2)
    event["args"] = {
        "Collective name": kind,
        "In msg nelems": size // 4,
        "Out msg nelems": size // 4,
        "dtype": "Float",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Seq": seq,
        "Src Rank": 0,
        "Dst Rank": 1,
    }
    return event


def run(folder: Path, sender: list[Any], receiver: list[Any]) -> list[dict[str, int]]:
    """Causes of exposed communication of both ranks, ns."""
    for rank, events in enumerate((sender, receiver)):
        info = {"backend": "gloo", "rank": rank, "world_size": 2}
        write(folder / f"rank{rank}.json", *events, rank=None, distributedInfo=info)
    return [rank["stall_ns"]["communication"] for rank in gpuscope.analyze(folder).report["ranks"]]


def test_a_send_that_is_collected_late_moves_nothing_meanwhile(tmp_path: Path) -> None:
    """The receiver is there first, at 50: the message is on its way from 100 to 200. The sender waits for its send at
    900, with nothing to do since 500: that is no transfer at 10 MB/s."""
    sender = [op(0, 500), message(100, 800, "send", 1), op(900, 100)]
    receiver = [op(0, 50), message(50, 150, "recv", 1), op(200, 800)]
    assert run(tmp_path, sender, receiver) == [
        {"pipeline_bubble": 400_000},
        {"pipeline_bubble": 50_000, "bandwidth": 100_000},
    ]


def test_a_receive_that_is_taken_up_late_is_measured_by_others_of_its_size(tmp_path: Path) -> None:
    """Message 1 takes 100. Of message 2, posted at 300 and sent at 400, the receiver takes up at 800 what came by
    500; another size, sent before anyone waits for it, is never seen to be quick and stays a transfer."""
    sender = [op(0, 1000), *(message(at, 10, "send", seq) for at, seq in ((100, 1), (400, 2)))]
    receiver = [op(0, 50), message(50, 150, "recv", 1), op(200, 100), message(300, 500, "recv", 2), op(800, 200)]
    assert run(tmp_path / "same", sender, receiver)[1] == {"pipeline_bubble": 450_000, "bandwidth": 200_000}
    receiver[3] = message(300, 500, "recv", 2, size=2 * SIZE)
    sender[2] = message(250, 500, "send", 2, size=2 * SIZE)
    assert run(tmp_path / "other", sender, receiver)[1] == {"pipeline_bubble": 50_000, "bandwidth": 600_000}


@pytest.mark.parametrize(("shortest", "cause"), [(500, "latency"), (20_000, "bandwidth")])
def test_the_quickest_message_of_a_size_says_what_the_link_can_do(tmp_path: Path, shortest: int, cause: str) -> None:
    """262 kB would take 0.2 ms at 10 Gbit/s. If one takes 0.5 ms, the other's 30 ms are not its bytes'; if none takes
    less than 20 ms, twenty times the fixed cost, the link is slow."""

    def reduce(ts: int, dur: int, seq: int) -> Any:
        event = message(ts, dur, "all_reduce", seq, 262_144)
        event["name"] = "gloo:all_reduce"
        return event

    events = [op(0, 100), reduce(100, shortest, 1), op(100 + shortest, 100), reduce(60_000, 30_000, 2), op(90_000, 10)]
    assert set(run(tmp_path, events, events)[0]) == {cause}
