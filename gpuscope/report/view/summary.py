"""What the first screen says, for terminal and page alike: one sentence, the largest causes, the first changes, and
what limits the verdict. Put together from the report; nothing is measured here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gpuscope.report.schema.document import FindingEntry, RankEntry, Report
from gpuscope.report.schema.replay_section import Prediction
from gpuscope.report.view import arrangement, units
from gpuscope.report.view.causes import BY_CODE, UNATTRIBUTED, UNDIVIDED_COMMUNICATION, cause_label
from gpuscope.report.view.headline import whole
from gpuscope.report.view.prediction_sentences import gain_share, setting_words
from gpuscope.report.view.short_kernels import plain_kernel
from gpuscope.report.view.straggler_sentences import late_in
from gpuscope.report.view.units import crop
from gpuscope.report.view.vocabulary import BOUND

SHOWN = 3
"""Causes and changes on the first screen."""
RANKS_SHOWN = 8
"""Up to so many ranks have a bar each; of more, these do: least compute, median, most, and those that findings name."""
NAMED_RANKS = 2
WHERE = 40
"""Cells of a name within the sentence."""
LIMITS = 3
UNNAMED = "idle"
"""The name of evidence beside which nothing was recorded."""


@dataclass(frozen=True)
class CauseLine:
    """One cause: its words, what it costs, and where or by whom."""

    label: str
    cost_ns: int
    share_frac: float
    where: str


@dataclass(frozen=True)
class ChangeLine:
    """One change; `predicted` is None where its gain is not estimated."""

    setting: str
    action: str
    predicted: Prediction | None
    certain: bool
    """Whether the whole range is a gain."""


@dataclass(frozen=True)
class RankLine:
    """One bar. `note` says why this rank is shown where others are folded."""

    label: str
    note: str
    entry: RankEntry
    step_ns: int | None


@dataclass(frozen=True)
class Summary:
    """The first screen."""

    sentence: str
    """What is wrong, what it costs, and the change that gains most."""
    verdict: str
    """Class, share and confidence."""
    ranks: list[RankLine]
    folded: int
    """Ranks that have no bar."""
    causes: list[CauseLine]
    more_causes: int
    compute: str
    """Where compute itself goes, by kind of kernel; empty unless the run is bound by it."""
    changes: list[ChangeLine]
    more_changes: int
    together: str
    """The best combination, where one gains more than any change alone."""
    limits: str
    """What limits the verdict; empty where nothing does."""


def summary(report: Report, top: int = SHOWN) -> Summary:
    """The first screen of `report`, with at most `top` causes and changes."""
    causes, changes = _causes(report), _changes(report)
    ranks, folded = _ranks(report)
    return Summary(
        sentence=sentence(report),
        verdict=verdict_words(report),
        ranks=ranks,
        folded=folded,
        causes=causes[:top],
        more_causes=max(len(causes) - top, 0),
        compute=_compute(report) if report["verdict"]["bound_by"] == "compute" else "",
        changes=changes[:top],
        more_changes=max(len(changes) - top, 0),
        together=_together(report, changes[:top]),
        limits=_limits(report),
    )


def sentence(report: Report) -> str:
    """The verdict for one who reads nothing else: problem, cost and the change that gains most."""
    return f"{_problem(report)} {_fix(report)}".strip()


def verdict_words(report: Report) -> str:
    """`Communication-bound: 28.6 % of the step, confidence 0.94`."""
    verdict = report["verdict"]
    if verdict["abstained"] or verdict["bound_by"] is None:
        return "No verdict"
    share = units.share(verdict["share_frac"])
    return f"{BOUND[verdict['bound_by']]}: {share} of the {whole(report)}, confidence {verdict['confidence']:.2g}"


# -- the sentence


def _problem(report: Report) -> str:
    verdict = report["verdict"]
    if "hang" in report and report["hang"]["hung"]:
        ranks = [cause["rank"] for cause in report["hang"]["first_cause"]]
        return f"The job hung; first cause: {units.rank_words(ranks)}." if ranks else "The job hung."
    if verdict["abstained"] or verdict["bound_by"] is None:
        return f"No verdict from this trace: {_lower(_sentence_end(verdict['why']))}"
    startup = next((one for one in report["findings"] if one["code"] == "startup" and one["share_frac"] > 0), None)
    if startup is not None:
        return _sentence_end(startup["message"].partition("; record")[0])
    if verdict["bound_by"] == "compute":
        return f"The device computes for {units.share(verdict['share_frac'])} of {_step(report)}."
    finding = main_finding(report)
    if finding is None:
        return f"{BOUND[verdict['bound_by']]}: {_sentence_end(verdict['why'])}"
    if finding["code"] not in BY_CODE and finding["code"] != BY_CODE[UNDIVIDED_COMMUNICATION].finding_code:
        return _sentence_end(finding["message"].partition("; ")[0])
    return f"{_blame(report, finding)}: {_cost(report, finding)}."


def main_finding(report: Report) -> FindingEntry | None:
    """The finding of the verdict's cause; where only operations are known, the costliest."""
    verdict = report["verdict"]
    cause = verdict["cause"] or (UNDIVIDED_COMMUNICATION if verdict["cause_abstained"] else "")
    code = BY_CODE[cause].finding_code if cause in BY_CODE else cause
    return next(
        (one for one in report["findings"] if one["code"] == code),
        next(iter(arrangement.findings(report)), None) if not report["ranks"] else None,
    )


