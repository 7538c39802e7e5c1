"""The phase of a training step (data, forward, backward, optimizer, checkpoint) at instants of a rank's threads."""

from __future__ import annotations

import numpy as np

from gpuscope.trace.columns.distinct import among, distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME, NamePool
from gpuscope.trace.columns.sorted_search import places
from gpuscope.trace.columns.table import Mask, Table, Times
from gpuscope.trace.intervals import Spans, join, measure_within, subtract, union
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.naming import kinds
from gpuscope.trace.optimizer_ranges import update_begins
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.trace import Trace


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
