"""What a person sees: the first paint, new detail after a zoom, and what a turn of the wheel asks for."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NOW = "window.gpuscopeTimeline?.current"
COMPLETE = f"return Boolean({NOW}?.root.isConnected && {NOW}.complete())"
WHEEL = f"""
const done = arguments[0], t = {NOW}, box = t.canvas.getBoundingClientRect(), before = t.tiles.requests;
let left = 10;
const tick = () => {{
  t.canvas.dispatchEvent(new WheelEvent('wheel', {{deltaY: -100, ctrlKey: true, bubbles: true, cancelable: true,
      clientX: box.left + 700, clientY: box.top + 50}}));
  if (--left) setTimeout(tick, 40); else setTimeout(() => done(t.tiles.requests - before), 1500);
}};
tick();"""
ZOOM = f"""
const done = arguments[0], t = {NOW}, begun = performance.now();
t.tiles.burst = 0;
t.zoom(0.2);
const look = () => (t.complete() && !t.painting ? done(performance.now() - begun) : setTimeout(look, 2));
look();"""


@dataclass(frozen=True)
class Painted:
    """Seconds to the first complete drawing and to new detail after zooms by five; requests of ten wheel ticks."""

    first: float
    zooms: list[float]
    requests: int


def in_browser(address: str, token: str, zooms: int) -> Painted | None:
    """Measured in a headless Chromium; None without one."""
    driver = chromium()
    if driver is None:
        return None
    driver.set_script_timeout(60)
    try:
        paints = []
        for query in (f"?token={token}", "", "", ""):  # the first time, the browser gets the scripts
            begun = time.perf_counter()
            driver.get(f"{address}/timeline{query}")
            until(lambda: driver.execute_script(COMPLETE))
            paints.append(time.perf_counter() - begun)
        requests = driver.execute_async_script(WHEEL)
        driver.get(f"{address}/timeline?run=1")
        until(lambda: driver.execute_script(COMPLETE))
        driver.execute_script(f"{NOW}.show(...{NOW}.setup.bounds)")
        until(lambda: driver.execute_script(COMPLETE))
        found = [driver.execute_async_script(ZOOM) / 1e3 for _ in range(zooms)]
        return Painted(sorted(paints[1:])[1], found, requests)
    finally:
        driver.quit()


def chromium(width: int = 1400, height: int = 1000) -> Any | None:
    """Selenium's driver of a headless Chromium with a window of this size; None without one."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        return None
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    size = f"window-size={width},{height}"
    for switch in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", size):
        options.add_argument(f"--{switch}")
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


def until(ask: Callable[[], bool]) -> None:
    """Wait for something. Raises `TimeoutError` after two minutes."""
    begun = time.perf_counter()
    while not ask():
        if time.perf_counter() - begun > 120:
            raise TimeoutError("the page is not drawn")
        time.sleep(0.005)
