"""What one comes to a timeline for, each from the overview, by clicks and keys that are counted.

What was needed is printed as a table at the end; seconds are shown and never judged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from helpers.allocator import MIB, events, segment, snapshot
from helpers.browser import Browser
from helpers.dashboards import serve
from helpers.pair import REDUCE, SCRIPT

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.data.open_runs import OpenRun, Runs, open_run

pytestmark = pytest.mark.xdist_group("browser")

NOW = "window.gpuscopeTimeline.current"
SELECTED = f"return {NOW}?.root.isConnected && {NOW}.flows && {NOW}.selected?.ref || ''"


@dataclass
class Tasks:
    """Clicks, keys and seconds of each task."""

    browser: Browser
    address: str
    lines: list[str] = field(default_factory=list)
    begun: float = 0.0
    clicks: int = 0
    keys: int = 0

    def begin(self, run: str) -> None:
        self.browser.open(f"{self.address}/?run={run}", "/", anew=True)
        self.begun, self.clicks, self.keys = time.monotonic(), 0, 0

    def page(self, title: str, path: str) -> None:
        self.clicks += 1
        self.browser.script(
            "[...document.querySelectorAll('nav a')].find(a => a.innerText == arguments[0]).click()", title
        )
        self.browser.drawn(path)
        if path == "/timeline":
            self.browser.wait(lambda: self.browser.script(f"return {NOW}?.root.isConnected && {NOW}.complete()"))

    def click(self, script: str) -> None:
        """On the element that a script finds."""
        self.clicks += 1
        self.browser.wait(lambda: self.browser.script(f"return Boolean({script})"))
        self.browser.script(f"{script}.click()")

    def press(self, key: str) -> None:
        from selenium.webdriver import ActionChains

        self.keys += 1
        ActionChains(self.browser.driver).send_keys(key).perform()

    def drawer(self, part: str, *words: str) -> None:
        """Wait until a part of the drawer says these words."""
        self.browser.wait(lambda: all(word in self.browser.text(f"#timeline-drawer .for-{part}") for word in words))

    def done(self, what: str, most: int) -> None:
        assert self.clicks + self.keys <= most
        assert self.browser.errors() == []
        self.lines.append(f"{what:34}{self.clicks:>8}{self.keys:>6}{time.monotonic() - self.begun:>9.1f}")


@pytest.fixture(scope="module")
def tasks(
    browser: Browser,
    slow_rank: OpenRun,
    pair: OpenRun,
    samples: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Tasks]:
    """Of a CPU run with a slow rank, the run of `write_pair`, a healthy run of the first one's job, and a snapshot."""
    told = events(("alloc", 0, 3 * MIB), ("alloc", 4 * MIB, MIB))
    path = snapshot(tmp_path_factory.mktemp("memory") / "memory.pickle", [segment(0, (20 * MIB, "inactive"))], told)
    others = [open_run(key, str(one), Options()) for key, one in (("3", samples / "ddp_healthy"), ("4", path))]
    server = serve(Runs([slow_rank, pair, *others]))
    found = Tasks(browser, next(server))
    yield found
    reporter = request.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        reporter.write_line("\n".join(["", f"{'task':34}{'clicks':>8}{'keys':>6}{'seconds':>9}", *found.lines]))
    next(server, None)


@pytest.mark.parametrize(
    ("task", "run", "keys", "shown"),
    [
        # So much later than rank 0.
        ("slowest collective across ranks", "1", "l", ("event", "gloo:all_reduce", "on rank 1", "64.92 ms")),
        # From the end of one step's last kernel to the next step's first.
        ("longest gap", "2", "g", ("range", "280.0 µs from")),
        ("call stack", "2", ("/", "<script", "\ue007"), ("event", "train.py(7): step", "aten::mm")),
    ],
)
def test_by_keys(tasks: Tasks, task: str, run: str, keys: Sequence[str], shown: tuple[str, ...]) -> None:
    tasks.begin(run)
    tasks.page("Timeline", "/timeline")
    for key in keys:
        tasks.press(key)
    tasks.drawer(*shown)
    tasks.done(task, 1 + len(keys))


def test_a_range_and_its_sum(tasks: Tasks) -> None:
    """By a drag over everything: four times the kernel, of 300 µs on rank 0 and 400 µs on rank 1."""
    from selenium.webdriver import ActionChains

    tasks.begin("2")
    tasks.page("Timeline", "/timeline")
    tasks.press("0")
    box = tasks.browser.script(
        f"const b = {NOW}.canvas.getBoundingClientRect(); return [b.x + {NOW}.label, b.y, {NOW}.plot]"
    )
    tasks.clicks += 1
    actions = ActionChains(tasks.browser.driver)
    pointer = actions.w3c_actions.pointer_action
    pointer.move_to_location(x=round(box[0]) + 2, y=round(box[1]) + 30)
    pointer.pointer_down()
    pointer.move_to_location(x=round(box[0] + box[2] / 2), y=round(box[1]) + 30)
    pointer.move_to_location(x=round(box[0] + box[2]) - 4, y=round(box[1]) + 30)
    pointer.pointer_up()
    actions.w3c_actions.perform()
    tasks.drawer("range", "12 device events", "1.400 ms", "operators and calls", "aten::mm")
    tasks.done("range and sum", 3)


