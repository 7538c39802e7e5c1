"""Ranges: what listeners see of them, and that no listener is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from gpuscope.instrumented_runtime.record.ranges import span


def annotations(profiler: Any, tmp_path: Path) -> dict[str, dict[str, Any]]:
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return {event["name"]: event for event in events if event["name"].startswith("gpuscope::")}


def test_the_profiler_sees_label_and_payload(tmp_path: Path) -> None:
    with (
        profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler,
        span("forward", step=3, micro_batch=2, stage=1, nbytes=7),
    ):
        torch.ones(2)
    (event,) = annotations(profiler, tmp_path).values()
    assert event["name"] == "gpuscope::forward#micro_batch=2,stage=1"
    assert event["cat"] == "user_annotation"
    # step, micro_batch, stage, layer, bytes
    assert event["args"]["Concrete Inputs"] == ["3", "2", "1", "", "7"]


def test_a_decorated_function_is_a_range_at_each_call(tmp_path: Path) -> None:
    @span("checkpoint", stage=1)  # decorated while no listener
    def save(x: int) -> int:
        """Doc."""
        return x + 1

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        assert save(1) == 2
    assert list(annotations(profiler, tmp_path)) == ["gpuscope::checkpoint#stage=1"]
    assert (save.__name__, save.__doc__) == ("save", "Doc.")


def test_a_range_closes_when_its_block_raises(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        with pytest.raises(ZeroDivisionError), span("data"):
            1 / 0  # noqa: B018
        with span("forward"):
            pass
    data, forward = annotations(profiler, tmp_path).values()
    assert data["ts"] + data["dur"] <= forward["ts"]


def test_a_profiler_that_starts_or_stops_inside_a_range_is_no_trouble() -> None:
    profiler = profile(activities=[ProfilerActivity.CPU])
    with span("forward"):
        profiler.start()
    with span("backward"):
        profiler.stop()


def test_nobody_listening_makes_nothing_new() -> None:
    assert span("forward", step=1) is span("forward", step=2)
    assert span("forward", stage=1) is not span("forward", stage=2)


def test_neither_torch_nor_nvtx_has_to_be_installed() -> None:
    script = """
import sys
sys.modules["torch"] = sys.modules["nvtx"] = None  # an import of either now raises ImportError
from gpuscope.instrumented_runtime.record.ranges import span
with span("forward", step=1):
    print("ran")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("ran\n", 0), done.stderr


def test_an_nvtx_tool_sees_domain_category_colour_and_payload(listener: Path, tmp_path: Path) -> None:
    script = """
from gpuscope.instrumented_runtime.record.ranges import span
with span("forward", step=3, micro_batch=2, nbytes=7):
    with span("all_reduce"):
        pass
"""
    listened = tmp_path / "listened.txt"
    environment = {**os.environ, "NVTX_INJECTION64_PATH": str(listener), "NVTX_LISTENER_OUT": str(listened)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    assert listened.read_text().splitlines() == [
        "category gpuscope 1 compute",
        "push gpuscope forward#micro_batch=2 category=1 color=ff59a14f 3 2 7",
        "category gpuscope 2 communication",
        "push gpuscope all_reduce category=2 color=ffe15759",
        "pop gpuscope",
        "pop gpuscope",
    ]
