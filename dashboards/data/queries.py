"""SQL over an open run, for the query page and its download."""

from __future__ import annotations

from gpuscope.analyzers.queries.engine import Rows, query
from gpuscope.dashboards.data.open_runs import Runs
from gpuscope.errors import UsageError

MOST_ROWS = 5_000
"""Rows of a table in the browser, and of its CSV."""


def asked(runs: Runs, key: str, sql: str) -> Rows:
    """The answer of a query. Raises `UsageError` where it is refused, or too many are under way."""
    run = runs.named(key)
    if not runs.asking.acquire(timeout=1):  # no thread waits for long: the others go on answering
        raise UsageError("other queries of this dashboard are under way", hint="try again in some seconds")
    try:
        return query(run.queried, sql, MOST_ROWS)
    finally:
        runs.asking.release()
