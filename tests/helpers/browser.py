"""A headless Chromium for tests of the dashboard."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

TOKEN = "of-the-tests"
Answer = TypeVar("Answer")


AXE_RULES = ("label-content-name-mismatch", "link-in-text-block")
"""Rules that axe-core leaves out unless asked for, or has left out."""
LIVE = ("from", "to", "event", "mark", "range", "pin", "tree", "colour", "find", "path")
"""What the timeline reads from the address by itself: the page is not drawn anew for it."""


def _drawn_for(address: SplitResult) -> tuple[str, dict[str, str]]:
    query = dict(parse_qsl(address.query))
    live = LIVE if address.path == "/timeline" else ()
    return address.path, {key: value for key, value in query.items() if key not in live}


def _axe() -> str:
    """The file that axe-core-python holds; its own runner is for another Selenium."""
    found = find_spec("axe_core_python")
    if found is None or found.origin is None:
        return ""
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


class Browser:
    """A headless Chromium; waits for what it is asked for."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.axe = _axe()
        """The source of axe-core; empty where it is not installed."""

    def open(self, address: str, page: str, anew: bool = False) -> None:
        """Go to an address and wait until its page is drawn; loads everything only the first time, or `anew`."""
        parts, now = urlsplit(address), urlsplit(self.driver.current_url)
        if parts.netloc != now.netloc:
            self.errors()  # of another dashboard, which has ended meanwhile
        if anew or parts.netloc != now.netloc or address == self.driver.current_url:
            self.driver.get(f"{address}{'&' if parts.query else '?'}token={TOKEN}")
        else:  # as a click on a link inside the application does
            forget = "document.querySelector('[data-page]')?.removeAttribute('data-page');"
            self.script(
                ("" if _drawn_for(parts) == _drawn_for(now) else forget)
                + "history.pushState({}, '', arguments[0]); dispatchEvent(new CustomEvent('_dashprivate_pushstate'))",
                parts.path + ("?" + parts.query if parts.query else ""),
            )
        self.drawn(page)

    def drawn(self, page: str) -> None:
        """Wait until the page is drawn."""
        self.wait(lambda: self.script("return document.querySelector('[data-page]')?.dataset.page") == page)
        self.wait(lambda: self.script("return !document.querySelector('[data-dash-is-loading]')"))
        self.wait(
            lambda: self.script(
                "return [...document.querySelectorAll('.dash-graph')].every(g => g.querySelector('.main-svg'))"
            )
        )

    def script(self, text: str, *arguments: Any) -> Any:
        """What a piece of JavaScript returns."""
        return self.driver.execute_script(text, *arguments)

    def find(self, css: str) -> Any:
        """The first element, once it is there."""
        return self.wait(lambda: next(iter(self.driver.find_elements("css selector", css)), None))

    def type(self, css: str, keys: str) -> None:
        """Type into a field, once it stands still: a page that is drawn anew replaces its fields."""
        from selenium.common.exceptions import StaleElementReferenceException

        def typed() -> bool:
            try:
                self.find(css).send_keys(keys)
            except StaleElementReferenceException:
                return False
            return True

        self.wait(typed)

    def text(self, css: str = "body") -> str:
        """The text of the page, or of its first such element; empty where there is none."""
        return str(self.script("return document.querySelector(arguments[0])?.innerText || ''", css))

    def wait(self, ask: Callable[[], Answer], seconds: float = 10) -> Answer:
        """What `ask` answers once that is true. Raises `AssertionError` when it does not come to be."""
        until = time.monotonic() + seconds
        while not (answer := ask()):
            assert time.monotonic() < until, f"waited in vain; the page: {self.text()[:2000]}"
            time.sleep(0.05)
        return answer

    @contextmanager
    def seen_as(self, scheme: str, width: int) -> Iterator[None]:
        """In a light or dark scheme, in a window of this width; as before afterwards."""
        size = self.driver.get_window_size()
        self._scheme(scheme)
        self.driver.set_window_size(width, size["height"])
        try:
            yield
        finally:
            self.driver.set_window_size(size["width"], size["height"])
            self._scheme("light")

    @contextmanager
    def device(self, width: int, height: int, ratio: float = 1, scheme: str = "light") -> Iterator[None]:
        """On a screen of this size in CSS pixels, with `ratio` device pixels in each, and with a system's scheme.

        A browser zoom of 200 % on a screen of 1400 × 1000 is 700 × 500 with a ratio of 2.
        """
        command = self.driver.execute_cdp_cmd
        command(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": ratio, "mobile": False},
        )
        command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        try:
            yield
        finally:
            command("Emulation.clearDeviceMetricsOverride", {})
            command("Emulation.setEmulatedMedia", {"features": []})

    def _scheme(self, scheme: str) -> None:
        now = "return document.documentElement.dataset.mantineColorScheme"
        self.wait(lambda: self.script(now))
        if self.script(now) != scheme:
            self.find("#theme-button").click()
            self.wait(lambda: self.script(now) == scheme)

    def violations(self) -> list[str]:
        """What axe-core finds on the page; nothing where it is not installed."""
        if not self.axe:
            return []
        self.script(f"if (!window.axe) {{ {self.axe} }}")
        found = self.driver.execute_async_script(
            "const rules = Object.fromEntries(arguments[0].map(id => [id, {enabled: true}]));"
            "axe.run(document, {resultTypes: ['violations'], rules}).then(r => arguments[1](r.violations))",
            AXE_RULES,
        )
        return [f"{one['id']} ({one['impact']}): {[node['html'][:200] for node in one['nodes'][:4]]}" for one in found]

    def errors(self) -> list[str]:
        """What the console has complained of since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