def test_search(tasks: Tasks) -> None:
    """Enter chooses the first found and gives the keys back: N goes to the next."""
    tasks.begin("2")
    tasks.page("Timeline", "/timeline")
    tasks.press("/")
    tasks.press("ncclDev")
    tasks.press("\ue007")
    first = tasks.browser.wait(lambda: tasks.browser.script(SELECTED))
    tasks.drawer("event", REDUCE)
    assert tasks.browser.script(f"return document.activeElement === {NOW}.scroller")
    tasks.press("n")
    tasks.browser.wait(lambda: tasks.browser.script(SELECTED) not in ("", first))
    tasks.done("search, first and next found", 5)


def test_from_a_launch_to_its_kernel_and_who_was_late(tasks: Tasks, pair: OpenRun) -> None:
    """C alone: the launch of rank 0's all-reduce, the kernel, rank 1's, and what rank 1 computed meanwhile."""
    assert pair.events is not None
    table, names = pair.events.trace["device_events"], pair.events.trace.names

    def first(name: str, rank: int) -> int:
        rows = (row for row in range(len(table)) if table["rank"][row] == rank)
        return next(row for row in rows if names[int(table["name"][row])] == name)

    rank0, rank1, script = first(REDUCE, 0), first(REDUCE, 1), first(SCRIPT, 1)
    tasks.begin("2")
    tasks.page("Timeline", "/timeline")
    launch = int(table["launch"][rank0])
    tasks.browser.script(f"{NOW}.ask('h{launch}')")
    tasks.browser.wait(lambda: tasks.browser.script(SELECTED) == f"h{launch}")
    for expected in (rank0, rank1, script):
        tasks.press("c")
        tasks.browser.wait(lambda expected=expected: tasks.browser.script(SELECTED) == f"d{expected}")
    assert "it computed while others waited" in tasks.browser.text("#timeline-said")
    tasks.done("launch → kernel → late rank → why", 4)


def test_the_same_collective_on_another_rank(tasks: Tasks) -> None:
    tasks.begin("2")
    tasks.page("Timeline", "/timeline")
    tasks.press("l")
    tasks.drawer("event", "on rank 1")
    links = "[...document.querySelectorAll('#timeline-selected a.event')].filter(a => a.innerText.includes('ncclDev'))"
    tasks.click(f"{links}.find(a => a.innerText.startsWith('rank 0'))")
    tasks.drawer("event", "on rank 0")
    labels = tasks.browser.script(f"return {NOW}.shownRows().map(one => one.text)")
    assert {"rank 0", "rank 1"} <= set(labels)
    tasks.done("two ranks", 3)


def test_two_runs(tasks: Tasks) -> None:
    tasks.begin("1")
    tasks.page("Compare and history", "/compare")
    text = tasks.browser.wait(lambda: "Causes that moved" in (text := tasks.browser.text("main")) and text)
    assert "ddp_healthy" in text
    tasks.done("two runs", 1)


def test_who_holds_the_memory_at_the_peak(tasks: Tasks) -> None:
    tasks.begin("4")
    tasks.page("Memory", "/memory")
    bars = "[...document.querySelectorAll('.js-plotly-plot')].flatMap(g => g.data).find(t => t.orientation == 'h')"
    (first, *_), (held, *_) = tasks.browser.script(f"const bar = {bars}; return [bar.y, bar.text]")
    assert "train.py:7" in first
    assert held == "4 MiB in 2"
    tasks.done("peak memory's owner", 1)


def test_a_ruler_between_two_edges(tasks: Tasks) -> None:
    """From the start of step 0's kernel to the end of the all-reduce after it, on rank 0: 50 to 600 µs."""
    tasks.begin("2")
    tasks.page("Timeline", "/timeline")
    for name, key in (("<script", "e"), ("ncclDev", "E")):
        tasks.press("/")
        tasks.browser.script("document.querySelector('#timeline-search').select()")
        tasks.press(name)
        before = tasks.browser.script(SELECTED)
        tasks.press("\ue007")
        tasks.browser.wait(lambda before=before: tasks.browser.script(SELECTED) not in ("", before))
        tasks.press(key)
    tasks.drawer("range", "550.0 µs from")
    tasks.done("ruler between two edges", 9)


def test_the_critical_path(tasks: Tasks) -> None:
    """All of it on the slow rank; it stands in the address, and is drawn again from there."""
    tasks.begin("1")
    tasks.page("Timeline", "/timeline")
    tasks.press("k")
    tasks.browser.wait(lambda: "Critical path over 1 rank:" in tasks.browser.text("#timeline-said"))
    assert set(tasks.browser.script(f"return {NOW}.path.map(one => one[0])")) == {1}
    assert "path=1" in tasks.browser.script("return location.search")
    tasks.done("critical path", 2)
