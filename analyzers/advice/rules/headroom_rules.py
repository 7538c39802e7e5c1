"""Memory that stays free, turned into larger batches or activations that are not computed twice."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, by_framework, python
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

FILLED = 0.2
"""Share of the step in stalls that a larger batch spreads over more work (launches, latency, the pipeline's bubble),
from which it is worth a try."""
_SPREAD = ("launch", "host_other", "latency", "pipeline_bubble", "exposed_communication", "straggler")


@dataclass(frozen=True)
class LargerBatch(Suggestion):
    """Memory turned into samples."""

    code = "larger_batch"
    answers = ("memory_headroom",)
    sets = "a larger batch per rank, where most of the memory stays free and the step is not compute"
    action = "Use the free memory for a larger batch per rank"
    why = "{message}; {stalls} take as long for more samples"
    why_not = (
        "it shortens no step, but {share} of it then costs the same for more samples, at most {times} times as many "
        "per second; what memory a sample takes is not recorded"
    )
    risk = "another batch size trains differently: scale the learning rate, or accumulate fewer micro-batches"
    verify = "record again: samples per second, and the peak of reserved memory"
    alters_training = True

    share_frac: float
    """Of the step, in stalls that do not grow with the batch."""
    codes: list[str]
    """Findings of the longest of these."""

    @property
    def stalls(self) -> str:
        return ", ".join(self.codes)

    @property
    def share(self) -> str:
        return units.share(self.share_frac)

    @property
    def times(self) -> str:
        return f"{1 / max(1 - self.share_frac, 0.01):.1f}"


class MoreInFlight(LargerBatch):
    """The same in a pipeline."""

    action = "Use the free memory: more micro-batches in flight, or a larger batch per rank"


@dataclass(frozen=True)
class ActivationsKept(Suggestion):
    """Memory turned into time."""

    code = "no_checkpointing"
    answers = ("needless_checkpointing",)
    sets = "activation checkpointing off, where there is room"
    action = "Keep activations instead of computing them again, at least of some layers"
    why = "{message}"
    why_not = (
        "how much memory the activations take is not recorded: take it off layer by layer; full recomputation is up to "
        "a third of forward and backward (arXiv:1604.06174)"
    )
    risk = "the peak of memory rises by the activations kept"
    verify = "record again: fewer kernels in the backward pass, a step up to a quarter shorter; peak of memory"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By the finding: no recomputation; a larger batch where the step is not compute."""
    if finding["code"] == "needless_checkpointing":
        setting = by_framework(
            case,
            torch_settings.CHECKPOINT.to("only around as many layers as memory requires"),
            megatron=other_settings.RECOMPUTE_GRANULARITY.to("unset, or selective for full"),
            transformers=other_settings.TRAINER_CHECKPOINTING.to("False"),
        )
        yield Proposal(finding, ActivationsKept(), setting)
        return
    spread = [one for one in case.report["findings"] if one["code"] in _SPREAD]
    share = sum(one["share_frac"] for one in spread)
    if case.report["verdict"]["abstained"] or share < FILLED:
        return
    kind = MoreInFlight if any(one["code"] == "pipeline_bubble" for one in spread) else LargerBatch
    record = kind(share, [one["code"] for one in spread if one["share_frac"] >= FILLED / 4])
    setting = by_framework(
        case,
        python("batch size per rank", "twice as large, with the learning rate scaled to it"),
        megatron=other_settings.MEGATRON_SETTINGS_MICRO_BATCH_SIZE.to("twice as large"),
        deepspeed=other_settings.MICRO_BATCH_SIZE.to("twice as large"),
        transformers=other_settings.TRAINER_BATCH_SIZE.to("twice as large"),
    )
    yield Proposal(finding, record, setting)


RULE = Rule("headroom", (LargerBatch, MoreInFlight, ActivationsKept), propose, place=100)
