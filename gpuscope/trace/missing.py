"""What a trace lacks, and how to record it: said by `gpuscope info` and by analyses that abstain."""

from __future__ import annotations

from gpuscope.trace.schema import NA, Category
from gpuscope.trace.trace import Trace
from gpuscope.trace.world import recorded_world

TIMELINES = ("kineto", "nsys", "ascend", "pftrace")
"""How formats begin whose files should hold what ran when: the others are records of something else."""


def _records(trace: Trace) -> str:
    """The formats of a trace without a timeline, in words; empty where one should be there."""
    formats = sorted({source.format for source in trace.sources})
    return "" if any(one.startswith(TIMELINES) for one in formats) else ", ".join(formats)


def missing(trace: Trace) -> list[str]:
    """A sentence for each kind of record that is absent, with how to get it; empty for a full trace."""
    found: list[str] = []
    host = trace["host_events"]
    if not len(trace["device_events"]) and not len(host) and (formats := _records(trace)):
        return [f"no timeline ({formats} holds none): name it together with a trace of the same run"]
    if not len(trace["device_events"]):
        found.append("no device events: record the device too (ProfilerActivity.CUDA, `nsys profile -t cuda`)")
    if not len(host):
        found.append("no host events: record the host too (ProfilerActivity.CPU, `nsys profile -t cuda,nvtx,osrt`)")
    elif not bool((host["category"] == Category.RUNTIME).any()) and bool((trace["ranks"]["device"] != NA).any()):
        found.append("no runtime calls: kernels can't be linked to what launched them (`nsys profile -t cuda`)")
    if not len(trace["steps"]):
        found.append("no steps: call `profiler.step()` once per iteration, or name an NVTX range `step`")
    collectives = trace["collectives"]
    if len(collectives) and not bool(collectives.known("bytes").any()):
        found.append(
            "no sizes of collectives: torch >= 2.4 records them; with nsys, export with --include-blobs=true "
            "(NCCL >= 2.25) or trace with `-t nccl` and export with --include-json=true"
        )
    size = recorded_world(trace).size
    if size is not None and size > len(trace.ranks):
        found.append(f"{size - len(trace.ranks)} of {size} ranks: record all ranks of a group")
    return found
