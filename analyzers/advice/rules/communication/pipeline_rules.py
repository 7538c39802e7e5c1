"""Pipeline parallelism: micro-batches, schedule, split of the stages."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import by_framework, python
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import deepspeed_settings, megatron_settings, other_settings, torch_settings
from gpuscope.analyzers.changes import EarlyMessages, EvenStages, MicroBatches, Schedule
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.trace.naming.kinds import POINT_TO_POINT
from gpuscope.when_used import dataclass
from gpuscope.words import units

COUNTS = (2, 4, 8, 16, 32, 64)
"""Micro-batches tried, where they are more than there are."""
SCHEDULES = {"1f1b": "Schedule1F1B", "interleaved_1f1b": "ScheduleInterleaved1F1B", "zbv": "ScheduleZBVZeroBubble"}
"""Names of torch.distributed.pipelining."""
VERIFY = "record again: the bubble of each stage (report, section pipeline); `gpuscope diff BEFORE AFTER`"


@dataclass(frozen=True)
class MoreMicroBatches(Suggestion):
    """The batch cut finer."""

    code = "micro_batches"
    answers = ("pipeline_bubble", "few_micro_batches")
    sets = "more micro-batches"
    action = "Cut the batch into {count} micro-batches"
    why = "{cost}; filling and draining the pipeline costs as many micro-batches as it has stages"
    risk = (
        "smaller micro-batches use the device less well, which the replay does not know; GPipe keeps the activations "
        "of all of them"
    )
    verify = VERIFY

    count: int


@dataclass(frozen=True)
class AnotherSchedule(Suggestion):
    """The micro-batches in another order."""

    code = "pipeline_schedule"
    answers = ("pipeline_bubble", "few_micro_batches")
    sets = "1F1B, interleaved 1F1B or zero bubble"
    action = "Run the pipeline by {schedule}"
    why = "{cost}; this schedule leaves less of it"
    risk = "interleaved and zero-bubble schedules send more often and hold more activations"
    verify = VERIFY

    schedule: str


@dataclass(frozen=True)
class OverlappedMessages(Suggestion):
    """Sends and receives beside compute. Megatron overlaps them by default, but with an interleaved schedule alone
    (arguments.py, `overlap_p2p_comm`)."""

    code = "overlapped_messages"
    answers = ("latency", "bandwidth")
    sets = """`batch_isend_irecv` ahead of use; Megatron's interleaved schedule, which overlaps unless \
`--no-overlap-p2p-communication` is given; torchtitan `pipeline_parallel_schedule`"""
    action = "Send activations and gradients of one micro-batch while the next one computes"
    why = "{cost}; a stage waits for messages that are under way, not for its neighbours"
    risk = "buffers of two micro-batches are held at once; an interleaved schedule sends more often"
    verify = "record again: sends and receives beside kernels, overlap_frac of the ranks rises"


@dataclass(frozen=True)
class EvenSplit(Suggestion):
    """Layers moved off the slow stage."""

    code = "even_stages"
    answers = ("pipeline_bubble", "pipeline_imbalance", "slow_stage")
    sets = "another split of the layers"
    action = "Split the model into stages of equal length"
    why = "{cost}; every micro-batch waits for the slowest stage, whose extra work moves to the others"
    risk = "layers can't be cut: the real split is less even than the predicted one"
    verify = VERIFY


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """More micro-batches, another schedule, an even split; messages beside compute where their transfer is exposed."""
    if finding["code"] in ("latency", "bandwidth"):
        if _sends(case):
            yield _beside(case, finding)
        return
    if finding["code"] in ("pipeline_bubble", "few_micro_batches"):
        for count in COUNTS:
            if count > (_micro_batches_now(case) or COUNTS[0]):
                yield _micro_batches(case, finding, count)
        for name in SCHEDULES:
            yield from _schedule(case, finding, name)
    if finding["code"] != "few_micro_batches":
        fewer = f"fewer layers on {_slow_stage(case)}"
        setting = by_framework(
            case,
            python("the split of the layers over stages", fewer),
            megatron=megatron_settings.PIPELINE_LAYOUT.to(fewer),
        )
        yield Proposal(finding, EvenSplit(), setting, (EvenStages(),))


