"""DistributedDataParallel's own options, and DataParallel replaced by it."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, by_framework, needed, on_cpu, python, step_now
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.analyzers.what_if_changes import (
    AccumulatedGradients,
    EarlyMessages,
    EvenStages,
    GradientViews,
    MicroBatches,
    Predicted,
    Refused,
    Schedule,
)
from gpuscope.catalogue.finding import words_of
from gpuscope.catalogue.findings.data_parallel import SyncedAccumulation
from gpuscope.catalogue.suggestion import UNDIVIDED, Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Pipeline parallelism: micro-batches, schedule, split of the stages.

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


def pipeline_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
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
            megatron=other_settings.PIPELINE_LAYOUT.to(fewer),
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
        megatron=other_settings.LAYERS_PER_VIRTUAL_STAGE.to(
            "half of a stage's layers, without --no-overlap-p2p-communication"
        ),
        torchtitan=other_settings.PIPELINE_SCHEDULE.to("Interleaved1F1B"),
    )
    return Proposal(finding, OverlappedMessages(), setting, (EarlyMessages(),))


def _micro_batches(case: Case, finding: FindingEntry, count: int) -> Proposal:
    setting = by_framework(
        case,
        _now(case, python("pipelining schedule.n_microbatches", str(count))),
        megatron=other_settings.MEGATRON_SETTINGS_MICRO_BATCH_SIZE.to(f"global batch / data-parallel size / {count}"),
        deepspeed=other_settings.GRADIENT_ACCUMULATION_STEPS.to(str(count)),
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
        named["megatron"] = other_settings.VIRTUAL_STAGES.to("2")
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


PIPELINE_RULE = Rule(
    "pipeline", (MoreMicroBatches, AnotherSchedule, OverlappedMessages, EvenSplit), pipeline_rules_propose, place=200
)


COSTLY_BROADCAST = 0.2
"""Of the time of all collectives, from which sending buffers is worth a setting."""
UNEVEN = 1.1
"""The step of DDP by the compute of DataParallel's busiest device: what of the all-reduce is not hidden, and the
launches of a process of its own."""


@dataclass(frozen=True)
class NoSync(Suggestion):
    """Gradients accumulated before they are reduced."""

    code = "no_sync"
    answers = ("synced_accumulation",)
    sets = "DDP `no_sync()` around all but the last micro-batch"
    action = "Reduce gradients only in the last micro-batch of each step"
    why = "{cost}; each rank can add up its gradients locally, and a single all-reduce then sends the sum"
    risk = "results differ by rounding only; both forward and backward must be inside no_sync()"
    verify = "record again: each step has one all-reduce per bucket"

    passes: int
    """Backward passes per step."""


@dataclass(frozen=True)
class NoSyncOfShards(NoSync):
    """The same with sharded gradients."""

    sets = "FSDP2 `set_requires_gradient_sync(False)`, FSDP1 `no_sync()` before all but the last micro-batch"
    why = "{cost}; each rank can add up its gradients locally, and one reduce-scatter per module then sends the sum"
    risk = "every rank holds all gradients unsharded until the last micro-batch: as much memory as the whole model's"
    verify = "record again: each step has one reduce-scatter per module"


@dataclass(frozen=True)
class NoSearch(Suggestion):
    """DDP's search for unused parameters left out."""

    code = "static_graph"
    answers = ("unused_parameter_search",)
    sets = "`find_unused_parameters=False`, `static_graph=True`"
    action = "Turn off DDP's search for unused parameters"
    why_not = (
        "the trace does not show how much earlier the backward pass would start; the gain is at most {idle} per step, "
        "the time that the device is idle during the search"
    )
    risk = "if a parameter is unused after all, DDP raises an error in the next step"
    verify = "record again: no search_unused_parameters; the step about {idle} shorter"

    idle_ns: int
    """Per step, during the search."""

    @property
    def idle(self) -> str:
        return units.duration(self.idle_ns)


@dataclass(frozen=True)
class BucketViews(Suggestion):
    """Gradients that lie in DDP's buckets."""

    code = "gradient_as_bucket_view"
    answers = ("gradient_copies",)
    sets = "DDP `gradient_as_bucket_view=True`"
    action = "Keep gradients as views of DDP's buckets"
    why = "{cost}; DDP copies each reduced gradient out of its bucket, so that every gradient is stored twice"
    risk = "gradients must not be detached in place (detach_()), and the optimizer must not keep references to them"
    verify = "record again: no copy_bucket_to_grad; the peak of memory falls by the size of the gradients"


@dataclass(frozen=True)
class NoBufferBroadcast(Suggestion):
    """Buffers that every rank keeps itself, where sending them is what costs."""

    code = "broadcast_buffers"
    answers = ("bandwidth", "latency", UNDIVIDED)
    sets = "DDP `broadcast_buffers=False` (`forward_sync_buffers` from torch 2.13 on), where it sends them for long"
    action = "Turn off DDP's broadcast of buffers before each forward pass"
    why = "{cost}; the broadcasts take {share} of all collectives' time"
    why_not = "whether DDP or the program itself broadcasts is not in a trace: try it"
    risk = "each rank keeps its own buffers, such as running statistics: save those of one rank, or use SyncBatchNorm"
    verify = "record again: no broadcast before the forward pass"

    share_frac: float

    @property
    def share(self) -> str:
        return units.share(self.share_frac)


