"""The first four lines of every front: what costs the time, why, what to change, and how sure that is.

One number each that matters; sums, means over ranks and the other changes follow below them.
"""

from __future__ import annotations

from typing import Literal

from gpuscope import when_used
from gpuscope.catalogue import hang_sentences
from gpuscope.catalogue.finding import headline, next_step, shows
from gpuscope.catalogue.findings.steps import PARTS
from gpuscope.catalogue.prediction_sentences import bound_share, doubt, setting_words
from gpuscope.catalogue.suggestion import BY_CODE, RECORDS
from gpuscope.report.view import main_finding, report_rows, transfer_sentences
from gpuscope.report.view.headline import lower, on_cpu, whole, why_it_is_so
from gpuscope.report.view.log_lines import log_lines
from gpuscope.schema.document import (
    AbstainReason,
    FindingEntry,
    Report,
    SetApartPart,
    SuggestionEntry,
    UnpredictedEntry,
)
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.vocabulary import BOUND

LOW = 0.5
"""A lower confidence is called so."""
AGREE = 1.1
"""Steps agree where nine in ten take at most this many times the median."""
FAILED, PAUSED, OTHER_LOOPS = "run_failed", "run_paused", "other_loops"
"""Problems that stand on the first screen."""
CONTRADICT = "role_steps_contradict"
ONE_BY_ONE = "log every step (TRL: logging_steps=1), or name a log with the number of the training step in each row"
TIMERS = (
    'TRL sends its timers to W&B, MLflow and Trackio alone: train with report_to="wandb" and name the CSV of the run\'s'
    " history"
)
"""What to record where a log of a job by roles answers nothing."""
UNCOMPILED = "compile_failed"
"""The finding that stands among the caveats: it costs time that no trace shows."""
OVERRUNS = "overruns_stream"
"""A problem that the verdict's limits tell in full."""
FEWEST_STEPS = 3
"""Of fewer steps nobody can say whether they agree."""
_NO_VERDICT: dict[AbstainReason, str] = {
    "contradiction": "the analysis contradicts itself",
    "hung": "the job hung",
    "cut_off": "the recording is cut off",
    "no_device_events": "no device events are recorded",
    "events_dropped": "events had to be left out",
    "thinned": "events are missing from this recording",
    "kernels_lost": "kernels were launched that were not recorded",
    "no_host_events": "the device idles, and no host events are recorded",
    "idle_unexplained": "the device idles, and what it waits for is not recorded",
    "little_work": "the device hardly works in this recording",
    "totals_contradict": "the file's own totals contradict its events",
}
_BRACKETS = when_used.pattern(r"\([^()]*\)|\[[^\[\]]*\]")

Label = Literal["fix", "try", "next"]
"""`fix`: a gain for certain, against what is wrong; `try`: perhaps none, or unknown; `next`: what to record or read."""


@dataclass(frozen=True)
class FirstLines:
    """Each without a full stop; empty where there is nothing to say."""

    what: str
    why: str
    fix: str
    label: Label
    """What the line `fix` is."""
    sure: str
    told: SuggestionEntry | UnpredictedEntry | None
    """The change that the line `fix` is about; None where it is about none."""
    limits: tuple[str, ...]
    """What else limits the verdict, beside what `sure` says."""
    grounds: str = ""
    """What `sure` says beside the number: what lowers the confidence most, or what speaks for it."""
    shift: str = ""
    """Where the step time shifts for good, what changed when."""
    apart: str = ""
    """What of the recording is not judged, where that is much."""
    mean: str = ""
    """Where a few long steps make the mean step a tenth longer than the usual: its price."""
    next: str = ""
    """What to record besides, where the cause is open and `fix` names what holds for every possible one."""
    bound: str = ""
    """What can be gained at most of transfers that are not hidden, where they are what is wrong."""

    def below(self) -> list[tuple[str, str]]:
        """The lines below the first, each with its label."""
        lines: tuple[tuple[str, str], ...] = (
            ("why", self.why),
            ("bound", self.bound),
            (self.label, self.fix),
            ("next", self.next),
            ("sure", self.sure),
            ("shift", self.shift),
            ("apart", self.apart),
            ("mean", self.mean),
        )
        return [(label, text) for label, text in lines if text]

    def text(self) -> str:
        """All of them, a line each."""
        return "\n".join([self.what, *(f"{label:6}{text}" for label, text in self.below())])

    def one_line(self) -> str:
        """What is wrong and what to change, for a log."""
        return self.what + (f". {self.label.capitalize()}: {self.fix}" if self.fix else "")


