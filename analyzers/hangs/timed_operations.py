"""What Flight Recorder dumps alone say of time: who comes last to the collectives, and how long these transfer.

`duration_ms` is the time between the events before and after the collective on the device (ProcessGroupNCCL records
them with TORCH_NCCL_ENABLE_TIMING=1). `time_discovered_started_ns` and `…_completed_ns` are when the watchdog, which
looks every 100 ms, saw these events done (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, `update_state`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import comb

import numpy as np

from gpuscope.analyzers.base.analyzer import Need, Result
from gpuscope.analyzers.base.lanes import HANG
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.catalogue.finding import made
from gpuscope.schema.document import FindingEntry
from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Times
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# Where a job hung: the analysis, of which twelve files are imported where a trace tells of a hang.


def hang_analyzer_run(facts: RunFacts) -> Result:
    """The section `hang` and its finding."""
    from gpuscope.analyzers.hangs.hang_analysis import run

    return run(facts)


def _tells(trace: Trace) -> bool:
    """Whether the trace tells of a hang; lines of logs and open compilations beside timelines need not be of one."""
    if any(len(trace[table]) for table in ("flight_records", "group_status", "host_stacks", "rank_progress")):
        return True
    from gpuscope.analyzers.hangs.evidence import tells
    from gpuscope.analyzers.hangs.rank_states import has_dumps

    if has_dumps(trace):
        return True

    signs = (len(trace["hang_signs"]) > 0 and tells(trace)) or bool((trace["compilations"]["open"] == 1).any())
    return signs and not len(trace["recording"])


HANG_ANALYZER_ANALYZER = RunAnalyzer(
    "hang",
    hang_analyzer_run,
    (
        Need(
            "Flight Recorder dumps",
            "gpuscope record writes them; else set TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1",
            _tells,
            optional=True,
        ),
    ),
    (HANG,),
)


WATCHDOG_NS = 100_000_000
"""kWatchdogThreadSleepMillis of torch's ProcessGroupNCCL."""
LEAST = 4
"""Fewer timed collectives of a group say nothing of who is late."""
MOSTLY = 0.75
"""Share of them in which the late rank comes last."""
BY_CHANCE = 0.01
WORTH = 0.1
"""Share of the recorded time from which waiting and transfers are told."""
MEASURABLE_NS = 1_000_000


@dataclass(frozen=True)
class _Timed:
    """The collectives of a group that all its ranks with dumps have: one row each, a column per rank."""

    op: str
    group: str
    ranks: Sequence[int]
    seq: Times
    waits: Times
    """What each rank waited for the last one, ns, shape (collectives, ranks)."""
    transfer: Times | None
    """Shape (collectives,); None where only the hosts' times are known."""


def run(facts: RunFacts) -> Result:
    """Findings `late_in_dumps` and `transfers_in_dumps`."""
    result = Result(TIMED_OPERATIONS_ANALYZER.name)
    span = _span(facts.trace)
    for timed in _timed(facts.trace):
        result.findings += _late(timed, span)
        result.findings += _transfers(timed, span)
    return result


def _span(trace: Trace) -> int:
    """How long the dumps look back, the longest over the ranks."""
    table = trace["flight_records"]
    created, rank = table["created"], table["rank"]
    known = created != NA
    spans = [int(np.ptp(created[known & (rank == own)])) for own in np.unique(rank[known]).tolist()]
    return max(spans, default=0)


