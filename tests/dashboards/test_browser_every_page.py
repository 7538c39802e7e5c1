"""Seven runs × nine pages × two sizes × two themes, each loaded by itself: 252 page loads, minutes.

`pytest -n 0 -m every_page tests/dashboards`; with GPUSCOPE_SCREENSHOTS=FOLDER, a picture of each page is left there.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import needs
from helpers.browser import Browser
from helpers.dashboards import serve

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.data.open_runs import Runs, open_run
from gpuscope.dashboards.ui import pages

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.every_page]

OURS = ("ddp_slow_rank", "pp_unbalanced_stage")
OTHERS = (
    "kineto/hta_2_of_128",
    "nsys/nsys-ai/mfu_2gpu_before.sqlite",
    "memory/wedsonlin_medium_1024_training.pickle",
    "ascend/level0",
    "straggler/trace-ST.parquet",
)
SIZES = ((1400, 1000), (700, 900))
NO_BLANK_PANEL = """return [...document.querySelectorAll('main .mantine-Paper-root')].every(panel =>
    panel.querySelector('.main-svg, .ag-row, table, p, li, input') || panel.innerText.trim().length > 20)"""
COMPLETE = "const t = window.gpuscopeTimeline?.current; return !t?.root.isConnected || t.complete()"
NOT_WIDER = "return document.documentElement.scrollWidth <= innerWidth"
CUT_OFF = """const texts = 'h2, h3, p, a, button, td, th'.split(', ').map(one => `main ${one}:not(.hidden)`).join(', ');
    return [...document.querySelectorAll(texts)].filter(one => {
        const style = getComputedStyle(one);
        return one.scrollWidth > one.clientWidth + 2 && one.clientWidth > 0 && style.overflowX !== 'visible'
            && style.textOverflow !== 'ellipsis';
    }).map(one => one.outerHTML.slice(0, 200))"""
"""Text whose box is too small for it, with no sign of it."""


@pytest.fixture(scope="module")
def seven(shared_traces: Path, samples: Path) -> Iterator[str]:
    """A dashboard of the seven runs."""
    paths = [*(samples / name for name in OURS), *(shared_traces / name for name in OTHERS)]
    yield from serve(Runs([open_run(str(n), str(path), Options()) for n, path in enumerate(paths, 1)]))


@pytest.mark.parametrize("run", range(1, 8))
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES, ids=["wide", "narrow"])
def test_every_page(browser: Browser, seven: str, run: int, scheme: str, size: tuple[int, int]) -> None:
    """No complaint of the console or of axe-core, nothing blank, nothing wider than the screen, nothing cut off."""
    if not browser.axe:
        pytest.skip(f"no axe_core_python; {needs.EXTRAS}")
    browser.errors()
    wrong = []
    with browser.device(*size, scheme=scheme):
        for page in pages():
            browser.open(f"{seven}{page.path}?run={run}", page.path, anew=True)
            wrong += [f"{page.path}: {one}" for one in _complaints(browser, scheme)]
            _keep(browser, f"run{run}-{page.path.strip('/') or 'overview'}-{scheme}-{size[0]}")
    assert wrong == []


def _complaints(browser: Browser, scheme: str) -> list[str]:
    """What is wrong with the page that is shown."""
    found = []
    if browser.script("return document.documentElement.dataset.mantineColorScheme") != scheme:
        found.append("not in the system's scheme")
    if "can't be drawn" in browser.text():
        found.append("can't be drawn")
    for what, script in (
        ("a blank panel", NO_BLANK_PANEL),
        ("wider than the screen", NOT_WIDER),
        ("an unfinished timeline", COMPLETE),
    ):
        try:
            browser.wait(lambda script=script: browser.script(script), 5)
        except AssertionError:
            found.append(what)
    return found + browser.script(CUT_OFF) + browser.violations() + browser.errors()


def _keep(browser: Browser, name: str) -> None:
    folder = os.environ.get("GPUSCOPE_SCREENSHOTS")
    if folder:
        shot = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
