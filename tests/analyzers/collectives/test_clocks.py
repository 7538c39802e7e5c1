"""Clocks told from the ends of collectives: synthetic ranks whose clocks are set wrong on purpose."""

from __future__ import annotations

import numpy as np
from helpers.runs import coll, run

from gpuscope.analyzers.facts.clocks import Clocks, estimate
from gpuscope.analyzers.facts.matching import match
from gpuscope.trace.trace import Trace

SECOND = 10**9
COUNT = 200


def skewed(offset: int, drift: float, scatter: int, hosts: tuple[str, ...] = ("a", "b"), count: int = COUNT) -> Trace:
    """Over ten seconds, rank 1's host shows `offset` more, and gains `drift`; ranks leave within `scatter`."""
    random = np.random.default_rng(1)
    rows = []
    for n in range(count):
        end = 1_700_000_000 * SECOND + n * 10 * SECOND // count
        for rank, host in enumerate(hosts):
            left = end + int(random.integers(0, scatter + 1))
            shown = left + (round(offset + drift * (n - count // 2) * 10 * SECOND / count) if host == "b" else 0)
            rows.append(coll(rank, shown - 1000, shown, f"g:{','.join(map(str, range(len(hosts))))}", seq=n))
    return run(rows, hosts=hosts)


def clocks_of(trace: Trace) -> Clocks:
    return estimate(trace, match(trace))


def test_offset_between_hosts() -> None:
    """3 ms apart, known to the scatter of the ends (uniform over 2 µs on either side)."""
    found = clocks_of(skewed(3_000_000, 0, 2_000))
    assert found.error is not None
    assert 200 < found.error < 2_000
    assert abs(found.offset[1] - 3_000_000) <= found.error
    assert found.drift[1] == 0  # a constant explains the ends: no drift is claimed


def test_drift_is_claimed_where_it_explains_the_ends() -> None:
    """50 ppm over 10 s is 500 µs; without drift the ends would not agree by 250 µs."""
    trace = skewed(3_000_000, 50e-6, 2_000)
    found = clocks_of(trace)
    assert found.error is not None
    assert found.error < 2_000
    assert abs(found.drift[1] - 50e-6) < 1e-6
    table = trace["collectives"]
    ends = found.common(table["rank"], table["end"])
    assert int(np.abs(ends[:COUNT] - ends[COUNT:]).max()) < 5_000


def test_there_and_back() -> None:
    found = clocks_of(skewed(3_000_000, 50e-6, 2_000))
    rank, time = np.array([1, 1, 0]), np.array([found.at - 5 * SECOND, found.at + 5 * SECOND, found.at])
    assert np.abs(found.local(rank, found.common(rank, time)) - time).max() <= 1


def test_no_clock_runs_away_so_fast() -> None:
    """1 % is no drift of a clock: ends that differ so are of something else, and count as error."""
    found = clocks_of(skewed(0, 0.01, 2_000))
    assert found.drift[1] == 0
    assert found.error is not None
    assert found.error > 10_000_000


def test_ranks_of_one_host_share_a_clock() -> None:
    found = clocks_of(skewed(3_000_000, 0, 2_000, hosts=("a", "b", "b")))
    assert found.offset[1] == found.offset[2]
    assert found.same(np.array([1, 0]), np.array([2, 1])).tolist() == [True, False]


def test_one_host_has_no_offset_however_far_apart_the_ends() -> None:
    trace = run(
        [coll(rank, n * 1000, n * 1000 + 500 + 400 * rank, seq=n) for n in range(20) for rank in (0, 1)],
        hosts=("a", "a"),
    )
    found = clocks_of(trace)
    assert (found.offset, found.error) == ({0: 0, 1: 0}, 1_000)


def test_an_offset_within_the_scatter_is_none() -> None:
    """200 ns where the ends scatter over 2 µs: nothing is corrected, and the error covers it."""
    found = clocks_of(skewed(200, 0, 2_000))
    assert found.offset[1] == 0
    assert found.error is not None
    assert found.error >= 200


def test_a_few_ends_tell_nothing() -> None:
    found = clocks_of(skewed(3_000_000, 0, 0, count=4))
    assert (found.offset[1], found.error) == (0, 3_000_000)


def test_clocks_are_tied_through_others() -> None:
    """Ranks 0 and 2 never meet; both meet 1: 2 is 5 + 7 µs ahead."""
    rows = []
    for n in range(10):
        at = n * SECOND
        rows += [coll(0, at, at + 100, "x:0,1", seq=n), coll(1, at, at + 5_100, "x:0,1", seq=n)]
        rows += [coll(1, at + 9_000, at + 9_100, "y:1,2", seq=n), coll(2, at + 9_000, at + 16_100, "y:1,2", seq=n)]
    assert clocks_of(run(rows)).offset == {0: 0, 1: 5_000, 2: 12_000}


def test_nothing_ties_ranks_that_never_meet() -> None:
    assert clocks_of(run([coll(0, 0, 9, "x:0,2", seq=1), coll(1, 0, 9, "y:1,3", seq=1)])).error is None
