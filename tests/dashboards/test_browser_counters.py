"""Counters of links in a real browser: painted as high as they were, and told under the pointer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.browser import Browser
from helpers.dashboards import serve
from helpers.link_counters import export

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.data.open_runs import Runs, open_run

pytestmark = pytest.mark.xdist_group("browser")

NOW = "window.gpuscopeTimeline.current"


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = export(tmp_path_factory.mktemp("counters"))
    yield from serve(Runs([open_run("1", str(path), Options())]))


def test_a_counter_is_as_high_as_it_was(browser: Browser, counted: str) -> None:
    """NVLink at 10, 90 and 0 % for a millisecond each."""
    browser.open(f"{counted}/timeline?run=1&tree=r0.links", "/timeline")
    browser.wait(lambda: browser.script(f"return {NOW}?.root.isConnected && {NOW}.complete()"))
    labels = browser.script(f"return {NOW}.shownRows().map(one => one.text)")
    assert "NVLink TX Responses User Data [Throughput %]" in labels
    assert "NIC mlx5_0: Bytes sent" in labels
    means = browser.script(
        f"""
        const t = {NOW}, shown = t.shownRows();
        const place = shown.findIndex(one => one.text.startsWith('NVLink'));
        const {{ curves, nsPerPixel }} = gpuscopeTimeline.raster(t, shown, 1);
        const at = us => curves.get(place).mean[Math.round((us * 1000 - t.from) / nsPerPixel)];
        return [at(500), at(1500), at(2500)];"""
    )
    assert means == pytest.approx([0.1, 0.9, 0], abs=1e-3)
    said = browser.script(
        f"""
        const t = {NOW}, row = t.shownRows().find(one => one.text.startsWith('NVLink'));
        const box = t.canvas.getBoundingClientRect();
        t.canvas.dispatchEvent(new PointerEvent('pointermove',
            {{clientX: box.left + t.x(1500000), clientY: box.top + row.top + 8, bubbles: true}}));
        return t.tip.innerText;"""
    )
    assert "90 %" in said
    assert browser.errors() == []
