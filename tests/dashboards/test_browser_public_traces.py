"""On traces of others: what is painted is what ran, in every row, at every depth of zoom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.browser import Browser
from helpers.dashboards import serve

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.data.open_runs import OpenRun, Runs, open_run

pytestmark = pytest.mark.xdist_group("browser")

NOW = "window.gpuscopeTimeline.current"
TRACES = ("kineto/hta_nccl_args", "nsys/zx3xyy/result.sqlite", "nsys/nsys-ai/mfu_2gpu_before.sqlite", "ascend/level0")
DEPTHS = (1, 7, 60, 900)
ALL_OPEN = f"""const t = {NOW}, every = (node) => [node, ...node.children.flatMap(every)];
    t.toggled = new Set(t.setup.tree.flatMap(every).filter((node) => !node.open).map((node) => node.id));
    t.change(false);"""


@pytest.fixture(scope="module")
def opened(shared_traces: Path) -> list[OpenRun]:
    """The runs of these traces."""
    return [open_run(str(n), str(shared_traces / name), Options()) for n, name in enumerate(TRACES, 1)]


@pytest.fixture(scope="module")
def address(opened: list[OpenRun]) -> Iterator[str]:
    """A dashboard of them."""
    yield from serve(Runs(opened))


@pytest.mark.parametrize("which", range(len(TRACES)), ids=TRACES)
def test_painted_time_is_busy_time_within_a_pixel(
    browser: Browser, address: str, opened: list[OpenRun], which: int
) -> None:
    """Busy time is counted here from the recorded events themselves, one instant after the other."""
    events = opened[which].events
    assert events is not None
    browser.open(f"{address}/timeline?run={which + 1}", "/timeline", anew=True)
    browser.wait(lambda: browser.script(f"return {NOW}?.root.isConnected && {NOW}.complete()"))
    browser.script(ALL_OPEN)
    low, high = events.window
    worst, seen = 0.0, set()
    for depth in DEPTHS:
        middle, half = low + (high - low) * 5 // 9, max((high - low) // 2 // depth, 1)
        browser.script(f"{NOW}.show({NOW}.relative('{middle - half}'), {NOW}.relative('{middle + half}'))")
        for scroll in (0, 400, 800):
            browser.script(f"{NOW}.scroller.scrollTop = {scroll}")
            # In one script: between two the rows in sight may change, and their tiles are not there yet.
            painted = browser.wait(lambda: browser.script(f"return {NOW}.complete() && {NOW}.painted()"))
            span = int(painted["from"]), int(painted["to"])
            for row in painted["rows"]:
                if 0 <= row["track"] < len(events.tracks):
                    track = events.tracks[row["track"]]
                    busy = covered(list(zip(track.start.tolist(), track.end.tolist(), strict=True)), span)
                    worst = max(worst, abs(row["ns"] - busy) / painted["nsPerPixel"])
                    seen.add((depth, row["track"]))
    assert len(seen) >= 4 * len(DEPTHS)
    print(f"{TRACES[which]}: {len(seen)} rows at {len(DEPTHS)} depths, at most {worst:.2f} pixels off")
    assert worst <= 1
    assert browser.errors() == []


def covered(spans: list[tuple[int, int]], window: tuple[int, int]) -> int:
    """How much of the window any of the spans covers, ns."""
    total, done = 0, window[0]
    for start, end in sorted(spans):
        low, high = max(start, done), min(end, window[1])
        total += max(high - low, 0)
        done = max(done, high)
    return total
