"""SQL over an open run, for the query page, its download, and the timeline."""

from __future__ import annotations

from gpuscope.analyzers.queries.engine import Rows, query
from gpuscope.dashboards.data.open_runs import Runs
from gpuscope.errors import UsageError

MOST_ROWS = 5_000
"""Rows of a table in the browser, and of its CSV."""
Place = tuple[int, int, int]
"""Rank, start and end; ns on the timeline's clock."""
_FAR = 1 << 61


def asked(runs: Runs, key: str, sql: str) -> Rows:
    """The answer of a query. Raises `UsageError` where it is refused, or too many are under way."""
    run = runs.named(key)
    if not runs.asking.acquire(timeout=1):  # no thread waits for long: the others go on answering
        raise UsageError("other queries of this dashboard are under way", hint="try again in some seconds")
    try:
        return query(run.queried, sql, MOST_ROWS)
    finally:
        runs.asking.release()


def places(found: Rows) -> list[Place | None]:
    """Where each row is that has `rank` and `start_ns`: up to its `end_ns`, or for its `dur_ns`, else an instant."""
    names = {name.lower(): place for place, name in enumerate(found.columns)}
    if not {"rank", "start_ns"} <= set(names):
        return [None] * len(found.rows)
    rank, start, end, length = (names.get(name) for name in ("rank", "start_ns", "end_ns", "dur_ns"))
    assert rank is not None
    assert start is not None
    made: list[Place | None] = []
    for row in found.rows:
        begin = row[start]
        if not isinstance(row[rank], int) or not isinstance(begin, int) or abs(begin) > _FAR:
            made.append(None)
            continue
        until = row[end] if end is not None else begin + (row[length] or 0) if length is not None else begin
        made.append((row[rank], begin, until if isinstance(until, int) and begin <= until < _FAR else begin))
    return made
