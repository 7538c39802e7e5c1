"""The first screen and the ranks in a real browser: pictures of evidence, who is at fault first, many ranks."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("dash")
pytest.importorskip("waitress")

from helpers.browser import Browser
from helpers.dashboards import serve
from simulator.job import Job
from simulator.kineto_rows import write_kineto
from simulator.training import simulate

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.data.open_runs import OpenRun, Runs, open_run

pytestmark = pytest.mark.xdist_group("browser")

RANKS, SLOW = 40, 17
PINNED = "return [...document.querySelectorAll('.ag-floating-top [col-id=rank]')].map(one => one.innerText)"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, slow_rank: OpenRun) -> Iterator[str]:
    """A dashboard of forty ranks, one of which has a slow device, and of a run with a slow rank of two."""
    folder = tmp_path_factory.mktemp("many")
    job = Job(ranks=RANKS, steps=4, layers=1, gemms=2, smalls=1, device_slow={SLOW: 1.6})
    write_kineto(folder, job, simulate(job))
    yield from serve(Runs([slow_rank, open_run("2", str(folder), Options())]))


def test_evidence_is_a_picture_that_leads_there(browser: Browser, many: str) -> None:
    browser.open(f"{many}/?run=1", "/", anew=True)
    sizes = "return [...document.querySelectorAll('.finding img.moment')].map(one => one.naturalWidth)"
    widths = browser.wait(lambda: browser.script(sizes))
    assert len(widths) == 3
    assert all(widths)
    href = browser.find(".finding a:has(img.moment)").get_attribute("href")
    assert href == browser.find(".finding a.evidence").get_attribute("href")
    assert parse_qs(urlsplit(href).query)["event"][0].startswith("d")
    assert browser.errors() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_overview_of_many_ranks_is_two_screens_at_most(browser: Browser, many: str, scheme: str) -> None:
    browser.open(f"{many}/?run=2", "/", anew=True)
    with browser.device(1440, 900, scheme=scheme):
        browser.wait(lambda: browser.script("return document.documentElement.scrollHeight") <= 2 * 900 + 100)
        labels = browser.script("return [...document.querySelector('.chooses .js-plotly-plot').data[0].y]")
        assert f"<b>▸ rank {SLOW}, late</b>" in labels
        assert len(labels) <= 8
        browser.find(".mantine-Accordion-control").click()
        browser.wait(lambda: browser.text(".mantine-Accordion-panel").strip())
        assert browser.violations() == []
    assert browser.errors() == []


def test_who_is_at_fault_comes_first_and_a_shared_row_opens(browser: Browser, many: str) -> None:
    browser.open(f"{many}/ranks?run=2", "/ranks", anew=True)
    assert browser.wait(lambda: browser.script(PINNED)) == [str(SLOW)]
    rows = browser.script("return [...document.querySelector('#ranks-heatmap .js-plotly-plot').data[0].y]")
    assert rows[0] == str(SLOW)
    assert rows[1] == "0-1"
    browser.script(
        "document.querySelector('#ranks-heatmap .js-plotly-plot').emit('plotly_click', "
        "{points: [{x: '1', y: '0-1', curveNumber: 0}]})"
    )
    browser.wait(lambda: "ranks=0-1" in browser.script("return location.search"))
    browser.drawn("/ranks")
    rows = browser.script("return [...document.querySelector('#ranks-heatmap .js-plotly-plot').data[0].y]")
    assert sorted(rows) == ["0", "1"]
    assert browser.errors() == []
