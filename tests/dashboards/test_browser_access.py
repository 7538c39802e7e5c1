"""Who uses no mouse, or asks for less motion: the way to the timeline, and that nothing moves by itself."""

from __future__ import annotations

import pytest
from helpers.browser import Browser

from gpuscope.dashboards.ui import pages

pytestmark = pytest.mark.xdist_group("browser")

MOVING = """return [...document.querySelectorAll('*')].filter(one => {
    const { animationName, transitionDuration } = getComputedStyle(one);
    return animationName !== 'none' || transitionDuration.split(',').some(part => parseFloat(part) > 0.01);
}).map(one => one.outerHTML.slice(0, 120))"""


def test_the_timeline_is_two_tabs_away(browser: Browser, served: str) -> None:
    from selenium.webdriver import ActionChains

    browser.open(f"{served}/timeline?run=2", "/timeline", anew=True)
    browser.wait(lambda: browser.script("return window.gpuscopeTimeline.current?.complete()"))
    for key in ("\ue004", "\ue004", "\ue007"):
        ActionChains(browser.driver).send_keys(key).perform()
    browser.wait(lambda: browser.script("return document.activeElement.id") == "timeline-rows")
    browser.open(f"{served}/ranks?run=2", "/ranks")
    assert not browser.script("return document.querySelector('.skip-rows').offsetParent")


def test_a_narrow_timeline_needs_no_scrolling(browser: Browser, served: str) -> None:
    """Its legend takes more lines there."""
    browser.open(f"{served}/timeline?run=2", "/timeline")
    with browser.seen_as("light", 1024):
        browser.wait(lambda: browser.script("return document.documentElement.scrollHeight <= innerHeight"))


def test_nothing_moves_where_less_motion_is_asked_for(browser: Browser, served: str) -> None:
    command = browser.driver.execute_cdp_cmd
    command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]})
    try:
        for page in pages():
            browser.open(f"{served}{page.path}?run=2", page.path)
            assert browser.script(MOVING) == [], page.path
    finally:
        command("Emulation.setEmulatedMedia", {"features": []})
