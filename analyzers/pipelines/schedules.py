"""The schedule of a pipeline, recognised from the order in which each stage computes.

An order is recognised only where it is exactly that of the schedule, on every stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpuscope.analyzers.facts.pipeline_facts import Computation, Flush
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.collective_costs.message_cost import FixedPart, fixed_part
from gpuscope.schema.provenance import ScheduleName
from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass

# How long messages between the stages of a pipeline take, and how much of that shrinks with their size.

RANKS = 2


@dataclass(frozen=True)
class MessageTime:
    """Mean ns of a message once both ends are there, and what of it is fixed cost."""

    transfer: float
    fixed: FixedPart

    def shorter(self, scale: float, bias: int) -> float:
        """ns by which a message of `scale` times the bytes is shorter; `bias` as of a change's assumptions."""
        fixed = {-1: self.fixed.least, 0: self.fixed.expected, 1: self.fixed.most}[bias]
        return max(0.0, self.transfer - fixed) * (1 - scale)


def message_time(facts: RunFacts, gpu: str) -> MessageTime | None:
    """Of the messages of a run on GPUs of that model whose sizes are recorded; None where there are none."""
    table, names = facts.trace["collectives"], facts.trace.names
    message = names.matching(POINT_TO_POINT.__contains__)[table["op"]]
    taken, size = facts.waits.transfer, table["bytes"]
    rows = np.flatnonzero(message & (taken != NA) & (taken > 0) & (size != NA) & (size > 0))
    if not len(rows):
        return None
    transfer, nbytes = float(taken[rows].mean()), float(size[rows].mean())
    return MessageTime(transfer, fixed_part(transfer, nbytes, "send_recv", RANKS, gpu, None))


Order = list[tuple[str, int]]
"""(F or B, chunk within the stage) in the order of computing."""


@dataclass(frozen=True)
class Recognised:
    """A schedule and what speaks for it, or against those known."""

    name: ScheduleName
    why: str
    micro_batches: int
    chunks: int
    """Model chunks per stage."""


def recognise(flush: Flush) -> Recognised:
    """The schedule of one flush."""
    stages, micro_batches = len(flush.stages), flush.micro_batches
    chunks = max(len({one.model_chunk for one in own}) for own in flush.stages)
    apart = any(one.kind == "W" for own in flush.stages for one in own)

    def found(name: ScheduleName, why: str) -> Recognised:
        return Recognised(name, why, micro_batches, chunks)

    if apart and _is_v(flush):
        wrong = next(
            (s for s, own in enumerate(flush.stages) if not _fills_as_zbv(s, own, stages, micro_batches)), None
        )
        if wrong is None:
            return found(
                "zbv",
                "stage s holds model chunks s and 2p−1−s, computes weight gradients apart, and begins "
                "with 2(p−s)−1 forwards of the first",
            )
        return found(
            "unknown",
            f"chunks lie in a V and weight gradients are computed apart, but stage {wrong} does not begin as ZB-V does",
        )
    if not _is_looped(flush, chunks):
        return found("unknown", "model chunks lie on the stages in no order of a known schedule")
    names = _candidates(stages, micro_batches, chunks, apart)
    reasons = []
    for name, expected, why in names:
        wrong = next((s for s in range(stages) if _order(flush.stages[s], s, stages) != expected(s)), None)
        if wrong is None:
            return found(name, why)
        reasons.append(f"{name} on stage {wrong}")
    also = ", with weight gradients computed apart" if apart else ""
    return found("unknown", f"the order of computing{also} differs from {', from '.join(reasons) or 'any known'}")


def _candidates(
    stages: int, micro_batches: int, chunks: int, apart: bool
) -> list[tuple[ScheduleName, Callable[[int], Order], str]]:
    """Schedules that these numbers allow: name, order of each stage, and the reason in words."""

    def breadth_first(stage: int) -> Order:
        return schedule_order("looped_bfs", stage, stages, micro_batches, chunks)

    def one_by_one(stage: int) -> Order:
        return schedule_order("1f1b", stage, stages, micro_batches, chunks)

    def looped(stage: int) -> Order:
        # Narayanan et al. 2021, section 2.2; Megatron-LM, forward_backward_pipelining_with_interleaving;
        # torch.distributed.pipelining, ScheduleInterleaved1F1B.
        group = group_size(stages, micro_batches)
        forwards, backwards = interleaved(group, micro_batches, chunks)
        # With weight gradients apart fewer forwards fill the pipeline (ScheduleInterleavedZeroBubble).
        each = 1 if apart else 2
        return one_forward_one_backward(forwards, backwards, each * (stages - stage - 1) + (chunks - 1) * group)

    alternates = "after p−s−1 forwards stage s alternates between a forward and a backward"
    if apart:
        return (
            []
            if chunks == 1
            else [
                (
                    "interleaved_zero_bubble",
                    looped,
                    "after p−s−1 + (v−1)p forwards stage s alternates between a "
                    "forward and a backward, weight gradients computed apart",
                )
            ]
        )
    if chunks == 1:
        same = "; with one micro-batch 1F1B is the same" if micro_batches == 1 else ""
        return [
            ("gpipe", breadth_first, f"every stage computes all forwards before its first backward{same}"),
            ("1f1b", one_by_one, alternates),
        ]
    return [
        ("looped_bfs", breadth_first, "every stage computes all forwards, chunk by chunk, before its first backward"),
        (
            "interleaved_1f1b",
            looped,
            "after 2(p−s−1) + (v−1)p forwards stage s alternates between a forward and a "
            "backward, p micro-batches of a chunk at a time",
        ),
    ]


