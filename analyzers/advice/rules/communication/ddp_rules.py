"""DistributedDataParallel's own options, and DataParallel replaced by it."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import cost, in_dialect, needed, python, step_now
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import AccumulatedGradients, GradientViews, Predicted, Refused
from gpuscope.schema.document import FindingEntry
from gpuscope.words import units

UNEVEN = 1.1
"""The step of DDP by the compute of DataParallel's busiest device: what of the all-reduce is not hidden, and the
launches of a process of its own."""


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By the finding."""
    if finding["code"] == "synced_accumulation":
        yield _no_sync(case, finding)
    elif finding["code"] == "unused_parameter_search":
        yield _no_search(finding)
    elif finding["code"] == "gradient_copies":
        yield _views(case, finding)
    elif (proposal := _ddp(case, finding)) is not None:
        yield proposal


def _no_sync(case: Case, finding: FindingEntry) -> Proposal:
    passes = max((entry["passes_per_step"] or 1 for entry in case.host_calls), default=1)
    setting = in_dialect(
        case,
        {
            "accelerate": python(
                "Accelerator.gradient_accumulation_steps",
                "the micro-batches of a step, with accelerator.accumulate(model) around each",
            )
        },
    )
    return Proposal(
        code="no_sync",
        action="Reduce gradients in the last micro-batch of a step alone",
        why=f"{cost(finding)}; gradients add up on each rank until then, and one all-reduce carries their sum",
        setting=setting or python("DistributedDataParallel.no_sync", "with model.no_sync(): around forward and "
                                  "backward of all but the last micro-batch"),
        risk="none in exact arithmetic; forward and backward must both lie inside",
        verify="record again: as many all-reduces per step as buckets",
        changes=(AccumulatedGradients(passes),),
    )  # fmt: skip


def _no_search(finding: FindingEntry) -> Proposal:
    gain = finding.get("per_step_ns") or 0
    return Proposal(
        code="static_graph",
        action="Do without the search for unused parameters",
        why=cost(finding),
        setting=python("DistributedDataParallel.find_unused_parameters", "False; static_graph=True where the same ones "
                       "are unused in every step"),
        risk="where a parameter is unused after all, the next step raises an error that says so",
        verify=f"record again: no search_unused_parameters; the step about {units.duration(gain)} shorter",
        outcome=Refused("how much earlier the backward pass would begin is not in the trace: at most the "
                        f"{units.duration(gain)} per step that the device idles beneath the search"),
    )  # fmt: skip


def _views(case: Case, finding: FindingEntry) -> Proposal:
    setting = in_dialect(case, {"accelerate": python("DistributedDataParallelKwargs.gradient_as_bucket_view", "True")})
    return Proposal(
        code="gradient_as_bucket_view",
        action="Keep gradients as views of DDP's buckets",
        why=f"{cost(finding)}; each reduced gradient is copied out of its bucket, and takes memory there and here",
        setting=setting or python("DistributedDataParallel.gradient_as_bucket_view", "True"),
        risk="gradients can't be detached in place (detach_()); an optimizer that keeps references to them must not",
        verify="record again: no copy_bucket_to_grad; the peak of memory falls by the size of the gradients",
        changes=(GradientViews(),),
    )


def _ddp(case: Case, finding: FindingEntry) -> Proposal | None:
    """One process per device: each computes its part alone, and launches for itself."""
    own = [rank for rank in case.report["ranks"] if rank["rank"] in finding["ranks"] and rank["device"] is not None]
    if len(own) < 2:
        return None
    before = step_now(case)
    compute = [needed(case, rank, "compute") for rank in own]
    best, busiest = sum(compute) // len(compute), max(compute)
    expected = min(round(busiest * UNEVEN), before)
    outcome = Predicted(
        before, expected, best, (before + expected) // 2,
        f"the busiest device computes for {units.duration(busiest)} per step; with a process per device, scattering, "
        "copies of the model and gathering go, and gradients are reduced beside the backward pass (assumed: 10 % on "
        "top, at worst half of what is lost now stays)", "assumed",
    )  # fmt: skip
    return Proposal(
        code="distributed_data_parallel",
        action="Run one process per GPU with DistributedDataParallel instead of nn.DataParallel",
        why=f"{cost(finding)}; PyTorch's own documentation advises it even on one host",
        setting=python("torch.nn.parallel.DistributedDataParallel", f"torchrun --nproc-per-node={len(own)}, with a "
                       "DistributedSampler and the batch size per process"),
        risk="each process has its own loader and memory; batch statistics stay per GPU (SyncBatchNorm joins them)",
        verify="record again: one trace per rank, all devices equally busy",
        outcome=outcome,
    )  # fmt: skip


RULE = Rule(
    "ddp",
    (
        Knob("no_sync", ("synced_accumulation",), "DDP `no_sync()` around all but the last micro-batch"),
        Knob("gradient_as_bucket_view", ("gradient_copies",), "DDP `gradient_as_bucket_view=True`"),
        Knob("static_graph", ("unused_parameter_search",), "`find_unused_parameters=False`, `static_graph=True`"),
        Knob(
            "distributed_data_parallel", ("single_process",),
            "`DistributedDataParallel` with one process per GPU, where `nn.DataParallel` was seen",
        ),
    ),
    propose,
    place=70,
)  # fmt: skip
