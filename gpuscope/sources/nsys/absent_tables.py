"""What an export lacks, why, and what to record instead: never read as «the device was idle»."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from gpuscope.sources.nsys.export_facts import Facts, was_exported
from gpuscope.sources.nsys.rows.event_tables import GRAPH, KERNEL, MEMCPY, MEMSET, NVTX, RUNTIME, Events
from gpuscope.sources.nsys.rows.nccl_operations import communication_kernels
from gpuscope.sources.nsys.rows.nvtx_payloads import Payload, is_nccl_call
from gpuscope.sources.nsys.rows.process_ranks import Ranks, kinds_of_calls
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.naming import kinds

_RECORD = "record with: nsys profile -t cuda,nvtx,osrt -o OUT COMMAND"
_ON_DEVICE = (KERNEL, MEMCPY, MEMSET, GRAPH)


def report_missing(
    builder: TraceBuilder, events: Events, ranks: Ranks, facts: Facts, payloads: Mapping[int, Payload], undecoded: int
) -> None:
    """Problems for device work that is not there, ranges never closed, sizes not exported, files cut."""
    _report_ranks_without_kernels(builder, events, ranks)
    if not any(events.count(table) for table in _ON_DEVICE):
        builder.problem("info", "no_device_events", 1, _why_no_device_events(events, facts, builder.names))
    builder.problem(
        "info", "range_never_closed", events.never_closed, "NVTX ranges that were never closed were left out"
    )
    builder.problem("data_loss", "payload_undecodable", undecoded, "NCCL payloads whose layout is not in the file")
    _report_no_payloads(builder, events, facts, payloads)
    derived = {name: value for name, value in facts.export.items() if name.startswith("DERIVED_")}
    cut = derived.get("DERIVED_WINDOW_NS") or facts.export.get("EXPORT_PARAM_TIMES_TO_EXPORT")
    builder.problem(
        "info",
        "cut_to_window",
        int(bool(cut or derived)),
        f"the file holds only a window of the recording ({cut}): launches and kernels at its edges are unpaired",
    )


def _report_ranks_without_kernels(builder: TraceBuilder, events: Events, ranks: Ranks) -> None:
    """Processes that launched kernels of which none was recorded."""
    calls = events[RUNTIME]
    for process, own in ranks.of_process.items():
        if not any(process in distinct_values(events[table]["process"]).tolist() for table in _ON_DEVICE):
            launched = kinds_of_calls(events, builder.names, kinds.is_kernel_launch) & (calls["returnValue"] <= 0)
            builder.problem(
                "data_loss",
                "kernels_not_recorded",
                int(np.count_nonzero(launched & (calls["process"] == process))),
                f"rank {own[0]}: kernels were launched but none was recorded: the GPU's activity could not be "
                "traced (under WSL, in a container or VM without access to the GPU's counters, or the process was "
                f"killed before its buffers were written). It does not mean that the GPU was idle; {_RECORD}",
            )


def _why_no_device_events(events: Events, facts: Facts, names: NamePool) -> str:
    if events.count(RUNTIME):
        if kinds_of_calls(events, names, kinds.is_kernel_launch).any():
            return "CUDA calls were traced, but the kernels that they launched were not recorded"
        return "CUDA was called, but nothing was launched while recording"
    if facts.capture["cuda"] is False:
        return f"CUDA was not traced; {_RECORD}"
    if not _all_tables(facts):
        return "only some tables were exported; export again without --tables"
    if facts.capture["cuda"]:
        return (
            "CUDA was to be traced, but no profiled process called it while recording "
            "(a capture range that never opened, or work in a process that was not followed)"
        )
    return f"the file holds no CUDA calls and does not say whether CUDA was traced; {_RECORD}"


def _all_tables(facts: Facts) -> bool:
    return not facts.export.get("EXPORT_PARAM_TABLES_TO_EXPORT")


def _report_no_payloads(builder: TraceBuilder, events: Events, facts: Facts, payloads: Mapping[int, Payload]) -> None:
    names = builder.names
    kernels = len(communication_kernels(events, names))
    if not kernels or payloads:
        return
    ranges = events[NVTX]["name"]
    if not any(is_nccl_call(names[code]) for code in distinct_values(ranges).tolist()):
        why = "NCCL's ranges were not recorded (trace with -t cuda,nvtx)"
    elif was_exported(facts, "BLOBS"):
        why = "NCCL wrote none (NCCL before 2.14, or built without NVTX)"
    else:
        why = "they were not exported (nsys export --include-blobs=true --include-json=true)"
    message = f"NCCL kernels without sizes and communicators: {why}; operations are known by kernel names alone"
    builder.problem("info", "no_nccl_payloads", kernels, message)


def uncaptured_launches(events: Events, names: NamePool) -> None:
    """Take the correlation id from launches into a stream that was being captured: they recorded a node of
    a graph, so that no kernel of theirs is missing."""
    calls = events[RUNTIME]
    begins = kinds_of_calls(events, names, lambda name: re.match(r"cu(da)?StreamBeginCapture", name) is not None)
    ends = kinds_of_calls(events, names, lambda name: re.match(r"cu(da)?StreamEndCapture", name) is not None)
    if not begins.any() or not ends.any():
        return
    linked = np.zeros(len(calls["start"]), np.bool_)
    for table in _ON_DEVICE:
        linked |= np.isin(calls["correlationId"], events[table]["correlationId"])
    correlation = calls["correlationId"].astype(np.int64)
    for thread in np.unique(calls["globalTid"][begins]).tolist():
        own = calls["globalTid"] == thread
        begin = np.sort(calls["start"][own & begins])
        end = np.sort(calls["start"][own & ends])
        open_captures = np.searchsorted(begin, calls["start"], "right") - np.searchsorted(end, calls["start"], "right")
        correlation[own & (open_captures > 0) & ~linked] = 0
    calls["correlationId"] = correlation
