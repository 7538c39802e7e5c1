"""The verdict in one line, and what was analysed in another."""

from __future__ import annotations

from gpuscope.report.schema.document import Report
from gpuscope.report.view import units
from gpuscope.report.view.causes import cause_label
from gpuscope.report.view.units import crop
from gpuscope.report.view.vocabulary import BOUND

NAME = 60
"""Cells of a path or name within a sentence."""


def verdict_line(report: Report) -> str:
    """The verdict in one line; numbers as they stand in the report."""
    verdict = report["verdict"]
    bound_by = verdict["bound_by"]
    if verdict["abstained"] or bound_by is None:
        return "No verdict from this trace"
    share = f"{BOUND[bound_by]}, {units.whole_share(verdict['share_frac'])} of the {whole(report)}"
    # The share is the class's, so it stands before the cause.
    cause = f": {cause_label(verdict['cause'])}" if verdict["cause"] else ""
    return f"{share}{cause} - confidence {verdict['confidence']:.2g}"


def whole(report: Report) -> str:
    """What shares are of."""
    stepped = any(entry["steps"] for entry in report["ranks"]) or (not report["ranks"] and "slowdown" in report)
    return "step" if stepped else "window"


def context_line(report: Report) -> str:
    """What was analysed: ranks, device, window, steps and their basis."""
    entries, trace = report["ranks"], report["trace"]
    present, world = len(trace["ranks_present"]), trace["world_size"]
    pieces = [_files(report)]
    if present:
        pieces.append(f"{present} of {world} ranks" if world and world > present else units.plural(present, "rank"))
    pieces += trace["frameworks"] + [f"{kind} {size}" for kind, size in trace["parallelism"].items()]
    pieces += sorted({crop(entry["device_name"], NAME) for entry in entries if entry["device_name"]})
    steps = sorted({entry["steps"] for entry in entries})
    if entries and not steps[-1]:
        pieces.append("window " + _range([entry["window_ns"] for entry in entries]))
    if steps and steps[-1]:
        number = units.plural(steps[0], "step") if len(steps) == 1 else f"{steps[0]} to {steps[-1]} steps"
        pieces.append(f"{number} of {_step_time(report)}")
        pieces += [f"steps from {crop(report['steps_basis'], NAME)}"] if report["steps_basis"] else []
    elif entries:
        pieces.append("no steps found")
    return " · ".join(pieces)


def _files(report: Report) -> str:
    sources = report["trace"]["sources"]
    formats = ", ".join(sorted({source["format"] for source in sources}))
    which = units.crop_path(sources[0]["path"], NAME) if len(sources) == 1 else units.plural(len(sources), "file")
    return f"{which} ({formats})" if formats else which


def _step_time(report: Report) -> str:
    """The median and, where steps differ visibly, how long nine in ten of them take at most."""
    spread = report["step_time"]
    if spread is None:
        return units.NONE
    median, p90 = units.duration(spread["median_ns"]), units.duration(spread["p90_ns"])
    return median if median == p90 else f"{median} (p90 {p90})"


def _range(times: list[int]) -> str:
    low, high = units.duration(min(times)), units.duration(max(times))
    return low if low == high else f"{low} to {high}"
