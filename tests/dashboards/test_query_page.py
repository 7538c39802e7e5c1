"""The query page: rows, errors and limits of what an address asks."""

from __future__ import annotations

import csv
from io import StringIO

import pytest
from helpers.dashboards import request_of, viewer

from gpuscope.dashboards.data.open_runs import OpenRun

STEPS = "SELECT rank, step, start_ns, dur_ns FROM steps ORDER BY row"


def drawn(run: OpenRun, sql: str) -> str:
    return str(request_of(viewer(run), f"?sql={sql}", "/query").get_json())


def test_rows_lead_to_the_timeline(slow_rank: OpenRun) -> None:
    assert slow_rank.trace is not None
    page = drawn(slow_rank, STEPS)
    events, steps = slow_rank.events, slow_rank.trace["steps"]
    assert events is not None
    start, end = (events.clock.shown(int(steps["rank"][0]), int(steps[name][0])) for name in ("start", "end"))
    assert f"mark={start}:{end}" in page
    assert "TimelineLink" in page
    assert "TimelineLink" not in drawn(slow_rank, "SELECT step FROM steps")


def test_rows_are_marked_on_the_timeline(slow_rank: OpenRun) -> None:
    """From the origin of the run's time; what is refused is said there too."""
    assert slow_rank.trace is not None
    assert slow_rank.events is not None
    page = request_of(viewer(slow_rank), f"?sql={STEPS}", "/timeline").get_data(as_text=True)
    steps, events = slow_rank.trace["steps"], slow_rank.events
    start, end = (events.clock.shown(0, int(steps[name][0])) - events.origin for name in ("start", "end"))
    assert f'"rows":[[{int(steps["rank"][0])},{start},{end}],' in page
    assert "6 rows of the query marked" in page
    refused = request_of(viewer(slow_rank), "?sql=DROP TABLE steps", "/timeline").get_data(as_text=True)
    assert '"rows":[]' in refused
    assert "only SELECT" in refused


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT start FROM steps", "line 1, column 8: no such column: start"),
        ("DELETE FROM steps", "only SELECT"),
        ("SELECT 1 WHERE 0", "No row."),
    ],
)
def test_what_is_wrong_is_said(slow_rank: OpenRun, sql: str, said: str) -> None:
    assert said in drawn(slow_rank, sql)


def test_rows_can_be_saved(slow_rank: OpenRun) -> None:
    client = viewer(slow_rank)
    answer = client.get("/download/1/query.csv", query_string={"sql": STEPS})
    assert answer.status_code == 200
    head, *rows = csv.reader(StringIO(answer.text))
    assert head == ["rank", "step", "start_ns", "dur_ns"]
    assert slow_rank.trace is not None
    assert [int(row[1]) for row in rows] == slow_rank.trace["steps"]["step"].tolist()
    assert client.get("/download/1/query.csv", query_string={"sql": "DROP TABLE steps"}).status_code == 400


def test_only_so_many_queries_at_once(slow_rank: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuscope.dashboards.data.open_runs.QUERIES", 0)
    assert "under way" in drawn(slow_rank, STEPS)
