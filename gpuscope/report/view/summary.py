"""What the first screen says, for terminal and page alike: the first lines, the largest causes, the other changes, and
what else limits the verdict. Put together from the report; nothing is measured here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gpuscope.catalogue.cause import UNATTRIBUTED, UNDIVIDED_COMMUNICATION
from gpuscope.catalogue.finding import shows
from gpuscope.catalogue.prediction_sentences import bound_share, gain_share, setting_words
from gpuscope.catalogue.straggler_sentences import late_in
from gpuscope.catalogue.suggestion import BY_CODE, cause_words
from gpuscope.report.view import main_finding, report_rows
from gpuscope.report.view.first_lines import FirstLines, first_lines
from gpuscope.report.view.headline import culprits, most_beside, on_cpu, verdict_words
from gpuscope.schema.document import FindingEntry, RankEntry, Report, SuggestionEntry, UnpredictedEntry
from gpuscope.schema.provenance import Prediction
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.vocabulary import PARTS

SHOWN = 3
"""Causes and changes on the first screen."""
RANKS_SHOWN = 8
"""Up to so many ranks have a bar each; of more, these do: least compute, median, most, and those that findings name."""
NAMED_RANKS = 2
LATE = 16
"""Cells of the longest name of what a late rank does when it falls behind; a longer one is left out."""
LIMITS = 3


@dataclass(frozen=True)
class CauseLine:
    """One cause: its words, what it costs, and where or by whom."""

    label: str
    part: str
    """The part of the breakdown that it is a share of, as bars and tables call it."""
    cost_ns: int
    share_frac: float
    where: str
    is_name: bool
    """Whether that is a name, which may be cropped."""


@dataclass(frozen=True)
class ChangeLine:
    """One change; `predicted` is None where its gain is not estimated."""

    setting: str
    """From the present value to the new one, where that is known."""
    typed: str
    """The new one alone, to copy."""
    action: str
    predicted: Prediction | None
    certain: bool
    """Whether the whole range is a gain."""
    saves: str = ""
    """What it saves of the peak of memory at most, where a snapshot bounds that."""
    bound: str = ""
    """`up to 33 %`, where its gain is bounded and no more."""
    whose: str = ""
    """The snapshot it is for, where there are several."""


@dataclass(frozen=True)
class RankLine:
    """One bar. `note` says why this rank is shown where others are folded, `late` that others wait for it."""

    label: str
    note: str
    entry: RankEntry
    step_ns: int | None
    late: bool = False


@dataclass(frozen=True)
class Summary:
    """The first screen."""

    lines: FirstLines
    verdict: str
    """Class, its share and the causes that add up to it."""
    ranks: list[RankLine]
    folded: int
    """Ranks that have no bar."""
    step_title: str
    """What their column of steps is called."""
    causes: list[CauseLine]
    more_causes: int
    compute_title: str
    compute: str
    """Where compute itself goes, by kind of kernel; empty unless the run is bound by it."""
    below_roof: list[str]
    """Operators far below what their device could do, beside the one that the first lines name."""
    changes: list[ChangeLine]
    """The other changes, beside the one that the first lines name."""
    first_row: int
    """The number of the first of them."""
    more_changes: int
    order: str
    """Why the first change is not the one that gains most; empty where it is."""
    together: str
    """The best combination, where one gains more than any change alone."""
    limits: str
    """What else limits the verdict; empty where nothing does."""


def summary(report: Report, top: int = SHOWN) -> Summary:
    """The first screen of `report`, with at most `top` causes and changes."""
    # Without a verdict shares are of what happens to be recorded: no table of causes that looks like one.
    causes = [] if report["verdict"]["abstained"] else _causes(report)
    lines = first_lines(report)
    changes, aside = _changes(report, lines)
    first_row = 1 if lines.told is None else 2
    shown = changes[: max(top - first_row + 1, 0)]
    ranks, folded = rank_lines(report, report["ranks"])
    return Summary(
        lines=lines,
        verdict=verdict_words(report),
        ranks=ranks,
        folded=folded,
        step_title=report_rows.step_title(report),
        causes=causes[:top],
        more_causes=max(len(causes) - top, 0),
        compute_title=f"Compute by kind of {'operator' if on_cpu(report) else 'kernel'} (shares of compute)",
        compute=_compute(report) if report["verdict"]["bound_by"] == "compute" else "",
        below_roof=_below_roof(report),
        changes=shown,
        first_row=first_row,
        more_changes=len(changes) - len(shown) + aside,
        order=_order(report, shown, lines),
        together=_together(report, shown, lines),
        limits=_limits(lines),
    )


# -- causes, changes, ranks, limits


def _causes(report: Report) -> list[CauseLine]:
    lines = []
    for row in report_rows.causes(report):
        cause = UNDIVIDED_COMMUNICATION if (row.class_name, row.cause) == ("communication", UNATTRIBUTED) else row.cause
        code = BY_CODE[cause].finding_code if cause in BY_CODE else cause
        finding = next((one for one in report["findings"] if one["code"] == code), None)
        label = cause_words(cause)
        located = cause not in BY_CODE or BY_CODE[cause].located
        where = _where(report, finding) if finding is not None and located else ""
        words = finding is not None and finding["code"] == "straggler"
        cost = row.per_step_ns if row.per_step_ns is not None else round(row.total_ns / len(report["ranks"]))
        part = {part.key: part.short for part in PARTS}.get(BY_CODE[cause].part, "") if cause in BY_CODE else ""
        lines.append(CauseLine(label, part, cost, row.share_frac, where, not words))
    return [line for line in lines if line.share_frac >= 0.001]


def _below_roof(report: Report) -> list[str]:
    led = main_finding.leads_by_roof(report)
    return [shows(one) for one in main_finding.below_roof(report) if one is not led][:ROOFS_SHOWN]


ROOFS_SHOWN = 2
"""Operators below their roofs that the first screen names beside the first lines."""


def _where(report: Report, finding: FindingEntry) -> str:
    """By which ranks, or in which call, kernel or collective most of it is lost."""
    if finding["code"] == "straggler":
        entry = next((one for one in report["stragglers"] if one["rank"] in finding["ranks"]), None)
        if not main_finding.late_ranks(report, finding):
            return "no single rank"
        doing = late_in(entry, LATE) if entry is not None and len(finding["ranks"]) == 1 else ""
        return units.rank_words(finding["ranks"]) + doing
    return most_beside(finding)


def _changes(report: Report, lines: FirstLines) -> tuple[list[ChangeLine], int]:
    """The changes to show below the first lines, and how many are left aside: what nobody has estimated comes forward
    only where nothing else answers what is wrong."""
    predicted = [
        ChangeLine(*_words(one), one["action"], one["predicted"], one.get("certain", True))
        for one in report["suggestions"]
        if one is not lines.told
    ]
    advice = report["advice"]["unpredicted"]
    answered = main_finding.main_finding(report) is None or any(
        main_finding.answers(report, one) for one in report["suggestions"]
    )
    none_known = not report["suggestions"]
    unanswered = (
        advice if none_known else [] if answered else [one for one in advice if main_finding.answers(report, one)]
    )
    # Of several snapshots each has its own; those of the one that the first lines are about come forward.
    first = [one for one in unanswered if one.get("path") == unanswered[0].get("path")]
    told = any(one is lines.told for one in first)
    others = [_untried(one) for one in first if one is not lines.told]
    return predicted + others, len(advice) - len(others) - told


def _untried(one: UnpredictedEntry) -> ChangeLine:
    saves = report_rows.saving(one) if "memory_bound" in one else ""
    bound = bound_share(one["bound"]) if "bound" in one else ""
    return ChangeLine(*_words(one), one["action"], None, False, saves, bound, one.get("path", "").rpartition("/")[2])


def _words(one: SuggestionEntry | UnpredictedEntry) -> tuple[str, str]:
    """A setting with its present value, and as it is typed."""
    return setting_words(one, now=True), setting_words(one)


def _order(report: Report, shown: Sequence[ChangeLine], lines: FirstLines) -> str:
    """Why the change of the first lines is not the one that gains most; empty where it is."""
    first = next((one for one in report["suggestions"] if one is lines.told), None)
    after = [line.predicted["step_ns_after"] for line in shown if line.predicted is not None]
    if first is None or not after or min(after) >= first["predicted"]["step_ns_after"]:
        return ""
    place = after.index(min(after))
    better, row = [one for one in report["suggestions"] if one is not first][place], place + 2
    if main_finding.answers(report, first) > main_finding.answers(report, better):
        return f"Row {row} gains more, but against another problem than the one above."
    if first.get("certain", True) and not better.get("certain", True):
        return f"Row {row} may gain more, but may also gain nothing."
    return f"Row {row} may gain more, but less of it is certain."


ABOVE = "the change above"


def _together(report: Report, shown: Sequence[ChangeLine], lines: FirstLines) -> str:
    """`the change above + 3 + NCCL_ALGO=Ring: 119.6 → 80.10 ms (-33.0 %)`; that of the first lines, and the numbers of
    the rows."""
    plan = report["advice"].get("plan")
    if plan is None:
        return ""
    predicted = plan["predicted"]
    first = 1 if lines.told is None else 2
    number = {line.typed: str(i) for i, line in enumerate(shown, first)}
    if lines.told is not None:
        number[setting_words(lines.told)] = ABOVE
    words = [setting_words(one) for one in plan["steps"]]
    shown_above = sorted((number[one] for one in words if one in number), key=lambda one: (one != ABOVE, one))
    settings = " + ".join([*shown_above, *(one for one in words if one not in number)])
    change = units.span(predicted["step_ns_before"], predicted["step_ns_after"], " → ")
    unsure = {setting_words(one) for one in report["suggestions"] if not one.get("certain", True)}
    doubtful = [number.get(one, one) for one in words if one in unsure]
    doubt = f"; of these {' and '.join(sorted(doubtful))} may gain nothing" if doubtful else ""
    return f"{settings}: {change} ({gain_share(predicted)}){doubt}"


def rank_lines(report: Report, some: Sequence[RankEntry]) -> tuple[list[RankLine], int]:
    """A bar each of these ranks, or of many those that tell most; and how many are left out."""
    entries = sorted(some, key=lambda entry: (entry["rank"], entry["device"] or 0))
    labels = report_rows.rank_labels(entries)
    late = culprits(report)
    chosen: dict[int, str] = dict.fromkeys(range(len(entries)), "")
    if len(entries) > RANKS_SHOWN:
        by_compute = sorted(chosen, key=lambda i: report_rows.compute_share(entries[i]))
        chosen = {
            by_compute[0]: "least compute",
            by_compute[len(entries) // 2]: "median",
            by_compute[-1]: "most compute",
        }
        main = main_finding.main_finding(report)
        named = main["ranks"] if main is not None and len(main["ranks"]) <= NAMED_RANKS else []
        for i, entry in enumerate(entries):
            if entry["rank"] in late[:NAMED_RANKS]:
                chosen.setdefault(i, "")
            elif entry["rank"] in named:
                chosen[i] = ", ".join(word for word in (chosen.get(i, ""), "named above") if word)
    lines = [
        RankLine(labels[i], note, entries[i], report_rows.rank_step_ns(report, entries[i]), entries[i]["rank"] in late)
        for i, note in chosen.items()
    ]
    return lines, len(entries) - len(lines)


def _compute(report: Report) -> str:
    """`gemm 38 %, elementwise 28 %`: shares of the time of compute kernels, in judged steps where that is known."""
    spent: dict[str, float] = defaultdict(float)
    for part in (part for entry in report.get("compute", []) for part in entry["parts"]):
        spent[part["category"]] += part["dur_ns"]
    if not spent:
        for kernel in report["kernels"]:
            if kernel["category"] not in ("communication", "memory"):
                spent[kernel["category"]] += kernel["dur_ns"]
    in_all = sum(spent.values())
    first = sorted(spent.items(), key=lambda item: -item[1])[:4]
    kinds = ", ".join(f"{category} {units.share(ns / in_all)}" for category, ns in first if ns >= 0.01 * in_all)
    return "; ".join(words for words in (kinds, mfu_words(report)) if words)


def mfu_words(report: Report) -> str:
    """The MFU of the ranks, or why there is none where their FLOPs are known; empty where they are not."""
    counted = [entry for entry in report.get("efficiency", []) if entry["flops_per_s"] is not None]
    if not counted:
        return ""
    model, all_of_it = (_figures([one["mfu"] for one in counted]), _figures([one.get("hfu") for one in counted]))
    why = next((entry["why"] for entry in counted if entry["why"]), "")
    because = f" ({why})" if why else ""
    if not model:
        return f"HFU {all_of_it}{because}" if all_of_it else f"no MFU: {why}"
    again = any(entry.get("checkpointed") for entry in counted)
    return f"MFU {model}" + (f", HFU {all_of_it} with what is computed again" if again else "") + because


def _figures(shares: list[float | None]) -> str:
    known = sorted(share for share in shares if share is not None)
    return " to ".join(dict.fromkeys(units.share(share) for share in known[:1] + known[-1:]))


def _limits(lines: FirstLines) -> str:
    """What else limits the verdict."""
    found = lines.limits
    return "; ".join(found[:LIMITS]) + (f"; and {len(found) - LIMITS} more" if len(found) > LIMITS else "")
