"""Evidence of a finding from the recorded event that shows it, whose identity it carries."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import ceil

import numpy as np

from gpuscope.schema.call_tree_section import EventId
from gpuscope.schema.document import Evidence
from gpuscope.trace import kinds
from gpuscope.trace.intervals import Spans, join, measure_within, subtract, union
from gpuscope.trace.kernel_categories import OPTIMIZER, is_optimizer_step, kernel_category
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.name_pool import NO_NAME, NamePool, PerName
from gpuscope.trace.optimizer_ranges import update_begins
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import Mask, Table, Times, among, distinct_values, places, rows_of_rank, rows_where
from gpuscope.trace.trace import Lane, Trace
from gpuscope.welch import lower_median
from gpuscope.when_used import dataclass

# What each step of a run is: set-up, warm-up, steady, an outlier, or cut off (definitions: «Steps»).
#
# What is judged is the steady state. Every step number has one role for all ranks.


class Role(StrEnum):
    """The role of a step; `setup` is what ran before the first one."""

    SETUP = "setup"
    PARTIAL = "partial"
    WARMUP = "warmup"
    OUTLIER = "outlier"
    STEADY = "steady"
    BEFORE_SHIFT = "before_shift"


MAD_TO_SIGMA = 1.4826
"""Scales the median absolute deviation to the standard deviation of a normal distribution."""
LONG_SIGMAS = 3.0
LONG_FRACTION = 0.1
"""A step is long where it exceeds the usual one by three deviations and by a tenth of it."""
FEW_STEPS = 8
"""With fewer whole steps their deviation tells nothing of later ones."""
LONG_OF_FEW = 0.3
"""By what part of the usual step one of few is longer where it is long after the warm-up."""
OUTLIERS_AT_MOST = 0.2
"""Share of the whole steps after the warm-up that may be outliers; more often it is how the job runs."""
COMPILING = 0.05
"""Share of a step in compilation, module loading or autotuning from which a leading step is warm-up."""
CAPTURE = "capture"
"""Phase of a server's step that captures a graph."""
MIN_STEADY = 2
"""Steady steps that a verdict on the steady state needs."""
SHIFT = 1.3
"""By what factor every step on one side of a shift exceeds every step on the other."""
LATER_LEAST = 0.2
"""Share of the steps that those after a shift must exceed: fewer are outliers."""
SPIKE = 2.0
"""Single steps that take so many times their side's median are no part of a shift…"""
SPIKES_AT_MOST = 0.2
"""… as long as they are at most this share of its side."""


@dataclass(frozen=True)
class StepFacts:
    """What decides the role of one step: its duration (ns, the largest over ranks), whether the recording cut it
    off, the share of it that was spent compiling, loading modules or autotuning (the largest over ranks), what
    training needs that it holds (on any rank), and the phase of a server's step."""

    duration: int
    cut: bool = False
    compiling: float = 0.0
    needed: frozenset[str] = frozenset()
    phase: str = ""

    def joined(self, other: StepFacts) -> StepFacts:
        """The same step of two ranks."""
        return StepFacts(
            max(self.duration, other.duration),
            self.cut or other.cut,
            max(self.compiling, other.compiling),
            self.needed | other.needed,
            self.phase or other.phase,
        )


@dataclass(frozen=True)
class Usual:
    """How long a step usually takes: median and scaled deviation over the later half of the whole steps, ns."""

    median: float
    deviation: float
    steps: int
    """Whole steps that it is known from, those of the earlier half included."""

    @property
    def margin(self) -> float:
        """By how much a step may differ and still be usual, ns."""
        return max(LONG_SIGMAS * self.deviation, LONG_FRACTION * self.median)

    def long(self, duration: int) -> bool:
        """Whether a step takes longer than usual."""
        return duration > self.median + self.margin

    def outlying(self, duration: int) -> bool:
        """Whether a step after the warm-up takes longer than usual."""
        return duration > (1 + LONG_OF_FEW) * self.median if self.steps < FEW_STEPS else self.long(duration)

    def fast(self, duration: int) -> bool:
        """Whether a step takes less than usual by as much."""
        return duration < self.median - self.margin


def usual(steps: Sequence[StepFacts]) -> Usual | None:
    """The usual step, from the later half of the whole steps but the last one; None where there is none."""
    whole = [step.duration for step in steps[:-1] if not step.cut] or [step.duration for step in steps if not step.cut]
    if not whole:
        return None
    half = whole[-ceil(len(whole) / 2) :]
    median = lower_median(half)  # the lower one: half of the steps may be long
    return Usual(median, MAD_TO_SIGMA * lower_median(abs(duration - median) for duration in half), len(whole))


