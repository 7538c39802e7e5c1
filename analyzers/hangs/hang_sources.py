"""What was read of a job that hung, and which ranks it tells nothing of."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.hangs.evidence import Evidence
from gpuscope.analyzers.hangs.rank_states import Job
from gpuscope.catalogue import hang_reasons as words
from gpuscope.schema.hang_section import HangCause, HangSource, SourceOfHang

_STATES = ("alive", "stopped", "exited", "storage", "debugger")


def of(job: Job, evidence: Evidence, causes: Sequence[HangCause], facts: RunFacts) -> list[HangSource]:
    """Every kind of source; what is missing of those that could still tell something: a killed rank leaves no dump, and
    of a job that is over nobody takes stacks."""
    known = set(job.ranks) | set(job.without_dump) | evidence.ranks | {cause["rank"] for cause in causes}
    told = {cause["rank"] for cause in causes if cause.get("reason_certain")}
    opened = {cause["rank"] for cause in causes if not facts.over and cause["kind"] != "mismatch"} - told
    logs = {one["rank"] for one in evidence.signs if one["sign"] not in _STATES} | evidence.last_lines.keys()
    states = {one["rank"] for one in evidence.signs if one["sign"] in _STATES}
    ras = {one.rank for one in evidence.progress if one.told_by == "ras"}
    silent = opened - set(evidence.hosts) - set(job.ranks)
    found = [
        _source("flight_recorder", job.ranks, known - told - facts.killed),
        _source("stacks", evidence.hosts, opened),
        _source("logs", logs, silent),
        _source("ras", ras, opened if job.backend != "gloo" else ()),
        _source("process_states", states, silent),
        _source("compile_logs", evidence.compile_logs, ()),
    ]
    return [source for source in found if source["ranks"] or source["missing"]]


def _source(name: SourceOfHang, told: Collection[int | None], wanted: Collection[int]) -> HangSource:
    ranks = sorted(rank for rank in told if rank is not None)
    missing = sorted(set(wanted) - set(ranks))
    return {"source": name, "ranks": ranks, "missing": missing, "how": words.HOW[name] if missing else None}