def first_lines(report: Report) -> FirstLines:
    """The first four lines of `report`."""
    if "hang" in report and report["hang"]["hung"]:
        return _hung(report)
    if (memory := report_rows.leading_peak(report)) is not None:
        what, why = memory
        best = next((one for one in report["advice"]["unpredicted"] if "memory_bound" in one), None)
        fix = "" if best is None else f"{lower(best['action'])}: at most {report_rows.saving(best)} less"
        return FirstLines(what, why, fix, "try", "", best, tuple(_limits(report)))
    if not report["ranks"]:
        if "roles" in report:
            return _of_roles(report)
        if "job_log" in report and main_finding.is_of_log(report):
            what, why, fix, answers = log_lines(report)
            return FirstLines(
                _failed(report) + what, why, fix, "try" if answers else "next", "", None, tuple(_limits(report))
            )
        if left_out := next((one for one in report["problems"] if one["code"] == CONTRADICT), None):
            what = (
                f"No verdict: in all {units.plural(left_out['count'], 'step')} the timers add up to more than the step"
            )
            return FirstLines(what, "", ONE_BY_ONE, "next", "", None, tuple(_limits(report)))
    if (record := main_finding.record_finding(report)) is not None:
        return _of_record(report, record)
    label, fix, told = _fix(report)
    sure, grounds, limits = _sure(report)
    return FirstLines(
        _failed(report) + _what(report),
        why_it_is_so(report),
        fix,
        label,
        sure,
        told,
        tuple(limits),
        grounds,
        _shift(report),
        _apart(report),
        _mean(report),
        _record_besides(report, label),
        transfer_sentences.at_best(report),
    )


def _hung(report: Report) -> FirstLines:
    causes = report["hang"]["first_cause"]
    ranks = [cause["rank"] for cause in causes]
    if not ranks:
        what = "The job hung"
    elif causes[0]["kind"] == "mismatch":
        how = "unlike the others" if causes[0]["certain"] else "perhaps wrongly"
        what = f"{hang_sentences.DIFFER}: {units.rank_words(ranks)} {how}"
    elif all(cause["certain"] for cause in causes):
        what = f"The job hung: {units.rank_words(ranks)} {units.be(ranks)} the first cause"
    else:
        what = f"The job hung, perhaps through {units.rank_words(ranks)}"
    fix = causes[0].get("remedy") if causes else None
    return FirstLines(what, causes[0]["why"] if causes else "", fix or "", "next", "", None, tuple(_limits(report)))


def _of_record(report: Report, finding: FindingEntry) -> FirstLines:
    """Of files without a timeline: the gravest of what they show, and what to do about it. That they have no verdict is
    a limit, no answer."""
    code = finding["code"]
    label: Label = "next"
    fix, answer = next_step(finding), None
    predicted = next((one for one in report["suggestions"] if one["finding"] == code), None)
    untried = [one for one in report["advice"]["unpredicted"] if one["finding"] == code and one["code"] not in RECORDS]
    if predicted is not None:
        label, fix, answer = "fix" if predicted.get("certain", True) else "try", _change(predicted), predicted
    elif untried:
        return _lines_of(report, finding, "try", f"{_named(untried[0])} (gain unknown)", untried[0])
    return _lines_of(report, finding, label, fix, answer)


