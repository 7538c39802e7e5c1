"""`python -m benchmarks.dashboard`: how quickly the timeline answers, by events and viewers, on synthetic traces."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import click
from dash import Dash
from rich.console import Console
from rich.table import Table

import gpuscope
from benchmarks.dashboard.in_browser import Painted, in_browser
from benchmarks.dashboard.synthetic import synthetic
from benchmarks.dashboard.viewer import DEPTHS, Viewer
from gpuscope.dashboards.app import create_app
from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.open_runs import OpenRun, Runs
from gpuscope.dashboards.web.server import listen

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ddp_healthy"
"""Its report replaces that of the synthetic run, of which the timeline reads nothing but steps."""
TOKEN = "of-the-benchmark"
console = Console(width=None if sys.stdout.isatty() else 150)


@dataclass
class Measured:
    """Figures of one size; seconds and bytes."""

    events: int
    layout: float
    answers: dict[int, list[float]] = field(default_factory=dict)
    """Of every window, by viewers at once."""
    cpu: list[float] = field(default_factory=list)
    """Of the server for each of them: unlike the seconds, hardly longer on a busy machine."""
    size: int = 0
    grown: int = 0
    painted: Painted | None = None


@click.command()
@click.option("--events", "sizes", type=int, multiple=True, default=(100_000, 1_000_000, 10_000_000), help="Sizes.")
@click.option("--viewers", type=int, multiple=True, default=(1, 3), help="Viewers at once.")
@click.option("--rounds", default=4, show_default=True, help="How often each viewer looks at each window.")
@click.option("--browser/--no-browser", default=True, help="Measure in a headless Chromium too.")
def main(sizes: Sequence[int], viewers: Sequence[int], rounds: int, browser: bool) -> None:
    """Lay out synthetic traces and ask for windows of them over HTTP, as the canvas does while one zooms."""
    table = Table(
        "events", "layout", *(f"answer, {plural(n)}: median, largest" for n in viewers),
        "CPU of an answer: median, largest", "largest answer, packed",
        "server grows by", "first paint", "detail after a zoom: median, largest", "requests of 10 wheel ticks",
        title="Timeline of synthetic traces",
    )  # fmt: skip
    for size in sizes:
        one = measure(size, viewers, rounds, browser)
        paint = one.painted
        table.add_row(
            f"{one.events:,}", f"{one.layout:.2f} s", *(_ms(one.answers[n]) for n in viewers), _ms(one.cpu),
            f"{one.size / 1e3:.0f} kB", f"{one.grown / 1e6:.0f} MB",
            *(("-", "-", "-") if paint is None else (f"{paint.first:.2f} s", _ms(paint.zooms), str(paint.requests))),
        )  # fmt: skip
    console.print(table)
    busy, cores = os.getloadavg()[0], os.cpu_count()
    console.print(f"{cores} cores, load {busy:.1f} at the end; other load on the machine makes all times longer.")


def plural(viewers: int) -> str:
    """`1 viewer`, `3 viewers`."""
    return f"{viewers} viewer" + "s" * (viewers > 1)


def measure(size: int, viewers: Sequence[int], rounds: int, with_browser: bool) -> Measured:
    """All figures of one size."""
    trace = synthetic(size)
    begun = time.perf_counter()
    events = Events(trace)
    one = Measured(len(trace["device_events"]) + len(trace["host_events"]), time.perf_counter() - begun)
    report = gpuscope.analyze(SAMPLE).report
    report["steps"] = []  # on another clock
    run = OpenRun("1", "synthetic", report, trace, events)
    app = create_app(Runs([run]), TOKEN)
    one.cpu = _timed(app)
    with _served(app) as address:
        Viewer(address, TOKEN, events).look(1)  # touches what nothing has read since it was made
        one.cpu.clear()
        before = _resident()
        for count in viewers:
            asking = [Viewer(address, TOKEN, events) for _ in range(count)]
            with ThreadPoolExecutor(count) as pool:
                found = list(pool.map(lambda viewer: viewer.look(rounds), asking))
            one.answers[count] = [seconds for of_one in found for seconds in of_one]
            one.size = max(one.size, *(viewer.largest for viewer in asking))
        one.cpu = one.cpu.copy()  # the browser's answers are not among them
        one.grown = max(_resident() - before, 0)
        one.painted = in_browser(address, TOKEN, len(DEPTHS)) if with_browser else None
    return one


def _timed(app: Dash) -> list[float]:
    """CPU seconds of each answer of the timeline's, as they are given: found, put into columns and packed."""
    spent: list[float] = []
    inner = app.server.wsgi_app

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        begun = time.thread_time()
        try:
            return inner(environ, start)
        finally:
            if environ["PATH_INFO"].endswith("/cells"):
                spent.append(time.thread_time() - begun)

    app.server.wsgi_app = answer
    return spent


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
        thread.join(10)


def _ms(seconds: Sequence[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.0f}, {1e3 * max(seconds):.0f} ms"


if __name__ == "__main__":
    main()
