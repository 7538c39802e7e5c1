"""The section `memory` as text and as HTML."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

import gpuscope
from gpuscope.report.html import html_report
from gpuscope.report.terminal import report_text
from tests.helpers.allocator import MIB, events, segment, snapshot


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
