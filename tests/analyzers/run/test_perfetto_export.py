"""`gpuscope export --perfetto run.pftrace`: what Perfetto's rules make of the file is what the trace holds."""

from __future__ import annotations

import gzip
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cli import call
from helpers.kineto import call as launch
from helpers.kineto import kernel, note, write

import gpuscope
from gpuscope.analyzers.run import perfetto_export
from gpuscope.errors import InputError
from gpuscope.sources.perfetto.packet_rows import BEGIN, TracePacket
from gpuscope.sources.perfetto.packets import whole

Span = tuple[str, int, int]


def read(path: Path) -> tuple[list[Span], dict[int, list[str]]]:
    """Slices as (name, start, end) by Perfetto's rule, an end closing its track's innermost slice; slices by flow."""
    names: dict[int, str] = {}
    stacks: dict[int, list[tuple[str, int]]] = defaultdict(list)
    spans: list[Span] = []
    flows: dict[int, list[str]] = defaultdict(list)
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    for begin, end in whole(content):
        packet: Any = TracePacket.FromString(content[begin:end])
        for one in packet.interned_data.event_names:
            names[one.iid] = one.name.decode()
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        if event.type == BEGIN:
            stacks[event.track_uuid].append((names[event.name_iid], packet.timestamp))
            for flow in event.flow_ids:
                flows[flow].append(names[event.name_iid])
        else:
            name, start = stacks[event.track_uuid].pop()
            spans.append((name, start, packet.timestamp))
    assert not any(stacks.values())
    return spans, flows


def held(trace: Any) -> list[Span]:
    found = []
    base = min(int(trace[table]["start"].min()) for table in ("device_events", "host_events"))
    for table in ("device_events", "host_events"):
        columns = (trace[table][name] for name in ("name", "start", "end"))
        found += [(trace.names[int(n)], int(s) - base, int(e) - base) for n, s, e in zip(*columns, strict=True)]
    return sorted(found)


@pytest.mark.parametrize("suffix", [".pftrace", ".pftrace.gz"])
def test_every_span_is_there_once(tmp_path: Path, suffix: str) -> None:
    """Nested ranges, kernels that overlap on one stream without nesting, one of no length, ends that meet starts."""
    path = write(
        tmp_path / "rank0.json",
        note(0, 100, "outer"),
        note(10, 20, "inner"),
        note(30, 5, "next"),
        launch(12, 3, 1),
        launch(16, 3, 2),
        kernel(20, 50, 1, "a"),
        kernel(40, 50, 2, "b"),
        kernel(90, 0, name="c"),
        kernel(90, 10, name="d"),
    )
    trace = gpuscope.open_trace(path)
    target = tmp_path / f"run{suffix}"
    perfetto_export.write(trace, target)
    spans, flows = read(target)
    assert sorted(spans) == held(trace)
    assert sorted(flows.values()) == [["a", "cudaLaunchKernel"], ["b", "cudaLaunchKernel"]]


def test_a_sample_of_two_ranks_by_command(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "run.pftrace"
    assert call(capsys, "export", samples / "ddp_slow_rank", "--perfetto", target).returncode == 0
    trace = gpuscope.open_trace(samples / "ddp_slow_rank")
    spans, _ = read(target)
    rows = len(trace["device_events"]) + len(trace["host_events"])
    assert len(spans) == rows
    durations = np.concatenate([trace[name]["end"] - trace[name]["start"] for name in ("device_events", "host_events")])
    assert sum(end - start for _, start, end in spans) == int(durations.sum())


def test_what_was_exported_is_not_taken_for_a_recording(tmp_path: Path) -> None:
    trace = gpuscope.open_trace(write(tmp_path / "rank0.json", launch(0, 3, 1), kernel(5, 5, 1)))
    perfetto_export.write(trace, tmp_path / "run.pftrace")
    with pytest.raises(InputError, match="not one of torch"):
        gpuscope.open_trace(tmp_path / "run.pftrace")
