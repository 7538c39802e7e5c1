"""Summary statistics of a run's steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def percentile(sorted_values: Sequence[int], fraction: float) -> int:
    """The smallest value that at least `fraction` of the values do not exceed (nearest rank).

    >>> percentile([10, 20, 30, 40], 0.5)
    20
    """
    return sorted_values[max(0, math.ceil(fraction * len(sorted_values)) - 1)]


def summarize(records: Sequence[dict[str, Any]], ranks: int = 1) -> dict[str, Any]:
    """Step-time percentiles in ns, and the sums and means of the other measures.

    The first step after a (re)start (compiling, allocating, connecting) is left out if there are others. Joules per
    token are of a job whose `ranks` all draw as much as this one.
    """
    if not records:
        return {"steps": 0}
    steady = [record for record in records if not record["first"]] or list(records)
    times = sorted(record["step_ns"] for record in steady)
    total = sum(times)
    return {
        "steps": len(records),
        "step_ns": {name: percentile(times, share) for name, share in _PERCENTILES.items()},
        "tokens_per_s": sum(record["tokens"] for record in steady) / total * 1e9,
        "mfu": _mean(steady, "mfu"),
        "data_wait_frac": sum(record["data_wait_ns"] for record in steady) / total,
        "exposed_communication_frac": _share(steady, "exposed_communication_ns", total),
        "gc_ns": sum(record["gc_ns"] for record in records),
        "checkpoint_ns": sum(record["checkpoint_ns"] for record in records),
        "peak_allocated_bytes": _largest(records, "peak_allocated_bytes"),
        "peak_reserved_bytes": _largest(records, "peak_reserved_bytes"),
        "peak_host_bytes": _largest(records, "peak_host_bytes"),
        "allocator_retries": _largest(records, "allocator_retries"),
        "ooms": _largest(records, "ooms"),
        "joules": _sum(records, "joules"),
        "joules_per_token": _per_token(steady, ranks),
        "goodput": records[-1]["goodput"],
        "last_loss": next((r["loss"] for r in reversed(records) if r["loss"] is not None), None),
    }


_PERCENTILES = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def _known(records: Sequence[dict[str, Any]], key: str) -> list[Any]:
    return [record[key] for record in records if record[key] is not None]


def _mean(records: Sequence[dict[str, Any]], key: str) -> float | None:
    values = _known(records, key)
    return sum(values) / len(values) if values else None


def _sum(records: Sequence[dict[str, Any]], key: str) -> float | None:
    values = _known(records, key)
    return sum(values) if values else None


def _per_token(records: Sequence[dict[str, Any]], ranks: int) -> float | None:
    known = [record for record in records if record["joules"] is not None]
    tokens = sum(record["tokens"] for record in known)
    return ranks * sum(record["joules"] for record in known) / tokens if tokens else None


def _largest(records: Sequence[dict[str, Any]], key: str) -> int | None:
    return max(_known(records, key), default=None)


def _share(records: Sequence[dict[str, Any]], key: str, total: int) -> float | None:
    values = _known(records, key)
    return sum(values) / total if values else None
