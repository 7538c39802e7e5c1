"""A reading of a recording that shares no code with gpuscope: where the time of a step goes, from the events themselves
and by the letter of docs/definitions.md. For traces of processors alone, with gloo.

- Operators: every `cpu_op` on the training thread that is no collective; what the loader's own range holds is the
  loader's. Where a collective runs, a millisecond or more of an autograd node without an `aten` operator is no work: a
  hook waits.
- Exposed communication: a collective runs and no operator does. Of it, waiting: before its last rank has begun.
- The rest: Python between operators.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

Span = tuple[float, float]
CLASS_AT = 0.10
WAIT_US = 1000.0
EDGE = 0.03
"""Shares that are no further apart than this, or from a tenth of the time, decide nothing."""
CAUSES = {
    "input": "loader",
    "straggler": "waiting",
    "bandwidth": "transfer",
    "latency": "transfer",
    "host_other": "python",
}


@dataclass(frozen=True)
class Reading:
    """Shares of the recorded steps, mean over ranks; with the operators' they add up to 1."""

    loader: float
    waiting: float
    """For ranks that come late to a collective."""
    transfer: float
    """In collectives otherwise."""
    python: float

    def __str__(self) -> str:
        parts = {"loader": self.loader, "late ranks": self.waiting, "transfers": self.transfer, "Python": self.python}
        told = sorted(((share, name) for name, share in parts.items() if share >= 0.01), reverse=True)
        return ", ".join(f"{name} {100 * share:.0f} %" for share, name in told) or "operators"

    def judge(self, verdict: str) -> str:
        """`yes`, `class` (its cause is not the largest), `edge` (too close to tell) or `no`, for a verdict written as
        class or class/cause."""
        bound, _, cause = verdict.partition("/")
        classes = {"cpu": self.loader + self.python, "communication": self.waiting + self.transfer}
        largest = max(classes.values())
        told = classes.get(bound, 0.0)
        if bound == "compute":
            return "yes" if largest < CLASS_AT else "edge" if largest < CLASS_AT + EDGE else "no"
        if told < max(largest, CLASS_AT):
            return "edge" if told >= max(largest, CLASS_AT) - EDGE else "no"
        parts = {name: getattr(self, name) for name in ("loader", "waiting", "transfer", "python")}
        within = ("loader", "python") if bound == "cpu" else ("waiting", "transfer")
        other = max(parts[name] for name in within if name != CAUSES.get(cause))
        if cause not in CAUSES or CAUSES[cause] not in within or parts[CAUSES[cause]] < other - EDGE:
            return "class"
        return "yes" if parts[CAUSES[cause]] >= other else "edge"


def read(traces: Sequence[Path]) -> Reading:
    """Read the traces of all ranks of one recording. The first recorded step is left out: the profiler starts in it."""
    ranks = [_Rank(path) for path in sorted(traces)]
    last: dict[Any, float] = defaultdict(float)
    for rank in ranks:
        for key, (begin, _) in rank.collectives.items():
            last[key] = max(last[key], begin)
    shares = [rank.shares(last) for rank in ranks]
    return Reading(*(fmean(column) for column in zip(*shares, strict=True)))


class _Rank:
    """The events of one rank that matter here; times in µs."""

    def __init__(self, path: Path) -> None:
        with gzip.open(path) as file:
            events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
        steps = sorted(_span(event) for event in events if event["name"].startswith("ProfilerStep#"))[1:]
        self.thread = next(event["tid"] for event in events if event["name"].startswith("ProfilerStep#"))
        self.window = (steps[0][0], steps[-1][1])
        mine = [event for event in events if event["tid"] == self.thread]
        self.loader = _union(_span(event) for event in mine if event["name"].startswith("enumerate(DataLoader)"))
        gloo = [event for event in events if event["name"].startswith("gloo:")]
        self.communication = _union(map(_span, gloo))
        self.operators = _work([event for event in mine if event.get("cat") == "cpu_op"], self.communication)
        self.collectives = {_key(event): _span(event) for event in gloo if "Seq" in event.get("args", {})}

    def shares(self, last: dict[Any, float]) -> tuple[float, float, float, float]:
        """Loader, waiting, transfer, Python."""
        window = [self.window]
        whole = self.window[1] - self.window[0]
        loader = _both(self.loader, window)
        busy = _union([*self.operators, *loader])
        exposed = _both(_without(self.communication, busy), window)
        waits = _union(
            (begin, min(last[key], end)) for key, (begin, end) in self.collectives.items() if last[key] > begin
        )
        waiting = _both(exposed, waits)
        python = _without(window, _union([*busy, *exposed]))
        lengths = [sum(end - begin for begin, end in spans) for spans in (loader, waiting, exposed, python)]
        lengths[2] -= lengths[1]
        loader_share, waiting_share, transfer_share, python_share = (length / whole for length in lengths)
        return loader_share, waiting_share, transfer_share, python_share


def _key(event: dict[str, Any]) -> tuple[Any, ...]:
    """The same on every rank of a collective."""
    args = event["args"]
    return args.get("Process Group Ranks"), args.get("Process Group Name"), args["Seq"]


def _span(event: dict[str, Any]) -> Span:
    return event["ts"], event["ts"] + event.get("dur", 0)


def _work(operators: Sequence[dict[str, Any]], communication: Sequence[Span]) -> list[Span]:
    """When an operator runs on the thread that is no collective, nor inside one, nor an autograd node that waits."""
    every, tensors, blocked = [], [], []
    for event in operators:
        (blocked if event["name"].startswith("c10d::") else every).append(_span(event))
        if event["name"].startswith("aten::"):
            tensors.append(_span(event))
    between = _without(_union(every), _union(tensors))
    pauses = [(begin, end) for begin, end in between if end - begin >= WAIT_US]
    blocked += _both(pauses, communication)
    return _without(_union(every), _union(blocked))


def _union(spans: Iterable[Span]) -> list[Span]:
    """Disjoint, in order."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _both(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """Where both are; each disjoint and in order."""
    found, place = [], 0
    for begin, end in first:
        while place < len(second) and second[place][1] <= begin:
            place += 1
        at = place
        while at < len(second) and second[at][0] < end:
            found.append((max(begin, second[at][0]), min(end, second[at][1])))
            at += 1
    return found


def _without(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """Where the first is and the second is not; each disjoint and in order."""
    if not first:
        return []
    edges = [(-inf, -inf), *second, (inf, inf)]
    return _both(first, [(before[1], after[0]) for before, after in pairwise(edges)])
