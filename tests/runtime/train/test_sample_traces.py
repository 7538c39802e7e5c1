"""The verdict on each recording of a fault is the one that its manifest expects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.analysed import report

FOLDER = Path(__file__).parents[3] / "sample_traces"
MANIFESTS = {path.parent.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*/manifest.json"))}
FAULTY = [name for name, manifest in MANIFESTS.items() if manifest["faults"]]


@pytest.mark.parametrize("name", FAULTY)
def test_the_injected_fault_is_named(name: str) -> None:
    (fault,) = MANIFESTS[name]["faults"]
    verdict = report(FOLDER / name)["verdict"]
    assert (verdict["bound_by"], verdict["cause"]) == (fault["bound_by"], fault["cause"])


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_manifest_lists_what_is_there(name: str) -> None:
    manifest: dict[str, Any] = MANIFESTS[name]
    listed = {entry["path"]: entry["bytes"] for entry in manifest["files"]}
    there = [path for path in (FOLDER / name).rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert listed == {str(path.relative_to(FOLDER / name)): path.stat().st_size for path in there}
    assert {rank["host"] for rank in manifest["ranks"]} == {"node0"}
    assert (manifest["status"], len(manifest["ranks"])) == ("completed", manifest["world_size"])
