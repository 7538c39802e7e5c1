"""Runs and a served dashboard for all tests of the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("dash")
pytest.importorskip("waitress")

from helpers.dashboards import serve
from helpers.pair import write_pair

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.data.open_runs import OpenRun, Runs, open_run


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    """The run of `write_pair`."""
    return open_run("2", str(write_pair(tmp_path_factory.mktemp("pair"))), Options())


@pytest.fixture(scope="session")
def slow_rank(samples: Path) -> OpenRun:
    """A CPU run of ours on gloo, whose rank 1 is slow."""
    return open_run("1", str(samples / "ddp_slow_rank"), Options())


@pytest.fixture(scope="session")
def served(slow_rank: OpenRun, pair: OpenRun) -> Iterator[str]:
    """The address of a dashboard of both runs."""
    yield from serve(Runs([slow_rank, pair]))
