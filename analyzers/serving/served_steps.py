"""The steps of an inference server with all that is known of each: batch, breakdown, causes, launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gpuscope.analyzers.base.analyzer import Attributed, LaneKey
from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.analyzers.base.needs import serves
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.catalogue.cause_table import class_of
from gpuscope.schema.document import BatchEntry
from gpuscope.schema.serving_section import ServingStep
from gpuscope.trace.breakdown import Breakdown
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.naming.serving_names import Phase
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

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