def _lines_of(
    report: Report, finding: FindingEntry, label: Label, fix: str, told: SuggestionEntry | UnpredictedEntry | None
) -> FirstLines:
    what, why = headline(finding), shows(finding)
    record = report["verdict"].get("record") or ""
    limits = [f"{_NO_VERDICT['no_device_events']}: {record}" if record else _NO_VERDICT["no_device_events"]]
    limits += [one["message"] for one in report["findings"] if one["code"] == UNCOMPILED and one is not finding]
    return FirstLines(
        _failed(report) + what, "" if why == what else why, fix, label, "", told, (*limits, *_limits(report))
    )


def _of_roles(report: Report) -> FirstLines:
    """Of a job whose timers by role are all that is known: the role that bounds the step, and what adds to it."""
    bound = next((one for one in report["findings"] if one["code"] == "role_bound"), None)
    label, fix, told = _fix(report)
    growth = [one for one in report["findings"] if one["code"] == "role_growth"]
    limits = tuple(one["message"] for one in report["findings"] if one["code"] == UNCOMPILED)
    if bound is None:
        return FirstLines(
            "No verdict: the log times its steps, but no role in them",
            lower(growth[0]["message"]) if growth else "",
            TIMERS,
            "next",
            "",
            None,
            limits,
        )
    what = f"{headline(bound)}: {_cost(report, bound)}"
    beside = (one for one in report["findings"] if one["code"] in ("rollout_tail", "idle_roles"))
    why = next(iter(growth), None) or max(beside, key=lambda one: one["share_frac"], default=None)
    return FirstLines(what, "" if why is None else lower(shows(why)), fix, label, "", told, limits)


# -- what


def _failed(report: Report) -> str:
    """That the run failed, which its owner has to know before where its time went."""
    return "".join(f"{one['message']}. " for one in report["problems"] if one["code"] == FAILED)


def _what(report: Report) -> str:
    verdict = report["verdict"]
    if verdict["abstained"] or verdict["bound_by"] is None:
        reason = verdict.get("abstain_reason")
        return f"No verdict: {_NO_VERDICT[reason]}" if reason else "No verdict"
    if startup := main_finding.startup(report):
        return headline(startup)
    share = f"{units.whole_share(verdict['share_frac'])} of {_of_what(report)}"
    if verdict["bound_by"] == "compute":
        return f"Compute-bound{' on the CPU: operators' if on_cpu(report) else ': kernels'} run {share}"
    finding = main_finding.main_finding(report)
    if finding is None:
        return f"{BOUND[verdict['bound_by']]}: {share}"
    return f"{_blame(report, finding)}: {_cost(report, finding)}"


def _blame(report: Report, finding: FindingEntry) -> str:
    """Who or what costs the time."""
    if finding["code"] == "straggler":
        return _late(report, finding)
    if finding["code"] == "slow_stage" and finding["ranks"]:
        return f"{headline(finding)} ({units.rank_words(finding['ranks'])})"
    cause = next((one for one in BY_CODE.values() if one.finding_code == finding["code"]), None)
    return headline(finding) if cause is None else cause.said(on_cpu=on_cpu(report))


def _late(report: Report, finding: FindingEntry) -> str:
    late = main_finding.late_ranks(report, finding)
    if not late:
        turns = len(finding["ranks"]) > 1
        return "Ranks take turns being late, the others wait" if turns else BY_CODE["straggler"].message
    others = sorted(set(report["trace"]["ranks_present"]) - set(late))
    who = f"{units.rank_words(others)} waits" if len(others) == 1 else "the others wait"
    them = "it" if len(late) == 1 else "them"
    return f"{units.rank_words(late).capitalize()} {units.be(late)} late, {who} for {them}"


def _cost(report: Report, finding: FindingEntry) -> str:
    return f"{units.whole_share(finding['share_frac'])} of {_of_what(report)}"


def _of_what(report: Report) -> str:
    what = "every step" if whole(report) == "step" else "the window"
    return what + (", mean of ranks" if len(report["ranks"]) > 1 else "")


# -- what to change


