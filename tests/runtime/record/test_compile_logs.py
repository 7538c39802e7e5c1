"""Recorded jobs of known cost: graph breaks and recompilations, and experts that take as long as their tokens say."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest

import gpuscope

JOB = Path(__file__).resolve().parents[3] / "sample_traces" / "compile_job.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LINES = JOB.read_text().splitlines()


def line_of(text: str) -> int:
    return next(at for at, line in enumerate(LINES, 1) if text in line)


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler: install g++")
def test_every_injected_event_is_named_with_line_rank_and_cost(
    record: Callable[..., SimpleNamespace], tmp_path: Path
) -> None:
    done = record("--compile-logs", "--wait", "4", "--active", "18", "--", *TORCHRUN, JOB, "0.1", timeout=300)
    assert done.code == 0, done.err
    report = gpuscope.analyze(done.folder).report
    told = [json.loads((tmp_path / f"told_{rank}.json").read_text()) for rank in (0, 1)]
    section = report["compilation"]

    (broken,) = (one for one in section["graph_breaks"] if one["file"] == str(JOB))
    assert (broken["line"], broken["ranks"], round(broken["per_step"])) == (line_of("y = outside(y)"), [0, 1], 1)
    assert broken["idle_ns_per_step"] == pytest.approx(told[0]["slept_ns"], rel=0.1)

    forward = line_of("def forward(self, tokens")
    again = [one for one in section["compiles"] if one["recompiled"] and one["file"] == str(JOB)]
    assert {(one["rank"], one["line"]) for one in again} == {(0, forward), (1, forward)}
    for rank, own in enumerate(told):
        took = [one["dur_ns"] for one in sorted(again, key=lambda one: one["start_ns"]) if one["rank"] == rank]
        assert took == [pytest.approx(ns, rel=0.1) for ns in own["compiled_ns"].values()]
    assert all("size mismatch at index 0" in one["reason"] for one in again)

    (unlike,) = section["divergence"]
    assert (unlike["kind"], unlike["line"], unlike["groups"]) == ("compilations", forward, [[0], [1]])
    settings = {(one["code"], one["setting"]["name"]) for one in report["advice"]["unpredicted"]}
    assert ("stable_guard", "torch._dynamo.mark_dynamic") in settings
    assert ("whole_graph", f"{JOB.name}:{broken['line']}") in settings


EXPERTS = Path(__file__).with_name("expert_job.py")
EXTRA_NS = 0.6 * 256 * 200_000 * 3
"""The busiest of two ranks has 0.6 times the mean more: of 256 tokens, 200 µs each, in three layers."""


def test_uneven_routing_costs_what_its_tokens_take(
    record: Callable[..., SimpleNamespace], torchrun: tuple[str, ...]
) -> None:
    done = record(
        "--wait",
        "1",
        "--active",
        "13",
        "--",
        *torchrun,
        EXPERTS,
        LOADS=json.dumps([[1.6, 0.4], [0.4, 1.6]]),
        STEPS="16",
    )
    assert done.code == 0, done.err
    section = gpuscope.analyze(done.folder, steps=(8, 13)).report["experts"]
    assert section["cost"]["imbalance_ns"] == pytest.approx(EXTRA_NS, rel=0.2)
    assert [one["number"] for one in section["passes"]] == [0, 1, 2]
    assert all(one["imbalance"] == pytest.approx(1.6, rel=0.01) for one in section["passes"])


def test_another_placement_is_predicted(record: Callable[..., SimpleNamespace], torchrun: tuple[str, ...]) -> None:
    """The second half of the steps holds the experts as they belong by their tokens: it takes what the first half's
    replay says."""
    held = [[[0.9, 0.6], [0.3, 0.2]], [[0.9, 0.2], [0.6, 0.3]]]
    done = record("--wait", "1", "--active", "13", "--", *torchrun, EXPERTS, EXPERTS=json.dumps(held), STEPS="16")
    assert done.code == 0, done.err
    section = gpuscope.analyze(done.folder, steps=(2, 7)).report["experts"]
    (placement,) = (one["predicted"] for one in section["gains"] if one["kind"] == "placement")
    told = json.loads((done.folder.parent / "told.json").read_text())
    # Other work on the machine slows one half more than the other.
    assert 0.9 * placement["low_ns"] <= median(told[9:14]) <= 1.1 * placement["high_ns"]
    assert placement["step_ns_after"] < 0.9 * placement["step_ns_before"]
