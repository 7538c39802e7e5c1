"""The section `serving`: what each phase of an inference server takes, and how long requests wait for tokens."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from gpuscope.analyzers.serving.served_steps import COUNTS, ServedStep
from gpuscope.analyzers.verdict.verdict import bound
from gpuscope.averages import fmean, median, quantile
from gpuscope.schema.serving_section import (
    ServingBatch,
    ServingInterval,
    ServingPhase,
    ServingSection,
    ServingWork,
)
from gpuscope.trace.naming.frameworks import SERVERS
from gpuscope.trace.naming.serving_names import Phase


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
