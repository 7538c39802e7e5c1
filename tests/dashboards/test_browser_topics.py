"""In a real Chromium: every page on other people's runs and on a memory snapshot, what-if, comparison."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("dash")
pytest.importorskip("waitress")

from helpers import needs
from helpers.browser import Browser
from helpers.dashboards import serve
from simulator.rl_jobs import drawn, logged
from simulator.serving import SERVERS

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.data.open_runs import Runs, open_run
from gpuscope.dashboards.ui import pages
from gpuscope.store.store import opened

pytestmark = pytest.mark.xdist_group("browser")  # one Chromium for both files

NO_BLANK_PANEL = """return [...document.querySelectorAll('main .mantine-Paper-root')].every(panel =>
    panel.querySelector('.main-svg, .ag-root, table, p, li, input') || panel.innerText.trim().length > 20)"""
OTHERS = ("kineto/hta_2_of_128", "nsys/nsys-ai/mfu_2gpu_before.sqlite", "memory/wedsonlin_medium_1024_training.pickle")


@pytest.fixture(scope="module")
def others(shared_traces: Path) -> Iterator[str]:
    """A dashboard of other people's runs."""
    yield from serve(Runs([open_run(str(n), str(shared_traces / name), Options()) for n, name in enumerate(OTHERS, 1)]))


@pytest.fixture(scope="module")
def ours(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard of four runs of ours, and a store in which two of them are one job's history."""
    store = tmp_path_factory.mktemp("store") / "runs.db"
    names = ("ddp_healthy", "ddp_slow_rank", "ddp_slow_loader", "pp_unbalanced_stage")
    runs = [open_run(str(number), str(samples / name), Options()) for number, name in enumerate(names, 1)]
    with opened(store, write=True) as kept:
        for run, name in zip(runs[:2], names, strict=False):
            kept.add(run.report, run.label, [str(samples / name)], {}, "nightly")
    yield from serve(Runs(runs, store))


@pytest.mark.parametrize("run", ["1", "2", "3"])
def test_every_page_on_other_peoples_runs(browser: Browser, others: str, run: str) -> None:
    """No complaint in the console, and no panel without a drawing, a table or a sentence."""
    browser.open(f"{others}/?run={run}", "/")
    for page in pages():
        browser.open(f"{others}{page.path}?run={run}", page.path)
        assert "can't be drawn" not in browser.text()
        browser.wait(lambda: browser.script(NO_BLANK_PANEL))  # tables come a moment later
        assert len(browser.text("main")) > 40, page.path
    assert browser.errors() == []


def test_memory_of_a_snapshot(browser: Browser, others: str) -> None:
    browser.open(f"{others}/memory?run=3", "/memory")
    text = browser.text("main")
    assert "24,012 MiB" in text
    assert "PYTORCH_ALLOC_CONF is not set" in text
    assert all(title in text for title in ("Over time", "In use at the peak", "Segments and holes"))


def test_a_pipeline_beside_its_ideal(browser: Browser, ours: str) -> None:
    browser.open(f"{ours}/pipeline?run=4", "/pipeline")
    assert all(title in browser.text("main") for title in ("As it was", "With stages of equal cost", "Bubble by stage"))


SPECIAL = (
    ("serving", "1", ("Time per token", "Steps by phase", "Decode by batch", "By phase")),
    ("experts", "2", ("Load of each rank, pass by pass", "Passes")),
    ("roles", "3", ("Which role ran when", "actor update")),
    ("compile", "4", ("When ranks compiled", "Graph breaks")),
)


@pytest.fixture(scope="module")
def special(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server, experts, a job for reinforcement learning, compiled code."""
    folder = tmp_path_factory.mktemp("special")
    (folder / "train.log").write_text(logged(drawn(3)), encoding="utf-8")
    paths = (SERVERS[0].write(folder), samples / "ep_healthy", folder / "train.log", samples / "ddp_recompiling")
    yield from serve(Runs([open_run(str(number), str(path), Options()) for number, path in enumerate(paths, 1)]))


@pytest.mark.parametrize(("page", "run", "said"), SPECIAL)
def test_pages_of_special_runs(browser: Browser, special: str, page: str, run: str, said: tuple[str, ...]) -> None:
    """Reached from the others; among them in a run that has it, below them elsewhere; complete in both themes."""
    link = f"document.querySelector('nav a[href^=\"/{page}\"]')"
    browser.open(f"{special}/?run={int(run) % 4 + 1}", "/")
    browser.wait(lambda: browser.script(f"return {link}.classList.contains('without')"))
    browser.open(f"{special}/?run={run}", "/")
    browser.wait(lambda: not browser.script(f"return {link}.classList.contains('without')"))
    browser.script(f"{link}.click()")
    browser.drawn(f"/{page}")
    assert not [title for title in said if title not in browser.text("main")]
    for scheme in ("light", "dark"):
        with browser.seen_as(scheme, 1024):
            browser.wait(lambda: browser.script(NO_BLANK_PANEL))
            assert browser.violations() == []
    assert browser.errors() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_links_and_buttons_are_named_and_seen(browser: Browser, ours: str, scheme: str) -> None:
    """Evidence with a note beside it, and the timeline's buttons with its drawer open."""
    if not browser.axe:
        pytest.skip(f"no axe_core_python; {needs.EXTRAS}")
    browser.open(f"{ours}/?run=4", "/")
    with browser.seen_as(scheme, 1400):
        assert browser.script("return document.querySelectorAll('.evidence + p').length") > 0
        assert browser.violations() == []
        browser.open(f"{ours}/timeline?run=4&find=aten", "/timeline")
        assert "events" in browser.wait(lambda: browser.text("#timeline-found"))
        assert browser.violations() == []


def test_a_slider_replays_at_once_and_stands_in_the_address(browser: Browser, ours: str) -> None:
    browser.open(f"{ours}/advice?run=3", "/advice")
    assert "Load batches in 2 worker processes" in browser.text("main")
    thumb = browser.find('[aria-label="loader workers"][role=slider], [aria-label="loader workers"] [role=slider]')
    thumb.send_keys("\ue014")  # the right arrow: sliders are reached by keyboard
    browser.wait(lambda: "workers=1" in browser.script("return location.search"))
    browser.wait(lambda: "loader workers: 1" in browser.text("main"))
    assert re.search(r"loader workers: 1\s+step 137\.6 ms → [5-8]\d\.\d* ms", browser.text("main"))
    assert browser.errors() == []


def test_what_cannot_be_predicted_says_why(browser: Browser, ours: str) -> None:
    browser.open(f"{ours}/advice?run=1&micro=3&without=graphs", "/advice")
    text = browser.text("main")
    assert "Can't be predicted: micro-batches: 8" in text
    assert "Can't be predicted: CUDA graphs" in text


def test_comparison_and_history(browser: Browser, ours: str) -> None:
    browser.open(f"{ours}/compare?run=1&with=2", "/compare")
    text = browser.text("main")
    assert "Regression: step" in text
    assert "waiting for a late rank" in text
    assert "(straggler)" not in text
    assert "nightly: step time of its stored runs" in text
    assert browser.errors() == []
