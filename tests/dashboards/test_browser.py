"""The dashboard in a real browser, end to end."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from helpers.browser import Browser
from helpers.pair import SCRIPT

pytestmark = pytest.mark.xdist_group("browser")

TIMELINE = "document.querySelector('#timeline-graph .js-plotly-plot')"


def query(browser: Browser) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(browser.driver.current_url).query).items()}


def shown_range(browser: Browser) -> list[float]:
    return [float(at) for at in browser.script(f"return {TIMELINE}.layout.xaxis.range")]


def marks(browser: Browser) -> int:
    return int(browser.script(f"return {TIMELINE}.data.reduce((sum, bar) => sum + bar.x.length, 0)"))


def click_mark(browser: Browser, name: str) -> None:
    """A click in the middle of the first mark whose hover begins with `name`."""
    x, y = browser.script(
        f"""
        const plot = {TIMELINE}, box = plot.getBoundingClientRect();
        for (const bar of plot.data) {{
          const i = bar.hovertext.findIndex(text => text.startsWith(arguments[0]));
          if (i < 0) continue;
          const [xa, ya] = [plot._fullLayout.xaxis, plot._fullLayout.yaxis];
          return [box.x + xa._offset + xa.d2p(bar.base[i] + bar.x[i] / 2), box.y + ya._offset + ya.d2p(bar.y[i])];
        }}""",
        name,
    )
    click(browser, x, y)


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


@pytest.mark.parametrize("run", ["1", "2"])
def test_every_page_is_drawn_without_complaint(browser: Browser, served: str, run: str) -> None:
    browser.open(f"{served}/?run={run}", "/")
    paths = browser.script("return [...document.querySelectorAll('nav a')].map(a => new URL(a.href).pathname)")
    assert {"/", "/timeline", "/ranks", "/kernels"} <= set(paths)
    for path in paths:
        # A click, not a reload: as a viewer goes.
        browser.script(
            "[...document.querySelectorAll('nav a')].find(a => new URL(a.href).pathname == arguments[0]).click()", path
        )
        browser.drawn(path)
        assert query(browser)["run"] == run
        assert "can't be drawn" not in browser.text()
        empty = browser.script(
            "return [...document.querySelectorAll('.js-plotly-plot')].filter(g => !g.data?.length || "
            "g.data.every(t => !(t.x || t.z || t.values || t.ids || t.node || []).length && !t.z)).length"
        )
        assert empty == 0, f"{path}: a figure without data"
        buttons = browser.script("return [...document.querySelectorAll('.modebar-btn')].map(one => one.dataset.title)")
        assert not [title for title in buttons if "hare" in title or "loud" in title]  # nothing leaves this machine
    assert browser.errors() == []


def test_from_a_finding_to_its_event(browser: Browser, served: str) -> None:
    browser.open(f"{served}/", "/")
    link = browser.find(".finding a.evidence")
    label = link.text
    assert re.match(r"rank 0 at \+\S+ m?s for \S+ ms: gloo:all_reduce", label)
    link.click()
    browser.drawn("/timeline")
    assert "gloo:all_reduce" in browser.text("#timeline-selected")
    assert "on other ranks" in browser.text("#timeline-selected")  # and from there to the partner
    before = query(browser)["event"]
    partner = browser.driver.find_elements("css selector", "#timeline-selected a.event")[-1]
    assert partner.text.startswith("rank 1 ")
    partner.click()
    browser.wait(lambda: query(browser)["event"] != before)
    browser.wait(lambda: "on rank 1," in browser.text("#timeline-selected"))
    assert browser.errors() == []


def test_zoom_and_pan_ask_the_server_for_detail_and_stand_in_the_address(browser: Browser, served: str) -> None:
    browser.open(f"{served}/timeline", "/timeline")
    whole = shown_range(browser)
    browser.script("[...document.querySelectorAll('button')].find(b => b.innerText == 'Zoom in').click()")
    browser.wait(lambda: shown_range(browser) != whole)
    half = shown_range(browser)
    assert half[1] - half[0] == pytest.approx((whole[1] - whole[0]) / 2)
    asked = query(browser)
    assert int(asked["to"]) - int(asked["from"]) == pytest.approx(half[1] - half[0])
    # What plotly reports of a drag or scroll: ten milliseconds from 100 ms on.
    browser.script(f"{TIMELINE}.emit('plotly_relayout', {{'xaxis.range[0]': 100000000, 'xaxis.range[1]': 110000000}})")
    browser.wait(lambda: shown_range(browser) == [100_000_000, 110_000_000])
    assert 0 < marks(browser) <= 3000
    # The address leads back to the same window.
    browser.open(browser.driver.current_url, "/timeline", anew=True)
    assert shown_range(browser) == [100_000_000, 110_000_000]
    assert browser.errors() == []


def test_names_with_html_are_text_everywhere(browser: Browser, served: str) -> None:
    browser.open(f"{served}/timeline?run=2&tracks=streams&find=script", "/timeline")
    assert SCRIPT in browser.text()  # in the list of what was found
    click_mark(browser, "&lt;script&gt;")
    browser.wait(lambda: "event" in query(browser))
    browser.wait(lambda: "launched by" in browser.text("#timeline-selected"))
    panel = browser.text("#timeline-selected")
    assert SCRIPT in panel
    assert "aten::mm" in panel
    assert "train.py(7): step" in panel
    for page in ("/kernels", "/"):
        browser.open(f"{served}{page}?run=2", page)
    browser.open(f"{served}/kernels?run=2", "/kernels")
    browser.wait(lambda: SCRIPT in browser.text())
    assert browser.script("return window.broken") is None
    assert browser.script("return document.querySelectorAll('img[src=x], #content script').length") == 0
    assert browser.errors() == []


def test_search_and_filters(browser: Browser, served: str) -> None:
    browser.open(f"{served}/timeline?run=2", "/timeline")
    browser.type("#timeline-search", "ncclDev\n")
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
        return [box.x + xa._offset + xa.c2p(1), box.y + ya._offset + ya.c2p(0)];"""
    )
    click(browser, x, y)
    browser.drawn("/timeline")
    asked = query(browser)
    assert (asked["ranks"], asked["steps"]) == ("0", "1-1")
    assert browser.errors() == []


def test_dark_and_back(browser: Browser, served: str) -> None:
    browser.open(f"{served}/ranks", "/ranks")
    scheme = "return document.documentElement.dataset.mantineColorScheme"
    assert browser.script(scheme) == "light"
    browser.find("#theme-button").click()
    browser.wait(lambda: browser.script(scheme) == "dark")
    browser.wait(lambda: browser.script("return document.querySelector('[data-ag-theme-mode=dark]') !== null"))
    browser.find("#theme-button").click()
    browser.wait(lambda: browser.script(scheme) == "light")
    assert browser.errors() == []
