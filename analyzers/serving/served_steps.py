"""The steps of an inference server with all that is known of each: batch, breakdown, causes, launches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import EVIDENCE, Attributed, LaneKey, serves
from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.analyzers.verdict.verdict import bound
from gpuscope.catalogue.finding import Finding, made
from gpuscope.catalogue.findings.serving import (
    EagerDecode,
    PrefillStallsDecode,
    SchedulerGap,
    SmallAllReduces,
    UncapturedBatch,
)
from gpuscope.catalogue.suggestion import class_of
from gpuscope.schema.call_tree_section import (
    ServingBatch,
    ServingInterval,
    ServingPhase,
    ServingSection,
    ServingStep,
    ServingWork,
)
from gpuscope.schema.document import BatchEntry, Evidence, FindingEntry
from gpuscope.trace.frameworks import SERVERS, Phase
from gpuscope.trace.intervals import Breakdown
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.welch import fmean, median, quantile
from gpuscope.when_used import dataclass
from gpuscope.words.vocabulary import VERDICT_SHARE

Batches = Mapping[tuple[int, int], tuple[Phase | None, BatchEntry | None]]
"""Phase and batch by rank and number of the step."""
COUNTS = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")


@dataclass(frozen=True)
class ServedStep:
    """One step of one device."""

    rank: int
    number: int
    start: int
    phase: Phase | None
    batch: BatchEntry | None
    judged: bool
    parts: Breakdown
    causes: Mapping[str, int]
    """ns by cause."""
    measured: ServingStep

    @property
    def dur(self) -> int:
        """ns."""
        return self.parts.window

    @property
    def graphed(self) -> bool:
        """Whether graphs launched most of its kernels."""
        return self.measured["graphed"] * 2 > self.measured["kernels"]

    @property
    def within_launch_ns(self) -> int:
        """Idle time with the cause `launch`, but for the gap to the next step."""
        return max(min(self.causes.get("launch", 0), self.parts.idle - self.measured["gap_ns"]), 0)

    @property
    def cpu_ns(self) -> int:
        """Idle time with a cause of the class `cpu`."""
        return sum(spent for cause, spent in self.causes.items() if class_of(cause) == "cpu")

    def told(self, count: str) -> int | None:
        """One of `COUNTS`; None where it is not told."""
        return None if self.batch is None else self.batch[count]  # type: ignore[literal-required]


def batches_of(trace: Trace) -> Batches:
    """Phase and batch of a server's steps by rank and number; empty of other programs."""
    table, names = trace["steps"], trace.names
    if not serves(trace):
        return {}
    found: dict[tuple[int, int], tuple[Phase | None, BatchEntry | None]] = {}
    columns = (table["rank"], table["step"], table["phase"], *(table[name] for name in COUNTS))
    for rank, step, phase, *counts in zip(*(column.tolist() for column in columns), strict=True):
        told = [None if count == NA else count for count in counts]
        batch: BatchEntry = dict(zip(COUNTS, told, strict=True))  # type: ignore[assignment]
        own: Phase | None = None if phase == NO_NAME else names[phase]  # type: ignore[assignment]
        found[rank, step] = own, batch if any(count is not None for count in told) else None
    return found


def captured_sizes(batches: Batches) -> set[int]:
    """Sizes that graphs were captured for. vLLM's ranges of captures hold nothing that runs on the device."""
    told = (batch["decode_tokens"] for phase, batch in batches.values() if phase == "capture" and batch)
    return {size for size in told if size is not None}


def served_steps(
    facts: RunFacts,
    causes: Mapping[LaneKey, Mapping[str, Attributed]],
    batches: Batches,
    measured: Sequence[ServingStep],
) -> list[ServedStep]:
    """Of all devices, in the order of the lanes, of each in order of time; without what ran before the first."""
    of = {(one["rank"], one["device"], one["step"]): one for one in measured}
    return [step for lane in facts.lanes for step in _of_lane(facts, lane, causes.get(lane.key, {}), batches, of)]


def _of_lane(
    facts: RunFacts,
    lane: LaneSummary,
    causes: Mapping[str, Attributed],
    batches: Batches,
    measured: Mapping[tuple[int, int, int], ServingStep],
) -> Iterator[ServedStep]:
    for place, (step, parts) in enumerate(zip(lane.steps, lane.step_breakdowns, strict=True)):
        own = measured.get((lane.rank, lane.device, step.step))
        if own is None:
            continue
        phase, batch = batches.get((lane.rank, step.step), (None, None))
        spent = {cause: int(one.per_step[place]) for cause, one in causes.items() if np.any(one.per_step[place])}
        yield ServedStep(
            lane.rank, step.step, step.start, phase, batch, facts.steady.judged(step.step), parts, spent, own
        )


# The section `serving`: what each phase of an inference server takes, and how long requests wait for tokens.


def serving_section(steps: Sequence[ServedStep], frameworks: Sequence[str], captured: Iterable[int]) -> ServingSection:
    """The section of a server's steps, which captured graphs of these sizes."""
    own: dict[Phase | None, list[ServedStep]] = defaultdict(list)
    for step in steps:
        if step.judged or step.phase == "capture":
            own[step.phase].append(step)
    judged = sum(step.dur for step in steps if step.judged)
    phases = [_phase(phase, found, judged) for phase, found in own.items()]
    waits = token_waits(steps)
    alone = [wait.dur for wait in waits if wait.alone]
    first = [step.dur for step in steps if step.judged and step.phase in ("prefill", "mixed")]
    return {
        "server": next((name for name in frameworks if name in SERVERS), None),
        "phases": sorted(phases, key=lambda one: -one["share_frac"]),
        "batches": _batches(own["decode"]),
        "token_interval": _interval([wait.dur for wait in waits]),
        "decode_alone_ns": round(median(alone)) if alone else None,
        "first_token": _interval(first),
        "captured": sorted(captured),
    }


