"""What gpuscope's recorder counted in each step of a rank, from the metadata of its trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.trace import Trace


def recorded_steps(trace: Trace, rank: int, key: str) -> dict[int, dict[str, int | None]]:
    """By step, the values of the table under `key` by column; what is no integer is None. Empty where there is none."""
    return next((found for counted in _counted(trace, rank, key) if (found := _by_step(counted))), {})


def recorded_number(trace: Trace, rank: int, key: str, name: str) -> int | None:
    """What stands beside the table under `key` by that name; None where there is no such integer."""
    return next((found for one in _counted(trace, rank, key) if (found := _integer(one.get(name))) is not None), None)


def _counted(trace: Trace, rank: int, key: str) -> Iterator[dict[str, Any]]:
    own = np.flatnonzero(trace["ranks"]["rank"] == rank)
    for source in distinct_values(trace["ranks"]["source"][own]).tolist():
        header = trace.sources[source].facts.get("header")
        counted = header.get(key) if isinstance(header, dict) else None
        if isinstance(counted, dict):
            yield counted


def _by_step(counted: dict[str, Any]) -> dict[int, dict[str, int | None]]:
    columns, rows = counted.get("columns"), counted.get("steps")
    if not isinstance(columns, list) or not isinstance(rows, list) or not all(isinstance(one, str) for one in columns):
        return {}
    found = {}
    for row in rows:
        if isinstance(row, list) and len(row) == len(columns):
            values = {name: _integer(value) for name, value in zip(columns, row, strict=True)}
            if (step := values.pop("step", None)) is not None:
                found[step] = values
    return found


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
