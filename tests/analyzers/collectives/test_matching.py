"""Which collectives are one operation; each case small enough to match by eye."""

from __future__ import annotations

from helpers.runs import Row, coll, run

from gpuscope.analyzers.facts.matching import match
from gpuscope.trace.trace import Trace

JITTER = (0, 7_000, -4_000, 9_000, 2_000, -8_000, 5_000, -1_000)
"""ns by which steps differ in length, as real ones do."""


def met(trace: Trace) -> list[list[tuple[int, int]]]:
    """(rank, start) of each instance's rows."""
    found, table = match(trace).instances, trace["collectives"]
    rows = [found.rows[low:high] for low, high in zip(found.bounds[:-1], found.bounds[1:], strict=True)]
    return [list(zip(table["rank"][own].tolist(), table["start"][own].tolist(), strict=True)) for own in rows]


def steps(rank: int, which: range, ops: tuple[tuple[str, int], ...], jitter: bool = True) -> list[Row]:
    """The same operations in every step, without numbers; rank 1 begins each 10 later."""
    rows = []
    for step in which:
        at = step * 1_000_000 + (sum(JITTER[:step]) if jitter else 0)
        for place, (op, size) in enumerate(ops):
            start = at + place * 100_000
            rows.append(coll(rank, start + 10 * rank, start + 50_000, op=op, nbytes=size))
    return rows


def test_numbers_tell_through_unequal_windows() -> None:
    """Rank 0 recorded 1–3, rank 1 2–4: two are matched, and one of each rank is outside the other's window."""
    trace = run(
        [coll(0, n * 100, n * 100 + 50, seq=n) for n in (1, 2, 3)]
        + [coll(1, n * 100 + 5, n * 100 + 50, seq=n) for n in (2, 3, 4)]
    )
    assert met(trace) == [[(0, 200), (1, 205)], [(0, 300), (1, 305)]]
    assert match(trace).unmatched == {"outside_window": 2}


def test_a_missing_rank_leaves_its_group_unmatched() -> None:
    """Ranks 0 and 1 of three: nobody knows when rank 2 came. Both saw the end, which serves the clocks."""
    found = match(run([coll(rank, 100, 150, "g:0,1,2", seq=1) for rank in (0, 1)], world=3))
    assert len(found.instances) == 0
    assert found.unmatched == {"ranks_missing": 2}
    assert found.partial.sizes.tolist() == [2]


def test_groups_that_share_members_and_numbers() -> None:
    """Rank 0 is in a group with 1 and in one with 2; all call theirs number 1."""
    trace = run(
        [
            coll(0, 100, 150, "tp:0,1", seq=1),
            coll(1, 110, 150, "tp:0,1", seq=1),
            coll(0, 200, 250, "dp:0,2", seq=1),
            coll(2, 190, 250, "dp:0,2", seq=1),
        ]
    )
    assert sorted(met(trace)) == [[(0, 100), (1, 110)], [(0, 200), (2, 190)]]


def test_coalesced_calls_share_a_number() -> None:
    """Two all-reduces between groupStart and groupEnd carry number 7; the first meets the first."""
    rows = [coll(rank, 100 * k + rank, 100 * k + 50, seq=7, nbytes=8 * k) for rank in (0, 1) for k in (1, 2)]
    assert met(run(rows)) == [[(0, 100), (1, 101)], [(0, 200), (1, 201)]]


def test_one_of_two_coalesced_calls_is_not_told_apart() -> None:
    rows = [coll(0, 100, 150, seq=7), coll(0, 200, 250, seq=7), coll(1, 201, 250, seq=7)]
    assert match(run(rows)).unmatched == {"disagree": 3}


def test_messages_pair_by_sender_and_receiver() -> None:
    """In one group of three, 0 sends to 1 twice and 1 to 2 once; all numbers are those of the collectives."""
    group = "pp:0,1,2"
    trace = run(
        [
            coll(0, 100, 120, group, "send", 0, peer=1),
            coll(0, 200, 220, group, "send", 0, peer=1),
            coll(1, 90, 120, group, "recv", 0, peer=0),
            coll(1, 150, 170, group, "send", 0, peer=2),
            coll(1, 180, 220, group, "recv", 0, peer=0),
            coll(2, 140, 170, group, "recv", 0, peer=1),
        ]
    )
    assert sorted(met(trace)) == [[(0, 100), (1, 90)], [(0, 200), (1, 180)], [(1, 150), (2, 140)]]


def test_a_message_without_its_other_end() -> None:
    rows = [coll(0, 100, 120, "pp:0,1,2", "send"), coll(1, 100, 120, "pp:0,1,2", "recv"), coll(2, 0, 9, "pp:0,1,2")]
    assert match(run(rows)).unmatched["peer_unknown"] == 2


def test_ranks_that_disagree_on_the_size() -> None:
    assert match(run([coll(0, 1, 9, seq=1, nbytes=8), coll(1, 1, 9, seq=1, nbytes=4)])).unmatched == {"disagree": 2}


def test_uneven_all_to_all_is_one_operation() -> None:
    """Each rank tells its own share: sizes differ."""
    assert len(met(run([coll(r, r, 9, op="all_to_all", seq=1, nbytes=8 + r) for r in (0, 1)]))) == 1


def test_order_tells_where_a_capture_began_late() -> None:
    """No numbers; rank 1's capture begins with the second operation of step 1: sizes fit at one shift alone."""
    ops = (("all_gather", 4), ("all_reduce", 8), ("all_reduce", 16))
    trace = run(
        steps(0, range(1), ops)
        + steps(0, range(1, 2), ops)[:1]
        + steps(1, range(1), ops)[1:]
        + steps(1, range(1, 2), ops)[:1]
    )
    assert met(trace)[0] == [(0, 100_000), (1, 100_010)]
    assert match(trace).unmatched == {"outside_window": 1}


def test_ends_tell_which_step_is_which() -> None:
    """All steps are alike and rank 1 recorded steps 2–6 of 0–7: only as those do all ends agree."""
    ops = (("all_gather", 4), ("all_reduce", 8))
    trace = run(steps(0, range(8), ops) + steps(1, range(2, 7), ops))
    assert all(late - early == 10 for (_, early), (_, late) in met(trace))
    assert match(trace).unmatched == {"outside_window": 6}


def test_perfectly_regular_steps_tell_nothing() -> None:
    ops = (("all_gather", 4), ("all_reduce", 8))
    trace = run(steps(0, range(8), ops, jitter=False) + steps(1, range(2, 7), ops, jitter=False))
    assert match(trace).unmatched == {"order_unknown": 10, "outside_window": 16}


def test_on_one_clock_even_regular_steps_tell() -> None:
    ops = (("all_gather", 4), ("all_reduce", 8))
    trace = run(steps(0, range(8), ops, jitter=False) + steps(1, range(2, 7), ops, jitter=False), hosts=("a", "a"))
    assert all(late - early == 10 for (_, early), (_, late) in met(trace))