def _blame(report: Report, finding: FindingEntry) -> str:
    """Who or what costs the time."""
    if finding["code"] == "straggler":
        ranks = finding["ranks"]
        if _few(report, ranks):
            return f"{units.rank_words(ranks).capitalize()} {units.be(ranks)} late, and the others wait in collectives"
        return "Ranks take turns at being late, and the others wait in collectives"
    cause = next(one for one in BY_CODE.values() if one.finding_code == finding["code"])
    if cause.code == "pipeline_bubble" and (why := _why_bubble(report)):
        return f"{why}, so {_lower(cause.message)}"
    where = crop(_where(report, finding), WHERE) if cause.located else ""
    return cause.message + (f" ({where})" if where else "")


def _why_bubble(report: Report) -> str:
    """What makes a pipeline's bubble, where a finding says it: `2 micro-batches on 2 stages (1F1B)`."""
    reasons = [one for one in report["findings"] if one["code"] in ("few_micro_batches", "pipeline_imbalance")]
    largest = max(reasons, key=lambda one: one["share_frac"], default=None)
    return "" if largest is None else largest["message"].partition(": ")[0]


def _few(report: Report, ranks: Sequence[int]) -> bool:
    """Whether these are few enough of the ranks to blame."""
    return 0 < len(ranks) <= max(len(report["trace"]["ranks_present"]) // 2, 1)


def _cost(report: Report, finding: FindingEntry) -> str:
    share = units.share(finding["share_frac"])
    if not finding["cost_ns_per_step"]:
        return f"{share} of the time"
    return f"{units.duration(finding['cost_ns_per_step'])} ({share}) of {_step(report)}"


def _step(report: Report) -> str:
    """`each 119.6 ms step`, or `the 1.215 s window` where there are no steps."""
    step = arrangement.step_ns(report)
    if step is not None:
        return f"each {units.duration(step)} step"
    window = max((entry["window_ns"] for entry in report["ranks"]), default=None)
    return "the time" if window is None else f"the {units.duration(window)} window"


def _fix(report: Report) -> str:
    suggestions, advice = report["suggestions"], report["advice"]
    if suggestions:
        main = main_finding(report)
        # A change that answers what is wrong, before one that gains more elsewhere; certain ones before others.
        answers = [one for one in suggestions if main is not None and one["finding"] == main["code"]]
        certain = [one for one in [*answers, *suggestions] if one.get("certain", True)]
        first = (certain or answers or suggestions)[0]
        predicted = first["predicted"]
        lead = "Fix" if first in answers else "Largest gain"
        lead += "" if first.get("certain", True) else " (uncertain)"
        if not predicted["step_ns_before"]:
            return f"{lead}: {_lower(first['action'])}."
        change = units.span(predicted["step_ns_before"], predicted["step_ns_after"], " → ")
        return f"{lead}: {_lower(first['action']).rstrip('.')}; predicted {change} ({gain_share(predicted)})."
    if report["verdict"]["abstained"]:
        return ""
    if report["verdict"]["cause_abstained"]:
        return f"To find the cause: {_what_to_add(report)}."
    if advice["unpredicted"]:
        main = main_finding(report)
        open_ = sorted(advice["unpredicted"], key=lambda one: main is None or one["finding"] != main["code"])
        return f"To try: {_lower(open_[0]['action'])} (gain not predicted)."
    return "" if "not asked" in advice["why"] else "No change is predicted to gain."


def _what_to_add(report: Report) -> str:
    """What the verdict says to record or to add where it leaves the cause open."""
    return report["verdict"]["why"].partition("unknown: ")[2].partition(";")[0] or "see --full"


def _lower(text: str) -> str:
    """A sentence within another; `DDP` and `NCCL_ALGO` stay."""
    first = text.split(" ")[0]
    return text if first[1:] != first[1:].lower() else text[:1].lower() + text[1:]


def _sentence_end(text: str) -> str:
    return text[:1] + text[1:].rstrip(".") + "."


# -- causes, changes, ranks, limits


def _causes(report: Report) -> list[CauseLine]:
    lines = []
    for row in arrangement.causes(report):
        cause = UNDIVIDED_COMMUNICATION if (row.class_name, row.cause) == ("communication", UNATTRIBUTED) else row.cause
        code = BY_CODE[cause].finding_code if cause in BY_CODE else cause
        finding = next((one for one in report["findings"] if one["code"] == code), None)
        label = BY_CODE[cause].label if cause in BY_CODE else cause_label(cause)
        located = cause not in BY_CODE or BY_CODE[cause].located
        where = _where(report, finding) if finding is not None and located else ""
        cost = row.per_step_ns if row.per_step_ns is not None else round(row.total_ns / len(report["ranks"]))
        lines.append(CauseLine(label, cost, row.share_frac, where))
    return [line for line in lines if line.share_frac >= 0.001]


def _where(report: Report, finding: FindingEntry) -> str:
    """By which ranks, or in which call, kernel or collective most of it is lost."""
    if finding["code"] == "straggler":
        entry = next((one for one in report["stragglers"] if one["rank"] in finding["ranks"]), None)
        doing = late_in(entry) if entry is not None and len(finding["ranks"]) == 1 else ""
        return units.rank_words(finding["ranks"]) + doing if _few(report, finding["ranks"]) else "no one rank"
    spent: dict[str, int] = defaultdict(int)
    for evidence in finding["evidence"]:
        spent[evidence["name"]] += evidence["dur_ns"]
    spent.pop(UNNAMED, None)
    return plain_kernel(max(spent, key=lambda name: spent[name])) if spent else ""


def _changes(report: Report) -> list[ChangeLine]:
    predicted = [
        ChangeLine(setting_words(one), one["action"], one["predicted"], one.get("certain", True))
        for one in report["suggestions"]
    ]
    open_ = [ChangeLine(setting_words(one), one["action"], None, False) for one in report["advice"]["unpredicted"]]
    return predicted + open_


def _together(report: Report, shown: Sequence[ChangeLine]) -> str:
    """`1, then 3, then NCCL_ALGO=Ring: 119.6 → 80.10 ms (-33.0 %)`; numbers are those of the lines above it."""
    plan = report["advice"].get("plan")
    if plan is None:
        return ""
    predicted = plan["predicted"]
    number = {line.setting: str(i) for i, line in enumerate(shown, 1)}
    words = [setting_words(one) for one in plan["steps"]]
    settings = ", then ".join(number.get(one, one) for one in words)
    change = units.span(predicted["step_ns_before"], predicted["step_ns_after"], " → ")
    return f"{settings}: {change} ({gain_share(predicted)})"


def _ranks(report: Report) -> tuple[list[RankLine], int]:
    entries = sorted(report["ranks"], key=lambda entry: (entry["rank"], entry["device"] or 0))
    labels = arrangement.rank_labels(entries)
    chosen: dict[int, str] = dict.fromkeys(range(len(entries)), "")
    if len(entries) > RANKS_SHOWN:
        by_compute = sorted(chosen, key=lambda i: arrangement.compute_share(entries[i]))
        chosen = {by_compute[0]: "least compute", by_compute[len(entries) // 2]: "median", by_compute[-1]: "most"}
        main = main_finding(report)
        named = main["ranks"] if main is not None and len(main["ranks"]) <= NAMED_RANKS else []
        for i in (i for i, entry in enumerate(entries) if entry["rank"] in named):
            chosen[i] = ", ".join(word for word in (chosen.get(i, ""), "named above") if word)
    lines = [
        RankLine(labels[i], note, entries[i], arrangement.rank_step_ns(report, entries[i]))
        for i, note in chosen.items()
    ]
    return lines, len(entries) - len(lines)


def _compute(report: Report) -> str:
    """`gemm 38 %, elementwise 28 %`: shares of the time of all device events."""
    shares: dict[str, float] = defaultdict(float)
    for kernel in report["kernels"]:
        shares[kernel["category"]] += kernel["share_frac"]
    first = sorted(shares.items(), key=lambda item: -item[1])[:4]
    kinds = ", ".join(f"{category} {units.share(share)}" for category, share in first if share >= 0.01)
    return "; ".join(words for words in (kinds, mfu_words(report)) if words)


def mfu_words(report: Report) -> str:
    """The MFU of the ranks, or why there is none where their FLOPs are known; empty where they are not."""
    counted = [entry for entry in report.get("efficiency", []) if entry["flops_per_s"] is not None]
    if not counted:
        return ""
    known = sorted(entry["mfu"] for entry in counted if entry["mfu"] is not None)
    figures = " to ".join(dict.fromkeys(units.share(mfu) for mfu in (known[:1] + known[-1:])))
    why = next((entry["why"] for entry in counted if entry["why"]), "")
    return f"MFU {figures}" + (f" ({why})" if why else "") if known else f"No MFU: {why}"


def _limits(report: Report) -> str:
    """What lowers the confidence, and what was lost."""
    verdict = report["verdict"]
    limits: Sequence[str] = verdict.get("limits", [])  # reports of gpuscope 0.1.0 lack the key
    found = [*limits]
    if verdict["cause_abstained"] and report["suggestions"]:
        found.insert(0, f"to find the cause, {_what_to_add(report)}")
    lost = [problem["message"] for problem in report["problems"] if problem["severity"] in ("error", "data_loss")]
    found += [message for message in lost[:1] if not verdict["abstained"]]
    failed = [one["name"] for one in report["analyzers"] if one["status"] == "failed"]
    found += [f"{units.plural(len(failed), 'analysis', 'analyses')} failed: {', '.join(failed)}"] if failed else []
    shown = "; ".join(found[:LIMITS])
    return shown + (f"; and {len(found) - LIMITS} more" if len(found) > LIMITS else "")
