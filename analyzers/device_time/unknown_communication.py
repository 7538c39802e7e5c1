"""Kernels that no rule knows and that behave like communication: counted as compute, named, and doubted.

How many blocks a kernel has is in no table, so its place and its length tell: a stream of its own, beside compute, long
where kernels are short, again in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import DEVICE_EVENTS
from gpuscope.problems import completeness
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.table import Mask, Times, looked_up, picked
from gpuscope.trace.intervals import intersect, union
from gpuscope.trace.naming.kernel_categories import OTHER, kernel_category
from gpuscope.trace.schema import Kind
from gpuscope.trace.trace import Trace

OWN_STREAM = 0.9
"""Share of a stream's time that kernels nobody knows must take."""
BESIDE = 0.5
"""Share of a kernel's time beside compute of other streams."""
LONGER = 3
"""Times the median kernel of the other streams."""
LONG_NS = 50_000
LEAST = 3
"""Fewer are no habit."""
IN_STEPS = 0.9


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """A problem per kernel that looks like communication."""
    result = Result(ANALYZER.name)
    for view in lanes:
        for name, count in _alike(trace, view).items():
            result.problem(completeness.LOOKS_LIKE_COMMUNICATION, count, kernel=name)
    return result


def _alike(trace: Trace, view: LaneView) -> dict[str, int]:
    device = trace["device_events"]
    rows = view.rows[(device.at("kind", view.rows) == Kind.COMPUTE) & device.known("stream")[view.rows]]
    stream = picked(device.columns["stream"], rows)  # known in all
    streams = distinct_values(stream)
    if len(streams) < 2:
        return {}
    unknown = looked_up(trace.names.matching(lambda name: kernel_category(name) == OTHER), device.at("name", rows))
    if not unknown.any():
        return {}
    took = device.at("end", rows) - device.at("start", rows)
    spent = {int(own): int(took.sum(where=stream == own)) for own in streams}
    main = max(spent, key=lambda own: spent[own] - int(took.sum(where=(stream == own) & unknown)))
    found: dict[str, int] = {}
    for own in streams.tolist():
        there = stream == own
        if own == main or took.sum(where=there & unknown) < OWN_STREAM * spent[own]:
            continue
        strange = rows[there & unknown]
        names = device["name"][strange]
        for code in distinct_values(names).tolist():
            mine = strange[names == code]
            middle = float(np.median(device["end"][mine] - device["start"][mine]))
            if middle < LONG_NS or not _again(device["start"][mine], view):
                continue
            if middle < LONGER * float(np.median(took[~there], overwrite_input=True)):
                continue
            others, spans = rows[~there], union(device["start"][mine], device["end"][mine])
            compute = union(device["start"][others], device["end"][others])
            if intersect(spans, compute).total >= BESIDE * spans.total:
                found[trace.names[code]] = len(mine)
    return found


def _again(starts: Times, view: LaneView) -> bool:
    """Whether it runs in nearly every step."""
    steps = view.judged_steps
    if len(starts) < LEAST:
        return False
    hit: Mask = np.array([bool(((starts >= step.start) & (starts < step.end)).any()) for step in steps])
    return float(hit.mean()) >= IN_STEPS


ANALYZER = FileAnalyzer("unknown_communication", run, (replace(DEVICE_EVENTS, optional=True),))
