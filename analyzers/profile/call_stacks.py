"""Device time, exposed communication and idle time by the place of the program that they go back to.

A place is a path of ranges, lines of the user's own code, modules, operators and kernels; other Python frames (torch's,
the standard library's) are left out of it. What autograd launches belongs to the lines and modules from which its
operators were called in the forward pass, where sequence numbers tell that; else to the place from which the backward
pass was called.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Need, Result
from gpuscope.analyzers.base.evidence import main_thread
from gpuscope.analyzers.base.lanes import CALL_TREE, LaneView
from gpuscope.analyzers.profile.recorded_ranks import of_lane, parents
from gpuscope.report.view.call_tree import Step, Tree
from gpuscope.trace.frameworks import is_own_frame, is_own_function
from gpuscope.trace.intervals import Spans, measure_before
from gpuscope.trace.kinds import is_step_range
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import (
    Array,
    Mask,
    Times,
    among,
    blocks,
    compact,
    concatenated,
    constant,
    distinct,
    distinct_pairs,
    distinct_values,
    picked,
    places,
    quarters,
    rows_of_rank,
)
from gpuscope.trace.trace import Trace

_MODULE = "nn.Module: "


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The section `call_tree` of a file's lanes."""
    result = Result(ANALYZER.name)
    tree = Tree()
    for view in lanes:
        _Lane(trace, view).add_to(tree)
    if tree.below:
        result.sections[CALL_TREE] = tree.entries()
    return result


