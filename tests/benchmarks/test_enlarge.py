"""An enlarged trace holds what the real one holds, once per copy, and nothing of it twice."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.kineto import call, kernel, note, op, write

import gpuscope
from benchmarks.waits.enlarge import enlarge
from benchmarks.waits.template import Template, read_template
from gpuscope.trace.schema import Category

STEPS = [note(100, 90, "ProfilerStep#7"), note(200, 100, "ProfilerStep#8")]
WORK = [
    op(110, 20, **{"External id": 3}),
    call(112, 4, 5),
    kernel("130.250", "40.500", 5),
    call(210, 4, 6),
    kernel(220, 60, 6, name="ncclDevKernel_AllReduce_Sum"),
]


@pytest.fixture
def template(tmp_path: Path) -> Template:
    return read_template(write(tmp_path / "rank0.json", *STEPS, *WORK))


@pytest.mark.parametrize("name", ["large.json", "large.json.gz"])
def test_five_copies(template: Template, tmp_path: Path, name: str) -> None:
    written = enlarge(template, tmp_path / name, 5 * template.size)
    trace = gpuscope.open_trace(written.path)
    device, host = trace["device_events"], trace["host_events"]

    assert trace.problems == []
    assert trace["steps"]["step"].tolist() == list(range(10))
    assert (len(device), len(host)) == (5 * 2, 5 * 3 + 10)
    assert written.events == trace.sources[0].events == 5 * 5 + 10
    # Each kernel has a launch of its own: the ids are fresh.
    assert sorted(device["launch"]) == np.flatnonzero(host["category"] == Category.RUNTIME).tolist()
    # 40.5 µs of compute and 60 µs of communication a copy; they lie from 130.25 to 280 µs, the copies 202 µs apart.
    (lane,) = trace.lanes()
    breakdown = trace.breakdown(lane.rows)
    assert (breakdown.compute, breakdown.exposed_communication) == (5 * 40_500, 5 * 60_000)
    assert breakdown.window == 4 * 202_000 + 149_750


def test_first_copy_is_the_real_trace(template: Template, tmp_path: Path) -> None:
    real = write(tmp_path / "real.json", *STEPS, *WORK)
    written = enlarge(template, tmp_path / "one.json", 1)
    assert written.copies == 1
    renumbered = re.sub(r"ProfilerStep#(\d)", lambda match: f"ProfilerStep#{int(match[1]) - 7}", real.read_text())
    assert json.loads(written.path.read_text()) == json.loads(renumbered)


def test_size_is_of_the_json(template: Template, tmp_path: Path) -> None:
    written = enlarge(template, tmp_path / "large.json.gz", 50_000)
    text = gzip.decompress(written.path.read_bytes())
    assert written.size == len(text)
    assert len(text) == pytest.approx(50_000, rel=0.1)


def test_steps_are_needed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no ProfilerStep"):
        read_template(write(tmp_path / "rank0.json", *WORK))
