"""From the verdict to the late rank's kernel and back, by clicks and by keys alone; and at a zoom of 200 %."""

from __future__ import annotations

import time

import pytest
from helpers.browser import Browser

from gpuscope.dashboards.data.open_runs import OpenRun
from gpuscope.report.view.first_figures import first_figures
from gpuscope.report.view.summary import summary
from gpuscope.words import units

pytestmark = pytest.mark.xdist_group("browser")

NOW = "window.gpuscopeTimeline.current"
SELECTED = f"return {NOW}?.root.isConnected && {NOW}.complete() ? {NOW}.selected?.ref || '' : ''"
MOST_CLICKS = 2
"""There and back."""


def test_from_the_verdict_to_the_late_ranks_kernel_and_back(browser: Browser, served: str, slow_rank: OpenRun) -> None:
    """One click leads to what rank 1 computes while rank 0 waits for it, one leads back; with both ranks in sight."""
    browser.open(f"{served}/?run=1", "/")
    sentence = units.clean(summary(slow_rank.report).lines.what)
    assert browser.text("h2.verdict") == sentence
    clicks, begun = 0, time.monotonic()

    browser.find("a.meanwhile").click()
    clicks += 1
    browser.wait(lambda: browser.script(SELECTED))
    drawer = browser.wait(lambda: browser.text("#timeline-selected"))
    assert "rank 1" in drawer
    assert "aten::mm" in drawer
    assert "compute" in drawer
    labels = browser.script(f"return {NOW}.shownRows().map(one => one.text)")
    assert {"rank 0", "rank 1"} <= set(labels)
    assert browser.script(f"return {NOW}.mark") is not None  # rank 0's wait, over all rows
    assert "Collectives wait for the last rank" in browser.text(".pinned")

    links = "[...document.querySelectorAll('.pinned a')]"
    browser.script(f"return {links}.find(one => one.innerText.startsWith('Back'))").click()
    clicks += 1
    browser.drawn("/")
    assert browser.text("h2.verdict") == sentence
    assert clicks <= MOST_CLICKS
    print(f"verdict → kernel → verdict: {clicks} clicks, {time.monotonic() - begun:.1f} s")
    assert browser.errors() == []


def test_the_overview_says_the_terminals_sentence(browser: Browser, served: str, slow_rank: OpenRun) -> None:
    """Its first lines, and the figures of the report's first screen side by side."""
    said = summary(slow_rank.report)
    browser.open(f"{served}/?run=1", "/")
    assert browser.text("h2.verdict") == units.clean(said.lines.what)
    figures = first_figures(slow_rank.report, said.lines)
    labels = ["Step now", "After the fix", "Communication-bound", "Confidence in the verdict"]
    assert [one.label for one in figures] == labels
    shown = browser.script("return [...document.querySelectorAll('.figure')].map(one => one.parentElement.innerText)")
    assert [one.split("\n\n") for one in shown] == [[one.label, one.value, one.note] for one in figures]


def keys(browser: Browser, *pressed: str) -> None:
    from selenium.webdriver import ActionChains

    for one in pressed:
        ActionChains(browser.driver).send_keys(one).perform()


def tab_to(browser: Browser, css: str) -> None:
    """Press Tab until an element that fits has the focus."""
    for _ in range(80):
        keys(browser, "\ue004")
        if browser.script("return document.activeElement.matches(arguments[0])", css):
            return
    raise AssertionError(f"no way to {css} from the keyboard")


def test_the_same_path_by_keys_alone(browser: Browser, served: str) -> None:
    browser.open(f"{served}/?run=1", "/", anew=True)
    tab_to(browser, "a.meanwhile")
    keys(browser, "\ue007")
    browser.wait(lambda: browser.script(SELECTED))
    first = browser.script(SELECTED)
    tab_to(browser, ".timeline-scroll")
    keys(browser, "\ue014")  # the next event of the row
    browser.wait(lambda: browser.script(SELECTED) not in ("", first))
    keys(browser, "w", "a", "m", "/")
    assert browser.script("return document.activeElement.id") == "timeline-search"


def test_a_bar_and_a_cell_by_keys_alone(browser: Browser, served: str) -> None:
    """The breakdown's bars and the ranks' cells lead to the timeline; what is chosen is said."""
    for page, css in (("/", ".chooses"), ("/ranks", ".chooses")):
        browser.open(f"{served}{page}?run=2", page, anew=True)
        browser.wait(lambda: browser.script("return document.querySelectorAll('.chooses .main-svg').length > 0"))
        tab_to(browser, css)
        keys(browser, "\ue015", "\ue014")  # down: the first; right: the next
        said = browser.wait(lambda: browser.script("return document.activeElement.querySelector('.chosen').innerText"))
        assert said.strip()
        keys(browser, "\ue007")
        browser.drawn("/timeline")
    assert browser.errors() == []


def test_a_kernel_by_keys_alone_and_its_window(browser: Browser, served: str) -> None:
    """Enter on a name finds it in the timeline; back on the kernels, the window seen there can be chosen."""
    browser.open(f"{served}/kernels?run=2", "/kernels", anew=True)
    tab_to(browser, ".ag-header-cell")
    keys(browser, "\ue015", "\ue007")
    browser.drawn("/timeline")
    assert "find=" in browser.script("return location.search")
    browser.wait(lambda: browser.script(f"return {NOW}?.root.isConnected && {NOW}.complete()"))
    keys(browser, "\ue00c")  # out of the search field, if it has the focus
    browser.script(f"{NOW}.scroller.focus(); {NOW}.zoom(0.3)")
    browser.wait(lambda: "from=" in browser.script("return location.search"))
    browser.script("[...document.querySelectorAll('nav a')].find(a => a.innerText == 'Kernels').click()")
    browser.drawn("/kernels")
    choices = "[...document.querySelectorAll('main .mantine-SegmentedControl-label')]"
    assert browser.script(f"return {choices}.map(one => one.innerText)")[0] == "Whole recording"
    browser.script(f"{choices}[1].click()")
    browser.wait(lambda: "within=window" in browser.script("return location.search"))
    browser.wait(lambda: "Of the window chosen" in browser.text("main"))
    assert browser.errors() == []


@pytest.mark.parametrize("run", ["1"])
def test_every_page_at_a_zoom_of_200_percent(browser: Browser, served: str, run: str) -> None:
    """1400 × 1000 pixels zoomed twice: nothing is wider than the screen, the timeline can be used."""
    browser.open(f"{served}/?run={run}", "/", anew=True)
    with browser.device(700, 500, ratio=2):
        for path in browser.script("return [...document.querySelectorAll('nav a')].map(a => new URL(a.href).pathname)"):
            browser.open(f"{served}{path}?run={run}", path)
            browser.wait(lambda: browser.script("return document.documentElement.scrollWidth <= innerWidth"))
            if path == "/timeline":
                browser.wait(lambda: browser.script(f"return {NOW}?.root.isConnected && {NOW}.complete()"))
                height, ratio = browser.script(f"return [{NOW}.height, {NOW}.canvas.width / {NOW}.canvas.clientWidth]")
                assert height >= 200
                assert ratio == 2  # sharp: a canvas pixel for each of the screen
    assert browser.errors() == []