def roles(steps: Sequence[StepFacts]) -> list[Role]:
    """The role of each step in order; what ran before the first step is none of them. Where the step time shifts for
    good, only steps after that are steady.

    The last step lacks the wait for its successor's input: it counts as cut off where enough other steps
    are steady, else as whole.
    """
    found = _without_shift(steps)
    if (first := shift(steps, found)) is not None:
        later = _without_shift(steps[first:])
        if later.count(Role.STEADY) >= MIN_STEADY:
            return [Role.BEFORE_SHIFT if role == Role.STEADY else role for role in found[:first]] + later
    return found


def shift(steps: Sequence[StepFacts], found: Sequence[Role]) -> int | None:
    """Which step is the first after the step time shifts, the last time that it does; None where it does not."""
    steady = [place for place, role in enumerate(found) if role == Role.STEADY]
    if is_server(steps):
        return None
    for split in range(len(steady) - MIN_STEADY, MIN_STEADY - 1, -1):
        if len(steady) - split <= LATER_LEAST * len(steady):
            continue
        before, since = (
            _without_spikes([steps[at].duration for at in side]) for side in (steady[:split], steady[split:])
        )
        if min(len(before), len(since)) < MIN_STEADY:
            continue
        if min(since) > SHIFT * max(before) or min(before) > SHIFT * max(since):
            return steady[split]
    return None


def _without_spikes(side: Sequence[int]) -> Sequence[int]:
    most = SPIKE * lower_median(side)
    usual_ones = [duration for duration in side if duration <= most]
    return usual_ones if len(side) - len(usual_ones) <= SPIKES_AT_MOST * len(side) else side


def _without_shift(steps: Sequence[StepFacts]) -> list[Role]:
    typical = usual(steps)
    if typical is None:
        return [Role.PARTIAL] * len(steps)
    without_last = _roles([*steps[:-1], StepFacts(steps[-1].duration, cut=True)], typical)
    if steps[-1].cut or without_last.count(Role.STEADY) >= MIN_STEADY:
        return without_last
    return _roles(steps, typical)


def is_server(steps: Sequence[StepFacts]) -> bool:
    """Whether these are a server's steps, whose length follows their batch: none of them is usual."""
    return any(step.phase for step in steps)


def _roles(steps: Sequence[StepFacts], typical: Usual) -> list[Role]:
    found = [Role.PARTIAL if step.cut else Role.STEADY for step in steps]
    if is_server(steps):
        compiles = [step.phase == CAPTURE or step.compiling >= COMPILING for step in steps]
        return [Role.WARMUP if own and role == Role.STEADY else role for own, role in zip(compiles, found, strict=True)]
    whole = [index for index, step in enumerate(steps) if not step.cut]
    first = 0
    while first < len(whole) and _warming(steps[whole[first]], typical):
        found[whole[first]] = Role.WARMUP
        first += 1
    after = whole[first:]
    long = {index for index in after if typical.outlying(steps[index].duration)}
    usually = frozenset[str]().union(*(steps[index].needed for index in after if index not in long))
    # With gradients accumulated, the step that alone holds the update is long and yet what training needs.
    late = [index for index in sorted(long) if steps[index].needed <= usually]
    if len(late) <= OUTLIERS_AT_MOST * len(after) or (len(late) == 1 and len(after) - len(long) >= MIN_STEADY):
        for index in late:
            found[index] = Role.OUTLIER
    return found


def _warming(step: StepFacts, typical: Usual) -> bool:
    return typical.long(step.duration) or step.compiling >= COMPILING


def leading_fast(steps: Sequence[StepFacts], found: Sequence[Role]) -> int:
    """How many steady steps at the beginning are faster than the later ones: the step time shifts after them."""
    typical = None if is_server(steps) else usual(steps)
    steady = [step for step, role in zip(steps, found, strict=True) if role == Role.STEADY]
    count = 0
    while typical is not None and count < len(steady) and typical.fast(steady[count].duration):
        count += 1
    return count if len(steady) - count >= MIN_STEADY else 0


# What decides the role of each step of a rank, read from its trace (definitions: «Steps»).

UPDATE, REDUCTION = "update", "reduction"
"""What training needs: the optimizer's step, and the gradients' collectives."""
_REDUCING = ("all_reduce", "reduce_scatter", "reduce")


