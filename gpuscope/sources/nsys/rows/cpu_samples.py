"""What a thread was doing by the profiler's samples of its stack, as ranges: a function lasts from the first of several
samples that find it at its place of the stack to the last.

nsys samples a thread while it runs (`--sample=process-tree`): COMPOSITE_EVENTS holds the samples, SAMPLING_CALLCHAINS
their frames, depth 0 the innermost. Where there are none, the call chains of CUDA calls (`--cudabacktrace`,
`--python-backtrace=cuda`) say as much of the instants of these calls. SCHED_EVENTS (`--cpuctxsw=process-tree`) says
when a thread left its core and came back.
"""

from __future__ import annotations

import numpy as np

from gpuscope.sources.nsys.formats.export_tables import Tables
from gpuscope.sources.nsys.formats.string_ids import StringTable
from gpuscope.sources.nsys.rows.event_tables import OSRT, RUNTIME, Events, Rows, process_of
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME, NamePool
from gpuscope.trace.columns.sorted_search import places
from gpuscope.trace.columns.table import Array, Mask, Times
from gpuscope.trace.intervals import Spans, subtract, union
from gpuscope.trace.naming.stack_frames import OFF_CORE, function_text
from gpuscope.trace.schema import NA

SAMPLED = "sampled functions"
"""Name of the rows in `Events`: of no table of the export."""
_SAMPLES, _FRAMES, _SWITCHES = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS", "SCHED_EVENTS"
_CALLS = "CUDA_CALLCHAINS"
APART = 3
"""Usual periods between two samples of a thread from which it did something else in between: it did not run."""


def read_samples(tables: Tables, events: Events, names: NamePool) -> None:
    """Add what the threads that call CUDA, HIP or the driver were sampled in, and when they were off their core."""
    present = set(tables.names())
    found = [_NONE]
    if present & {_SAMPLES, _SWITCHES}:
        threads = distinct_values(events[RUNTIME]["globalTid"]).astype(np.int64)
        if {_SAMPLES, _FRAMES} <= present:
            found.append(_sampled(tables, names, threads, _SAMPLES, "id", _FRAMES))
        if _CALLS in present and not len(found[-1]["start"]):
            found.append(_sampled(tables, names, threads, RUNTIME, "callchainId", _CALLS))
        if _SWITCHES in present:
            switches = tables.integers(_SWITCHES, ("start", "isSchedIn", "globalTid"))
            found += [_off_core(switches, events, names, thread) for thread in threads.tolist()]
    rows = {column: np.concatenate([one[column] for one in found]) for column in _COLUMNS}
    events.tables[SAMPLED] = {**rows, "process": process_of(rows["globalTid"])}


_COLUMNS = ("start", "end", "globalTid", "name")
_NONE: Rows = {column: np.empty(0, np.int64) for column in _COLUMNS}


def _off_core(switches: Rows, events: Events, names: NamePool, thread: int) -> Rows:
    """When a thread was off its core outside of its calls."""
    own = np.flatnonzero((switches["globalTid"] == thread) & (switches["start"] != NA))
    own = own[np.argsort(switches["start"][own], kind="stable")]
    time, comes = switches["start"][own], switches["isSchedIn"][own] == 1
    leaves = np.flatnonzero(~comes[:-1] & comes[1:])
    away = Spans(time[leaves], time[leaves + 1])
    for table in (OSRT, RUNTIME):
        calls = np.flatnonzero((events[table]["globalTid"] == thread) & (events[table]["end"] != NA))
        away = subtract(away, union(events[table]["start"][calls], events[table]["end"][calls]))
    count = len(away.start)
    code = names.code(OFF_CORE) if count else NO_NAME
    return {"start": away.start, "end": away.end, "globalTid": np.full(count, thread), "name": np.full(count, code)}