def _sends(case: Case) -> bool:
    """Whether messages between pipeline stages take most of the time of communication."""
    rows = [row for row in case.report["collectives"] if row["transfer_ns"] is not None]
    top = max(rows, key=lambda row: row["transfer_ns"] or 0, default=None)
    staged = "pipeline" in case.report or case.finding("pipeline_bubble") is not None
    return staged and top is not None and top["op"] in POINT_TO_POINT


def _beside(case: Case, finding: FindingEntry) -> Proposal:
    setting = by_framework(
        case,
        torch_settings.BATCH_ISEND_IRECV.to(
            "the next micro-batch's receive posted before this one computes, and work.wait() right before its use"
        ),
        megatron=megatron_settings.LAYERS_PER_VIRTUAL_STAGE.to(
            "half of a stage's layers, without --no-overlap-p2p-communication"
        ),
        torchtitan=other_settings.PIPELINE_SCHEDULE.to("Interleaved1F1B"),
    )
    return Proposal(finding, OverlappedMessages(), setting, (EarlyMessages(),))


def _micro_batches(case: Case, finding: FindingEntry, count: int) -> Proposal:
    setting = by_framework(
        case,
        _now(case, python("pipelining schedule.n_microbatches", str(count))),
        megatron=megatron_settings.MICRO_BATCH_SIZE.to(f"global batch / data-parallel size / {count}"),
        deepspeed=deepspeed_settings.GRADIENT_ACCUMULATION_STEPS.to(str(count)),
    )
    return Proposal(finding, MoreMicroBatches(count), setting, (MicroBatches(count),))


def _now(case: Case, setting: Setting) -> Setting:
    """The setting beside the number of micro-batches that the run has."""
    count = _micro_batches_now(case)
    return setting if count is None else setting | {"now": str(count)}


def _micro_batches_now(case: Case) -> int | None:
    schedule = case.report["pipeline"].get("schedule") if "pipeline" in case.report else None
    return schedule["micro_batches"] if schedule is not None else None


def _schedule(case: Case, finding: FindingEntry, name: str) -> Iterator[Proposal]:
    """None where the job has it, or its framework has no such schedule."""
    if "pipeline" in case.report and (now := case.report["pipeline"].get("schedule")) and now.get("name") == name:
        return
    named = {"torchtitan": other_settings.PIPELINE_SCHEDULE.to(SCHEDULES[name].removeprefix("Schedule"))}
    if name == "interleaved_1f1b":
        named["megatron"] = megatron_settings.VIRTUAL_STAGES.to("2")
    setting = by_framework(case, torch_settings.PIPELINING.to(SCHEDULES[name]), **named)
    if setting["kind"] == "config" or not {"megatron", "deepspeed"}.intersection(case.frameworks):
        yield Proposal(finding, AnotherSchedule(SCHEDULES[name]), setting, (Schedule(name),))


def _slow_stage(case: Case) -> str:
    """The stage that a finding blames, with its ranks, whichever finding the split answers: it is one change."""
    blamed = case.finding("slow_stage") or case.finding("pipeline_imbalance")
    if blamed is None or "pipeline" not in case.report:
        return "the slow stage"
    stages = {one["stage"] for one in case.report["pipeline"]["stages"] if one["rank"] in blamed["ranks"]}
    return f"stage {stages.pop()} ({units.rank_words(blamed['ranks'])})" if len(stages) == 1 else "the slow stage"


RULE = Rule("pipeline", (MoreMicroBatches, AnotherSchedule, OverlappedMessages, EvenSplit), propose, place=200)
