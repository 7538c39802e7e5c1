"""`python -m benchmarks.pictures`: the dashboard's pictures in docs/images, taken anew in a Chromium."""

from __future__ import annotations

import base64
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.app import create_app
from gpuscope.dashboards.data.open_runs import Runs, open_run
from gpuscope.dashboards.web.server import listen

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
SAMPLE = ROOT / "sample_traces" / "ddp_slow_rank"
TOKEN = "of-the-pictures"
SIZE = (1400, 1000)
NOW = "window.gpuscopeTimeline?.current"
COMPLETE = f"return Boolean({NOW}?.root.isConnected && {NOW}.complete())"
DRAWN = """return document.querySelector('[data-page]')?.dataset.page === arguments[0]
    && !document.querySelector('[data-dash-is-loading]')
    && [...document.querySelectorAll('.dash-graph')].every(one => one.querySelector('.main-svg'))"""


def main() -> int:
    """Serve the sample run and photograph two of its pages."""
    driver = chromium(*SIZE)
    if driver is None:
        print("no chromium and chromedriver on PATH", file=sys.stderr)
        return 3
    run = open_run("1", str(SAMPLE), Options())
    try:
        with listen("127.0.0.1", 0) as server:
            server.set_app(create_app(Runs([run]), TOKEN).server)
            thread = Thread(target=server.serve_forever, daemon=True)
            thread.start()
            _take(driver, f"http://127.0.0.1:{server.port}")
            server.shutdown()
            thread.join(10)
    finally:
        driver.quit()
    return 0


def _take(driver: Any, address: str) -> None:
    driver.get(f"{address}/?token={TOKEN}")
    until(lambda: driver.execute_script(DRAWN, "/"))
    _keep(driver, "overview", lambda: _height(driver))
    driver.execute_script("document.querySelector('a.meanwhile').click()")
    until(lambda: driver.execute_script(DRAWN, "/timeline") and driver.execute_script(COMPLETE))
    until(lambda: driver.execute_script("return document.querySelectorAll('#timeline-selected tr').length > 3"))
    _keep(driver, "timeline")


def _height(driver: Any) -> int:
    return int(driver.execute_script("return document.documentElement.scrollHeight"))


def _keep(driver: Any, name: str, height: Callable[[], int] = lambda: SIZE[1]) -> None:
    """The page from its top, so high that all of it is seen, without a scroll bar."""
    command = driver.execute_cdp_cmd
    screen = {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False}
    command("Emulation.setDeviceMetricsOverride", screen)
    command("Emulation.setDeviceMetricsOverride", screen | {"height": height()})
    until(lambda: driver.execute_script("return new Promise(done => requestAnimationFrame(() => done(true)))"))
    shot = command("Page.captureScreenshot", {})
    path = IMAGES / f"dashboard-{name}.png"
    path.write_bytes(base64.b64decode(shot["data"]))
    print(path.relative_to(ROOT))
    command("Emulation.clearDeviceMetricsOverride", {})


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


if __name__ == "__main__":
    sys.exit(main())
