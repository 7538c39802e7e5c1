"""Fixtures for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
os.environ["GPUSCOPE_NO_STORE"] = "1"  # no test writes into the user's own run store
os.environ["GPUSCOPE_NO_CACHE"] = "1"  # nor into their cache, unless it is what is tested


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
        pytest.skip("no ../shared/traces beside this checkout")
    return SHARED


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """xdist's groups, where they are asked for."""
    if getattr(config.option, "loadgroup", False):
        _name_groups(items)


def _name_groups(items: list[pytest.Item]) -> None:
    """Write `xdist_group` into the ids, which is how pytest-xdist knows that tests share a worker.

    pytest-xdist 3.8 does so itself, in an attribute that pytest 9.2 no longer reads: groups would silently be ignored,
    and every run that tests share be recorded once per worker.
    """
    for item in items:
        groups = "_".join(sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")}))
        if groups and hasattr(item, "_id") and not item.nodeid.endswith(f"@{groups}"):
            item._id = type(item._id).parse(f"{item.nodeid}@{groups}")
