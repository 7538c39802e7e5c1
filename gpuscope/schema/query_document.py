"""What `gpuscope query --json` prints."""

from __future__ import annotations

from gpuscope.when_used import TypedDict


class QueryDocument(TypedDict):
    """The answer to one `SELECT`."""

    columns: list[str]
    """Names of the columns."""
    rows: list[list[int | float | str | None]]
    """The rows, a value for each column."""
    more: bool
    """Whether there were more rows than asked for."""