def _fix(report: Report) -> tuple[Label, str, SuggestionEntry | UnpredictedEntry | None]:
    verdict, advice = report["verdict"], report["advice"]
    if main_finding.startup(report):
        return "next", "record steps after the first ones", None
    suggestions, untried = report["suggestions"], advice["unpredicted"]
    if (first := main_finding.first_answer(report)) is not None:
        return "fix" if first.get("certain", True) else "try", _change(first), first
    if (bounded := _for_every_cause(report)) is not None:
        return "try", _with_bound(bounded), bounded
    if verdict["abstained"] or verdict["cause_abstained"]:
        record = verdict.get("record") or ""
        return ("next", record.rstrip("."), None) if record or not suggestions else _elsewhere(suggestions[0])
    answers = [one for one in untried if main_finding.answers(report, one)]
    # What is but recorded makes no step shorter: it stands behind what could.
    answering = next((one for one in answers if one["code"] not in RECORDS), next(iter(answers), None))
    if answering is not None or (untried and not suggestions):
        one = answering or untried[0]
        if one["code"] in RECORDS:
            return "next", f"{lower(one['action']).rstrip('.')}: {_named(one)}", one
        return "try", _with_bound(one), one
    if suggestions:
        return _elsewhere(suggestions[0])
    if not advice.get("asked", True):
        return "fix", "", None
    if report["step_time"] is not None and report["step_time"]["steps"] == 1:
        return "next", "judge two steps or more: of one nobody can tell what returns", None
    return "fix", "no change tried is predicted to help", None


def _with_bound(one: UnpredictedEntry) -> str:
    return f"{_named(one)} (gain {bound_share(one['bound']) if 'bound' in one else 'unknown'})"


def _for_every_cause(report: Report) -> UnpredictedEntry | None:
    """Where the cause of exposed communication is open, the change whose bound holds for each that is possible."""
    if not report["verdict"]["cause_abstained"] or report["verdict"]["abstained"]:
        return None
    bounded = (one for one in report["advice"]["unpredicted"] if "parts" in one.get("bound", {}))
    return min(
        (one for one in bounded if main_finding.answers(report, one)),
        key=lambda one: one["bound"]["step_ns_low"],
        default=None,
    )


def _record_besides(report: Report, label: Label) -> str:
    """What to record, where that is not what the line of the change says."""
    verdict = report["verdict"]
    told = verdict["cause_abstained"] and not verdict["abstained"] and label != "next"
    return (verdict.get("record") or "").rstrip(".") if told else ""


def _elsewhere(one: SuggestionEntry) -> tuple[Label, str, SuggestionEntry]:
    """A change that answers something else than what the first line says."""
    other = next((cause.label for cause in BY_CODE.values() if cause.finding_code == one["finding"]), "")
    return "fix", f"none known; {f'against {other}' if other else 'elsewhere'} {_change(one)}", one


def _change(one: SuggestionEntry) -> str:
    """`NCCL_ALGO=Ring: 119.6 → 60.10 ms (54.10–66.00 ms)`."""
    predicted = one["predicted"]
    if not predicted["step_ns_before"]:
        return _named(one)
    after = units.span(predicted["step_ns_before"], predicted["step_ns_after"], " → ")
    spread = units.span(predicted["low_ns"], predicted["high_ns"], "–")
    return f"{_named(one)}: {after} ({spread}){doubt(one.get('certain', True))}"


def _named(one: SuggestionEntry | UnpredictedEntry) -> str:
    """A change as it is typed, where it is something to type; else in words."""
    typed, _, remark = setting_words(one, now=True).partition("  #")
    if not is_typed(typed):
        return lower(one["action"]).rstrip(".")
    return f"{typed} ({remark.strip()})" if remark else typed


def is_typed(setting: str) -> bool:
    """Whether a setting is code, a variable or an option, rather than words."""
    while (outer := _BRACKETS.sub("", setting)) != setting:
        setting = outer
    return len(setting.split()) <= (2 if setting.startswith("-") else 1)


# -- what is not judged


