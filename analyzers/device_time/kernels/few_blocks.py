"""Kernels launched on so few blocks that most of the device idles while they run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.analyzer import EVIDENCE, FileAnalyzer, Result
from gpuscope.analyzers.base.evidence import shown_by
from gpuscope.analyzers.base.lanes import LaneView, computing
from gpuscope.analyzers.base.needs import DEVICE_EVENTS
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.compute import FewBlocks
from gpuscope.schema.document import FindingEntry
from gpuscope.trace.columns.table import Times
from gpuscope.trace.intervals import Spans, intersect, subtract, union
from gpuscope.trace.trace import Trace

_OF_LIBRARY = when_used.pattern(
    r"\bat(_cuda)?::|\bcub::|thrust::|cutlass|cudnn|cublas|cufft|gemm|flash_(fwd|bwd)|\bTensile\b"
)


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """A finding `few_blocks` per lane."""
    result = Result(ANALYZER.name)
    if len(trace["small_grids"]):
        for view in lanes:
            result.findings += _of_lane(trace, view)
    return result


def _of_lane(trace: Trace, view: LaneView) -> list[FindingEntry]:
    device, grids = trace["device_events"], trace["small_grids"]
    rows = computing(trace, view)
    few = np.isin(rows, grids["event"])
    if not few.any():
        return []
    lost = intersect(subtract(_covered(trace, rows[few]), _covered(trace, rows[~few])), view.judged_spans).total
    share = lost / max(view.judged_spans.total, 1)
    if share < MIN_SHARE:
        return []
    rows = rows[few]
    lasts = device["end"][rows] - device["start"][rows]
    codes, which = np.unique(device["name"][rows], return_inverse=True)
    most = int(np.argmax(np.bincount(which, lasts)))
    own = rows[which == most]
    place = int(np.flatnonzero(grids["event"] == own[np.argmax(lasts[which == most])])[0])
    name = trace.names[int(codes[most])]
    blocks, threads = int(grids["blocks"][place]), int(grids["threads"][place])
    words = FewBlocks(name, blocks, threads, len(own), _OF_LIBRARY.search(name) is not None, share)
    evidence = [shown_by(trace, "device_events", row) for row in own[:EVIDENCE].tolist()]
    steps = len(view.judged_steps)
    return [made(words, ranks=[view.lane.rank], share=share, cost_ns=lost, mean_ns=lost // steps, evidence=evidence)]


def _covered(trace: Trace, rows: Times) -> Spans:
    device = trace["device_events"]
    return union(device["start"][rows], device["end"][rows])


ANALYZER = FileAnalyzer("few_blocks", run, (DEVICE_EVENTS,))