def _timed(trace: Trace) -> list[_Timed]:
    table, names = trace["flight_records"], trace.names
    message = names.matching(POINT_TO_POINT.__contains__)[table["op"]]
    found: list[_Timed] = []
    for group in np.unique(table["group"]).tolist():
        rows = np.flatnonzero((table["group"] == group) & ~message)
        ranks = np.unique(table["rank"][rows]).tolist()
        by_seq: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        for row, seq, op, rank in zip(
            rows.tolist(), *(table[name][rows].tolist() for name in ("seq", "op", "rank")), strict=True
        ):
            by_seq[seq, op][rank] = row
        whole = [(key, own) for key, own in sorted(by_seq.items()) if len(own) == len(ranks)]
        if len(ranks) < 2 or not whole:
            continue
        places = np.array([[own[rank] for rank in ranks] for _, own in whole], np.int64)
        ops = {names[op] for (_, op), _ in whole}
        name = next(iter(ops)) if len(ops) == 1 else "collectives"
        numbers = np.array([seq for (seq, _), _ in whole], np.int64)
        dur = table["dur"][places]
        timed = (dur != NA).all(axis=1)
        if int(timed.sum()) >= LEAST:
            shortest = dur[timed].min(axis=1)
            waits = dur[timed] - shortest[:, None]
            found.append(_Timed(name, names[group], ranks, numbers[timed], waits, shortest))
            continue
        created, done = table["created"][places], table["seen_completed"][places]
        known = ((created != NA) & (done != NA)).all(axis=1)
        if int(known.sum()) >= LEAST:
            waits = _by_hosts(created[known], done[known])
            found.append(_Timed(name, names[group], ranks, numbers[known], waits, None))
    return found


def _by_hosts(created: Times, done: Times) -> Times:
    """Waits by when each rank enqueued, on clocks compared by when the collectives were seen done."""
    offset = np.median(done - done[:, :1], axis=0).astype(np.int64)
    at = created - offset
    return np.asarray(at.max(axis=1)[:, None] - at)


def _late(timed: _Timed, span: int) -> Iterator[FindingEntry]:
    """The rank that others wait for, beyond chance and beyond what the times resolve: in all the collectives, or since
    it has begun to."""
    from gpuscope.analyzers.collectives.recurrence import since
    from gpuscope.catalogue.findings.hangs import LateInDumps

    ranks, last = len(timed.ranks), timed.waits.argmin(axis=1)
    least = MEASURABLE_NS if timed.transfer is not None else 2 * WATCHDOG_NS
    middle = np.median(timed.waits, axis=1)
    for place in np.flatnonzero(np.bincount(last, minlength=ranks) >= MOSTLY * LEAST).tolist():
        begin = since(timed.seq, middle - timed.waits[:, place])
        own = timed.seq >= (timed.seq[0] if begin is None else begin)
        count, times = int(own.sum()), int((last[own] == place).sum())
        waited = np.delete(timed.waits, place, axis=1)[own & (last == place)].min(axis=1)
        lost = int(waited.sum())
        chance = sum(comb(count, k) * (ranks - 1) ** (count - k) for k in range(times, count + 1)) / ranks**count
        seldom = count < LEAST or times < MOSTLY * count or chance * ranks > BY_CHANCE
        if not seldom and np.median(waited) >= least and lost >= WORTH * span:
            words = LateInDumps(times, count, int(np.median(waited)), timed.transfer is not None, begin)
            yield made(words, ranks=[timed.ranks[place]], share=min(lost / span, 1.0), cost_ns=lost, mean_ns=None)
            return


def _transfers(timed: _Timed, span: int) -> list[FindingEntry]:
    from gpuscope.catalogue.findings.hangs import TransfersInDumps

    if timed.transfer is None or not span or int(timed.transfer.sum()) < WORTH * span:
        return []
    spent = int(timed.transfer.sum())
    words = TransfersInDumps(timed.op, timed.group, len(timed.transfer), int(np.median(timed.transfer)))
    return [made(words, ranks=timed.ranks, share=min(spent / span, 1.0), cost_ns=spent, mean_ns=None)]


def _has_times(trace: Trace) -> bool:
    table = trace["flight_records"]
    return bool(((table["dur"] != NA) | (table["seen_completed"] != NA)).any())


TIMED_OPERATIONS_ANALYZER = RunAnalyzer(
    "timed_operations",
    run,
    (Need("times in Flight Recorder dumps", "set TORCH_NCCL_ENABLE_TIMING=1", _has_times, optional=True),),
)


ANALYZERS = (HANG_ANALYZER_ANALYZER, TIMED_OPERATIONS_ANALYZER)
