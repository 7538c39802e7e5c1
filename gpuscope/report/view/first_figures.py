"""The figures that stand side by side on the first screen, and the card of the change that it names."""

from __future__ import annotations

from typing import Any

from gpuscope.catalogue.prediction_sentences import bound_change, bound_share, doubt, gain, is_copied, setting_words
from gpuscope.report.view import report_rows
from gpuscope.report.view.first_lines import FirstLines
from gpuscope.report.view.headline import changed, summands, whole
from gpuscope.schema.call_tree_section import IdealEntry
from gpuscope.schema.document import Report, SuggestionEntry, UnpredictedEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.vocabulary import BOUND

# How far a step is from an ideal one, in words: the same for the terminal and HTML.

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


@dataclass(frozen=True)
class Figure:
    """One number with what it is, and what stands beside it."""

    label: str
    value: str
    note: str


def first_figures(report: Report, lines: FirstLines) -> list[Figure]:
    """At most four; what the recording does not tell is left out."""
    found = [_now(report), _after(lines), *_verdict(report, lines)]
    return [one for one in found if one is not None]


def _now(report: Report) -> Figure | None:
    if (step := report["step_time"]) is not None:
        spread = units.span(step["min_ns"], step["max_ns"], "–")
        many = units.plural(step["steps"], "step")
        note = f"{spread} in {many}" if step["steps"] > 1 else f"of {many}"
        return Figure("Step now", units.duration(step["median_ns"]), note)
    if report["ranks"]:
        longest = max(entry["window_ns"] for entry in report["ranks"])
        return Figure("Window", units.duration(longest), "no steps were found")
    entry = report_rows.leading(report.get("memory", []))
    if entry is None:
        return None
    reserved = entry["peak_reserved_bytes"]
    note = f"{units.memory(reserved)} reserved" if reserved else "in use"
    return Figure("Peak of memory", units.memory(entry["peak_allocated_bytes"]), note)


def _signed(frac: float, digits: int) -> str:
    return f"{'−' if frac < 0 else '+'}{100 * abs(frac):.{digits}f} %"


def _after(lines: FirstLines) -> Figure | None:
    told: Any = lines.told
    if told is not None and "memory_bound" in told:
        return Figure(
            "After the change", f"≥ {units.memory(told['memory_bound']['peak_bytes_low'])}", "if all is saved"
        )
    one = changed(told)
    if told is None or one is None:
        return None
    frac = one.after / one.before - 1
    if one.bound:
        return Figure("At best", units.duration(one.after), f"{_signed(frac, 0)} at most; not replayed")
    spread = units.span(one.low, one.high, "–")
    return Figure(
        "After the fix" if lines.label == "fix" else "After the change",
        units.duration(one.after),
        f"{spread}, {_signed(frac, 1)}{doubt(told.get('certain', True))}",
    )


def _verdict(report: Report, lines: FirstLines) -> list[Figure]:
    verdict = report["verdict"]
    if verdict["abstained"] or verdict["bound_by"] is None:
        return []
    of = " + ".join(summands(report)) or f"of the {whole(report)}"
    of += ", mean of ranks" if len(report["ranks"]) > 1 else ""
    return [
        Figure(BOUND[verdict["bound_by"]], units.share(verdict["share_frac"]), of),
        Figure("Confidence in the verdict", f"{verdict['confidence']:.2g}", lines.grounds),
    ]


@dataclass(frozen=True)
class FixCard:
    """The change of the first lines, or what to record."""

    title: str
    action: str
    setting: str
    """With the present value, where it is known; empty where nothing is set."""
    typed: str
    """The new one alone, to copy; empty where it is in words."""
    rows: list[tuple[str, str]]


TITLES = {"fix": "The fix", "try": "Worth a try", "next": "Next"}


def fix_card(lines: FirstLines) -> FixCard | None:
    """None where nothing is known to do."""
    told, title = lines.told, TITLES[lines.label]
    if told is None:
        return FixCard(title, lines.fix[:1].upper() + lines.fix[1:], "", "", []) if lines.fix else None
    rows = [("gain", gain_of(told)), ("not replayed", told.get("why_not", ""))]
    rows += [("risk", told.get("risk", "")), ("verify", told.get("verify", ""))]
    typed = setting_words(told)
    return FixCard(
        title,
        told["action"],
        setting_words(told, now=True),
        typed if is_copied(typed) else "",
        [(label, str(text)) for label, text in rows if text],
    )


def gain_of(told: SuggestionEntry | UnpredictedEntry) -> str:
    """What the change of the first lines gains, in words; empty where nobody knows."""
    found: Any = told  # which of the two it is, its keys tell
    if "bound" in found:
        return f"{bound_share(found['bound'])}: {bound_change(found['bound'])}"
    if "memory_bound" in found:
        return f"at most {report_rows.saving(found)}: {found['memory_bound']['basis']}"
    if "predicted" not in found:
        return ""
    basis: str = found["predicted"]["basis"]
    return f"{gain(found)}; {basis}" if found["predicted"]["step_ns_before"] else basis
