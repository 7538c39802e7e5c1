"""What is shared of a timeline: pictures of what is on the screen, and a file that shows the same without a server."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.browser import Browser
from helpers.dashboards import viewer

from gpuscope.dashboards.data.open_runs import OpenRun
from gpuscope.dashboards.shared_view import shared_page

pytestmark = pytest.mark.xdist_group("browser")

NOW = "window.gpuscopeTimeline.current"
SAVED = """
const [kind, done] = arguments, made = URL.createObjectURL, click = HTMLAnchorElement.prototype.click;
let blob = null;
URL.createObjectURL = (one) => made.call(URL, blob = one);
HTMLAnchorElement.prototype.click = function () {
  [URL.createObjectURL, HTMLAnchorElement.prototype.click] = [made, click];
  const reader = new FileReader();
  reader.onload = () => done([this.download, reader.result]);
  reader.readAsDataURL(blob);
};
document.querySelector(`[data-picture=${kind}]`).click();"""
NAMES = f"""
const found = {{}};
for (const row of {NOW}.shownRows()) if (row.track >= 0) {{
  found[row.track] = [];
  {NOW}.visible(row.track, (one) => found[row.track].push([one.start, one.end, {NOW}.tiles.names.get(one.name)]));
}}
return JSON.stringify(found);"""


def complete(browser: Browser) -> None:
    browser.wait(lambda: browser.script(f"return {NOW}?.root.isConnected && {NOW}.complete()"))


def saved(browser: Browser, kind: str) -> bytes:
    name, data = browser.driver.execute_async_script(SAVED, kind)
    assert name == f"timeline.{kind}"
    return base64.b64decode(data.partition(",")[2])


def test_share_a_picture(browser: Browser, served: str) -> None:
    browser.open(f"{served}/timeline", "/timeline")
    complete(browser)
    saved(browser, "png")  # says so below the timeline, for which the page may need a scroll bar
    browser.wait(lambda: browser.text(".timeline-said"))
    width, height = browser.script(f"return [{NOW}.label + {NOW}.plot, {NOW}.height]")
    png = saved(browser, "png")
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") == width
    assert height < int.from_bytes(png[20:24], "big") < height + 120
    drawing = ElementTree.fromstring(saved(browser, "svg"))
    assert drawing.get("width") == str(width)
    texts = {"".join(one.itertext()) for one in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert {"rank 0", "rank 1", "gloo:all_reduce"} <= texts
    # Each row's boxes cover what its pixels cover.
    painted = [row["ns"] for row in browser.script(f"return {NOW}.painted()")["rows"] if row["track"] >= 0]
    scale = browser.script(f"return ({NOW}.to - {NOW}.from) / {NOW}.plot")
    boxes: dict[str, float] = {}
    for one in drawing.iter("{http://www.w3.org/2000/svg}rect"):
        if one.get("fill-opacity") or (one.get("height") in ("16", "10") and not one.get("opacity")):
            key = one.get("y", "")
            boxes[key] = boxes.get(key, 0) + float(one.get("width", "0")) * float(one.get("fill-opacity", "1")) * scale
    for ns in painted:
        assert any(abs(ns - found) <= 0.01 * ns + 2 * scale for found in boxes.values())
    assert browser.errors() == []


def test_a_shared_file_shows_the_same_events(browser: Browser, served: str, slow_rank: OpenRun, tmp_path: Path) -> None:
    browser.open(f"{served}/timeline", "/timeline")
    complete(browser)
    middle = browser.script(f"return {NOW}.from + ({NOW}.to - {NOW}.from) / 3")
    browser.script(f"{NOW}.show(arguments[0], arguments[0] + 2e6)", middle)
    complete(browser)
    live = json.loads(browser.script(NAMES))
    address = browser.script(f"return window.gpuscopeTimeline.share({NOW}, '/download/1/view.html')")
    answer = viewer(slow_rank).get(address)
    assert answer.status_code == 200
    assert "of-the-tests" not in answer.text  # the token
    file = tmp_path / "timeline.html"
    file.write_bytes(answer.data)
    browser.driver.get(file.as_uri())
    complete(browser)
    shared = json.loads(browser.script(NAMES))
    assert {name for rows in live.values() for *_, name in rows}
    for track, rows in live.items():
        # Its window is as wide in other pixels: what either shows by itself the other has, but for the shortest.
        long = [one for one in rows if one[1] - one[0] > 20_000]
        assert all(one in shared[track] for one in long), track
    browser.type("#timeline-search", "all_reduce")
    browser.wait(lambda: browser.script(f"return {NOW}.search") == "all_reduce")
    assert browser.errors() == []


def test_a_shared_file_is_bounded_and_tells_nothing_in_markup(
    slow_rank: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = viewer(slow_rank)
    whole = client.get("/download/1/view.html", query_string={"tracks": "0-5"})
    monkeypatch.setattr(shared_page, "MOST_BYTES", 0)
    least = client.get("/download/1/view.html", query_string={"tracks": "0-5"})
    assert len(least.data) < len(whole.data)
    told = whole.text.partition('id="told">')[2].partition("</script>")[0]
    assert json.loads(told)["answers"]
    assert "<" not in told
    for wrong in ("", "0-99999", "x", "5-0"):
        assert client.get("/download/1/view.html", query_string={"tracks": wrong}).status_code == 400
