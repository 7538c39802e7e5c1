"""An `Analysis` as a notebook shows it: a fragment with the first screen, nothing that runs, names as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from helpers.reports import report

import gpuscope
from gpuscope.analyzers.run.analysis import Analysis
from gpuscope.report.view.first_lines import first_lines

VOID = {"br"}


class Balanced(HTMLParser):
    """Fails where a tag is not closed; collects the tags and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(html: str) -> Balanced:
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    return parser


def test_the_first_screen_of_a_run(samples: Path) -> None:
    analysis = gpuscope.analyze(samples / "ddp_slow_rank")
    html = analysis._repr_html_()
    shown = parsed(html)
    assert first_lines(analysis.report).what in shown.text
    assert not shown.tags & {"script", "style", "link", "img", "iframe"}
    assert "http" not in html
    assert len(html) < 20_000
    compute = analysis.report["ranks"][0]["breakdown_ns"]["compute"] / analysis.report["ranks"][0]["window_ns"]
    widths = [float(width) for width in re.findall(r'<div style="width:([\d.]+)%', html)]
    assert widths[0] == pytest.approx(100 * compute, abs=0.001)
    assert sum(widths[:4]) == pytest.approx(100, abs=0.01)


@pytest.mark.parametrize("sample", ["ddp_healthy", "ddp_slow_loader", "pp_few_micro_batches", "tp_healthy"])
def test_every_kind_of_run_has_a_cell(samples: Path, sample: str) -> None:
    """With certain and uncertain gains, without changes, with a pipeline."""
    analysis = gpuscope.analyze(samples / sample)
    assert first_lines(analysis.report).what in parsed(analysis._repr_html_()).text


def test_names_are_text_and_a_run_without_steps_is_shown() -> None:
    made = report(ranks=1)
    made["advice"] = {"why": "", "unpredicted": []}
    made["verdict"]["why"] = "<script>alert(1)</script>"
    made["verdict"] |= {"abstained": True, "bound_by": None}  # type: ignore[typeddict-item]
    html = Analysis(made)._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    parsed(html)