class TokenWait:
    """From one step that decodes to the next one on the same device."""

    def __init__(self, steps: Sequence[ServedStep]) -> None:
        self.steps = steps
        """The step that decodes, and those up to the next one."""
        self.dur = sum(step.dur for step in steps)
        self.alone = all(step.phase == "decode" for step in steps)


def token_waits(steps: Sequence[ServedStep]) -> list[TokenWait]:
    """Of the lowest rank. What follows the last step that decodes is not known to be waited for."""
    lowest = min((step.rank for step in steps), default=0)
    own = [step for step in steps if step.rank == lowest and step.judged]
    at = [place for place, step in enumerate(own) if step.phase in ("decode", "mixed")]
    ends = [*at[1:], *(place + 1 for place in at[-1:])]
    return [TokenWait(own[begin:end]) for begin, end in zip(at, ends, strict=True)]


def _interval(durations: Sequence[int]) -> ServingInterval | None:
    if not durations:
        return None
    return {
        "count": len(durations),
        "median_ns": round(median(durations)),
        "p90_ns": round(quantile(durations, 0.9)),
        "max_ns": max(durations),
    }


def _phase(phase: Phase | None, steps: Sequence[ServedStep], judged: int) -> ServingPhase:
    count, spent = len(steps), sum(step.dur for step in steps)
    causes: Counter[str] = Counter()
    for step in steps:
        causes.update(step.causes)
    class_name, cause, share = bound(causes, spent)
    kernels = sum(step.measured["kernels"] for step in steps)
    hosts = [step.measured["host_ns"] for step in steps]
    known_hosts = [host for host in hosts if host is not None]
    told = {name: _mean([step.told(name) for step in steps]) for name in COUNTS}
    tokens = [told["prefill_tokens"], told["decode_tokens"]]
    known_tokens = phase != "capture" and None not in tokens and spent
    return {
        "phase": phase,
        "steps": count,
        "step_ns": round(median(step.dur for step in steps)),
        "share_frac": spent / judged if judged and phase != "capture" else 0.0,
        "breakdown_ns": {
            "compute": sum(step.parts.compute for step in steps) // count,
            "exposed_communication": sum(step.parts.exposed_communication for step in steps) // count,
            "exposed_memory": sum(step.parts.exposed_memory for step in steps) // count,
            "idle": sum(step.parts.idle for step in steps) // count,
        },
        "bound_by": class_name,
        "cause": cause,
        "cause_frac": share,
        "cpu_ns": sum(step.cpu_ns for step in steps) // count,
        "gap_ns": sum(step.measured["gap_ns"] for step in steps) // count,
        "host_ns": sum(known_hosts) // len(known_hosts) if known_hosts else None,
        "launches": fmean(step.measured["launches"] for step in steps),
        "graphs": fmean(step.measured["graphs"] for step in steps),
        "graphed_frac": sum(step.measured["graphed"] for step in steps) / kernels if kernels else 0.0,
        "call_ns": sum(step.measured["call_ns"] for step in steps) // count,
        "prefill_requests": told["prefill_requests"],
        "prefill_tokens": told["prefill_tokens"],
        "decode_requests": told["decode_requests"],
        "decode_tokens": told["decode_tokens"],
        "tokens_per_s": sum(one or 0.0 for one in tokens) * count / spent * 1e9 if known_tokens else None,
        "work": _work(steps),
    }


def _mean(counts: Sequence[int | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return fmean(known) if len(known) == len(counts) else None


def _work(steps: Sequence[ServedStep]) -> list[ServingWork]:
    from gpuscope.analyzers.serving.step_measures import KINDS

    found: list[ServingWork] = []
    for kind in KINDS:
        spent, known, floor = (sum(step.measured["work"][kind][column] for step in steps) for column in range(3))
        if spent:
            found.append(
                {
                    "kind": kind,
                    "dur_ns": spent // len(steps),
                    "floor_frac": floor / known if known else None,
                    "known_frac": known / spent,
                }
            )
    return found


def _batches(decodes: Sequence[ServedStep]) -> list[ServingBatch]:
    own: dict[int, list[ServedStep]] = defaultdict(list)
    for step in decodes:
        if (size := step.told("decode_requests")) is not None:
            own[size].append(step)
    return [
        {
            "requests": size,
            "steps": len(steps),
            "step_ns": round(median(step.dur for step in steps)),
            "graphed_frac": sum(step.measured["graphed"] for step in steps)
            / max(sum(step.measured["kernels"] for step in steps), 1),
            "launch_ns": sum(step.within_launch_ns for step in steps) // len(steps),
        }
        for size, steps in sorted(own.items())
    ]


# Findings on an inference server, from its steps with all their causes.

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
        _serving_findings_mean([wait.steps[0].told("decode_requests") for wait in late]),
        _serving_findings_mean([_sum(step.told("prefill_tokens") for step in wait.steps) for wait in late]),
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


def _serving_findings_mean(counts: Sequence[int | None]) -> float | None:
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
