"""What a person sees: the first paint, new detail after a zoom, and what a turn of the wheel asks for."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

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
    chromium, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver_path is None:
        return None
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for switch in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,1000"):
        options.add_argument(f"--{switch}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
    driver.set_script_timeout(60)
    try:
        paints = []
        for _ in range(4):  # the first time, the browser gets the scripts
            begun = time.perf_counter()
            driver.get(f"{address}/timeline?token={token}")
            _until(lambda: driver.execute_script(COMPLETE))
            paints.append(time.perf_counter() - begun)
        requests = driver.execute_async_script(WHEEL)
        driver.get(f"{address}/timeline?run=1")
        _until(lambda: driver.execute_script(COMPLETE))
        driver.execute_script(f"{NOW}.show(...{NOW}.setup.bounds)")
        _until(lambda: driver.execute_script(COMPLETE))
        found = [driver.execute_async_script(ZOOM) / 1e3 for _ in range(zooms)]
        return Painted(sorted(paints[1:])[1], found, requests)
    finally:
        driver.quit()


def _until(ask: Callable[[], bool]) -> None:
    begun = time.perf_counter()
    while not ask():
        if time.perf_counter() - begun > 120:
            raise TimeoutError("the timeline is not drawn")
        time.sleep(0.005)
