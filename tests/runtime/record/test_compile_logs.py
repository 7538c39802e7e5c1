"""`gpuscope record --compile-logs` on a job with known graph breaks and recompilations."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
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
