"""DistributedDataParallel's own options, and DataParallel replaced by it."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import by_framework, needed, on_cpu, step_now
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.analyzers.changes import AccumulatedGradients, GradientViews, Predicted, Refused
from gpuscope.catalogue.finding import words_of
from gpuscope.catalogue.findings.data_parallel import SyncedAccumulation
from gpuscope.catalogue.suggestion import UNDIVIDED, Suggestion
from gpuscope.schema.document import FindingEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units

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
        if "ddp" in case.frameworks and share >= COSTLY_BROADCAST:
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


RULE = Rule(
    "ddp", (NoSync, NoSyncOfShards, BucketViews, NoSearch, NoBufferBroadcast, ProcessPerDevice), propose, place=70
)
