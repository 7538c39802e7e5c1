"""The first lines of a job that is known by its log alone: what slowed, when, by how much, what to do."""

from __future__ import annotations

from gpuscope.catalogue.finding import shows
from gpuscope.report.view.job_log_sentences import server_sentence
from gpuscope.schema.document import FindingEntry, Report
from gpuscope.words import units

LEADING = (
    "log_shift",
    "log_growth",
    "log_restarts",
    "log_late_rank",
    "log_long_steps",
    "log_pauses",
    "log_overhead",
    "log_queue",
)
WORTH = 0.03
"""Of the job's time: from there on a loss is the first line."""


def log_lines(report: Report) -> tuple[str, str, str, bool]:
    """(what, why, what to do, whether that is something to try rather than to record)."""
    log = report["job_log"]
    found = [one for one in report["findings"] if one["code"] in LEADING]
    main = next((one for one in found if _leads(one)), None)
    advice = log["advice"][0]["action"] if log["advice"] else ""
    steady = _steady(report)
    if main is None:
        return steady, _beside(found), advice or log["next"], bool(advice)
    what = main["message"]
    if main["share_frac"] >= 0.001 and main["code"] not in ("log_overhead", "log_queue"):
        what += f": {units.share(main['share_frac'])} of the job"
    why = shows(main)
    rest = _beside([one for one in found if one is not main])
    explained = "" if why == main["message"] else why
    return what, "; ".join(filter(None, (explained, rest or steady))), *_to_do(report, main)


def _leads(one: FindingEntry) -> bool:
    always = one["code"] in ("log_shift", "log_growth", "log_restarts", "log_late_rank", "log_queue")
    return one["severity"] != "low" and (always or one["share_frac"] >= WORTH)


def _steady(report: Report) -> str:
    log = report["job_log"]
    if log["step_ns"] is None:
        server = log["server"]
        return "No step time is logged" if server is None else server_sentence(server).capitalize()
    good = f"; goodput {units.share(log['goodput_frac'])}" if log["goodput_frac"] is not None else ""
    of = f" over {units.plural(log['steps'], 'step')}" if log["steps"] else ""
    return f"Steps are steady{of}: {units.duration(log['step_ns'])} in the median{good}"


def _beside(found: list[FindingEntry]) -> str:
    return "; ".join(one["message"][:1].lower() + one["message"][1:] for one in found[:2])


def _to_do(report: Report, main: FindingEntry) -> tuple[str, bool]:
    """What answers the first line: a setting for what the log itself explains, else what to record."""
    log = report["job_log"]
    if main["code"] in ("log_overhead", "log_long_steps", "log_restarts") and log["advice"]:
        return log["advice"][0]["action"], True
    if main["code"] == "log_shift":
        step = log["shifts"][0]["step"]
        return f"record steps on either side of step {step:,} and gpuscope diff them: {log['next']}", False
    if main["code"] == "log_growth":
        return f"record early and late steps and gpuscope diff them: {log['next']}", False
    return log["next"], False
