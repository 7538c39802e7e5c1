"""Fixtures for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
os.environ["GPUSCOPE_NO_STORE"] = "1"  # no test writes into the user's own run store


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
    assert SHARED.is_dir()
    return SHARED


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without those traces nothing can be said of them: their tests are left out, and the summary says so.

    What gpuscope does with such traces is tested on synthetic and on our own ones as well.
    """
    if SHARED.is_dir():
        return
    theirs = [item for item in items if "shared_traces" in getattr(item, "fixturenames", ())]
    items[:] = [item for item in items if item not in set(theirs)]
    config.hook.pytest_deselected(items=theirs)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Said once, whoever collected."""
    if not SHARED.is_dir():
        terminalreporter.write_line(
            "left out: the tests of other people's traces (no ../shared/traces beside this checkout)"
        )
