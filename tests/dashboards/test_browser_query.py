"""The query page in a real browser: an example, the box, and a row's way into the timeline."""

from __future__ import annotations

import pytest
from helpers.browser import Browser

from gpuscope.analyzers.queries.examples import EXAMPLES

pytestmark = pytest.mark.xdist_group("browser")

ROWS = "return document.querySelectorAll('#query-grid .ag-center-cols-container [role=row]').length"

CHOOSE = """
const one = [...document.querySelectorAll('[role=option]')].find((one) => one.innerText === arguments[0]);
one?.click();
return Boolean(one);"""


def test_from_an_example_to_the_timeline(browser: Browser, served: str) -> None:
    browser.open(f"{served}/query", "/query")
    browser.find("#query-example").click()
    browser.wait(lambda: browser.script(CHOOSE, EXAMPLES[0].question))
    browser.wait(lambda: browser.script("return document.getElementById('query-sql').value") == EXAMPLES[0].sql)
    browser.find("#query-run").click()
    browser.wait(lambda: browser.script(ROWS) > 0)
    href = browser.find("#query-grid a").get_attribute("href")
    browser.find("#query-grid a").click()
    browser.drawn("/timeline")
    assert browser.driver.current_url == href
    assert browser.errors() == []


def test_all_rows_on_the_timeline(browser: Browser, served: str) -> None:
    """Marked by pixels in the line of their rank; a key goes from one to the next."""
    browser.open(f"{served}/query?sql=SELECT+rank,start_ns,dur_ns+FROM+steps+ORDER+BY+start_ns", "/query")
    browser.script("[...document.querySelectorAll('main a')].find(a => a.innerText.startsWith('Mark all')).click()")
    browser.drawn("/timeline")
    browser.wait(lambda: "6 rows of the query marked" in browser.text("main"))
    now = "window.gpuscopeTimeline.current"
    browser.wait(lambda: browser.script(f"return {now}?.root.isConnected && {now}.complete()"))
    first, second = browser.script(f"return {now}.setup.rows.slice(0, 2).map(([, start, end]) => [start, end])")
    for place, span in enumerate((first, second), 1):
        browser.script("document.querySelector('[data-act=row]').click()")
        browser.wait(lambda span=span: browser.script(f"return {now}.range") == span)
        assert f"row {place} of 6" in browser.text("#timeline-said")
    assert browser.violations() == []
    assert browser.errors() == []


def test_the_box_takes_the_keyboard(browser: Browser, served: str) -> None:
    browser.open(f"{served}/query?sql=SELECT+start+FROM+steps", "/query")
    assert "line 1, column 8" in browser.text("#query-error")
    browser.type(
        "#query-sql", "\ue009a\ue000SELECT rank FROM steps LIMIT 3\ue009\ue007\ue000"
    )  # Ctrl + A; Ctrl + Enter
    browser.wait(lambda: browser.script(ROWS) == 3)
    assert browser.violations() == []
