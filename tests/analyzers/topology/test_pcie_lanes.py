"""A GPU on fewer PCIe lanes than its card has, as the recorder writes it beside the trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.nsys import Export
from simulator.catalogue import SMALL
from simulator.job import MIB
from simulator.judged import Case
from simulator.nsys_rows import COPY_KINDS, MEMORY_KINDS

import gpuscope
from gpuscope.instrumented_runtime.record.environment import link_of
from gpuscope.schema.document import Report

JOB = replace(SMALL, name="job", items=1, copy_bytes=40 * MIB)
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
        {},
        {"lanes": "4", "most_lanes": 16},
        {"lanes": 0, "most_lanes": 16},
    ],
    ids=["full", "narrow card", "idle", "unknown", "text", "none"],
)
def test_full_width_is_no_finding(link: dict[str, Any], tmp_path: Path) -> None:
    report = recorded(tmp_path, link, link)
    assert "slow_pcie" not in {one["code"] for one in report["findings"]}
    assert "whole_link" not in {one["code"] for one in report["advice"]["unpredicted"]}


def test_lanes_are_read_from_sysfs(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices/0000:41:00.0"
    device.mkdir(parents=True)
    for name, text in {
        "vendor": "0x10de",
        "class": "0x030200",
        "current_link_width": "8",
        "max_link_width": "16",
        "current_link_speed": "8.0 GT/s PCIe",
        "max_link_speed": "32.0 GT/s PCIe",
    }.items():
        (device / name).write_text(text + "\n")
    found = link_of("0000:41:00.0", tmp_path)
    assert (found["lanes"], found["most_lanes"]) == (8, 16)
    assert link_of("0000:42:00.0", tmp_path) == {}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"link": 0.5}, True),
        ({"link": 0.7}, False),  # above what half the lanes give
        ({"link": 0.5, "copy": "pageable"}, False),  # the host's own copying is what is slow
        ({"link": 0.5, "copy_bytes": MIB}, False),  # too small to show it
        ({"link": 0.5, "steps": 2}, False),  # too few to have had it for themselves
    ],
)
def test_slow_copies_from_pinned_memory_show_it_too(changed: dict[str, Any], told: bool, tmp_path: Path) -> None:
    report = gpuscope.analyze(Case(replace(JOB, **changed), "").write(tmp_path)).report
    found = [one for one in report["findings"] if one["code"] == "slow_copies"]
    assert bool(found) == told
    for one in found:
        ranks = [rank for rank in report["ranks"] if rank["rank"] in one["ranks"]]
        exposed = sum(rank["breakdown_ns"]["exposed_memory"] for rank in ranks)
        assert one["cost_ns"] == pytest.approx(exposed / 2, rel=0.02)
        assert one["facts"]["rate"] == pytest.approx(24e9, rel=0.01)


@pytest.mark.parametrize(("source", "told"), [(1, True), (0, False)], ids=["pinned", "pageable"])
def test_so_they_do_in_an_export_of_nsys(source: int, told: bool, tmp_path: Path) -> None:
    """Six copies of 24 MB, each in 1 ms, to a GPU whose link can carry twice that."""
    export = Export()
    export.host("node0", ["uuid0"])
    for table, names in (("ENUM_CUDA_MEMCPY_OPER", COPY_KINDS), ("ENUM_CUDA_MEM_KIND", MEMORY_KINDS)):
        for name, number in names.items():
            export.add(table, id=number, name=name, label=name)
    for number in range(6):
        at = 2_000_000 * number
        export.call(at, at + 5_000, number, "cudaMemcpyAsync_v3020")
        export.copy(at + 10_000, at + 1_010_000, number, bytes=24_000_000, srcKind=source, dstKind=2)
        export.call(at + 1_000_000, at + 1_005_000, number + 100)
        export.kernel(at + 1_100_000, at + 1_900_000, number + 100)
    report = gpuscope.analyze(export.write(tmp_path)).report
    assert ("slow_copies" in {one["code"] for one in report["findings"]}) == told