def _sampled(tables: Tables, names: NamePool, threads: Times, table: str, key: str, chains: str) -> Rows:
    """The functions that the rows of a table found the threads in, whose frames stand in `chains` by `key`."""
    samples = tables.integers(table, (key, "start", "globalTid"))
    kept = np.isin(samples["globalTid"], threads) & (samples["start"] != NA) & (samples[key] != NA)
    if not kept.any():
        return _NONE
    order = np.flatnonzero(kept)
    order = order[np.lexsort((samples["start"][order], samples["globalTid"][order]))]
    thread, time = samples["globalTid"][order], samples["start"][order]
    sample, level, name = _stacks(tables, names, samples[key][order], chains)
    return _spans(thread, time, sample, level, name)


def _stacks(tables: Tables, names: NamePool, ids: Times, chains: str) -> tuple[Times, Times, Times]:
    """The frames with a name of some samples: place of the sample, level from the outermost (0), name code."""
    frames = tables.integers(chains, ("id", "symbol", "module", "stackDepth"))
    outermost_first = np.lexsort((-frames["stackDepth"], frames["id"]))
    of = frames["id"][outermost_first]
    first, count = places(of, ids), places(of, ids, "right") - places(of, ids)
    sample = np.repeat(np.arange(len(ids)), count)
    rows = outermost_first[np.arange(len(sample)) - np.repeat(np.cumsum(count) - count - first, count)]
    codes = _functions(tables, names, frames["symbol"][rows], frames["module"][rows])
    sample, codes = sample[codes != NO_NAME], codes[codes != NO_NAME]
    return sample, np.arange(len(sample)) - places(sample, sample), codes


def _functions(tables: Tables, names: NamePool, symbol: Times, file: Times) -> Times:
    """Name codes of the functions of frames; `NO_NAME` for those without a name."""
    strings = StringTable(tables, names, [symbol, file])
    pairs, which = np.unique(np.stack((symbol, file)), axis=1, return_inverse=True)
    texts = [(strings.text(one), strings.text(its_file)) for one, its_file in pairs.T.tolist()]
    codes = [names.code(function_text(*text)) if _is_function(text[0]) else NO_NAME for text in texts]
    return np.array(codes, np.int64)[which.ravel()]


def _is_function(name: str) -> bool:
    """Whether a symbol was resolved: else it is an address, or said to be unknown."""
    return bool(name) and not name.startswith(("0x", "["))


def _spans(thread: Times, time: Times, sample: Times, level: Times, name: Times) -> Rows:
    """Runs of samples (ordered by thread and time) in which a function stands at its level below the same callers."""
    follows, until = _following(thread, time)
    columns: dict[str, list[Array]] = {"start": [], "end": [], "globalTid": [], "name": []}
    stack = np.zeros(len(time), np.int64)  # number of the callers up to the level before
    for depth in range(int(level.max(initial=-1)) + 1):
        own = level == depth
        held, code = sample[own], name[own]
        _, number = np.unique(np.stack((stack[held], code)), axis=1, return_inverse=True)
        here = np.full(len(time), NA, np.int64)
        here[held] = number.ravel()
        goes_on: Mask = np.zeros(len(time), np.bool_)
        goes_on[1:] = follows[1:] & (here[1:] != NA) & (here[1:] == here[:-1])
        first = held[~goes_on[held]]
        ends_on = np.zeros(len(time), np.bool_)
        ends_on[:-1] = goes_on[1:]
        last = held[~ends_on[held]]
        columns["start"].append(time[first])
        columns["end"].append(until[last])
        columns["globalTid"].append(thread[first])
        columns["name"].append(code[~goes_on[held]])
        stack = here
    return {column: np.concatenate(parts) if parts else np.empty(0, np.int64) for column, parts in columns.items()}


def _following(thread: Times, time: Times) -> tuple[Mask, Times]:
    """Whether each sample follows the one before it without a pause, and until when what it found is taken to last:
    the next one, or a usual period on."""
    apart = np.diff(time, prepend=time[:1])
    same = np.concatenate(([False], thread[1:] == thread[:-1]))
    period = np.zeros(len(time), np.int64)
    for one in np.unique(thread).tolist():
        own = thread == one
        between = apart[own & same]
        period[own] = int(np.median(between)) if len(between) else 0
    follows = same & (apart <= APART * period)
    until = time + period
    until[:-1] = np.where(follows[1:], time[1:], until[:-1])
    return follows, until
