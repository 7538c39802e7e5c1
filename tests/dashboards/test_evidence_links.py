"""Every piece of evidence leads to the very event that the analysis meant, and to one length and one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.data.event_details import event
from gpuscope.dashboards.data.open_runs import Runs, open_run
from gpuscope.dashboards.pages.timeline_page import drawer
from gpuscope.dashboards.state import View, parse
from gpuscope.dashboards.ui import Shown, evidence_link, timeline_view
from gpuscope.report.view import report_rows
from gpuscope.words import units

SAMPLES = sorted(path.parent.name for path in Path(__file__).parents[2].glob("sample_traces/*/manifest.json"))
OTHERS = (
    "kineto/hta_nccl_args",
    "nsys/nsys-ai/mfu_2gpu_before.sqlite",
    "nsys/zx3xyy/result.sqlite",
    "ascend/level0",
    "memory/wedsonlin_medium_1024_training.pickle",
)


def text_of(component: object) -> str:
    """All text in a tree of components."""
    if isinstance(component, list | tuple):
        return " ".join(map(text_of, component))
    children = getattr(component, "children", component)
    return "" if children is None else text_of(children) if children is not component else str(component)


@pytest.mark.parametrize("name", [*SAMPLES, *OTHERS])
def test_evidence_opens_its_event_and_says_one_number(name: str, samples: Path, request: pytest.FixtureRequest) -> None:
    folder = samples if name in SAMPLES else request.getfixturevalue("shared_traces")
    run = open_run("1", str(folder / name), Options())
    shown, starts = Shown(run, View(), Runs([run]), dark=False), report_rows.starts(run.report)
    for one in (one for finding in run.report["findings"] for one in finding["evidence"]):
        lasts, place = units.duration(one["dur_ns"]), report_rows.place_ns(one, starts)
        at = "" if place is None else units.offset(place)
        said = text_of(evidence_link(one, shown))
        assert f"{at} for {lasts}" in said
        if run.events is None:
            continue
        view = parse(timeline_view(one, run.events, View()).partition("?")[2])
        opened = text_of(drawer(run.events, view))
        assert lasts in opened or not one["dur_ns"], (one, opened)
        assert at in opened or not one["dur_ns"], (one, opened)
        meant = one.get("event")
        found = event(run.events, view.event) if view.event else None
        assert (found is None) == (meant is None), one
        if found is not None and meant is not None:
            assert (found.rank, found.start, found.duration, found.name) == (
                one["rank"],
                meant["start_ns"],
                meant["dur_ns"],
                meant["name"],
            )
