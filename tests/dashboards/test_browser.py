"""The dashboard in a real browser, end to end."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from helpers import needs
from helpers.browser import Browser
from helpers.pair import SCRIPT

pytestmark = pytest.mark.xdist_group("browser")


def query(browser: Browser) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(browser.driver.current_url).query).items()}


def click(browser: Browser, x: float, y: float) -> None:
    """A click of the mouse at a place of the window."""
    from selenium.webdriver import ActionChains

    width, height = browser.script("return [window.innerWidth, window.innerHeight]")
    browser.script("window.scrollTo(0, 0)")
    assert 0 < x < width, "the mark is not on the screen"
    assert 0 < y < height, "the mark is not on the screen"
    actions = ActionChains(browser.driver)
    actions.w3c_actions.pointer_action.move_to_location(x=round(x), y=round(y))
    actions.w3c_actions.perform()
    ActionChains(browser.driver).click().perform()


@pytest.mark.parametrize(
    ("run", "scheme", "width"), [("1", "light", 1400), ("1", "dark", 1400), ("2", "light", 700), ("2", "dark", 700)]
)
def test_every_page_is_drawn_without_complaint(
    browser: Browser, served: str, run: str, scheme: str, width: int
) -> None:
    """No complaint of the console or of axe-core, light and dark, wide and narrow."""
    browser.open(f"{served}/?run={run}", "/")
    with browser.seen_as(scheme, width):
        paths = browser.script("return [...document.querySelectorAll('nav a')].map(a => new URL(a.href).pathname)")
        assert {"/", "/timeline", "/ranks", "/kernels"} <= set(paths)
        for path in paths:
            # A click, not a reload: as a viewer goes.
            browser.script(
                "[...document.querySelectorAll('nav a')].find(a => new URL(a.href).pathname == arguments[0]).click()",
                path,
            )
            browser.drawn(path)
            assert query(browser)["run"] == run
            assert "can't be drawn" not in browser.text()
            empty = browser.script(
                "return [...document.querySelectorAll('.js-plotly-plot')].filter(g => !g.data?.length || "
                "g.data.every(t => !(t.x || t.z || t.values || t.ids || t.node || []).length && !t.z)).length"
            )
            assert empty == 0, f"{path}: a figure without data"
            buttons = browser.script("return [...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)")
            assert not [title for title in buttons if "hare" in title or "loud" in title]  # nothing leaves this machine
            browser.wait(lambda: browser.script("return document.documentElement.scrollWidth <= innerWidth"))
            assert browser.violations() == [], path
        assert browser.errors() == []
        assert browser.script("return document.title").endswith("· gpuscope")
    if not browser.axe:
        pytest.skip(f"no axe_core_python, so accessibility was not checked; {needs.EXTRAS}")


def test_names_with_html_are_text_everywhere(browser: Browser, served: str) -> None:
    browser.open(f"{served}/timeline?run=2&find=script", "/timeline")
    assert SCRIPT in browser.text()  # in the list of what was found
    browser.open(f"{served}/kernels?run=2", "/kernels")
    browser.wait(lambda: "ncclDevKernel" in browser.text())
    browser.open(f"{served}/?run=2", "/")
    assert browser.script("return window.broken") is None
    assert browser.script("return document.querySelectorAll('img[src=x], #content script').length") == 0
    assert browser.errors() == []


def test_search_and_filters(browser: Browser, served: str) -> None:
    browser.open(f"{served}/timeline?run=2", "/timeline")
    browser.type("#timeline-search", "ncclDev")
    browser.wait(lambda: "4 events" in browser.text("#timeline-found"))
    browser.type("#filter-ranks", "1\n")
    browser.wait(lambda: query(browser).get("ranks") == "1")
    browser.wait(lambda: "2 events" in browser.text("#timeline-found"))
    # The filter goes along to other pages.
    browser.script("[...document.querySelectorAll('nav a')].find(a => a.innerText == 'Ranks').click()")
    browser.drawn("/ranks")
    rows = browser.script("return [...document.querySelector('#ranks-heatmap .js-plotly-plot').data[0].y]")
    assert rows == ["1"]
    assert browser.find("#filter-ranks").get_attribute("value") == "1"
    browser.type("#filter-ranks", "\b,x\n")
    browser.wait(lambda: "is not a set of ranks" in browser.text())
    assert browser.errors() == []


def test_a_cell_leads_to_its_rank_and_step(browser: Browser, served: str) -> None:
    browser.open(f"{served}/ranks?run=2&measure=wait_suffered_ns", "/ranks")
    x, y = browser.script(
        """
        const plot = document.querySelector('#ranks-heatmap .js-plotly-plot'), box = plot.getBoundingClientRect();
        const [xa, ya] = [plot._fullLayout.xaxis, plot._fullLayout.yaxis];
        return [box.x + xa._offset + xa.c2p(1), box.y + ya._offset + ya.c2p(plot.data[0].y.indexOf("0"))];"""
    )
    click(browser, x, y)
    browser.drawn("/timeline")
    asked = query(browser)
    assert (asked["ranks"], asked["steps"]) == ("0", "1-1")
    assert browser.errors() == []


def test_a_run_that_is_not_open_stays_in_the_address(browser: Browser, served: str) -> None:
    """No other run is shown in its place, until the viewer chooses one."""
    browser.open(f"{served}/kernels?run=0", "/kernels")
    assert "No run 0 is open" in browser.text("main")
    browser.script("[...document.querySelectorAll('nav a')].find(a => a.innerText == 'Ranks').click()")
    browser.drawn("/ranks")
    assert "No run 0 is open" in browser.text("main")
    assert query(browser)["run"] == "0"
    assert browser.find("#filter-run").get_attribute("value") == ""
    browser.find("main ul a").click()
    browser.wait(lambda: query(browser)["run"] == "1")
    browser.find("#ranks-heatmap")
    assert browser.find("#filter-run").get_attribute("value") == "ddp_slow_rank"
    assert browser.errors() == []


def test_dark_and_back(browser: Browser, served: str) -> None:
    browser.open(f"{served}/ranks", "/ranks")
    scheme = "return document.documentElement.dataset.mantineColorScheme"
    browser.wait(lambda: browser.script(scheme) == "light")
    browser.find("#theme-button").click()
    browser.wait(lambda: browser.script(scheme) == "dark")
    browser.wait(lambda: browser.script("return document.querySelector('[data-ag-theme-mode=dark]') !== null"))
    browser.find("#theme-button").click()
    browser.wait(lambda: browser.script(scheme) == "light")
    assert browser.errors() == []
