"""Whether a recorded run shows a path of the checklist. Each judge returns what it saw, or raises `NotSeenError`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd

import gpuscope


class NotSeenError(Exception):
    """The run does not show the path; why, in one line."""


def need(good: object, why: str) -> None:
    """Raise `NotSeenError` unless `good`."""
    if not good:
        raise NotSeenError(why)


def _facts(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.parent / "facts.json").read_text())
    return found


def _manifest(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return found


def _files(run: Path, kind: str) -> list[Path]:
    return [run / entry["path"] for entry in _manifest(run)["files"] if entry["kind"] == kind]


def _report(run: Path) -> dict[str, Any]:
    return dict(gpuscope.analyze(run, advice=False).report)


def _tables(run: Path) -> dict[str, pd.DataFrame]:
    return dict(gpuscope.open_trace(run).tables)


def _in_steps(rows: pd.DataFrame, steps: pd.DataFrame) -> list[int]:
    """How many rows begin in each step."""
    return [
        int(((rows["rank"] == step["rank"]) & rows["start"].between(step["start"], step["end"])).sum())
        for _, step in steps.iterrows()
    ]


def cuda_untouched(run: Path) -> str:
    """No import and no recording initialises CUDA; variables and forks after them do what they would without."""
    facts = _facts(run)
    need(not facts["initialised_by_import"], "CUDA was initialised by the import")
    need(not facts["initialised_by_recording"], "CUDA was initialised as the recording began")
    need(facts["child_sees_no_device"], "CUDA_VISIBLE_DEVICES, set after the import, is ignored")
    need(facts["child_uses_cuda"], "a process forked after the import can't use CUDA")
    kernels = _tables(run)["device_events"]
    need((kernels["kind"] == "compute").any(), "the trace holds no kernel")
    return "not initialised by import or recording; a forked process used CUDA"


def verdict_of_fault(run: Path) -> str:
    """The verdict is that of the manifest's ground truth."""
    (truth,) = _manifest(run)["faults"]
    return _verdict(run, truth["bound_by"], truth["cause"])


def _verdict(run: Path, bound_by: str, cause: str) -> str:
    verdict = _report(run)["verdict"]
    told = f"{verdict['bound_by']}, cause {verdict['cause']}"
    need((verdict["bound_by"], verdict["cause"]) == (bound_by, cause), f"{told}, not {bound_by}, cause {cause}")
    return told


def slow_rank(run: Path) -> str:
    """Rank 1 is named as late."""
    told = _verdict(run, "communication", "straggler")
    late = [one["rank"] for one in _report(run)["stragglers"] if one["recurrent"]]
    need(late == [1], f"late ranks: {late}, not rank 1")
    return f"{told}, rank 1"


def cuda_graphs(run: Path) -> str:
    """In each step graphs are launched, and the kernels of these launches are there."""
    tables = _tables(run)
    host, device = tables["host_events"], tables["device_events"]
    launches = host[host["name"].astype(str).str.contains("GraphLaunch")]
    kernels = device[device["launch"].isin(launches.index) & (device["kind"] == "compute")]
    per_step = _in_steps(launches, tables["steps"])
    need(per_step and min(per_step) > 0, f"graph launches by step: {per_step}")
    need(len(kernels) > len(launches), f"{len(launches)} graph launches, {len(kernels)} kernels from them")
    return f"{min(per_step)} graph launches per step, {len(kernels)} kernels"


def compiled(run: Path) -> str:
    """Kernels that torch.compile wrote."""
    device = _tables(run)["device_events"]
    written = int(device["name"].astype(str).str.startswith("triton_").sum())
    need(written, "no kernel of Triton's")
    return f"{written} kernels of Triton's"


def sync_events(run: Path) -> str:
    """Synchronisations are recorded as such."""
    rows = _tables(run)["syncs"]
    need(len(rows), "no cuda_sync rows: the profiler did not record synchronisations")
    return ", ".join(f"{count} {name}" for name, count in rows["name"].astype(str).value_counts().items())


def out_of_memory(run: Path) -> str:
    """The snapshot at out-of-memory is there, and says so itself."""
    need(_facts(run)["out_of_memory"], "the script got all it asked for")
    need(any(one["code"] == "out_of_memory" for one in _manifest(run)["problems"]), "the manifest says nothing of it")
    files = [path for path in _files(run, "memory_snapshot") if path.stem.endswith("_oom")]
    need(files, "no snapshot")
    events = gpuscope.open_trace(files[0]).tables["allocator_events"]
    need((events["action"] == "oom").any(), "the snapshot's history has no out-of-memory")
    return f"{files[0].name}: {len(events)} entries"


