"""A GPU on fewer PCIe lanes than its card has, as the recorder writes it beside the trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulator.catalogue import SMALL
from simulator.job import MIB
from simulator.judged import Case

import gpuscope
from gpuscope.instrumented_runtime.record.capture.environment import link_of
from gpuscope.schema.document import Report

JOB = replace(SMALL, name="job", items=1, copy_bytes=20 * MIB)
"""Copies that hold the device up."""


def recorded(folder: Path, *links: dict[str, Any]) -> Report:
    """The job in a run folder, with these links of its ranks."""
    run = Case(JOB, "").write(folder)
    (run / "manifest.json").write_text(json.dumps({"run_id": "", "status": "completed", "world_size": len(links)}))
    (run / "environment").mkdir()
    for rank, link in enumerate(links):
        told = {"versions": {}, "variables": {}, "platform": {}, "pcie": link}
        (run / f"environment/rank{rank}.json").write_text(json.dumps(told))
    return gpuscope.analyze(run).report


def test_fewer_lanes_are_named_with_what_they_cost_at_most(tmp_path: Path) -> None:
    report = recorded(tmp_path, {"lanes": 16, "most_lanes": 16}, {"lanes": 4, "most_lanes": 16})
    (finding,) = (one for one in report["findings"] if one["code"] == "slow_pcie")
    assert (finding["ranks"], finding["facts"]["lanes"]) == ([1], 4)
    exposed = next(rank["breakdown_ns"]["exposed_memory"] for rank in report["ranks"] if rank["rank"] == 1)
    assert finding["cost_ns"] == pytest.approx(exposed * 3 / 4, rel=1e-6)
    (advice,) = (one for one in report["advice"]["unpredicted"] if one["code"] == "whole_link")
    assert advice["bound"]["step_ns_low"] < advice["bound"]["step_ns_before"]


@pytest.mark.parametrize(
    "link",
    [
        {"lanes": 16, "most_lanes": 16},
        {"lanes": 8, "most_lanes": 8},
        {"lanes": 16, "most_lanes": 16, "link": "PCIe 1", "best_link": "PCIe 5"},  # idle, it lowers its generation
        {}, {"lanes": "4", "most_lanes": 16}, {"lanes": 0, "most_lanes": 16},
    ],
    ids=["full", "narrow card", "idle", "unknown", "text", "none"],
)  # fmt: skip
def test_full_width_is_no_finding(link: dict[str, Any], tmp_path: Path) -> None:
    report = recorded(tmp_path, link, link)
    assert "slow_pcie" not in {one["code"] for one in report["findings"]}
    assert "whole_link" not in {one["code"] for one in report["advice"]["unpredicted"]}


def test_lanes_are_read_from_sysfs(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices/0000:41:00.0"
    device.mkdir(parents=True)
    for name, text in {
        "vendor": "0x10de", "class": "0x030200", "current_link_width": "8", "max_link_width": "16",
        "current_link_speed": "8.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe",
    }.items():  # fmt: skip
        (device / name).write_text(text + "\n")
    found = link_of("0000:41:00.0", tmp_path)
    assert (found["lanes"], found["most_lanes"]) == (8, 16)
    assert link_of("0000:42:00.0", tmp_path) == {}
