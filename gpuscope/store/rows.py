"""From a report to rows of the run store's tables (`tables.py`), without the column `run`."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from gpuscope.averages import whole_mean
from gpuscope.report.view import arrangement
from gpuscope.schema.document import BreakdownEntry, RankEntry, Report, StepEntry
from gpuscope.sources.remote import is_url
from gpuscope.words.vocabulary import PARTS

Row = dict[str, Any]


def real_path(named: str) -> str:
    """One name of a file, from wherever and through whatever links it was named; a URL as it is."""
    return named if is_url(named) else os.path.realpath(named)


def run_row(report: Report) -> Row:
    """What `runs` holds of a report itself."""
    verdict, ranks = report["verdict"], report["ranks"]
    return {
        "gpuscope_version": report["gpuscope_version"],
        "report_version": report["schema_version"],
        "world_size": report["trace"]["world_size"],
        "ranks_present": len(report["trace"]["ranks_present"]),
        **{key: verdict[key] for key in ("bound_by", "cause", "share_frac", "confidence", "abstained", "why")},
        "steps": max((entry["steps"] for entry in ranks), default=0),
        "step_ns": arrangement.step_ns(report),
        "window_ns": whole_mean(entry["window_ns"] for entry in ranks),
    }


def section_rows(report: Report) -> dict[str, list[Row]]:
    """The rows of every table but `runs`."""
    return {
        "sources": [
            {"path": real_path(entry["path"]), **_pick(entry, "format", "format_version", "rank", "events")}
            for entry in report["trace"]["sources"]
        ],
        "ranks": [_rank(entry) for entry in report["ranks"]],
        "steps": _steps(report["steps"]),
        "causes": [row for entry in report["ranks"] for row in _causes(entry)],
        "findings": [
            {
                "position": at,
                **_pick(entry, "code", "severity", "message", "cost_ns_per_step", "share_frac"),
                "ranks": json.dumps(entry["ranks"]),
            }
            for at, entry in enumerate(report["findings"])
        ],
        "suggestions": [
            {
                "position": at,
                **_pick(entry, "code", "finding", "action"),
                **{f"setting_{key}": value for key, value in _pick(entry["setting"], "kind", "name", "value").items()},
                **_pick(entry["predicted"], "step_ns_before", "step_ns_after", "low_ns", "high_ns", "basis"),
            }
            for at, entry in enumerate(report["suggestions"])
        ],
        "collectives": [
            {
                **_pick(entry, "op", "count", "bytes", "dur_ns", "wait_ns", "transfer_ns", "algbw_gbps", "busbw_gbps"),
                "group_name": entry["group"],
            }
            for entry in report["collectives"]
        ],
        "kernels": _only(report["kernels"], "name", "category", "count", "dur_ns", "share_frac"),
        "stragglers": _only(report["stragglers"], "rank", "caused_wait_ns", "phase", "recurrent"),
        "problems": _only(report["problems"], "severity", "code", "count", "message"),
    }


def _pick(entry: Mapping[str, Any], *keys: str) -> Row:
    return {key: entry[key] for key in keys}


def _only(entries: Sequence[Mapping[str, Any]], *keys: str) -> list[Row]:
    return [_pick(entry, *keys) for entry in entries]


def _rank(entry: RankEntry) -> Row:
    keys = ("rank", "device", "device_name", "window_ns", "steps")
    communication = ("communication_ns", "overlapped_communication_ns", "overlap_frac")
    return {**_pick(entry, *keys, *communication), **_parts([entry["breakdown_ns"]])}


def _parts(breakdowns: Sequence[BreakdownEntry]) -> Row:
    return {f"{part.key}_ns": whole_mean(breakdown[part.key] for breakdown in breakdowns) for part in PARTS}


def _steps(entries: Sequence[StepEntry]) -> list[Row]:
    by_step: dict[int, list[StepEntry]] = defaultdict(list)
    for entry in entries:
        if entry["step"] is not None:
            by_step[entry["step"]].append(entry)
    rows = []
    for step, own in sorted(by_step.items()):
        times = [entry["dur_ns"] for entry in own]
        rows.append(
            {
                "step": step,
                "ranks": len({entry["rank"] for entry in own}),
                "dur_ns": whole_mean(times),
                "dur_min_ns": min(times),
                "dur_max_ns": max(times),
                **_parts([entry["breakdown_ns"] for entry in own]),
            }
        )
    return rows


def _causes(entry: RankEntry) -> list[Row]:
    stalls, where = entry["stall_ns"], _pick(entry, "rank", "device")
    named: list[tuple[str | None, Mapping[str, int]]] = [
        ("cpu", stalls["cpu"]),
        ("communication", stalls["communication"]),
        ("memory", stalls["memory"]),
        (None, {"unattributed": stalls["unattributed"]}),
    ]
    return [
        {**where, "class": class_name, "cause": cause, "dur_ns": ns}
        for class_name, causes in named
        for cause, ns in causes.items()
        if ns
    ]