def schedule_order(name: str, stage: int, stages: int, micro_batches: int, chunks: int) -> Order:
    """Kind and chunk of each computation of a stage."""
    if name in ("gpipe", "looped_bfs"):
        forwards = [("F", chunk) for chunk in range(chunks) for _ in range(micro_batches)]
        return forwards + [("B", chunk) for chunk in reversed(range(chunks)) for _ in range(micro_batches)]
    if name == "1f1b":
        return one_forward_one_backward([0] * micro_batches, [0] * micro_batches, stages - stage - 1)
    group = group_size(stages, micro_batches)
    ahead = 2 * (stages - stage - 1) + (chunks - 1) * group
    return one_forward_one_backward(*interleaved(group, micro_batches, chunks), ahead)


def one_forward_one_backward(forwards: Sequence[int], backwards: Sequence[int], ahead: int) -> Order:
    """Chunks of forwards and backwards, `ahead` forwards first, then alternately a forward and a backward."""
    first = min(ahead, len(forwards))
    order: Order = [("F", chunk) for chunk in forwards[:first]]
    rest = len(forwards) - first
    for at in range(rest):
        order += [("F", forwards[first + at]), ("B", backwards[at])]
    return order + [("B", chunk) for chunk in backwards[rest:]]


def group_size(stages: int, micro_batches: int) -> int:
    """Micro-batches that go through a chunk before the next chunk's turn: as many as stages; where they don't divide,
    the equal groups next above that (torch.distributed.pipelining)."""
    return micro_batches // max(1, micro_batches // stages)


def interleaved(group: int, micro_batches: int, chunks: int) -> tuple[list[int], list[int]]:
    """Chunks in the order of a stage's forwards and of its backwards: groups of micro-batches (the last one may be
    smaller) go through all chunks in turn."""
    groups = [min(group, micro_batches - first) for first in range(0, micro_batches, group)]
    forwards = [chunk for size in groups for chunk in range(chunks) for _ in range(size)]
    return forwards, [chunks - 1 - chunk for chunk in forwards]


def _order(own: Sequence[Computation], stage: int, stages: int) -> Order:
    return [(one.kind, (one.model_chunk - stage) // stages) for one in own if one.kind != "W"]


def _is_looped(flush: Flush, chunks: int) -> bool:
    """Whether stage s of p holds the model chunks s, s+p, s+2p…"""
    p = len(flush.stages)
    expected = ({s + p * chunk for chunk in range(chunks)} for s in range(p))
    return all({one.model_chunk for one in own} == held for own, held in zip(flush.stages, expected, strict=True))


def _is_v(flush: Flush) -> bool:
    """Whether stage s of p holds the model chunks s and 2p−1−s."""
    p = len(flush.stages)
    return all({one.model_chunk for one in own} == {s, 2 * p - 1 - s} for s, own in enumerate(flush.stages))


def _fills_as_zbv(stage: int, own: Sequence[Computation], stages: int, micro_batches: int) -> bool:
    """Whether a stage begins as in ZB-V (Qi et al. 2024, «Pipeline Parallelism with Controllable Memory», and
    torch.distributed.pipelining, ScheduleZBVZeroBubble): 2(p−s)−1 forwards of its first chunk, then s times one of
    its second and one of its first, as far as there are micro-batches, then its second again."""
    first, second = ("F", stage), ("F", 2 * stages - 1 - stage)
    planned = [first] * (2 * (stages - stage) - 1) + [second, first] * stage + [second]
    expected = []
    left = {first: micro_batches, second: micro_batches}
    for one in planned:
        if left[one]:
            expected.append(one)
            left[one] -= 1
    return [(one.kind, one.model_chunk) for one in own[: len(expected)]] == expected


@dataclass(frozen=True)
class Ideal:
    """Bubble / length of a pipeline whose computations of a kind all take equal time; None where no formula is
    known, and the basis of it."""

    bubble_frac: float | None
    basis: str


def bubble_frac(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Ideal bubble / length of GPipe and 1F1B, (p−1)/(m+p−1), and with several chunks per stage of their interleaved
    kin, (p−1)/(v·m+p−1): Huang et al. 2019 (GPipe); Narayanan et al. 2021, 2.2."""
    return (stages - 1) / (chunks * micro_batches + stages - 1)


def ideal(found: Recognised, stages: int) -> Ideal:
    """The ideal bubble of a schedule."""
    p, m, v = stages, found.micro_batches, found.chunks
    if found.name in ("gpipe", "1f1b"):
        return Ideal(bubble_frac(p, m), "(p−1)/(m+p−1): Huang et al. 2019 (GPipe); Narayanan et al. 2021, 2.2.1")
    if found.name in ("interleaved_1f1b", "looped_bfs"):
        return Ideal(bubble_frac(p, m, v), "(p−1)/(v·m+p−1): Narayanan et al. 2021, 2.2.2")
    if found.name == "zbv" and m >= 2 * p - 1:
        # 6m computations per stage, and no bubble between a stage's first and last one.
        return Ideal(
            (p - 1) / (6 * m + p - 1),
            "(p−1)/(6m+p−1) where F, B and W take equal time: Qi et al. 2024 (ZB-V), with the p−1 forwards before the "
            "last stage can begin",
        )
    return Ideal(None, "no formula for this schedule with so many micro-batches")