def step_facts(trace: Trace, lane: Lane, numbers: Sequence[int], start: Times, end: Times) -> tuple[StepFacts, ...]:
    """Of each step of a lane by its number, which begin and end at these instants (ns, shape (steps,))."""
    phases = phases_of(trace, lane.rank)
    compiling = _compiling(trace, lane.rank, start, end)
    held = {UPDATE: _updates(trace, lane), REDUCTION: _reductions(trace, lane.rank)}
    inside = {name: np.searchsorted(at, end) > np.searchsorted(at, start) for name, at in held.items()}
    return tuple(
        StepFacts(
            int(end[place] - start[place]),
            compiling=float(compiling[place]),
            needed=frozenset(name for name, holds in inside.items() if holds[place]),
            phase=phases.get(numbers[place], ""),
        )
        for place in range(len(start))
    )


def phases_of(trace: Trace, rank: int) -> dict[int, str]:
    """The phases of a server's steps by their numbers; those without one are left out."""
    table = trace["steps"]
    own = np.flatnonzero((table["rank"] == rank) & (table["phase"] != NO_NAME))
    codes = table["phase"][own].tolist()
    return {step: trace.names[code] for step, code in zip(table["step"][own].tolist(), codes, strict=True)}


def _compiling(trace: Trace, rank: int, start: Times, end: Times) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Share of each step that host threads of the rank spent compiling, loading modules or autotuning."""
    rows = _named(trace, rank, trace.names.matching(kinds.is_compilation))
    host = trace["host_events"]
    spent = measure_within(union(host["start"][rows], host["end"][rows]), start, end)
    return np.asarray(spent / np.maximum(end - start, 1))


def _updates(trace: Trace, lane: Lane) -> Times:
    """Starts of the optimizer's kernels, ascending; of its ranges where no kernel tells by its name."""
    device = trace["device_events"]
    kernels = lane.rows[device.at("kind", lane.rows) == Kind.COMPUTE]
    updates = PerName(trace.names, lambda name: kernel_category(name) == OPTIMIZER)
    own = kernels[updates(device.at("name", kernels)).astype(np.bool_)]
    found = device["start"][own]
    if not len(found):
        found = trace["host_events"]["start"][_named(trace, lane.rank, trace.names.matching(is_optimizer_step))]
    return np.sort(found)


def _reductions(trace: Trace, rank: int) -> Times:
    """Starts of the collectives that may reduce gradients, ascending."""
    table = trace["collectives"]
    codes = [trace.names.find(name) for name in _REDUCING]
    return np.sort(table["start"][(table["rank"] == rank) & np.isin(table["op"], codes)])


def _named(trace: Trace, rank: int, names: Mask) -> Times:
    host = trace["host_events"]
    return rows_where(*rows_of_rank(host, rank), lambda block: names[host["name"][block]])


# The phase of a training step (data, forward, backward, optimizer, checkpoint) at instants of a rank's threads.


def main_thread(host: Table, rank: int, launch: Times) -> int:
    """The thread that launches most; without launches the rank's busiest."""
    rows = launch[launch != NA]
    if not len(rows):
        rows = np.flatnonzero(host["rank"] == rank)
    return int(np.bincount(host["thread"][rows]).argmax()) if len(rows) else NA


def name_phases(names: NamePool) -> Times:
    """Per name the code of the phase that it names, or `NO_NAME`; these phases, and «before» each, are names then."""
    phase_of = [kinds.phase(name) for name in names.names]
    found = np.array([names.code(phase) if phase else NO_NAME for phase in phase_of], np.int64)
    for phase in sorted({phase for phase in phase_of if phase}):
        names.code(_before(phase))
    return found


def _before(phase: str) -> str:
    return f"before {phase}"


