"""Faults that our own runtime injected, against the ground truth beside the traces (sample_traces/MANIFEST.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.analysed import report


def truth(folder: Path) -> dict[str, Any]:
    (fault,) = json.loads((folder / "manifest.json").read_text())["faults"]
    return dict(fault)


def test_steady_slow_rank(samples: Path) -> None:
    """Rank 1 computes 60 ms longer in each recorded step, before its forward, in matrix products, and both all-reduces
    of a step wait for it at once."""
    told = truth(samples / "ddp_slow_rank")
    (entry,) = report(samples / "ddp_slow_rank")["stragglers"]
    assert [entry["rank"]] == told["ranks"]
    assert entry["caused_wait_ns"] == pytest.approx(2 * 2 * told["ns_per_step"], rel=0.05)
    assert (entry["phase"], entry["operation"], entry["recurrent"]) == ("before forward", "aten::mm", True)


def test_rotating_slow_rank(samples: Path) -> None:
    """Ranks take turns to compute 1.5 s longer: in each step the wait goes to the one whose turn it was. Both
    all-reduces of a step wait for it at once, the second issued a little later; its peer stalls once."""
    found = report(samples / "ddp_rotating_rank")
    turns = truth(samples / "ddp_rotating_rank")["injected"]
    injected = {(row["rank"], step): ns for row in turns for step, ns in zip(row["steps"], row["ns"], strict=True)}
    for cell in found["rank_steps"]:
        own, peers = (injected.get((rank, cell["step"]), 0) for rank in (cell["rank"], 1 - cell["rank"]))
        assert cell["wait_caused_ns"] == pytest.approx(2 * own, rel=0.05)
        assert cell["wait_suffered_ns"] == pytest.approx(peers, rel=0.05)
    assert [(e["phase"], e["operation"]) for e in found["stragglers"]] == [("before forward", "aten::mm")] * 2
    assert not [entry for entry in found["stragglers"] if entry["recurrent"]]
    (finding,) = [finding for finding in found["findings"] if finding["code"] == "straggler"]
    assert finding["ranks"] == [0, 1]
    assert "the last rank changes: none is late more often than by chance" in finding["message"]


def test_slow_link_is_no_straggler(samples: Path) -> None:
    """Over 50 Mbit/s every transfer is slow on both ranks: the link is at fault, and no rank comes last again."""
    found = report(samples / "ddp_slow_link")
    told = truth(samples / "ddp_slow_link")
    assert (found["verdict"]["bound_by"], found["verdict"]["cause"]) == (told["bound_by"], told["cause"])
    assert not [entry for entry in found["stragglers"] if entry["recurrent"]]
    causes = [rank["stall_ns"]["communication"] for rank in found["ranks"]]
    assert sum(c["bandwidth"] for c in causes) > 5 * sum(c.get("straggler", 0) for c in causes)
    # 2.1 MB of gradients each way: 2.1e6 / 6.25 MB/s is 337 ms a step, before gloo's own cost.
    (carried,) = told["injected"]
    steps = found["ranks"][0]["steps"]
    transfer = sum(entry["transfer_ns"] or 0 for entry in found["collectives"])
    assert transfer >= 0.9 * sum(carried["counts"][-steps:]) / 2 / 6.25e6 * 1e9
