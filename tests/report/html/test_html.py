"""The HTML report: whole, safe, alone."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.analysed import report as analysed

from gpuscope.report.html import drawing, html_report
from gpuscope.report.html.evidence_drawing import Moments
from gpuscope.report.view import headline
from gpuscope.report.view.first_figures import first_figures
from gpuscope.report.view.first_lines import first_lines
from gpuscope.schema.document import Report

EXAMPLES = ["healthy", "input_bound", "abstained", "many_ranks", "hostile"]
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Elements and text of a document; complains of tags that do not match."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(document)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.mark.parametrize("example", EXAMPLES)
def test_well_formed_small_and_self_contained(example: str, request: pytest.FixtureRequest) -> None:
    document = html_report.render(request.getfixturevalue(example))
    page = Page(document)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        assert not {"src", "style", "onclick", "onload"} & set(attributes)
        href = attributes.get("href")
        assert href is None or href[1:] in ids
    assert len(document.encode()) < 300_000
    assert "http:" not in document
    assert "https:" not in document


def test_only_its_own_script_and_style_are_allowed(input_bound: Report) -> None:
    document = html_report.render(input_bound)
    policy = next(meta["content"] or "" for meta in Page(document).of("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", document, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


def test_hostile_names_are_text(hostile: Report) -> None:
    document = html_report.render(hostile)
    page = Page(document)
    assert len(page.of("script")) == 1
    assert "<script>alert(1)</script>\\x1b[2J" in "".join(page.text)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", document)


def test_what_stands_between_backticks_is_code_and_no_markup_is_shown(input_bound: Report, samples: Path) -> None:
    input_bound["suggestions"][0]["verify"] = "the cause `sync` is gone, `<b>` is not"
    written = html_report.render(input_bound)
    assert "<code>sync</code>" in written
    assert "<code>&lt;b&gt;</code>" in written
    for document in (written, html_report.render(analysed(samples / "ddp_slow_loader"))):
        assert not re.search(r"&(?:amp;)?lt;/?(?:code|span|em|strong|br|a)\b", document)
        assert "`" not in "".join(Page(document).text)


def test_each_evidence_links_to_its_mark_on_its_ranks_strip(input_bound: Report) -> None:
    evidence = input_bound["findings"][0]["evidence"]
    first, second = drawing.strips(input_bound, evidence)
    assert [mark.number for mark in first.marks] == [0, 1, 2]
    assert [mark.number for mark in second.marks] == [3, 4, 5]
    # 160 ms of a window of 1 s, on an axis from 70 to 950; 31 ms are 27.3 wide.
    assert (first.marks[0].x, first.marks[0].width) == (210.8, 27.3)
    links = [one["href"] or "" for one in Page(html_report.render(input_bound)).of("a")]
    assert sorted(link for link in links if link[1:6] in ("place", "evide")) == sorted(
        f"#{kind}-{i}" for kind in ("place", "evidence") for i in range(6)
    )


def test_bars_add_up(input_bound: Report) -> None:
    assert [(kind.code, x, width) for kind, x, width, _ in drawing.segments(input_bound["ranks"][0])] == [
        ("compute", 0.0, 58.0),
        ("bandwidth", 58.0, 8.0),
        ("input", 66.0, 31.0),
        ("launch", 97.0, 3.0),
    ]


def test_many_steps_share_columns_and_a_slow_first_one_is_cut(healthy: Report) -> None:
    (only,) = healthy["ranks"]
    healthy["steps"] = [
        {**healthy["steps"][0], "step": i, "start_ns": only["start_ns"] + i, "bound_by": "compute"} for i in range(1000)
    ]
    first = healthy["steps"][0]
    first["breakdown_ns"] = {**first["breakdown_ns"], "idle": 10**12}
    (strip,) = drawing.strips(healthy, [])
    assert strip.steps_per_column == 3  # 1000 steps in at most 400 columns
    assert len(strip.columns) == 334
    assert [column.cut for column in strip.columns[:2]] == [True, False]
    assert strip.y_label == "300.0 ms"  # three times the median of 100 ms


def test_without_steps_the_window_is_one_column(healthy: Report) -> None:
    healthy["steps"], healthy["steps_basis"] = [], None
    (strip,) = drawing.strips(healthy, [])
    (column,) = strip.columns
    assert column.title == "whole window: 500.0 ms; compute 95.0 %, exposed memory 1.0 %, idle 4.0 %"
    assert "No steps were found" in html_report.render(healthy)


def test_exact_ns_in_tooltips(healthy: Report) -> None:
    document = html_report.render(healthy)
    assert '<span title="100,000,000 ns">100.0 ms</span>' in document
    assert 'title="compute: 475,000,000 ns">95.0 %' in document


def test_absurd_evidence_stays_on_the_picture(healthy: Report) -> None:
    far = {"rank": 0, "start_ns": -(2**62), "dur_ns": 2**62, "name": "x", "note": ""}
    (strip,) = drawing.strips(healthy, [far])  # type: ignore[list-item]
    (mark,) = strip.marks
    assert drawing.LEFT <= mark.x <= mark.x + mark.width <= drawing.RIGHT


def test_slowdown_and_an_empty_window(input_bound: Report) -> None:
    input_bound["slowdown"] = {"total": 1.25, "by_operation": {"a": 1.1, "b": 1.2}, "by_rank": {}, "by_stage": {}}
    first = input_bound["ranks"][0]
    first["window_ns"], first["device"] = 0, None
    page = Page(html_report.render(input_bound))
    assert "b 1.200, a 1.100" in "".join(page.text)
    assert "0 (CPU)" in page.text


def test_hang_and_bandwidth_stand_in_the_page_without_markup_of_theirs(healthy: Report) -> None:
    hang = {
        "hung": True,
        "only_waited": [0],
        "without_dump": [],
        "mismatches": [],
        "last": [],
        "uncertain": [],
        "first_cause": [{"rank": 1, "kind": "never_arrived", "certain": True, "why": "never enqueued <b>x</b>"}],
        "operations": [
            {
                "op": "<i>",
                "group": "0",
                "description": None,
                "seq": 3,
                "waiting": [0],
                "awaited": [1],
                "reason": "absent",
            }
        ],
        "certain": ["Rank 0 enqueued it."],
    }
    row = {
        "tool": "nccl-tests",
        "op": "all_reduce",
        "bytes": 1_000_000,
        "group_size": 2,
        "variant": None,
        "count": 20,
        "dur_ns": 100_000,
        "algbw_gbps": 10.0,
        "busbw_gbps": 10.0,
        "wrong": None,
    }
    page = html_report.render(healthy | {"hang": hang, "bandwidth": [row]})  # type: ignore[arg-type, operator]
    assert "rank 1: never enqueued &lt;b&gt;x&lt;/b&gt;" in page
    assert "<td>&lt;i&gt;</td>" in page
    assert "10.00 GB/s" in page
    Page(page)


def test_the_page_begins_as_the_terminal_does(input_bound: Report) -> None:
    """The same first lines, the places they rest on, a setting to copy, and the details behind links."""
    page = Page(html_report.render(input_bound))
    text = " ".join("".join(page.text).split())
    places = [
        text.index(line) for line in (first_lines(input_bound).what, *dict(first_lines(input_bound).below()).values())
    ]
    assert places == sorted(places)
    figures = [one.value for one in first_figures(input_bound, first_lines(input_bound))]
    assert len(figures) == 4
    assert all(one in text for one in figures)
    assert places[-1] < text.index("Where the step goes") < text.index("Why this verdict")
    assert [one["data-copy"] for one in page.of("button")] == ["DataLoader(num_workers)=4"] * 2
    assert {"#findings", "#suggestions", "#by-step", "#rank-0"} <= {one["href"] for one in page.of("a")}
    details = page.of("details")
    assert all("open" not in one for one in details)
    for place in headline.largest(input_bound):  # there as among the findings: times have one origin
        assert text.count(f"at {place.at} for {place.lasts}") >= 2


def test_a_small_timeline_around_evidence(input_bound: Report) -> None:
    """31 ms at 160 ms: the middle third of a picture from 129 to 222 ms, in which step 2 begins; the peer below."""
    evidence = input_bound["findings"][0]["evidence"]
    moment = Moments(input_bound, evidence).around(evidence[0], [0, 1], input_bound["ranks"][0]["start_ns"])
    assert moment is not None
    assert (moment.first, moment.last) == ("+129.000 ms", "+222.000 ms")
    own, peer = moment.lanes
    assert [(span.x, span.width, span.own) for span in own.spans] == [(174.7, 112.6, True)]
    assert own.bounds == [(320.0, "step 2")]
    assert (peer.label, len(peer.spans)) == ("rank 1", 1)
    input_bound["trace"]["clock"] = {"origin_ns": 0, "offset_ns": {"1": 10_000_000}, "drift_frac": {}}  # type: ignore[typeddict-item]
    later = Moments(input_bound, evidence).around(evidence[0], [0, 1], input_bound["ranks"][0]["start_ns"])
    assert later is not None
    assert later.lanes[1].spans[0].x < peer.spans[0].x  # rank 1's clock is ahead by 10 ms
    assert later.lanes[0] == own
    late = Moments(input_bound, evidence).around(evidence[0], [1], input_bound["ranks"][0]["start_ns"])
    assert late is not None
    assert [lane.label for lane in late.lanes] == ["▸ rank 1", "rank 0"]  # who is waited for stands first


def test_where_events_are_at_hand_a_picture_is_as_high_as_a_rank_is_busy(hostile: Report) -> None:
    """The first half of the columns is busy, all of the time and then half of it; the picture is one file, and XML."""
    evidence = hostile["findings"][0]["evidence"]

    def busy(*asked: int) -> list[tuple[int, str, list[float]]]:
        quarter = asked[-1] // 4
        return [(0, "#0072B2", [1.0] * quarter + [0.5] * quarter + [0.0] * 2 * quarter)]

    moment = Moments(hostile, evidence, busy).around(evidence[0], [], hostile["ranks"][0]["start_ns"])
    assert moment is not None
    ((colour, path),) = moment.lanes[0].paths
    assert (colour, path) == ("#0072B2", "M62.0 17.0h84.5v10.0h-84.5zM146.5 22.0h84.5v5.0h-84.5z")
    assert len(ElementTree.fromstring(html_report.moment_svg(moment, dark=True)).findall(".//{*}path")) >= 2


def test_sixty_four_ranks_of_many_steps_stay_small(many_ranks: Report) -> None:
    steps = many_ranks["steps"]
    many_ranks["steps"] = [
        {**step, "step": 4 * again + (step["step"] or 0)} for again in range(25) for step in steps
    ]  # 100 steps on each rank
    document = html_report.render(many_ranks)
    assert len(document.encode()) < 1_000_000
    assert "more steps in the JSON report" in document
