"""What an export lacks, why, and what to record instead: never read as «the device was idle»."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpuscope.problems import collectives, completeness, reading
from gpuscope.problems.problem import ProblemKind
from gpuscope.sources.nsys.export_facts import Facts, was_exported
from gpuscope.sources.nsys.rows.event_tables import GRAPH, KERNEL, MEMCPY, MEMSET, NVTX, RUNTIME, Events
from gpuscope.sources.nsys.rows.nccl_operations import communication_kernels
from gpuscope.sources.nsys.rows.nvtx_payloads import Payload, is_nccl_call
from gpuscope.sources.nsys.rows.process_ranks import Ranks, kinds_of_calls
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.naming import kinds

_ON_DEVICE = (KERNEL, MEMCPY, MEMSET, GRAPH)


def report_missing(
    builder: TraceBuilder, events: Events, ranks: Ranks, facts: Facts, payloads: Mapping[int, Payload], undecoded: int
) -> None:
    """Problems for device work that is not there, ranges never closed, sizes not exported, files cut."""
    _report_ranks_without_kernels(builder, events, ranks)
    if not any(events.count(table) for table in _ON_DEVICE):
        builder.problem(_why_no_device_events(events, facts, builder.names), 1)
    builder.problem(reading.RANGE_NEVER_CLOSED, events.never_closed)
    builder.problem(collectives.PAYLOAD_UNDECODABLE, undecoded)
    _report_no_payloads(builder, events, facts, payloads)
    derived = {name: value for name, value in facts.export.items() if name.startswith("DERIVED_")}
    cut = derived.get("DERIVED_WINDOW_NS") or facts.export.get("EXPORT_PARAM_TIMES_TO_EXPORT")
    builder.problem(completeness.CUT_TO_WINDOW, int(bool(cut or derived)), cut=cut)


def _report_ranks_without_kernels(builder: TraceBuilder, events: Events, ranks: Ranks) -> None:
    """Processes that launched kernels of which none was recorded."""
    calls = events[RUNTIME]
    for process, own in ranks.of_process.items():
        if not any(process in distinct_values(events[table]["process"]).tolist() for table in _ON_DEVICE):
            launched = kinds_of_calls(events, builder.names, kinds.is_kernel_launch) & (calls["returnValue"] <= 0)
            lost = int(np.count_nonzero(launched & (calls["process"] == process)))
            builder.problem(completeness.KERNELS_NOT_RECORDED, lost, rank=own[0], launches=lost)
            builder.problem(completeness.RECORDER_DELIVERED_NOTHING, int(bool(lost)))


def _why_no_device_events(events: Events, facts: Facts, names: NamePool) -> ProblemKind:
    if events.count(RUNTIME):
        launched = kinds_of_calls(events, names, kinds.is_kernel_launch).any()
        return completeness.CUDA_TRACED_NO_KERNELS if launched else completeness.NOTHING_LAUNCHED
    if facts.capture["cuda"] is False:
        return completeness.CUDA_NOT_TRACED
    if not _all_tables(facts):
        return completeness.TABLES_NOT_EXPORTED
    return completeness.CUDA_NOT_CALLED if facts.capture["cuda"] else completeness.NO_CUDA_CALLS


def _all_tables(facts: Facts) -> bool:
    return not facts.export.get("EXPORT_PARAM_TABLES_TO_EXPORT")


def _report_no_payloads(builder: TraceBuilder, events: Events, facts: Facts, payloads: Mapping[int, Payload]) -> None:
    names = builder.names
    kernels = len(communication_kernels(events, names))
    if not kernels or payloads:
        return
    ranges = events[NVTX]["name"]
    if not any(is_nccl_call(names[code]) for code in distinct_values(ranges).tolist()):
        why = collectives.NCCL_RANGES_NOT_RECORDED
    elif was_exported(facts, "BLOBS"):
        why = collectives.NCCL_WROTE_NO_PAYLOADS
    else:
        why = collectives.NCCL_PAYLOADS_NOT_EXPORTED
    builder.problem(why, kernels)
