"""The tables of a job's logs as one job: its steps in order, from one rank, with attempts told apart."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array
from gpuscope.trace.trace import Trace

_ATTEMPT = re.compile(r"(?:attempt|restart|retry)[_-]?(\d{1,4})", re.IGNORECASE)
SINGLE, BLOCK, PROGRESS = "train_step_time", "train_step_time (mean of a block)", "progress"
BASES = {
    "throughput": "throughput",
    "throughput by time stamps": "throughput",
    "tokens by time stamps": "throughput",
    "bar": "rate",
    "time stamps": "time_stamps",
}
_INTERLEAVED = 0.3
"""Of the lines, those whose step is no later than the one before: with that many, several ranks wrote them."""
_LEAST_WAIT_NS = 1_000_000_000


@dataclass(frozen=True)
class LogEvent:
    """A row of `log_events`."""

    what: str
    name: str
    text: str
    rank: int
    step: int | None
    dur: int | None
    time: int | None
    line: int
    source: int


@dataclass
class Steps:
    """Rows of `log_steps` in order; arrays of one length."""

    step: Array
    dur: Array
    """ns of a step."""
    covers: Array
    """Steps that a row stands for."""
    time: Array
    """`NA` where the line has none."""
    line: Array
    source: Array
    starts: Array = field(default_factory=lambda: np.zeros(1, np.int64))
    """Indices at which an attempt begins."""

    def __len__(self) -> int:
        return len(self.dur)


@dataclass
class JobRecords:
    """What the logs of one job say."""

    steps: Steps
    read: int
    """Step times read, those of coarser series too."""
    basis: str
    by_rank: dict[int, dict[int, int]]
    """Of logs with the steps of several ranks: by rank and step the ns."""
    events: list[LogEvent]
    settings: dict[str, float]
    figures: dict[str, tuple[Array, Array]]
    """By name the lines that have them, ascending, and their values."""
    server: dict[str, Array]
    formats: list[str]
    files: list[str]
    covers_known: bool = False
    """Whether the lines themselves say how many steps each stands for."""


def records_of(trace: Trace) -> JobRecords | None:
    """The job of a trace with logs; None where there are none."""
    logs = [index for index, source in enumerate(trace.sources) if source.format == "step-log"]
    if not logs:
        return None
    formats = [trace.sources[index].format_version for index in logs]
    files = [source.path.name for source in trace.sources]
    events = _events(trace)
    settings, figures, server = _figures(trace)
    table, names = trace["log_steps"], trace.names
    series = np.array([names[int(code)] for code in table["series"]], dtype=object)
    timed = table["dur"] != NA
    single = series == SINGLE
    block = (series == BLOCK) | ((series == "throughput") & (table["covers"] != NA))
    chosen = series != PROGRESS
    if single.any() and block.any():
        chosen &= ~block
    beside = int(np.count_nonzero(timed & ~chosen & (series != PROGRESS)))
    rows = np.flatnonzero(chosen)
    paths = [source.path for source in trace.sources]
    rows, by_rank = _main_rows(table["rank"], table["source"], table["time"], table["step"], table["dur"], rows, paths)
    columns = {name: table[name][rows] for name in ("step", "dur", "covers", "time", "line", "source")}
    basis = BASES.get(str(series[rows[0]]), "step_time") if len(rows) else "none"
    covers_known = bool(len(rows)) and bool((columns["covers"] != NA).all())
    if basis == "time_stamps":
        columns = _by_stamps(columns)
    else:
        kept = columns["dur"] != NA
        columns = {name: values[kept] for name, values in columns.items()}
    steps = Steps(**columns)
    if not covers_known:
        steps = _collapsed(steps)
    steps.starts = _attempts(steps, events, paths)
    if not covers_known:
        steps.covers = _covered(steps)
    return JobRecords(
        steps, len(steps) + beside, basis, by_rank, events, settings, figures, server, formats, files, covers_known
    )


def _events(trace: Trace) -> list[LogEvent]:
    return [
        LogEvent(
            row["what"],
            row["name"] or "",
            row["text"] or "",
            NA if row["rank"] is None else row["rank"],
            row["step"],
            row["dur"],
            row["time"],
            row["line"],
            row["source"],
        )
        for row in trace.rows("log_events")
    ]


_SETTINGS = frozenset({"global_batch", "sequence_length", "local_batch", "steps_done", "accumulation"})
_OF_SERVER = frozenset(
    {
        "prompt_tokens_per_s",
        "generated_tokens_per_s",
        "running",
        "waiting",
        "cache_used",
        "prefix_hit",
        "time_to_first_token",
    }
)


def _figures(trace: Trace) -> tuple[dict[str, float], dict[str, tuple[Array, Array]], dict[str, Array]]:
    table, names = trace["log_figures"], trace.names
    settings: dict[str, float] = {}
    figures: dict[str, tuple[Array, Array]] = {}
    server: dict[str, Array] = {}
    codes = table["figure"]
    for code in np.unique(codes):
        name, own = names[int(code)], np.flatnonzero(codes == code)
        values, lines = table["value"][own] / 1e6, table["line"][own]
        if name in _SETTINGS and bool((lines == 0).any()):
            settings[name] = float(values[lines == 0].max())
            own, values, lines = own[lines > 0], values[lines > 0], lines[lines > 0]
        if name in _OF_SERVER:
            server[name] = values
        elif len(own):
            order = np.argsort(lines, kind="stable")
            figures[name] = (lines[order], values[order])
    return settings, figures, server


def _main_rows(
    rank: Array, source: Array, time: Array, step: Array, dur: Array, rows: Array, paths: list[Path]
) -> tuple[Array, dict[int, dict[int, int]]]:
    """The rows of the rank that tells most, file by file in the order of attempts; and the steps by rank."""
    if not len(rows):
        return rows, {}
    ranks, counts = np.unique(rank[rows], return_counts=True)
    # A number before each line that hardly ever comes again is no rank.
    if len(ranks) > 1 and len(ranks) > len(rows) / 2:
        rank = np.full(len(rank), NA, np.int64)
        ranks, counts = np.array([NA]), np.array([len(rows)])
    best = int(counts.max())
    main = next(int(one) for one, count in zip(ranks, counts, strict=True) if count == best)
    by_rank: dict[int, dict[int, int]] = {}
    if len(ranks) > 1:
        for one in ranks.tolist():
            own = rows[(rank[rows] == one) & (dur[rows] != NA) & (step[rows] != NA)]
            if one != NA and len(own) >= best / 2:
                by_rank[one] = dict(zip(step[own].tolist(), dur[own].tolist(), strict=True))
    own = rows[rank[rows] == main]
    of_file: dict[int, Array] = {int(one): own[source[own] == one] for one in np.unique(source[own])}
    if len(of_file) == 1:
        return own, by_rank if len(by_rank) > 1 else {}

    def begins(one: int) -> tuple[int, int, str]:
        match = _ATTEMPT.search(str(paths[one]))
        times = time[of_file[one]]
        known = times[times != NA]
        return (int(match[1]) if match else 0, int(known.min()) if len(known) else 0, _natural(paths[one]))

    kept: list[int] = []
    for one in sorted(of_file, key=begins):
        same = next(
            (
                other
                for other in kept
                if _same_steps(of_file[one], of_file[other], step, time) and begins(one)[0] == begins(other)[0]
            ),
            None,
        )
        if same is None:
            kept.append(one)
        elif len(of_file[one]) > len(of_file[same]):
            kept[kept.index(same)] = one
    return np.concatenate([of_file[one] for one in kept]), by_rank if len(by_rank) > 1 else {}


def _natural(path: Path) -> str:
    return re.sub(r"\d+", lambda match: match[0].zfill(12), str(path))


def _same_steps(one: Array, other: Array, step: Array, time: Array) -> bool:
    """Whether two files tell of the same steps at the same time."""
    shared = np.isin(step[one], step[other]).mean() if len(one) else 0.0
    if shared < 0.5:
        return False
    times, others = time[one][time[one] != NA], time[other][time[other] != NA]
    if not len(times) or not len(others):
        return True
    return bool(times.min() <= others.max() and others.min() <= times.max())


def _by_stamps(columns: dict[str, Array]) -> dict[str, Array]:
    """Step times from the time stamps of lines with a step; whole seconds, over five of them or more."""
    known = (columns["time"] != NA) & (columns["step"] != NA)
    columns = {name: values[known] for name, values in columns.items()}
    time, step = columns["time"], columns["step"]
    coarse = len(time) > 0 and bool((time % 10**9 == 0).all())
    least = 5 * _LEAST_WAIT_NS if coarse else 1
    kept, durs, before = [], [], 0
    for at in range(1, len(time)):
        passed, moved = int(time[at] - time[before]), int(step[at] - step[before])
        if moved <= 0 or passed < 0:
            before = at
        elif passed >= least:
            kept.append(at)
            durs.append(passed // moved)
            before = at
    index = np.array(kept, np.int64)
    found = {name: values[index] for name, values in columns.items()}
    found["dur"] = np.array(durs, np.int64)
    return found


def _collapsed(steps: Steps) -> Steps:
    """One row a step where several ranks without a label wrote each; the longest of its times."""
    known = steps.step != NA
    if len(steps) < 6 or not known.all():
        return steps
    moved = np.diff(steps.step)
    if (moved <= 0).mean() < _INTERLEAVED:
        return steps
    # A log that is drawn twice has each number twice in a row too; a restart has them far apart.
    first: dict[int, int] = {}
    longest = steps.dur.copy()
    kept: list[int] = []
    for at, number in enumerate(steps.step.tolist()):
        if number in first and at - first[number] < 4096:
            longest[first[number]] = max(longest[first[number]], steps.dur[at])
            continue
        first[number] = at
        kept.append(at)
    index = np.array(kept, np.int64)
    index = (
        index[np.argsort(steps.step[index], kind="stable")] if (np.diff(steps.step[index]) < 0).mean() > 0.1 else index
    )
    return Steps(
        steps.step[index],
        longest[index],
        steps.covers[index],
        steps.time[index],
        steps.line[index],
        steps.source[index],
    )


def _attempts(steps: Steps, events: list[LogEvent], paths: list[Path]) -> Array:
    """Indices at which the job begins, or begins again: its steps go back, its file changes, it says so."""
    count = len(steps)
    starts = {0}
    known = steps.step != NA
    if known.all() and count > 1:
        starts |= {int(at) + 1 for at in np.flatnonzero(np.diff(steps.step) < 0)}
    changed = np.flatnonzero(np.diff(steps.source) != 0) + 1
    for at in changed.tolist():
        pair = [_ATTEMPT.search(str(paths[int(steps.source[index])])) for index in (at - 1, at)]
        if all(pair) and pair[0][1] != pair[1][1]:  # type: ignore[index]
            starts.add(at)
    of_source: dict[int, list[int]] = defaultdict(list)
    for event in events:
        if event.what in ("restart", "init_start"):
            of_source[event.source].append(event.line)
    for source, lines in of_source.items():
        own = np.flatnonzero(steps.source == source)
        if len(own):
            places = np.searchsorted(steps.line[own], np.array(sorted(lines)))
            starts |= {int(own[place]) for place in places.tolist() if 0 < place < len(own)}
    return np.array(sorted(at for at in starts if at < max(count, 1)), np.int64)


def _covered(steps: Steps) -> Array:
    """Steps that each row stands for: as many as the number went on since the row before."""
    count = len(steps)
    if not count:
        return np.empty(0, np.int64)
    if (steps.step == NA).any():
        return np.ones(count, np.int64)
    moved = np.ones(count, np.int64)
    moved[1:] = np.diff(steps.step)
    usual = max(int(np.median(moved[1:])), 1) if count > 1 else 1
    moved[steps.starts] = usual
    return np.maximum(moved, 1)
