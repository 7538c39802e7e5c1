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


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Other people's real traces, beside the checkout; they are never part of it."""
    path = ROOT.parent / "shared" / "traces"
    if not path.is_dir():
        pytest.skip("no ../shared/traces beside this checkout")
    return path
