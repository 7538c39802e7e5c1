"""How far a step is from an ideal one, in words: the same for the terminal and HTML."""

from __future__ import annotations

from gpuscope.report.view.headline import whole
from gpuscope.schema.compute_section import IdealEntry
from gpuscope.schema.document import Report
from gpuscope.words import units

SHOWN = 4
"""Places where most is left to gain."""
LEAST = 0.01
"""Share of the step from which such a place is named."""


def ideal_of(report: Report) -> IdealEntry | None:
    """The rank that is furthest from its ideal step; None where no kernels were recorded or the trace is not judged."""
    if report["verdict"]["abstained"]:
        return None
    return max(report.get("ideal", []), key=_distance, default=None)


def _distance(entry: IdealEntry) -> int:
    return -1 if entry["ideal_ns"] is None else entry["step_ns"] - entry["ideal_ns"]


def ideal_lines(report: Report) -> list[str]:
    """What an ideal step would take, and where this one is furthest from it, a sentence each; empty where unknown."""
    entry = ideal_of(report)
    if entry is None:
        return []
    of_rank = f" (rank {entry['rank']})" if len(report["ranks"]) > 1 else ""
    if entry["ideal_ns"] is None:
        return [f"{_untold(report, entry, whole(report))}."]
    where = furthest(entry)
    return [
        f"{ideal_step(entry, whole(report), entry['ideal_ns'])}{of_rank}.",
        *([f"Furthest from it: {where}."] if where else []),
    ]


def _untold(report: Report, entry: IdealEntry, unit: str) -> str:
    """Why nothing is said of an ideal step, and whose work is not known."""
    unknown = 1 - entry["known_frac"]
    if unknown >= MOST_UNKNOWN:
        named = f" ({', '.join(entry['unknown'])})" if entry.get("unknown") else ""
        return f"Ideal {unit} unknown: the work of {units.share(unknown)} of the kernel time is not known{named}"
    why = next((one["why"] for one in report.get("compute", []) if one["rank"] == entry["rank"] and one["why"]), "")
    cached = "what most kernels read and write fits the device's last-level cache, so that it sets them no floor"
    return f"Ideal {unit} unknown: {why or cached}"


MOST_UNKNOWN = 0.5
"""Share of the kernels' time from which unknown work is the reason."""


def ideal_step(entry: IdealEntry, unit: str, ideal_ns: int) -> str:
    """What an ideal step takes and what that rests on; `unit` is «step» or «window»."""
    known = entry.get("bounded_frac", entry["known_frac"])
    kernels = (
        "kernels at the device's peak"
        if known >= 0.995
        else f"kernels at the device's peak, where their work sets a floor ({units.share(known)} of their time)"
    )
    communication = entry["communication_ns"]
    linked = ", collectives at link speed beside them" if communication else ""
    hidden = ", collectives hidden" if communication is None else ""
    return (
        f"An ideal {unit} would take {units.duration(ideal_ns)} of {units.duration(entry['step_ns'])} "
        f"({units.share(ideal_ns / entry['step_ns'])}): {kernels}{linked}{hidden}, nothing idle"
    )


def furthest(entry: IdealEntry) -> str:
    """Where the difference lies, the largest first; empty where it lies nowhere."""
    parts = [part for part in entry["parts"] if part["dur_ns"] - part["ideal_ns"] >= LEAST * entry["step_ns"]][:SHOWN]
    return ", ".join(
        f"{part['name']} {units.duration(part['dur_ns'])} → {units.duration(part['ideal_ns'])}" for part in parts
    )
