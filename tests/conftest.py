"""Fixtures for every test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import needs
from helpers.browser import Browser
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
os.environ["GPUSCOPE_NO_STORE"] = "1"  # no test writes into the user's own run store
os.environ["GPUSCOPE_NO_CACHE"] = "1"  # nor into their cache, unless it is what is tested
for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")  # every worker and every rank has its own core, if any


# A machine shared with other work is slow at times; no test judges time.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def samples() -> Path:
    """Traces this project recorded itself."""
    return ROOT / "sample_traces"


SHARED = ROOT.parent / "shared" / "traces"


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Other people's real traces, beside the checkout; they are never part of it."""
    if not SHARED.is_dir():
        pytest.skip(needs.PUBLIC_TRACES)
    return SHARED


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a worker."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip(needs.CHROMIUM)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for switch in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,1000"):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield Browser(started)
    finally:
        started.quit()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was skipped and what to install for it, before pytest's own closing line."""
    skipped = terminalreporter.stats.get("skipped", [])
    for line in needs.skipped_lines(report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)):
        terminalreporter.write_line(line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """xdist's groups, where they are asked for."""
    if getattr(config.option, "loadgroup", False):
        _name_groups(items)


def _name_groups(items: list[pytest.Item]) -> None:
    """Write `xdist_group` into the ids, which is how pytest-xdist knows that tests share a worker.

    pytest-xdist 3.8 does so itself, in an attribute that pytest 9.2 no longer reads: groups would silently be ignored,
    and every run that tests share be recorded once per worker. Tests that record with nsys are a group too: two of its
    sessions at once can end one of them.
    """
    for item in items:
        named = {str(mark.args[0]) for mark in item.iter_markers("xdist_group")}
        groups = "_".join(sorted(named or {mark.name for mark in item.iter_markers("nsys")}))
        if groups and hasattr(item, "_id") and not item.nodeid.endswith(f"@{groups}"):
            item._id = type(item._id).parse(f"{item.nodeid}@{groups}")
