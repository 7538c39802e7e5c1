"""What rules on NCCL ask of a report: variables, versions, the costliest operation, what its links could carry."""

from __future__ import annotations

from collections.abc import Collection

from gpuscope.analyzers.advice.rule import Case
from gpuscope.schema.nccl_sections import BandwidthEntry

_BETWEEN = "network port"
"""What the link of a group over several hosts is called."""


def costliest(case: Case, ops: Collection[str] = ()) -> BandwidthEntry | None:
    """The operation, group and size of the trace that takes most time; among `ops`, where any are given."""
    rows = [row for row in case.report.get("bandwidth", ()) if row["tool"] == "trace" and (not ops or row["op"] in ops)]
    return max(rows, key=lambda row: row["dur_ns"] * row["count"], default=None)


def variable(case: Case, name: str) -> str | None:
    """A variable's value as NCCL's log says it was set."""
    logged = case.report["nccl"]["environment"] if "nccl" in case.report else []
    return next((one["value"] for one in logged if one["name"] == name), None)


def older_than(case: Case, version: tuple[int, ...]) -> str:
    """A logged version of NCCL that is older than that; empty where none is, or none is logged."""
    logged = case.report["nccl"]["versions"] if "nccl" in case.report else []
    return next((one for one in logged if (numbers := _numbers(one)) and numbers < version), "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdecimal())


def line_rates(case: Case, between: bool | None = None) -> tuple[tuple[int, float], ...]:
    """By number of ranks, the line rate in GB/s of what links the groups of the trace, where it is known; `between`
    keeps those over several hosts, or those within one."""
    found = {
        row["group_size"]: row["peak_gbps"]
        for row in case.report.get("bandwidth", ())
        if row["tool"] == "trace"
        and row["peak_gbps"] is not None
        and (between is None or between == (_BETWEEN in (row["link"] or "")))
    }
    return tuple(sorted(found.items()))