def nvml(run: Path) -> str:
    """Clock and power of the rank's own device, by step."""
    facts = _facts(run)
    need(facts["nvml_bus"] is not None, "NVML did not find the device by its UUID")
    need(facts["torch_bus"] in (None, facts["nvml_bus"]), f"NVML samples another device than torch uses: {facts}")
    power = _report(run).get("power")
    need(power, "no samples in the trace")
    told = power[0]
    need(told["sm_mhz"] and told["power_w"], f"sampled, but {told}")
    return f"{told['sm_mhz']:,.0f} MHz, {told['power_w']:,.0f} W"


def _copies(run: Path, memory: str) -> tuple[int, int]:
    """Copies to the device from that kind of memory, and the steps without any."""
    tables = _tables(run)
    copies = tables["device_events"]
    found = copies[copies["name"].astype(str).str.contains("HtoD") & copies["name"].astype(str).str.contains(memory)]
    launched = tables["host_events"].loc[found["launch"].dropna().astype(int)]  # the device may be steps behind
    return len(found), sum(count == 0 for count in _in_steps(launched, tables["steps"]))


def pinned(run: Path) -> str:
    """Batches come from pinned memory."""
    count, steps_without = _copies(run, "Pinned")
    need(count, "no copy from pinned memory")
    need(not steps_without, f"{steps_without} steps without a copy from pinned memory")
    return f"{count} copies from pinned memory"


def pageable(run: Path) -> str:
    """Copies from pageable memory are there, and are the verdict."""
    count, _ = _copies(run, "Pageable")
    need(count, "no copy from pageable memory")
    return f"{count} copies from pageable memory; {verdict_of_fault(run)}"


def nccl_ranks(run: Path) -> str:
    """Collectives of both ranks: kernels of NCCL's, with sizes, found to belong together."""
    rows = _tables(run)["collectives"]
    reduced = rows[rows["op"] == "all_reduce"]
    need(sorted(set(reduced["rank"])) == [0, 1], f"all-reduces of ranks {sorted(set(reduced['rank']))}")
    need(reduced["event"].notna().all(), "all-reduces without a kernel")
    need(reduced["bytes"].notna().all(), "all-reduces without a size")
    numbers = [set(reduced[reduced["rank"] == rank]["seq"].dropna()) for rank in (0, 1)]
    need(numbers[0] & numbers[1], "no all-reduce of one rank has its number on the other")
    return f"{len(reduced)} all-reduces on two ranks"


def flight_recorder(run: Path) -> str:
    """`gpuscope hang` and `gpuscope record` both name rank 1, which went to sleep."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuscope", "hang", run, "--json"], capture_output=True, text=True, check=False
    )
    need(done.returncode == 0, f"gpuscope hang: {done.stderr.strip()}")
    hang = json.loads(done.stdout)["hang"]
    causes = [cause["rank"] for cause in hang["first_cause"]]
    need(hang["hung"] and causes == [1], f"hung: {hang['hung']}, first causes {causes}")
    told = [one["message"] for one in _manifest(run)["problems"] if one["code"] == "hang"]
    need(any("rank 1" in message for message in told), f"gpuscope record said {told or 'nothing'}")
    return told[0]


def coalesced_messages(run: Path) -> str:
    """Messages of one batch are in Flight Recorder's dumps, and no rank reported a hang or a pause."""
    told = [one["message"] for one in _manifest(run)["problems"] if one["code"] in ("hang", "pause")]
    need(not told, f"gpuscope record said {told}")
    ops = [path for path in _files(run, "flight_recorder") if b"coalesced" in path.read_bytes()]
    need(len(ops) == 2, f"{len(ops)} of 2 dumps have coalesced messages")
    return f"{len(ops)} dumps have coalesced messages, no hang was reported"


def captured_graphs(run: Path) -> str:
    """The job that captures graphs while the watch looks came to its own end."""
    manifest = _manifest(run)
    need(manifest["status"] == "completed", f"the run {manifest['status']}")
    failed = [one["message"] for one in manifest["problems"] if one["code"] == "hang_watch_failed"]
    need(not failed, f"gpuscope record said {failed}")
    return "completed, with the hang watch to the end"


def nsys_reports(run: Path) -> str:
    """A report per rank, with kernels and NCCL's."""
    files = _files(run, "nsys")
    need(len(files) == 2, f"{len(files)} reports of 2 ranks")
    for path in files:
        device = gpuscope.open_trace(path).tables["device_events"]
        need((device["kind"] == "compute").any(), f"{path.name} holds no kernel")
        need((device["kind"] == "communication").any(), f"{path.name} holds no kernel of NCCL's")
    return "kernels in both reports"