def _shift(report: Report) -> str:
    """Where the step time shifts for good, what changed when."""
    shifts = (one for one in report["findings"] if one["code"] == "step_time_shift")
    return next((lower(one["message"]) for one in shifts if one.get("facts", {}).get("first") is not None), "")


def _mean(report: Report) -> str:
    """What is rare, priced on the mean over the recording."""
    return next((shows(one) for one in report["findings"] if one["code"] == "rare_steps"), "")


def _apart(report: Report) -> str:
    """What of the recording is not judged, where that is much."""
    if (apart := report.get("set_apart")) is None:
        return ""
    parts = "; ".join(_part_apart(one) for one in apart["parts"])
    judged = f"{units.duration(apart['judged_ns'])} {'are' if apart['startup'] else 'is'} judged"
    share = f", {units.share(apart['covered_frac'])} of the recording after set-up is steady" * (not apart["startup"])
    return f"{'start-up: ' if apart['startup'] else ''}{parts}; {judged}{share}"


def _part_apart(part: SetApartPart) -> str:
    """`1 warm-up step of 5.005 s (all_reduce waits 5.000 s for rank 2)`."""
    count = part["steps"]
    name = {
        "setup": "set-up",
        "warmup": units.plural(count, "warm-up step"),
        "outlier": units.plural(count, "long step"),
        "before_shift": f"{units.plural(count, 'step')} before the shift",
    }[part["role"]]
    if part["op"] is not None and part["late_rank"] is not None and part["wait_ns"] is not None:
        holds = f"{part['op']} waits {units.duration(part['wait_ns'])} for rank {part['late_rank']}"
    else:
        within = f" in {part['host']}" if part["host"] else ""
        holds = f"the device {PARTS[part['holds']]} {units.duration(part['holds_ns'])}{within}"
    return f"{name} of {units.duration(part['dur_ns'])} ({holds})"


# -- how sure


def _sure(report: Report) -> tuple[str, str, list[str]]:
    """The confidence with what lowers it most, or what speaks for it; that alone; and the other limits."""
    verdict = report["verdict"]
    limits, failed = _limits(report), [one["message"] for one in report["findings"] if one["code"] == UNCOMPILED]
    if verdict["abstained"] or verdict["bound_by"] is None:
        return "", "", failed + limits
    low = " (low)" if verdict["confidence"] < LOW else ""
    grounds = ", ".join(limits[:1] or _speaking_for(report))
    return "; ".join(filter(None, (f"{verdict['confidence']:.2g}{low}", grounds))), grounds, failed + limits[1:]


def _speaking_for(report: Report) -> list[str]:
    spread, trace = report["step_time"], report["trace"]
    found = []
    if spread is not None and spread["steps"] >= FEWEST_STEPS and spread["p90_ns"] <= AGREE * spread["median_ns"]:
        found.append(f"the {spread['steps']} steps agree")
    present = len(trace["ranks_present"])
    across = report["verdict"]["bound_by"] == "communication"  # of others each rank's own trace is enough
    if across and present > 1 and trace["world_size"] == present:
        found.append(f"{'both' if present == 2 else f'all {present}'} ranks were recorded")
    return found


def _limits(report: Report) -> list[str]:
    """What lowers the confidence, and what was lost."""
    verdict = report["verdict"]
    limits: list[str] = verdict.get("limits", [])  # reports of gpuscope 0.1.0 lack the key
    of_memory = report_rows.leading_peak(report) is not None
    found = [*limits, *([report_rows.NO_TIME] if of_memory else [])]
    problems = [one for one in report["problems"] if one["code"] not in (FAILED, OVERRUNS)]
    lost = [one["message"] for one in problems if one["severity"] in ("error", "data_loss")]
    found += [message for message in lost[:1] if of_memory or not verdict["abstained"]]
    found += [one["message"] for one in problems if one["code"] in (PAUSED, OTHER_LOOPS)]
    failed = [one["name"] for one in report["analyzers"] if one["status"] == "failed"]
    return found + (
        [f"{units.plural(len(failed), 'analysis', 'analyses')} failed: {', '.join(failed)}"] if failed else []
    )
