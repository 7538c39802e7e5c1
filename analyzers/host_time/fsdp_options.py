"""What FSDP does that its options would spare: gradients scattered in every micro-batch; of FSDP1 a limit on gathers
that the device waits for, and gathers that only begin once the backward pass needs them.

They show in ranges of torch/distributed/fsdp/_runtime_utils.py and _fully_shard/_fsdp_state.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import Need
from gpuscope.analyzers.host_time.ddp_options import synced_accumulation
from gpuscope.analyzers.host_time.judged_windows import Judged, judged
from gpuscope.analyzers.host_time.option_findings import covered, finding_of, ranges, shown
from gpuscope.catalogue.findings.data_parallel import LateGathers, LimitedGathers
from gpuscope.schema.document import FindingEntry
from gpuscope.trace.columns.table import Times
from gpuscope.trace.intervals import intersect, join, measure_within, union
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

LIMITER = "FullyShardedDataParallel.rate_limiter"
BEFORE = "FullyShardedDataParallel._pre_backward_hook"
AHEAD = "FullyShardedDataParallel._pre_backward_prefetch"
"""Within the hook: gathers issued in it are of the module behind, those outside it of this one."""
ROOTS = ("FSDP::root_pre_forward", "FullyShardedDataParallel._to_kwargs")
"""Once per forward pass of the whole model, in FSDP2 and in FSDP1."""
AT_ONCE = 0.5
"""Share of the gathers of a backward pass that begin where they are needed, from which none is fetched ahead."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The findings `limited_gathers`, `late_gathers` and `synced_accumulation`."""
    result = Result(ANALYZER.name)
    if all(trace.names.find(name) < 0 for name in (LIMITER, BEFORE, *ROOTS)):
        return result
    for view in lanes:
        steps = judged(view)
        if steps.steady:
            result.findings += [*_limited(trace, view, steps), *_late(trace, view, steps)]
            for root in ROOTS:
                result.findings += synced_accumulation(trace, view, steps, root, "reduce_scatter")
    return result


def _gathers(trace: Trace, rank: int, steps: Judged) -> tuple[Times, Times]:
    """All-gathers issued in judged steps, in order of issue: rows of `collectives`, and when each was issued."""
    table, device, host = trace["collectives"], trace["device_events"], trace["host_events"]
    rows = np.flatnonzero((table["rank"] == rank) & (table["op"] == trace.names.find("all_gather")))
    rows = rows[table["event"][rows] != NA]
    launch = device.at("launch", table["event"][rows])
    rows, issued = rows[launch != NA], host["start"][launch[launch != NA]]
    kept = steps.place(issued) != NA
    order = np.argsort(issued[kept], kind="stable")
    return rows[kept][order], issued[kept][order]


def _limited(trace: Trace, view: LaneView, steps: Judged) -> list[FindingEntry]:
    """From each wait of the limiter to the end of the gather behind it: what of this is not compute."""
    host, table = trace["host_events"], trace["collectives"]
    rows = ranges(trace, view.lane.rank, LIMITER)
    rows = rows[steps.place(host["start"][rows]) != NA]
    gathers, issued = _gathers(trace, view.lane.rank, steps)
    if not len(rows) or not len(gathers):
        return []
    behind = np.minimum(np.searchsorted(issued, host["end"][rows]), len(gathers) - 1)
    held = union(host["start"][rows], np.maximum(table["end"][gathers[behind]], host["end"][rows]))
    stalled = join(view.parts.idle, view.parts.exposed_communication)
    evidence = shown(trace, "host_events", rows, "the limiter's wait")
    return finding_of(LimitedGathers, view, steps, intersect(stalled, held), evidence)


def _late(trace: Trace, view: LaneView, steps: Judged) -> list[FindingEntry]:
    """Gathers of the backward pass that are issued in the hook of the module that needs them, and exposed."""
    table, device, host, rank = trace["collectives"], trace["device_events"], trace["host_events"], view.lane.rank
    rows, issued = _gathers(trace, rank, steps)
    hooks, ahead = covered(host, ranges(trace, rank, BEFORE)), covered(host, ranges(trace, rank, AHEAD))
    within = measure_within(hooks, issued, issued + 1) > 0
    needed = within & (measure_within(ahead, issued, issued + 1) == 0)
    if needed.sum() <= AT_ONCE * within.sum():
        return []
    late = rows[needed]
    exposed = intersect(view.parts.exposed_communication, covered(table, late))
    launches = device.at("launch", table["event"][late])
    evidence = shown(trace, "host_events", launches, "issued where it is needed")
    counts = int(needed.sum()), int(within.sum())
    return finding_of(lambda share: LateGathers(*counts, share), view, steps, exposed, evidence)


ANALYZER = FileAnalyzer("fsdp_options", run, (Need("host_events", "record CPU activities too", optional=True),))
