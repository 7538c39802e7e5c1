"""`python -m benchmarks.dashboard`: how quickly the timeline answers, by number of events, on synthetic traces."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import click
from dash import Dash
from rich.console import Console
from rich.table import Table

import gpuscope
from benchmarks.dashboard.synthetic import synthetic
from gpuscope.dashboards import ids
from gpuscope.dashboards.app import create_app
from gpuscope.dashboards.data.detail_levels import marks
from gpuscope.dashboards.data.events import SHOWN_AT_FIRST, Events
from gpuscope.dashboards.data.open_runs import OpenRun, Runs
from gpuscope.dashboards.web.server import listen

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ddp_healthy"
"""Its report replaces that of the synthetic run; the timeline does not read it."""
DEPTHS = (1, 10, 100, 1_000, 10_000)
"""Windows measured: the whole run, a tenth of it, and so on."""
TOKEN = "of-the-benchmark"
VIEWERS = 20
console = Console(width=None if sys.stdout.isatty() else 120)


@dataclass(frozen=True)
class Measured:
    """Figures of one size; seconds and bytes."""

    events: int
    layout: float
    data: list[float]
    answer: list[float]
    marks: int
    viewer: float
    paint: float | None
    zoom: float | None


@click.command()
@click.option("--events", "sizes", type=int, multiple=True, default=(100_000, 1_000_000, 10_000_000), help="Sizes.")
@click.option("--rounds", default=5, show_default=True, help="How often each window is asked for.")
@click.option("--browser/--no-browser", default=True, help="Measure in a headless Chromium too.")
def main(sizes: Sequence[int], rounds: int, browser: bool) -> None:
    """Lay out synthetic traces and ask for windows of them, as a browser does while zooming."""
    table = Table(
        "events", "layout", "zoom: data, median", "largest", "zoom: answer, median", "largest", "marks",
        "memory per viewer", "first paint", "zoom in the browser", title="Timeline of synthetic traces",
    )  # fmt: skip
    for size in sizes:
        one = measure(size, rounds, browser)
        table.add_row(
            f"{one.events:,}", f"{one.layout:.2f} s", *_ms(one.data), *_ms(one.answer), f"{one.marks:,}",
            f"{one.viewer / 1e3:.0f} kB", _s(one.paint), _s(one.zoom),
        )  # fmt: skip
    console.print(table)
    busy, cores = os.getloadavg()[0], os.cpu_count()
    console.print(f"{cores} cores, load {busy:.1f} at the end; other load on the machine makes all times longer.")


def measure(size: int, rounds: int, with_browser: bool) -> Measured:
    """All figures of one size."""
    trace = synthetic(size)
    begun = time.perf_counter()
    events = Events(trace)
    layout = time.perf_counter() - begun
    run = OpenRun("1", "synthetic", gpuscope.analyze(SAMPLE).report, trace, events)
    app = create_app(Runs([run]), TOKEN)
    windows = [_window(events, depth) for depth in DEPTHS]
    shown = events.choose(None, SHOWN_AT_FIRST).tracks
    drawn = max(sum(map(len, marks(shown, window))) for window in windows)
    data = [_timed(lambda w=window: marks(shown, w)) for window in windows for _ in range(rounds)]  # type: ignore[misc]
    ask = _request_of(app)
    answer = [_timed(lambda w=window: ask(w)) for window in windows for _ in range(rounds)]  # type: ignore[misc]
    viewer = _memory_per_viewer(app, windows)
    paint, zoom = _in_browser(app) if with_browser else (None, None)
    count = len(trace["device_events"]) + len(trace["host_events"])
    return Measured(count, layout, data, answer, drawn, viewer, paint, zoom)


def _window(events: Events, depth: int) -> tuple[int, int]:
    start, end = events.window
    middle, half = (start + end) // 2, (end - start) // 2 // depth
    return middle - half, middle + half


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _request_of(app: Dash) -> Callable[[tuple[int, int]], object]:
    """Asks the server for a window as the browser does: the callback, figure and JSON and all."""
    client = app.server.test_client()
    client.get(f"/?token={TOKEN}")
    output = next(key for key in app.callback_map if f"{ids.TIMELINE_GRAPH}.figure" in key)
    outputs = [dict(zip(("id", "property"), one.rsplit(".", 1), strict=True)) for one in output.strip(".").split("...")]

    def ask(window: tuple[int, int]) -> object:
        query = f"?from={window[0]}&to={window[1]}"
        body = {
            "output": output, "outputs": outputs, "changedPropIds": [f"{ids.TIMELINE_QUERY}.data"],
            "inputs": [{"id": ids.TIMELINE_QUERY, "property": "data", "value": query}],
            "state": [{"id": ids.THEME, "property": "data", "value": None}],
        }  # fmt: skip
        answered = client.post("/_dash-update-component", data=json.dumps(body), content_type="application/json")
        assert answered.status_code == 200, answered.get_data(as_text=True)[:500]
        return answered.get_data()

    return ask


def _memory_per_viewer(app: Dash, windows: Sequence[tuple[int, int]]) -> float:
    """Growth of the process by viewers who each look at every window; the server keeps nothing of them."""
    viewers = [_request_of(app) for _ in range(VIEWERS)]
    before = _resident()
    for ask in viewers:
        for window in windows:
            ask(window)
    return max(_resident() - before, 0) / VIEWERS


def _resident() -> int:
    """Resident memory of this process, bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


@contextmanager
def _served(app: Dash) -> Iterator[str]:
    with listen("127.0.0.1", 0) as server:
        server.set_app(app.server)
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.port}"
        server.shutdown()


def _in_browser(app: Dash) -> tuple[float | None, float | None]:
    """Seconds from an address to a drawn timeline, and from «Zoom in» to the new one; None without a Chromium."""
    chromium, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver_path is None:
        return None, None
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for switch in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,1000"):
        options.add_argument(f"--{switch}")
    plot = "document.querySelector('#timeline-graph .js-plotly-plot')"
    with _served(app) as address:
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
        try:

            def until(script: str) -> float:
                begun = time.perf_counter()
                while not driver.execute_script(f"return {script}"):
                    if time.perf_counter() - begun > 120:
                        raise TimeoutError(script)
                    time.sleep(0.005)
                return time.perf_counter() - begun

            driver.get(f"{address}/timeline?token={TOKEN}")  # once, so that the browser has the scripts
            until(f"{plot}?.querySelectorAll('.point').length > 10")
            begun = time.perf_counter()
            driver.get(f"{address}/timeline?token={TOKEN}")
            until(f"{plot}?.querySelectorAll('.point').length > 10")
            paint = time.perf_counter() - begun
            zooms = []
            for _ in range(5):
                driver.execute_script(
                    f"window.before = JSON.stringify({plot}.layout.xaxis.range);"
                    "[...document.querySelectorAll('button')].find(b => b.innerText == 'Zoom in').click()"
                )
                zooms.append(until(f"JSON.stringify({plot}.layout.xaxis.range) != window.before"))
            return paint, statistics.median(zooms)
        finally:
            driver.quit()


def _ms(seconds: Sequence[float]) -> tuple[str, str]:
    return f"{1e3 * statistics.median(seconds):.0f} ms", f"{1e3 * max(seconds):.0f} ms"


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


if __name__ == "__main__":
    main()
