"""Sections as text and as HTML: pipeline, memory, efficiency."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from helpers.cli import call as run
from helpers.kineto import call, kernel, op, write
from rich.console import Console

import gpuscope
from gpuscope.report.html import html_report
from gpuscope.report.terminal import report_text
from gpuscope.schema.document import Report
from gpuscope.schema.provenance import Pipeline, PipelineRow
from tests.helpers.allocator import MIB, events, segment, snapshot


def row(stage: int, rank: int, compute: int, parts: tuple[int, int, int, int]) -> PipelineRow:
    names = ("warm_up", "steady", "drain", "imbalance")
    return {
        "pipeline": 0,
        "stage": stage,
        "rank": rank,
        "step": 3,
        "start_ns": 0,
        "dur_ns": 100,
        "compute_ns": compute,
        "bubble_ns": dict(zip(names, parts, strict=True)),  # type: ignore[typeddict-item]
    }


@pytest.fixture
def told() -> Pipeline:
    """Two stages of 100 ns: stage 0 computes 50 of them, stage 1 80."""
    return {
        "basis": "a test",
        "stages": [{"pipeline": 0, "stage": at, "rank": at, "model_chunks": [at]} for at in (0, 1)],
        "incomplete": "",
        "schedule": {
            "name": "1f1b",
            "stages": 2,
            "micro_batches": 4,
            "chunks_per_stage": 1,
            "why": "it alternates",
            "ideal_bubble_frac": 0.2,
            "ideal_basis": "a formula",
        },
        "bubble_frac": 0.35,
        "rows": [row(0, 0, 50, (5, 5, 10, 30)), row(1, 1, 80, (10, 0, 10, 0))],
        "even_split": {
            "micro_batches": 4,
            "step_factor": 0.81,
            "why_not": "",
            "predicted": {
                "step_ns_before": 100,
                "step_ns_after": 81,
                "low_ns": 75,
                "high_ns": 102,
                "basis": "one step",
                "provenance": "inferred",
            },
        },
        "more_micro_batches": {
            "micro_batches": 8,
            "step_factor": None,
            "predicted": None,
            "why_not": "the order is unknown",
        },
    }


def written(report: Report) -> list[str]:
    out = io.StringIO()
    report_text.render(report, Console(file=out, width=100, color_system=None))
    lines = out.getvalue().splitlines()
    return lines[lines.index("Pipeline") :]


def test_terminal(healthy: Report, told: Pipeline) -> None:
    assert written(healthy | {"pipeline": told})[1:10] == [  # type: ignore[operator]
        "1 pipeline of 2 stages, from a test",
        "schedule: 1F1B with 4 micro-batches; it alternates",
        "bubble: 35.0 % of the pipeline's time, whatever keeps a stage from computing: neighbours, messages,",
        "  its host; ideal for this schedule 20.0 %: a formula",
        "an even split of the stages: step 100 ns → 81 ns (75 ns to 102 ns), may gain nothing; one step",
        "twice the micro-batches, same batch: not predicted: the order is unknown",
        "stage  ranks  compute  warm-up  steady   drain  imbalance",
        "    0  0       50.0 %    5.0 %   5.0 %  10.0 %     30.0 %",
        "    1  1       80.0 %   10.0 %     0 %  10.0 %        0 %",
    ]


def test_page(healthy: Report, told: Pipeline) -> None:
    page = html_report.render(healthy | {"pipeline": told})  # type: ignore[operator]
    assert "<li>schedule: 1F1B with 4 micro-batches; it alternates</li>" in page
    assert page.count('<td class="n">30.0 %</td>') == 1
    assert 'id="pipeline"' not in html_report.render(healthy)


def test_what_is_not_told_stands_in_its_place(healthy: Report, told: Pipeline) -> None:
    bare: Pipeline = {"basis": told["basis"], "stages": told["stages"], "incomplete": "record <ranges>"}
    assert written(healthy | {"pipeline": bare})[1:3] == [  # type: ignore[operator]
        "1 pipeline of 2 stages, from a test",
        "incomplete: record <ranges>",
    ]
    assert "record &lt;ranges&gt;" in html_report.render(healthy | {"pipeline": bare})  # type: ignore[operator]


def test_a_snapshot_alone_is_told_in_text_and_html(tmp_path: Path) -> None:
    told = events(("segment_alloc", 0x1000, 20 * MIB), ("alloc", 0x1000, 6 * MIB))
    told[1]["frames"][0]["name"] = "<script>alert(1)</script>"
    held = [segment(0x1000, (6 * MIB, "active_allocated"), (14 * MIB, "inactive"))]
    held[0]["blocks"][0]["frames"] = told[1]["frames"]
    report = gpuscope.analyze(snapshot(tmp_path / "rank2_end.pickle", held, told)).report
    assert report["verdict"]["abstained"]
    assert "how memory is used, not where time goes" in report["verdict"]["why"]
    out = io.StringIO()
    report_text.render(report, Console(file=out, width=120))
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert ["2", "0", "6", "MiB", "20", "MiB", "6", "MiB", "20", "MiB", "rank2_end.pickle"] in rows
    page = html_report.render(report)
    assert '<td class="n">20 MiB</td>' in page
    assert "polyline" in page
    assert "<script>alert(1)" not in page


SHAPES = {"Input Dims": [[1000, 2000], [2000, 3000]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
EVENTS = (op(100, 8, "aten::mm", **SHAPES), call(102, 2, 1), kernel(110, 20, 1, "nvjet_tst_128x256"))


def test_mfu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """12 GFLOP in 20 µs are 600 TFLOP/s, 60.6 % of an H100's 989.4."""
    path = write(tmp_path / "t.json", *EVENTS, deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}])
    assert "MFU 60.6 %" in run(capsys, "analyze", path, "--full").stdout


def test_no_mfu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "analyze", write(tmp_path / "t.json", *EVENTS), "--full").stdout
    assert "No MFU: the model of the device is not recorded" in out