class _Lane:
    """A lane's figures by host event and kernel."""

    def __init__(self, trace: Trace, view: LaneView) -> None:
        self.trace, self.view = trace, view
        self.all, self.device, self.rows = trace["host_events"], trace["device_events"], of_lane(trace, view)
        self.host, self.kept = self.all, self._kept(*rows_of_rank(self.all, view.lane.rank))
        self.row_type = np.int32 if len(self.all) < 2**31 else np.int64
        self.taken: Array | None = None
        """Rows of `all` that `host` has, where it has but few of them."""
        self.launch = self.device.at("launch", self.rows)
        self.home = self._home()
        if 4 * np.count_nonzero(self.kept) < len(self.all):  # then the others are not even looked at
            self.taken = np.flatnonzero(self.kept).astype(self.row_type)
            self.host, self.kept = self.all.take(self.taken), np.ones(len(self.taken), np.bool_)

    def _kept(self, low: int, high: int) -> Mask:
        """Which host events are places: not steps, nor frames of libraries."""
        host, names = self.all, self.trace.names
        own = names.matching(is_own_frame) | names.matching(lambda name: name.startswith(_MODULE))
        functions = names.matching(is_own_function)
        steps = names.matching(is_step_range)
        kept = np.zeros(len(host), np.bool_)
        for block in blocks(low, high):
            category, name = host["category"][block], host["name"][block]
            frame = ((category == Category.PYTHON) & own[name]) | ((category == Category.SAMPLE) & functions[name])
            other = ((category == Category.OP) | (category == Category.ANNOTATION)) & ~steps[name]
            kept[block] = frame | other
        return kept

    def _home(self) -> int:
        """The thread with most of the user's lines and modules, else with most ranges, else that launches most."""
        for category in (Category.PYTHON, Category.SAMPLE, Category.ANNOTATION):
            rows = np.flatnonzero(self.kept & (self.host["category"] == category))
            if len(rows):
                return int(np.bincount(self.host["thread"][rows]).argmax())
        return main_thread(self.host, self.view.lane.rank, self.launch)

    def add_to(self, tree: Tree) -> None:
        """Add all of it to a tree."""
        if not self.kept.any():
            return
        start, end = self.device.at("start", self.rows), self.device.at("end", self.rows)
        thread, at = self._thread(), self._at(start)
        del self.launch
        within: Times = np.empty(len(start), self.row_type)
        for part in quarters(len(start)):
            within[part] = self._around(thread[part], at[part])
        del at
        idle_at, idle = self._idle(start, thread)
        del thread
        place_of, at_place = self._places((within, idle_at), tree)
        first, last = self.view.window
        exposed, in_graph = self._exposed(start, end), self._part_of_graph()
        for part in quarters(len(start)):
            parts, part_of = distinct_pairs(place_of[within[part]], in_graph[part])
            names, keys = distinct(self.device.at("name", self.rows[part]))
            keys = keys + part_of * len(names)
            spent = np.maximum(np.minimum(end[part], last) - np.maximum(start[part], first), 0)
            for key, device_ns, exposed_ns in _summed(keys, spent, exposed[part]):
                (place, annotation), name = parts[key // len(names)], int(names[key % len(names)])
                path: list[Step] = [] if annotation == NO_NAME else [("module", self.trace.names[annotation])]
                at_place[place].at([*path, ("kernel", self.trace.names[name])]).add((device_ns, exposed_ns, 0))
        for place, idle_ns in _summed(place_of[idle_at], idle):
            at_place[place].add((0, 0, idle_ns))

    def _places(self, asked: Sequence[Times], tree: Tree) -> tuple[Array, list[Tree]]:
        """For each host event (the last element stands for none) the number of its place, of those that are asked for,
        and the places by number."""
        above = self._above()
        wanted, more = np.zeros((2, len(self.host)), np.bool_)
        for rows in asked:
            more[rows[(rows >= 0) & (rows < len(more))]] = True
        while len(rows := np.flatnonzero(more)):
            wanted |= more
            around = above[rows]
            more[:] = False
            more[around[around >= 0]] = True
            more &= ~wanted
        place_of, found = np.full(len(self.host) + 1, -1, np.int32), [tree]
        place_of[-1] = 0
        left = np.flatnonzero(wanted).astype(above.dtype)
        del wanted, more
        steps = len(self.trace.names) * len(Category)
        while len(left):  # a level at a time, the outermost first
            ready = place_of[above[left]] >= 0
            own, left = left[ready], left[~ready]
            number: dict[int, int] = {}
            for rows in (own[part] for part in quarters(len(own))):
                key = place_of[above[rows]].astype(np.int64) * steps
                key += self.host["name"][rows] * np.int64(len(Category)) + self.host["category"][rows]
                keys, which = distinct(key)
                for new in (one for one in keys.tolist() if one not in number):
                    parent, step = divmod(new, steps)
                    number[new] = len(found)
                    found.append(found[parent].at([self._step(*divmod(step, len(Category)))]))
                place_of[rows] = np.array([number[one] for one in keys.tolist()])[which]
        return place_of, found

    def _above(self) -> Array:
        """For each host event the place around it, outside all of its own thread that of the home thread then, else
        −1."""
        host = self.host
        above = parents(host["start"], host["end"], host["thread"], self.kept)
        self._lead_back(above)
        outer = np.flatnonzero(self.kept & (above == NA) & (host["thread"] != self.home))
        if len(outer) and self.home != NA:
            home = np.full(len(outer), self.home, np.int64)
            on_home = self.kept & (host["thread"] == self.home)
            above[outer] = innermost(host, on_home, home, host["start"][outer])
        return np.maximum(above, -1, out=above).astype(self.row_type)

    def _lead_back(self, above: Times) -> None:
        """Put autograd's nodes into the lines and modules that their operators of the forward pass were called from."""
        node, forward = self.trace["backward"]["event"], self.trace["backward"]["forward"]
        if self.taken is None:
            own = self.kept[node]
        else:
            place = np.minimum(np.searchsorted(self.taken, node), len(self.taken) - 1)
            own, node = self.taken[place] == node, place
        node, forward = node[own], forward[own]
        if len(node):
            host = self.host
            stacks = self.kept & ((host["category"] == Category.PYTHON) | (host["category"] == Category.SAMPLE))
            around = innermost(host, stacks, self.all["thread"][forward], self.all["start"][forward])
            above[node[around != NA]] = around[around != NA]

    def _part_of_graph(self) -> Times:
        """The name code of what the program called each device event's part of its CUDA graph, or NO_NAME."""
        nodes = self.trace["graph_nodes"]
        if not len(nodes):
            return constant(NO_NAME, len(self.rows), np.int64)
        part = np.full(len(self.device), NO_NAME, np.int64)
        part[nodes["event"]] = nodes["annotation"]
        return part[self.rows]

    def _step(self, name: int, category: int) -> Step:
        text = self.trace.names[name]
        if category in (Category.PYTHON, Category.SAMPLE):
            return ("module", text.removeprefix(_MODULE)) if text.startswith(_MODULE) else ("line", text)
        return ("operator" if category == Category.OP else "range", text)

    def _thread(self) -> Times:
        """The thread that launched each device event; the home thread where that is not recorded."""
        return compact(self._of_launch("thread", self.home))

    def _at(self, start: Times) -> Times:
        """When each was launched; when it began, where that is not recorded."""
        return self._of_launch("start", start)

    def _of_launch(self, column: str, otherwise: int | Times) -> Times:
        known = self.launch != NA
        if known.all():
            return self.all.at(column, self.launch)
        return np.where(known, self.all.at(column, np.where(known, self.launch, 0)), otherwise)

    def _around(self, thread: Times, at: Times) -> Times:
        """The innermost place at instants of threads, else that of the home thread then, else −1."""
        row = innermost(self.host, self.kept, thread, at)
        elsewhere = row == NA
        if elsewhere.any() and self.home != NA:
            home = np.full(int(elsewhere.sum()), self.home, np.int64)
            row[elsewhere] = innermost(self.host, self.kept, home, at[elsewhere])
        return np.maximum(row, -1, out=row)

    def _exposed(self, start: Times, end: Times) -> Times:
        """What of each communication event is exposed, ns; of those that run at once, the first has it."""
        found = np.zeros(len(start), np.int64)
        own = np.flatnonzero(self.device["kind"][self.rows] == Kind.COMMUNICATION)
        if len(own):
            reached = np.maximum.accumulate(end[own])
            begin = np.maximum(start[own], np.concatenate((start[own][:1], reached[:-1])))
            spans = self.view.parts.exposed_communication
            length = measure_before(spans, end[own]) - measure_before(spans, begin)
            found[own] = np.where(end[own] > begin, length, 0)
        return found

    def _idle(self, start: Times, thread_of: Times) -> tuple[Times, Times]:
        """Where the thread was that launches the operation behind each gap, a row behind the last for nowhere, and the
        idle time there, ns; `thread_of` says which launched each operation."""
        idle = self.view.parts.idle
        known = concatenated((thread_of, constant(self.home, 1, thread_of.dtype.type)))
        threads = picked(known, np.searchsorted(start, idle.end))
        asked, spent = np.zeros(len(self.host) + 1, np.bool_), np.zeros(len(self.host) + 1, np.int64)
        for part in quarters(len(threads)):
            for thread in distinct_values(threads[part]).tolist():
                own = threads[part] == thread
                pieces = self._pieces(Spans(idle.start[part][own], idle.end[part][own]), thread)
                middle = (pieces.start + pieces.end) // 2
                row = self._around(np.full(len(middle), thread, threads.dtype), middle)
                asked[row] = True
                np.add.at(spent, row, pieces.end - pieces.start)
        rows = np.flatnonzero(asked)
        return rows, spent[rows]

    def _pieces(self, gaps: Spans, thread: int) -> Spans:
        """Gaps cut where a place of the thread, or of the home thread, begins or ends."""
        found, host = [np.empty(0, np.int64)], self.host
        low, high = rows_of_rank(host, self.view.lane.rank)
        high = low + int(np.searchsorted(host["start"][low:high], gaps.end[-1]))
        for block in blocks(low, high):
            own = self.kept[block] & among(host["thread"][block], (thread, self.home))
            for column in ("start", "end"):
                time = host[column][block][own]
                time = time[(time >= gaps.start[0]) & (time < gaps.end[-1])]
                gap = places(gaps.start, time) - 1
                found.append(time[(gap >= 0) & (time < gaps.end[np.maximum(gap, 0)])])
        cuts = distinct_values(np.concatenate(found))  # each is inside a gap, and these are apart
        return Spans(_merged(gaps.start, cuts), _merged(cuts, gaps.end))


def _merged(first: Times, second: Times) -> Times:
    """Two ascending columns as one; a stable sort merges such runs in one pass."""
    return np.sort(np.concatenate((first, second)), kind="stable")


def _summed(keys: Times, *values: Times) -> Iterator[tuple[int, ...]]:
    """Each key with the sums of its values."""
    found, which = distinct(keys)
    sums = np.zeros((len(values), len(found)), np.int64)
    for own, added in zip(sums, values, strict=True):
        np.add.at(own, which, added)
    return zip(found.tolist(), *sums.tolist(), strict=True)


ANALYZER = FileAnalyzer(
    "call_stacks",
    run,
    (
        Need(
            "host_events",
            "record with the CPU activity of torch.profiler, or `nsys profile -t cuda,nvtx`",
            optional=True,
        ),
    ),
    (CALL_TREE,),
    cost=2,
    large=True,
)
