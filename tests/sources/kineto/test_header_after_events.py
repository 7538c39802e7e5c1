"""A trace whose header stands behind its events, arrays and all, as a re-written file has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.kineto import kernel, write

import gpuscope


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("broken", [False, True])
def test_header_behind_the_events_is_read_whole(tmp_path: Path, indent: int | None, broken: bool) -> None:
    path = write(
        tmp_path / "trace.json", kernel(0, 10, 1), kernel(20, 10, 2), rank=3, world_size=8,
        deviceProperties=[{"id": 0, "name": "NVIDIA H100"}, {"id": 1, "name": "NVIDIA H100"}], trace_id="1",
    )  # fmt: skip
    document = json.loads(path.read_text())
    events = document.pop("traceEvents")
    text = json.dumps({"metadata": {}, "traceEvents": events, **document}, indent=indent)
    path.write_text(text.replace('"dur": 10', '"dur": 1x', 1) if broken else text)
    trace = gpuscope.open_trace(path)
    assert trace.ranks == [3]
    assert trace.tables["ranks"]["device_name"].tolist() == ["NVIDIA H100"]
    assert len(trace["device_events"]) == (1 if broken else 2)
    assert [(p.code, p.count) for p in trace.problems] == ([("undecodable_event", 1)] if broken else [])