class Phases:
    """The phase of a step at instants of a rank's threads, from its ranges and the backward's own operators."""

    def __init__(self, trace: Trace, rank: int, main: int) -> None:
        host, names = trace["host_events"], trace.names
        self.host, self.main = host, main
        self.code = name_phases(names)
        named = among(host["category"], (Category.ANNOTATION, Category.OP)) & (host["rank"] == rank)
        named &= self.code[host["name"]] != NO_NAME
        self.ranges: Mask = named
        rows = np.flatnonzero(named & (host["category"] == Category.ANNOTATION))
        self.home = int(np.bincount(host["thread"][rows]).argmax()) if len(rows) else main
        self.next = rows[host["thread"][rows] == self.home]
        self._closures(names, np.flatnonzero(named & (self.code[host["name"]] == names.find("optimizer"))))
        phases = distinct_values(self.code[self.code != NO_NAME]).tolist()
        before = {code: names.code(_before(names[code])) for code in phases}
        self.before = np.array([before.get(code, NO_NAME) for code in self.code[host["name"][self.next]].tolist()])

    def _closures(self, names: NamePool, steps: Times) -> None:
        """Where ranges of the optimizer hold the forward and backward of a closure: until when."""
        begins = update_begins(self.host, names, steps)
        closures = begins > self.host["start"][steps]
        self.closures, self.updating = steps[closures], begins[closures]
        if not len(self.closures):
            return
        self.forward = names.code("forward")
        self.backward_code = names.code("backward")
        rows = np.flatnonzero(self.ranges & (self.code[self.host["name"]] == self.backward_code))
        self.backward = union(self.host["start"][rows], self.host["end"][rows])

    def _in_closures(self, row: Times, at: Times, found: Times) -> None:
        """What a closure does is its own phase's: the backward's where one goes on, else the forward's."""
        if not len(self.closures):
            return
        place = np.minimum(np.searchsorted(self.closures, row), len(self.closures) - 1)
        inside = (self.closures[place] == row) & (at < self.updating[place])
        going_on = measure_within(self.backward, at[inside], at[inside] + 1) > 0
        found[inside] = np.where(going_on, self.backward_code, self.forward)

    def host_spans(self, code: int, rows: Times) -> Spans:
        """When a thread is in one of these ranges, all of the phase, less what they hold of other phases."""
        host = self.host
        start, end = host["start"][rows], host["end"][rows]
        others = np.flatnonzero(self.ranges & (self.code[host["name"]] != code))
        within = places(np.sort(start), host["start"][others], "right") > 0
        others = others[within]
        order = np.argsort(start, kind="stable")
        reach = np.maximum.accumulate(end[order]) if len(order) else end
        place = places(start[order], host["start"][others], "right") - 1
        others = others[host["end"][others] <= reach[np.maximum(place, 0)]] if len(order) else others[:0]
        spans = subtract(union(start, end), union(host["start"][others], host["end"][others]))
        if not len(self.closures):
            return spans
        closures = union(host["start"][self.closures], self.updating)
        if code == self.forward:
            return join(spans, subtract(closures, self.backward))
        return spans if code == self.backward_code else subtract(spans, closures)

    def at(self, thread: Times, at: Times) -> Times:
        """Codes of the phases; outside all ranges, «before» the next one; `NO_NAME` where none is recorded."""
        found = np.full(len(at), NO_NAME, np.int64)
        row = innermost(self.host, self.ranges, thread, at)
        elsewhere = (row == NA) & (at != NA)
        # The backward runs on threads of its own, within a range of the thread that asked for it.
        row[elsewhere] = innermost(self.host, self.ranges, np.full(int(elsewhere.sum()), self.home), at[elsewhere])
        found[row != NA] = self.code[self.host["name"][row[row != NA]]]
        self._in_closures(row, at, found)
        outside = (row == NA) & (at != NA)
        place = places(self.host["start"][self.next], at[outside])
        coming = np.append(self.before, NO_NAME).astype(np.int64)
        found[outside] = coming[place]
        return found


def identity(trace: Trace, table: str, row: int) -> EventId:
    """Which event of `device_events` or `host_events` that is."""
    own = trace[table].take(np.array([row]))
    device = table == "device_events"

    def known(value: int) -> int | None:
        return None if value == NA else value

    return {
        "table": "device_events" if device else "host_events",
        "device": known(int(own["device"][0])) if device else None,
        "stream": known(int(own["stream"][0])) if device else None,
        "thread": None if device else known(int(trace["threads"]["tid"][int(own["thread"][0])])),
        "start_ns": int(own["start"][0]),
        "dur_ns": int(own["end"][0] - own["start"][0]),
        "name": trace.names[int(own["name"][0])],
    }


def shown_by(trace: Trace, table: str, row: int, note: str = "", span: tuple[int, int] | None = None) -> Evidence:
    """What a row of `device_events`, `host_events` or `collectives` shows: a span of it, else all of it."""
    own = trace[table]
    start, end = span or (int(own["start"][row]), int(own["end"][row]))
    found: Evidence = {
        "rank": int(own["rank"][row]),
        "start_ns": start,
        "dur_ns": end - start,
        "name": trace.names[int(own["op" if table == "collectives" else "name"][row])],
        "note": note,
    }
    if table != "collectives":
        found["event"] = identity(trace, table, row)
        return found
    for column, of in (("event", "device_events"), ("host_event", "host_events")):
        if own[column][row] != NA:
            found["event"] = identity(trace, of, int(own[column][row]))
            break
    return found


def most_of(start: Times, end: Times, span: tuple[int, int]) -> int:
    """The place of the event that most of a span lies in, the first of equals."""
    return int((end.clip(max=span[1]) - start.clip(min=span[0])).argmax())
