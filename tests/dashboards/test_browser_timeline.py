"""The timeline in a real browser: what is painted is what ran, what a zoom costs, keys, selection, Back."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from helpers.browser import Browser
from helpers.pair import SCRIPT

from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.open_runs import OpenRun
from gpuscope.words import units

pytestmark = pytest.mark.xdist_group("browser")

NOW = "window.gpuscopeTimeline.current"
CONTROL, SHIFT = "ctrlKey", "shiftKey"


def query(browser: Browser) -> dict[str, str]:
    return query_of(browser.driver.current_url)


def query_of(address: str) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(address).query).items()}


def opened(browser: Browser, address: str, anew: bool = False) -> None:
    browser.open(address, "/timeline", anew)
    complete(browser)


def complete(browser: Browser) -> None:
    browser.wait(lambda: browser.script(f"return {NOW}?.root.isConnected && {NOW}.complete()"))


def window(browser: Browser) -> tuple[int, int]:
    low, high = browser.script(f"return [{NOW}.absolute({NOW}.from), {NOW}.absolute({NOW}.to)]")
    return int(low), int(high)


def show(browser: Browser, low: int, high: int) -> None:
    browser.script(f"{NOW}.show({NOW}.relative(arguments[0]), {NOW}.relative(arguments[1]))", str(low), str(high))
    complete(browser)


def row(browser: Browser, label: str, which: int = 0) -> dict[str, Any]:
    """A row on the screen by its label: where it is, and its track."""
    found = browser.script(
        f"return {NOW}.shownRows().filter(one => one.text === arguments[0]).map(one => "
        "({top: one.top, track: one.track, key: one.key}))",
        label,
    )
    return dict(found[which])


def press(browser: Browser, label: str, at: int, which: int = 0, until: int | None = None, **more: bool) -> None:
    """Press the mouse in a row at a time, release it there or at `until`."""
    top = row(browser, label, which)["top"] + 10
    browser.script(
        f"""
        const [top, times, more] = arguments, t = {NOW}, box = t.canvas.getBoundingClientRect();
        const xs = times.map(at => t.x(t.relative(at)) + box.left);
        const send = (kind, x) => t.canvas.dispatchEvent(new PointerEvent(kind,
            {{clientX: x, clientY: box.top + top, bubbles: true, pointerId: 1, button: 0, buttons: 1, ...more}}));
        t.canvas.setPointerCapture = () => {{}};
        send('pointerdown', xs[0]);
        if (xs.length > 1) send('pointermove', xs[1]);
        send('pointerup', xs[xs.length - 1]);""",
        top,
        [str(one) for one in (at, until) if one is not None],
        more,
    )


def key(browser: Browser, name: str) -> None:
    browser.script(
        f"{NOW}.scroller.focus(); {NOW}.scroller.dispatchEvent("
        "new KeyboardEvent('keydown', {key: arguments[0], bubbles: true, cancelable: true}))",
        name,
    )


def typed(browser: Browser, keys: str) -> None:
    """As a person types them: a browser whose history is full drops pages on which nobody did anything."""
    from selenium.webdriver.common.action_chains import ActionChains

    browser.script(f"{NOW}.scroller.focus()")
    ActionChains(browser.driver).send_keys(keys).perform()


def events_of(run: OpenRun) -> Events:
    assert run.events is not None
    return run.events


@pytest.mark.parametrize("which", ["1", "2"])
def test_what_is_painted_is_the_time_that_was_spent(
    browser: Browser, served: str, which: str, slow_rank: OpenRun, pair: OpenRun
) -> None:
    """In every row, over the whole run and ever smaller windows: within one pixel."""
    events = events_of(slow_rank if which == "1" else pair)
    opened(browser, f"{served}/timeline?run={which}")
    low, high = events.window
    seen = 0
    for depth in (1, 3, 20, 300, 5000):
        middle, half = low + (high - low) * 4 // 9, (high - low) // 2 // depth
        show(browser, middle - half, middle + half)
        for scroll in (0, 300):
            browser.script(f"{NOW}.scroller.scrollTop = arguments[0]", scroll)
            # In one script: between two the rows in sight may change, and their tiles are not there yet.
            painted = browser.wait(lambda: browser.script(f"return {NOW}.complete() && {NOW}.painted()"))
            span = int(painted["from"]), int(painted["to"])
            for one in painted["rows"]:
                if one["track"] >= 0:
                    busy = events.tracks[one["track"]].busy(span)
                    assert abs(one["ns"] - busy) <= painted["nsPerPixel"], events.tracks[one["track"]].label
                    seen += 1
    assert seen > 40


def test_a_gap_of_a_pixel_is_not_painted_over(browser: Browser, served: str) -> None:
    opened(browser, f"{served}/timeline?run=2")
    painted = browser.script(
        """
        const row = new gpuscopeTimeline.Row(8), pixels = new Uint32Array(16);
        row.add(0, 2, 1, 1); row.add(3, 4.5, 1, 1); row.add(4.5, 5, 1, 1); row.add(6, 7, 0.25, 1);
        row.paint(pixels, 0, 8);
        return [...pixels].map(one => one >>> 24);"""
    )
    assert painted == [255, 255, 0, 255, 255, 0, 64, 0, *[255, 255, 0, 255, 255, 0, 255, 0]]


def test_tiles_are_asked_for_once_and_a_wheel_costs_few_requests(browser: Browser, served: str) -> None:
    opened(browser, f"{served}/timeline?run=1", anew=True)
    before = browser.script(f"return {NOW}.tiles.requests")
    for direction in (-100, 100):
        browser.driver.execute_async_script(
            f"""
            const done = arguments[1], t = {NOW}, box = t.canvas.getBoundingClientRect();
            let left = 10;
            const tick = () => {{
              t.canvas.dispatchEvent(new WheelEvent('wheel', {{deltaY: arguments[0], ctrlKey: true, bubbles: true,
                  cancelable: true, clientX: box.left + 700, clientY: box.top + 50}}));
              if (--left) setTimeout(tick, 40); else done();
            }};
            tick();""",
            direction,
        )
        complete(browser)
        asked = browser.script(f"return {NOW}.tiles.requests") - before
        assert asked <= 3
        before += asked
    # The same window again costs nothing.
    low, high = window(browser)
    show(browser, low + 1000, high + 1000)
    before = browser.script(f"return {NOW}.tiles.requests")
    show(browser, low, high)
    assert browser.script(f"return {NOW}.tiles.requests") == before
    assert browser.errors() == []


def test_it_opens_on_the_steady_steps_and_back_undoes_a_zoom(browser: Browser, served: str, slow_rank: OpenRun) -> None:
    events = events_of(slow_rank)
    opened(browser, f"{served}/timeline?run=1", anew=True)
    steady = events.steady_window(slow_rank.report, None)
    assert steady is not None
    low, high = window(browser)
    assert low < steady[0] < steady[1] < high
    assert high - low < 1.1 * (steady[1] - steady[0])
    places = [query(browser)]
    for zoomed in (1, 2):
        typed(browser, "w")
        browser.wait(lambda: query(browser) != places[-1])
        places.append(query(browser))
        assert int(places[-1]["to"]) - int(places[-1]["from"]) < (high - low) / 1.4**zoomed
    deepest = places.pop()
    while places:
        browser.driver.back()
        browser.wait(lambda: query(browser) == places[-1])
        places.pop()
    browser.wait(lambda: abs(window(browser)[0] - low) < 10)
    assert abs(window(browser)[1] - high) < 10
    # And the address leads to the same place.
    opened(browser, f"{served}/timeline?run=1&from={deepest['from']}&to={deepest['to']}")
    assert window(browser) == (int(deepest["from"]), int(deepest["to"]))
    assert browser.errors() == []


def test_an_event_its_details_and_its_launch(browser: Browser, served: str, pair: OpenRun) -> None:
    events = events_of(pair)
    opened(browser, f"{served}/timeline?run=2")
    at = events.first + 150_000  # in the first kernel, whose name is HTML
    press(browser, "stream 7", at)
    browser.wait(lambda: "launched by" in browser.text("#timeline-drawer"))
    panel = browser.text("#timeline-drawer")
    assert all(text in panel for text in (SCRIPT, "aten::mm", "train.py(7): step"))
    browser.wait(lambda: browser.script(f"return {NOW}.flows?.launches.length") == 1)
    assert query(browser)["event"].startswith("d")
    assert browser.script("return window.broken") is None
    # The collective shows its other rank, the last arrival and who waited.
    press(browser, "stream 20", events.first + 550_000)
    browser.wait(lambda: "on other ranks" in browser.text("#timeline-drawer"))
    browser.wait(lambda: browser.script(f"return {NOW}.flows?.ranks.length") == 2)
    key(browser, "f")
    complete(browser)
    assert window(browser)[1] - window(browser)[0] < 1_000_000
    # Escape closes the drawer and empties the address.
    key(browser, "Escape")
    assert browser.script("return getComputedStyle(document.querySelector('#timeline-drawer')).display") == "none"
    browser.wait(lambda: "event" not in query(browser))
    assert browser.errors() == []


def test_times_are_written_as_in_the_report(browser: Browser, served: str) -> None:
    opened(browser, f"{served}/timeline?run=2")
    times = [0, 812, 25_400, 999_999, 47_299_123, 1_234_567_891, 61_000_000_000]
    shown = browser.script(
        "return arguments[0].map(ns => [gpuscopeTimeline.duration(ns), gpuscopeTimeline.offset(ns)])", times
    )
    assert [tuple(one) for one in shown] == [(units.duration(ns), units.offset(ns)) for ns in times]


def test_a_range_and_its_statistics(browser: Browser, served: str, pair: OpenRun) -> None:
    events = events_of(pair)
    opened(browser, f"{served}/timeline?run=2")
    # From 100 to 300 µs after the first event: rank 0's and rank 1's first kernels run all the time.
    press(browser, "stream 7", events.first + 100_000, until=events.first + 300_000)
    browser.wait(lambda: "compute" in browser.text("#timeline-drawer"))
    panel = browser.text("#timeline-drawer")
    assert "rank 0" in panel
    assert SCRIPT in panel
    low, high = map(int, query(browser)["range"].split(":"))
    assert high - low == pytest.approx(200_000, rel=0.02)
    key(browser, "m")
    browser.wait(lambda: query(browser).get("mark") == query(browser)["range"])
    address = browser.driver.current_url
    opened(browser, address, anew=True)
    assert "compute" in browser.text("#timeline-drawer")
    assert browser.errors() == []


def test_rows_open_close_and_are_pinned_from_the_keyboard(browser: Browser, served: str) -> None:
    opened(browser, f"{served}/timeline?run=2")
    rows = browser.script(f"return {NOW}.layout.map(one => one.text)")
    assert rows[0] == "rank 0"
    assert "Operators and calls" in rows
    key(browser, "Home")
    key(browser, "Enter")  # rank 0 is closed, and shows its busiest stream in its own row
    browser.wait(lambda: query(browser).get("tree") == "r0")
    closed = browser.script(f"return {NOW}.layout.map(one => one.text)")
    assert len(closed) < len(rows)
    key(browser, "Enter")
    browser.wait(lambda: "tree" not in query(browser))
    for _ in range(2):
        key(browser, "ArrowDown")
    assert "stream 7" in browser.text("#timeline-said")
    key(browser, "p")
    browser.wait(lambda: "pin" in query(browser))
    assert browser.script(f"return {NOW}.shownRows()[0].text") == "rank 0 · stream 7"
    key(browser, "ArrowRight")  # the first event of the row
    browser.wait(lambda: "event" in query(browser))
    first = query(browser)["event"]
    browser.wait(lambda: SCRIPT in browser.text("#timeline-drawer"))
    key(browser, "ArrowRight")
    browser.wait(lambda: query(browser)["event"] != first)
    key(browser, "/")
    assert browser.script("return document.activeElement.id") == "timeline-search"
    assert browser.errors() == []


def test_a_row_is_pinned_where_its_name_says_so(browser: Browser, served: str) -> None:
    opened(browser, f"{served}/timeline?run=2")
    click = f"""const t = {NOW}, box = t.canvas.getBoundingClientRect();
        const more = {{clientX: box.left + t.label - 12, clientY: box.top + arguments[0] + 10, bubbles: true,
            pointerId: 1}};
        t.canvas.dispatchEvent(new PointerEvent('pointermove', more));
        const over = t.over;
        t.canvas.dispatchEvent(new PointerEvent('pointerdown', {{...more, button: 0}}));
        return over;"""
    one = row(browser, "stream 7")
    assert browser.script(click, one["top"]) == one["key"]
    browser.wait(lambda: query(browser).get("pin") == str(one["track"]))
    browser.script(click, 0)  # the pinned row is the first now
    browser.wait(lambda: "pin" not in query(browser))


def test_a_search_pales_what_it_does_not_find(browser: Browser, served: str) -> None:
    """Merged pixels too; what is painted stays as opaque, so that it is still the time that was spent."""
    opened(browser, f"{served}/timeline?run=1")
    before = browser.script(f"return {NOW}.painted()")
    shade = f"""const t = {NOW}, codes = [...t.tiles.names].filter(([, name]) => name.includes(arguments[0]));
        return codes.slice(0, 1).map(([code]) => t.colours(0, code).packed)[0]"""
    found, other = browser.script(shade, "aten::mm"), browser.script(shade, "aten::linear")
    browser.type("#timeline-search", "aten::mm")
    browser.wait(lambda: browser.script(shade, "aten::linear") != other)
    assert browser.script(shade, "aten::mm") == found
    after = browser.script(f"return {NOW}.painted()")  # on fewer pixels: the drawer is open
    spent = [[one["ns"] for one in painted["rows"]] for painted in (before, after)]
    assert spent[1] == pytest.approx(spent[0], abs=2 * after["nsPerPixel"])
    browser.script(f"{NOW}.find('')")
    assert browser.script(shade, "aten::linear") == other


def test_labels_are_short_and_searches_look_at_whole_names(browser: Browser, served: str) -> None:
    opened(browser, f"{served}/timeline?run=1")
    labels = browser.script(f"return [...{NOW}.tiles.names].map(([code, name]) => [name, {NOW}.tiles.label(code)])")
    short = {name: label for name, label in labels if name.startswith("autograd::engine::evaluate_function: ")}
    assert short
    assert all(label == name.rpartition(": ")[2] for name, label in short.items())


def test_from_a_finding_to_its_event_and_back(browser: Browser, served: str) -> None:
    browser.open(f"{served}/?run=1", "/")
    browser.find(".finding a.evidence").click()
    browser.drawn("/timeline")
    complete(browser)
    assert "gloo:all_reduce" in browser.text("#timeline-drawer")
    assert "on other ranks" in browser.text("#timeline-drawer")
    labels = browser.script(f"return {NOW}.flows.ranks.map(one => {NOW}.setup.tracks[one.track].label)")
    assert labels == ["training thread"] * 2
    finding = browser.text(".pinned")
    assert "waits" in finding or "late" in finding or "last" in finding, finding
    before = query(browser)["event"]
    partner = browser.driver.find_elements("css selector", "#timeline-selected a.event")[-1]
    assert partner.text.startswith("rank 1 ")
    partner.click()
    browser.wait(lambda: query(browser)["event"] != before)
    browser.wait(lambda: "on rank 1," in browser.text("#timeline-selected"))
    assert browser.text(".pinned") == finding  # still there
    browser.script("[...document.querySelectorAll('.pinned a')].find(a => a.innerText.startsWith('Back')).click()")
    browser.drawn("/")
    assert browser.errors() == []


def test_keys_zoom_where_the_pointer_is(browser: Browser, served: str) -> None:
    """As in Perfetto: what is under the pointer stays there; without a pointer, the middle does."""
    opened(browser, f"{served}/timeline?run=1")
    at = """const t = window.gpuscopeTimeline.current, box = t.canvas.getBoundingClientRect();
        const x = t.label + t.plot * 0.8;
        t.canvas.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + x,
            clientY: box.top + 30, bubbles: true}));
        const before = t.time(x);
        document.body.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}));
        return [before, t.time(x), t.to - t.from];"""
    before, after, width = browser.script(at, "w")
    assert abs(before - after) < width / 1000
    before, after, wider = browser.script(at, "s")
    assert abs(before - after) < wider / 1000
    assert wider == pytest.approx(1.5 * width)
    middle = browser.script(
        f"""const t = {NOW};
        t.canvas.dispatchEvent(new PointerEvent('pointerleave'));
        const before = (t.from + t.to) / 2;
        document.body.dispatchEvent(new KeyboardEvent('keydown', {{key: 'w', bubbles: true}}));
        return [before, (t.from + t.to) / 2];"""
    )
    assert middle[0] == pytest.approx(middle[1])


def test_escape_gives_the_keyboard_back_to_the_timeline(browser: Browser, served: str) -> None:
    opened(browser, f"{served}/timeline?run=2")
    typed(browser, "/")
    browser.wait(lambda: browser.script("return document.activeElement.id") == "timeline-search")
    from selenium.webdriver.common.action_chains import ActionChains

    before = window(browser)
    ActionChains(browser.driver).send_keys("\ue00cw").perform()  # the key of U+E00C is Esc
    browser.wait(lambda: browser.script(f"return document.activeElement === {NOW}.scroller"))
    browser.wait(lambda: window(browser)[1] - window(browser)[0] < before[1] - before[0])
    assert browser.script("return document.querySelector('#timeline-search').value") == ""
    assert browser.errors() == []


def test_enter_in_the_search_goes_from_one_to_the_next(browser: Browser, served: str) -> None:
    opened(browser, f"{served}/timeline?run=2")
    browser.type("#timeline-search", "ncclDev")
    browser.wait(lambda: "4 events" in browser.text("#timeline-found"))
    links = "[...document.querySelectorAll('#timeline-found a.event')]"
    expected = [query_of(browser.script(f"return {links}[{place}].href"))["event"] for place in range(2)]
    seen = []
    for _ in range(2):
        browser.type("#timeline-search", "\n")
        browser.wait(lambda: query(browser).get("event", "") not in ("", *seen))
        seen.append(query(browser)["event"])
    assert seen == expected
    assert browser.errors() == []
