"""What the first screen says, for terminal and page alike: one sentence, the largest causes, the first changes, and
what limits the verdict. Put together from the report; nothing is measured here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from gpuscope.catalogue.cause import UNATTRIBUTED, UNDIVIDED_COMMUNICATION
from gpuscope.catalogue.cause_table import BY_CODE, cause_label
from gpuscope.catalogue.finding import headline, shows
from gpuscope.catalogue.prediction_sentences import gain_share, setting_words
from gpuscope.catalogue.straggler_sentences import late_in, ranks_of, why_late
from gpuscope.report.view import arrangement, blame, memory_sentences
from gpuscope.report.view.headline import verdict_words
from gpuscope.report.view.per_step import per_step_ns
from gpuscope.schema.document import FindingEntry, RankEntry, Report, SuggestionEntry, UnpredictedEntry
from gpuscope.schema.replay_section import Prediction
from gpuscope.words import units
from gpuscope.words.short_kernels import plain_kernel
from gpuscope.words.vocabulary import BOUND, PARTS

SHOWN = 3
"""Causes and changes on the first screen."""
RANKS_SHOWN = 8
"""Up to so many ranks have a bar each; of more, these do: least compute, median, most, and those that findings name."""
NAMED_RANKS = 2
WHERE = 48
"""Cells of the longest name within the sentence; a longer one stands in the table of causes alone."""
TELLING = 2 / 3
"""Share of the evidence that a name has which stands for all of it."""
HIDDEN = 1.5
"""A rank that loses this many times the mean over ranks is named beside it."""
_STALLS: dict[str, Literal["cpu", "communication", "memory"]] = {
    "cpu": "cpu", "communication": "communication", "memory": "memory",
}  # fmt: skip
LATE = 16
"""Cells of the longest name of what a late rank does when it falls behind; a longer one is left out."""
FEW_OTHERS = 4
"""So many waiting ranks are named one by one."""
LIMITS = 3
LOADER = "enumerate(DataLoader)#"
"""How torch.profiler begins the names of all loaders."""
UNNAMED = "idle"
"""The name of evidence beside which nothing was recorded."""


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
    whose: str = ""
    """The snapshot it is for, where there are several."""


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
    """Class, its share and the causes that add up to it, and confidence."""
    evidence: str
    """What shows that the fault lies there and the change is called for; empty where the sentence says it all."""
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
    changes: list[ChangeLine]
    more_changes: int
    order: str
    """Why the first change is not the one that gains most; empty where it is."""
    together: str
    """The best combination, where one gains more than any change alone."""
    limits: str
    """What limits the verdict; empty where nothing does."""


def summary(report: Report, top: int = SHOWN) -> Summary:
    """The first screen of `report`, with at most `top` causes and changes."""
    # Without a verdict shares are of what happens to be recorded: no table of causes that looks like one.
    causes = [] if report["verdict"]["abstained"] else _causes(report)
    changes, aside = _changes(report)
    ranks, folded = _ranks(report)
    return Summary(
        sentence=sentence(report),
        verdict=verdict_words(report),
        evidence=_evidence(report),
        ranks=ranks,
        folded=folded,
        step_title=arrangement.step_title(report),
        causes=causes[:top],
        more_causes=max(len(causes) - top, 0),
        compute_title=f"Compute by kind of {'operator' if _on_cpu(report) else 'kernel'} (shares of compute)",
        compute=_compute(report) if report["verdict"]["bound_by"] == "compute" else "",
        changes=changes[:top],
        more_changes=max(len(changes) - top, 0) + aside,
        order=_order(report, changes[:top]),
        together=_together(report, changes[:top]),
        limits=_limits(report),
    )


def sentence(report: Report) -> str:
    """The verdict for one who reads nothing else: problem, cost and the change that gains most."""
    return f"{_problem(report)} {_fix(report)}".strip()


# -- the sentence


def _problem(report: Report) -> str:
    verdict = report["verdict"]
    if "hang" in report and report["hang"]["hung"]:
        ranks = [cause["rank"] for cause in report["hang"]["first_cause"]]
        return f"The job hung; first cause: {units.rank_words(ranks)}." if ranks else "The job hung."
    if memory := memory_sentences.headline(report):
        return memory
    if verdict["abstained"] or verdict["bound_by"] is None:
        record = verdict.get("record", "")
        if verdict.get("abstain_reason") == "no_device_events" and record:
            return f"No verdict: no device events are recorded. {_sentence_end(record[:1].upper() + record[1:])}"
        return f"No verdict: {_lower(_sentence_end(verdict['why']))}"
    if startup := blame.startup(report):
        return _sentence_end(headline(startup))
    if verdict["bound_by"] == "compute":
        return f"Compute takes {units.share(verdict['share_frac'])} of the time; no class of stalls reaches 10 %."
    finding = blame.main_finding(report)
    if finding is None:
        return f"{BOUND[verdict['bound_by']]}: {_sentence_end(verdict['why'])}"
    if finding["code"] in blame.EXPLAINED_BY["straggler"]:  # known by its operations alone
        lost = units.share(finding["share_frac"])
        which = (
            f" ({units.rank_words(finding['ranks'])})" if finding["code"] == "slow_stage" and finding["ranks"] else ""
        )
        return f"{headline(finding)}{which}, which costs {lost} of the time."
    if finding["code"] not in BY_CODE and finding["code"] != BY_CODE[UNDIVIDED_COMMUNICATION].finding_code:
        return _sentence_end(headline(finding))
    return f"{_blame(report, finding)}: {_cost(report, finding)}."


def _blame(report: Report, finding: FindingEntry) -> str:
    """Who or what costs the time."""
    if finding["code"] == "straggler":
        if ranks := blame.late_ranks(report, finding):
            return f"{units.rank_words(ranks).capitalize()} {units.be(ranks)} late, and {_waiting(report, ranks)}"
        if len(finding["ranks"]) > 1:
            return "Ranks take turns being late, and the others wait in collectives"
        return BY_CODE["straggler"].message  # once, or by chance
    cause = next(one for one in BY_CODE.values() if one.finding_code == finding["code"])
    message = cause.said(on_cpu=_on_cpu(report))
    if reason := blame.reason(report):
        few = reason["code"] == "few_micro_batches"  # `2 micro-batches on 2 stages (1F1B)`
        return f"With {headline(reason)}, {_lower(message)}" if few else f"{headline(reason)}, so {_lower(message)}"
    where = _where(report, finding, TELLING) if cause.located else ""
    return message + (f" ({where})" if 0 < len(where) <= WHERE else "")


def _on_cpu(report: Report) -> bool:
    """Whether no rank has a device: then its training thread counts as one."""
    return bool(report["ranks"]) and all(entry["device"] is None for entry in report["ranks"])


def _waiting(report: Report, late: Sequence[int]) -> str:
    """`rank 0 waits for it in collectives`."""
    others = sorted(set(report["trace"]["ranks_present"]) - set(late))
    them = "it" if len(late) == 1 else "them"
    if len(others) > FEW_OTHERS:
        return f"the other {len(others)} wait for {them} in collectives"
    return f"{units.rank_words(others)} {'waits' if len(others) == 1 else 'wait'} for {them} in collectives"


def _cost(report: Report, finding: FindingEntry) -> str:
    share = units.share(finding["share_frac"])
    lost = arrangement.finding_cost_ns(report, finding)
    if not lost:
        return f"{share} of the time"
    per_step = " per step" if arrangement.step_ns(report) is not None else ""
    cost = f"{units.duration(lost)}{per_step}, {share} of the time"
    return cost + (f", mean over ranks{_most(report, finding)}" if len(report["ranks"]) > 1 else "")


def _most(report: Report, finding: FindingEntry) -> str:
    """` (rank 0: 61.57 ms, 51.7 %)`: the rank that loses most, where the mean hides it."""
    cause = next((one for one in BY_CODE.values() if one.finding_code == finding["code"]), None)
    if cause is None or cause.class_name is None:
        return ""
    code = UNATTRIBUTED if cause.code == UNDIVIDED_COMMUNICATION else cause.code
    lost = [(entry["stall_ns"][_STALLS[cause.class_name]].get(code, 0), entry) for entry in report["ranks"]]
    ns, entry = max(lost, key=lambda one: one[0] / max(one[1]["window_ns"], 1))
    share = ns / max(entry["window_ns"], 1)
    if share < HIDDEN * finding["share_frac"]:
        return ""
    cost = per_step_ns(share, arrangement.step_ns(report))
    return f" (rank {entry['rank']}: {units.duration(ns if cost is None else cost)}, {units.share(share)})"


def _fix(report: Report) -> str:
    suggestions, advice = report["suggestions"], report["advice"]
    if suggestions:
        first = suggestions[0]
        action, predicted = _lower(first["action"]).rstrip("."), first["predicted"]
        lead = "Fix" if blame.answers(report, first) else "Largest gain"
        if not predicted["step_ns_before"]:
            return f"{lead}: {action}."
        change = units.span(predicted["step_ns_before"], predicted["step_ns_after"], " → ")
        if first.get("certain", True):
            return f"{lead}: {action}; predicted {change} ({gain_share(predicted)})."
        bounds = units.span(predicted["low_ns"], predicted["high_ns"], "–")
        return f"May help{_against(report, first)}: {action}; expected {change} ({bounds}).{_in_vain(report)}"
    if report["verdict"]["abstained"]:
        return ""
    if blame.startup(report):
        return "Record steps after the first ones."
    if report["verdict"]["cause_abstained"]:
        return f"To find the cause: {_what_to_add(report)}."
    if advice["unpredicted"]:
        return f"To try (gain unknown): {_lower(advice['unpredicted'][0]['action']).rstrip('.')}."
    return "" if not advice.get("asked", True) else f"No change tried is predicted to help.{_in_vain(report)}"


def _against(report: Report, one: SuggestionEntry) -> str:
    """` against data loader (input)`: what a change answers, where that is not what the sentence begins with."""
    other = next((cause.label for cause in BY_CODE.values() if cause.finding_code == one["finding"]), "")
    return f" against {other}" if other and not blame.answers(report, one) else ""


def _in_vain(report: Report) -> str:
    """What became of the usual remedy, where it was replayed and gains nothing for sure: it comes last."""
    reason, pipeline = blame.reason(report), report.get("pipeline")
    more = pipeline.get("more_micro_batches") if pipeline is not None else None
    if reason is None or reason["code"] != "few_micro_batches" or more is None or more["predicted"] is None:
        return ""
    predicted = more["predicted"]
    bounds = units.span(predicted["low_ns"], predicted["high_ns"], "–")
    after = units.duration(predicted["step_ns_after"])
    longer = predicted["step_ns_after"] >= predicted["step_ns_before"]
    lead = "More micro-batches are not expected to help" if longer else "More micro-batches may help, or not"
    return f" {lead}: with {more['micro_batches']} the step is expected to take {after} ({bounds})."


def _what_to_add(report: Report) -> str:
    """What the verdict says to record or to add where it leaves the cause open."""
    return report["verdict"].get("record") or "see --full"


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
        words = finding is not None and finding["code"] == "straggler"
        cost = row.per_step_ns if row.per_step_ns is not None else round(row.total_ns / len(report["ranks"]))
        part = {part.key: part.short for part in PARTS}.get(BY_CODE[cause].part, "") if cause in BY_CODE else ""
        lines.append(CauseLine(label, part, cost, row.share_frac, where, not words))
    return [line for line in lines if line.share_frac >= 0.001]


def _where(report: Report, finding: FindingEntry, least: float = 0.0) -> str:
    """By which ranks, or in which call, kernel or collective most of it is lost; empty where that has less than this
    share of the evidence."""
    if finding["code"] == "straggler":
        entry = next((one for one in report["stragglers"] if one["rank"] in finding["ranks"]), None)
        if not blame.late_ranks(report, finding):
            return "no single rank"
        doing = late_in(entry, LATE) if entry is not None and len(finding["ranks"]) == 1 else ""
        return units.rank_words(finding["ranks"]) + doing
    spent: dict[str, int] = defaultdict(int)
    for evidence in finding["evidence"]:
        spent[evidence["name"]] += evidence["dur_ns"]
    spent.pop(UNNAMED, None)
    most = max(spent, key=lambda name: spent[name], default="")
    in_all = sum(spent.values())
    # The longest spans are evidence; of many short ones they need not be like the others.
    like_all = len(spent) == 1 or not finding["cost_ns"] or in_all >= finding["cost_ns"] / 2
    if not most or (least and (spent[most] < least * in_all or not like_all)):
        return ""
    return plain_kernel(most).removeprefix(LOADER)  # its cause says that it is a loader


def _changes(report: Report) -> tuple[list[ChangeLine], int]:
    """The changes to show, and how many are left aside: what nobody has estimated comes forward only where nothing
    else answers what is wrong."""
    predicted = [
        ChangeLine(*_words(one), one["action"], one["predicted"], one.get("certain", True))
        for one in report["suggestions"]
    ]
    advice = report["advice"]["unpredicted"]
    answered = blame.main_finding(report) is None or any(blame.answers(report, one) for one in report["suggestions"])
    unanswered = advice if not predicted else [] if answered else [one for one in advice if blame.answers(report, one)]
    # Of several snapshots each has its own; those of the one that the sentence is about come forward.
    first = [one for one in unanswered if one.get("path") == unanswered[0].get("path")]
    return predicted + [_untried(one) for one in first], len(advice) - len(first)


def _untried(one: UnpredictedEntry) -> ChangeLine:
    saves = memory_sentences.saving(one) if "memory_bound" in one else ""
    return ChangeLine(*_words(one), one["action"], None, False, saves, one.get("path", "").rpartition("/")[2])


def _words(one: SuggestionEntry | UnpredictedEntry) -> tuple[str, str]:
    """A setting with its present value, and as it is typed."""
    return setting_words(one, now=True), setting_words(one)


def _order(report: Report, shown: Sequence[ChangeLine]) -> str:
    """Why the first row is not the one that gains most; empty where it is."""
    after = [line.predicted["step_ns_after"] for line in shown if line.predicted is not None]
    if not after or min(after) == after[0]:
        return ""
    more = after.index(min(after))
    first, better = report["suggestions"][0], report["suggestions"][more]
    if blame.answers(report, first) > blame.answers(report, better):
        return f"Row {more + 1} gains more, but against another problem than the one above."
    if first.get("certain", True) and not better.get("certain", True):
        return f"Row {more + 1} may gain more, but may also gain nothing."
    return f"Row {more + 1} may gain more, but less of it is certain."


def _evidence(report: Report) -> str:
    """What shows it: why a late rank is late, what a rule rests on, or the finding that the first change answers."""
    main, suggestions = blame.main_finding(report), report["suggestions"]
    if report["verdict"]["abstained"] or blame.startup(report):
        return ""
    if main is not None and main["code"] == "straggler":
        late = next((one for one in report["stragglers"] if sorted(ranks_of(one)) == main["ranks"]), None)
        return why_late(late, _compute_per_step(report, late["rank"])) if late is not None else ""
    open_ = report["advice"]["unpredicted"] if not suggestions else []
    if grounds := next((one.get("grounds", "") for one in (*suggestions[:1], *open_[:1])), ""):
        return grounds
    if main is not None and main["code"] in blame.EXPLAINED_BY["straggler"]:
        return shows(main)
    answered = suggestions[0]["finding"] if suggestions else ""
    found = next((one for one in report["findings"] if one["code"] == answered and one is not main), None)
    if found is None or found["code"] in BY_CODE or found is blame.reason(report):  # which the sentence begins with
        return ""
    return _lower(shows(found))


def _compute_per_step(report: Report, rank: int) -> tuple[float, float] | None:
    """What a rank computes per step and what its median peer does, ns; None where that is not known."""
    step = arrangement.step_ns(report)
    spent = {
        entry["rank"]: per_step_ns(arrangement.compute_share(entry), step) or 0
        for entry in report["ranks"] if entry["steps"] and step is not None
    }  # fmt: skip
    own = spent.pop(rank, None)
    return (own, median(spent.values())) if own is not None and spent else None


def _together(report: Report, shown: Sequence[ChangeLine]) -> str:
    """`1 + 3 + NCCL_ALGO=Ring: 119.6 → 80.10 ms (-33.0 %)`; numbers are those of the lines above it."""
    plan = report["advice"].get("plan")
    if plan is None:
        return ""
    predicted = plan["predicted"]
    number = {line.typed: str(i) for i, line in enumerate(shown, 1)}
    words = [setting_words(one) for one in plan["steps"]]
    shown_above = sorted(number[one] for one in words if one in number)
    settings = " + ".join([*shown_above, *(one for one in words if one not in number)])
    change = units.span(predicted["step_ns_before"], predicted["step_ns_after"], " → ")
    return f"{settings}: {change} ({gain_share(predicted)})"


def _ranks(report: Report) -> tuple[list[RankLine], int]:
    entries = sorted(report["ranks"], key=lambda entry: (entry["rank"], entry["device"] or 0))
    labels = arrangement.rank_labels(entries)
    chosen: dict[int, str] = dict.fromkeys(range(len(entries)), "")
    if len(entries) > RANKS_SHOWN:
        by_compute = sorted(chosen, key=lambda i: arrangement.compute_share(entries[i]))
        chosen = {
            by_compute[0]: "least compute",
            by_compute[len(entries) // 2]: "median",
            by_compute[-1]: "most compute",
        }
        main = blame.main_finding(report)
        named = main["ranks"] if main is not None and len(main["ranks"]) <= NAMED_RANKS else []
        why = "late" if main is not None and main["code"] == "straggler" else "named above"
        for i in (i for i, entry in enumerate(entries) if entry["rank"] in named):
            chosen[i] = ", ".join(word for word in (chosen.get(i, ""), why) if word)
    lines = [
        RankLine(labels[i], note, entries[i], arrangement.rank_step_ns(report, entries[i]))
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
    known = sorted(entry["mfu"] for entry in counted if entry["mfu"] is not None)
    figures = " to ".join(dict.fromkeys(units.share(mfu) for mfu in (known[:1] + known[-1:])))
    why = next((entry["why"] for entry in counted if entry["why"]), "")
    return f"MFU {figures}" + (f" ({why})" if why else "") if known else f"no MFU: {why}"


def _limits(report: Report) -> str:
    """What lowers the confidence, and what was lost."""
    verdict = report["verdict"]
    limits: Sequence[str] = verdict.get("limits", [])  # reports of gpuscope 0.1.0 lack the key
    of_memory = bool(memory_sentences.headline(report))
    found = [*limits, *([memory_sentences.NO_TIME] if of_memory else [])]
    if verdict["cause_abstained"] and report["suggestions"]:
        found.insert(0, f"to find the cause, {_what_to_add(report)}")
    lost = [problem["message"] for problem in report["problems"] if problem["severity"] in ("error", "data_loss")]
    found += [message for message in lost[:1] if of_memory or not verdict["abstained"]]
    failed = [one["name"] for one in report["analyzers"] if one["status"] == "failed"]
    found += [f"{units.plural(len(failed), 'analysis', 'analyses')} failed: {', '.join(failed)}"] if failed else []
    shown = "; ".join(found[:LIMITS])
    return shown + (f"; and {len(found) - LIMITS} more" if len(found) > LIMITS else "")