@dataclass(frozen=True)
class ProcessPerDevice(Suggestion):
    """DistributedDataParallel in place of DataParallel."""

    code = "distributed_data_parallel"
    answers = ("single_process",)
    sets = "`DistributedDataParallel` with one process per GPU, where `nn.DataParallel` was seen"
    action = "Run one process per GPU with DistributedDataParallel instead of nn.DataParallel"
    why = "{cost}; PyTorch's own documentation advises it even on one host"
    risk = (
        "each process has its own data loader and host memory; batch norm uses each GPU's own statistics "
        "(SyncBatchNorm joins them)"
    )
    verify = "record again: one trace per rank, all devices equally busy"

    processes: int


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By the finding."""
    if finding["code"] == "synced_accumulation":
        yield _accumulated(case, finding)
    elif finding["code"] == "unused_parameter_search":
        value = "False; static_graph=True where the same ones are unused in every step"
        setting = torch_settings.FIND_UNUSED_PARAMETERS.to(value)
        yield Proposal(finding, NoSearch(finding.get("per_step_ns") or 0), setting)
    elif finding["code"] == "gradient_copies":
        setting = by_framework(
            case,
            torch_settings.GRADIENT_AS_BUCKET_VIEW.to("True"),
            accelerate=other_settings.ACCELERATE_BUCKET_VIEW.to("True"),
        )
        part_of_host = Refused(
            "on a CPU the copies are the training thread's own work, which the replay keeps as it was"
        )
        yield Proposal(finding, BucketViews(), setting, (GradientViews(),), part_of_host if on_cpu(case) else None)
    elif finding["code"] in NoBufferBroadcast.answers:
        share = _broadcast_share(case)
        if "ddp" in case.frameworks and share >= COSTLY_BROADCAST and not case.without_buffers:
            setting = torch_settings.BROADCAST_BUFFERS.to("False")
            yield Proposal(finding, NoBufferBroadcast(share), setting)
    else:
        yield from _ddp(case, finding)


def _accumulated(case: Case, finding: FindingEntry) -> Proposal:
    found = words_of(finding)
    passes = found.micro_batches if isinstance(found, SyncedAccumulation) else 1
    around = "with model.no_sync(): around forward and backward of all but the last micro-batch"
    setting = by_framework(
        case,
        torch_settings.NO_SYNC.to(around),
        fsdp=torch_settings.FSDP1_NO_SYNC.to(around),
        fsdp2=torch_settings.GRADIENT_SYNC.to(
            "False before the backward pass of all but the last micro-batch, True before that one's"
        ),
        accelerate=other_settings.ACCUMULATION.to(
            "the micro-batches of a step, with accelerator.accumulate(model) around each"
        ),
    )
    shards = {"fsdp", "fsdp2"} & set(case.frameworks)
    return Proposal(finding, (NoSyncOfShards if shards else NoSync)(passes), setting, (AccumulatedGradients(passes),))


def _broadcast_share(case: Case) -> float:
    """Of the time of all collectives that of broadcasts, where every steady step has one."""
    own = [one for one in case.report["collectives"] if one["op"] == "broadcast" and one["count"] >= case.steady_steps]
    return sum(one["dur_ns"] for one in own) / max(1, sum(one["dur_ns"] for one in case.report["collectives"]))


def _ddp(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """One process per device: each computes its part alone, and launches for itself."""
    own = [rank for rank in case.report["ranks"] if rank["rank"] in finding["ranks"] and rank["device"] is not None]
    if len(own) < 2:
        return
    before = step_now(case)
    compute = [needed(case, rank, "compute") for rank in own]
    best, busiest = sum(compute) // len(compute), max(compute)
    expected = min(round(busiest * UNEVEN), before)
    outcome = Predicted(
        before,
        expected,
        best,
        (before + expected) // 2,
        f"the busiest device computes for {units.duration(busiest)} per step; with one process per device there is no "
        "scattering, gathering and copying of the model, and gradients are reduced during the backward pass (assumed: "
        "10 % more than that; at worst half of what is lost now remains)",
        "assumed",
    )
    value = f"torchrun --nproc-per-node={len(own)}, with a DistributedSampler and the batch size per process"
    setting = torch_settings.DDP.to(value)
    yield Proposal(finding, ProcessPerDevice(len(own)), setting, outcome=outcome)


DDP_RULE = Rule(
    "ddp", (NoSync, NoSyncOfShards, BucketViews, NoSearch, NoBufferBroadcast, ProcessPerDevice), propose, place=70
)


RULES = (DDP_RULE, PIPELINE_RULE)
