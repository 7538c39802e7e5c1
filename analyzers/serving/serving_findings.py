"""Findings on an inference server, from its steps with all their causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gpuscope.analyzers.base.analyzer import EVIDENCE
from gpuscope.analyzers.serving.by_phase import TokenWait, token_waits
from gpuscope.analyzers.serving.served_steps import ServedStep
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.averages import fmean, median
from gpuscope.catalogue.finding import Finding, made
from gpuscope.catalogue.findings.serving import (
    EagerDecode,
    PrefillStallsDecode,
    SchedulerGap,
    SmallAllReduces,
    UncapturedBatch,
)
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.schema.serving_section import ServingSection
from gpuscope.words.vocabulary import VERDICT_SHARE

LEAST = 3 * MIN_SHARE
"""Share of the judged time from which a gap is worth a line."""
STALLED = 2.0
"""Times the interval of decode alone from which a token is late."""


def serving_findings(steps: Sequence[ServedStep], section: ServingSection) -> list[FindingEntry]:
    """The costliest first."""
    judged = [step for step in steps if step.judged]
    if not judged:
        return []
    found = [*_launching(judged), *_stalls(judged, section), *_gaps(judged), *_messages(judged)]
    return sorted(found, key=lambda finding: -finding["share_frac"])


def _finding(
    words: Finding, judged: Sequence[ServedStep], own: Sequence[ServedStep], cost: Callable[[ServedStep], int]
) -> FindingEntry:
    """A finding that costs so much in each of its steps."""
    total, shown = sum(map(cost, own)), sorted(own, key=cost, reverse=True)[:EVIDENCE]
    evidence: list[Evidence] = [
        {
            "rank": step.rank,
            "start_ns": step.start,
            "dur_ns": step.dur,
            "name": f"step {step.number}",
            "note": step.phase or "",
        }
        for step in shown
    ]
    return made(
        words,
        ranks={step.rank for step in own},
        share=total / sum(step.dur for step in judged),
        cost_ns=total,
        mean_ns=round(total / len(judged)),
        evidence=evidence,
    )


def _launching(judged: Sequence[ServedStep]) -> Iterator[FindingEntry]:
    """Decode steps that no graph launches, of sizes that none is captured for where others are."""
    decodes = [step for step in judged if step.phase == "decode"]
    eager = [step for step in decodes if not step.graphed]
    waiting = sum(step.within_launch_ns for step in eager)
    if waiting < MIN_SHARE * sum(step.dur for step in judged):
        return
    replayed = [step.told("decode_requests") for step in decodes if step.graphed]
    largest = max((size for size in replayed if size is not None), default=0)
    sizes = {step.told("decode_requests") for step in eager}
    length, wait = round(median(step.dur for step in eager)), waiting // len(eager)
    larger = sorted(size for size in sizes if size is not None and size > largest)
    words: Finding = EagerDecode(len(eager), round(fmean(step.measured["launches"] for step in eager)), length, wait)
    if largest and len(larger) == len(sizes):
        words = UncapturedBatch(larger, largest, len(eager), length, wait)
    yield _finding(words, judged, eager, lambda step: step.within_launch_ns)


def _stalls(judged: Sequence[ServedStep], section: ServingSection) -> Iterator[FindingEntry]:
    """Requests whose next token waits for prompts."""
    alone, waits = section["decode_alone_ns"], [wait for wait in token_waits(judged) if not wait.alone]
    late = [wait for wait in waits if (wait.dur >= STALLED * alone if alone is not None else _mostly_prompts(wait))]
    if not late:
        return
    costs: dict[int, int] = {}
    for wait in late:
        usual = alone if alone is not None else round(wait.dur * (1 - _prompts(wait)))
        costs[wait.steps[0].number] = wait.dur - usual
    if sum(costs.values()) < MIN_SHARE * sum(wait.dur for wait in token_waits(judged)):
        return
    words = PrefillStallsDecode(
        _mean([wait.steps[0].told("decode_requests") for wait in late]),
        _mean([_sum(step.told("prefill_tokens") for step in wait.steps) for wait in late]),
        round(median(wait.dur for wait in late)),
        alone,
        len(late),
    )
    rank = late[0].steps[0].rank
    own = [step for step in judged if step.rank == rank]
    first = [step for step in own if step.number in costs]
    yield _finding(words, own, first, lambda step: costs[step.number])


def _prompts(wait: TokenWait) -> float:
    """Share of prompts' tokens; 0 where not told."""
    prompts = _sum(step.told("prefill_tokens") for step in wait.steps)
    answers = _sum(step.told("decode_tokens") for step in wait.steps)
    return prompts / (prompts + answers) if prompts is not None and answers is not None and prompts + answers else 0.0


def _mostly_prompts(wait: TokenWait) -> bool:
    return _prompts(wait) >= 0.5


def _sum(counts: Iterator[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def _mean(counts: Sequence[int | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return fmean(known) if known else None


def _gaps(judged: Sequence[ServedStep]) -> Iterator[FindingEntry]:
    gaps, spent = sum(step.measured["gap_ns"] for step in judged), sum(step.dur for step in judged)
    if gaps < LEAST * spent:
        return
    by_phase: Counter[str] = Counter()
    for step in judged:
        by_phase[step.phase or ""] += step.measured["gap_ns"]
    phase = by_phase.most_common(1)[0][0]
    words = SchedulerGap(gaps // len(judged), spent // len(judged), len(judged), phase if len(by_phase) > 1 else "")
    yield _finding(words, judged, judged, lambda step: step.measured["gap_ns"])


def _messages(judged: Sequence[ServedStep]) -> Iterator[FindingEntry]:
    decodes = [step for step in judged if step.phase == "decode"]
    spent = sum(step.dur for step in decodes)

    def cost(step: ServedStep) -> int:  # what may be waiting for a late rank is left out
        return step.causes.get("latency", 0) + step.causes.get("bandwidth", 0)

    exposed, sent = sum(map(cost, decodes)), sum(step.measured["collectives"] for step in decodes)
    if not sent or exposed < VERDICT_SHARE * spent:
        return
    names = Counter(step.measured["longest"] for step in decodes)
    words = SmallAllReduces(
        sent / len(decodes),
        sum(step.parts.communication for step in decodes) // sent,
        exposed // len(decodes),
        spent // len(decodes),
        "nccl" in names.most_common(1)[0][0].lower(),
    )
    yield _finding(words, judged, decodes, cost)
