"""The launching thread: blocking calls, launch overhead, garbage collection, other work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

from gpuscope.analyzers.advice.framework_settings import config, cost, in_dialect, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.frame.changes import CapturedGraphs, NoCollector, NoHostWork, Refused, RemovedSyncs
from gpuscope.report.schema.document import FindingEntry

EVERY = 100
"""Steps between two looks at a loss: rare enough to cost nothing, often enough for a curve."""


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """What answers the finding's cause."""
    yield from ANSWERS[finding["code"]](case, finding)


def _sync(case: Case, finding: FindingEntry) -> Iterator[Proposal]:  # noqa: ARG001
    names = sorted({evidence["name"] for evidence in finding["evidence"]})
    yield Proposal(
        code="remove_syncs",
        action=f"Do without the blocking calls within a step, or make them once in {EVERY} steps",
        why=f"{cost(finding)}; seen at: {', '.join(names)}",
        setting=python(
            "the call that blocks (.item(), .cpu(), print(loss), nonzero, .to(device))", f"step % {EVERY} == 0"
        ),
        risk="the loss shown is older; a check for NaN must not depend on it",
        verify="record again: the cause `sync` is gone; torch.cuda.set_sync_debug_mode('warn') names those left",
        changes=(RemovedSyncs(),),
    )


def _launch(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    if all(rank["device"] is None for rank in case.report["ranks"]):
        return  # the training thread is the device: there are no launches to save
    setting = in_dialect(case, {"megatron": config("--cuda-graph-impl", "local")})
    yield Proposal(
        code="cuda_graphs",
        action="Launch the step's kernels as CUDA graphs",
        why=f"{cost(finding)}; a graph launches hundreds of kernels for the price of one",
        setting=setting or python("torch.compile.mode", '"reduce-overhead"'),
        risk="shapes must not change from step to step; the first steps compile; graphs hold their memory; "
        "code that reads values on the host breaks a graph",
        verify="record again: far fewer cudaLaunchKernel calls, cudaGraphLaunch instead; the cause `launch` falls",
        changes=(CapturedGraphs(),),
    )
    yield _numa(finding)


def _numa(finding: FindingEntry) -> Proposal:
    return Proposal(
        code="numa_binding",
        action="Bind each rank to the CPU cores beside its GPU",
        why=f"{cost(finding)}; a launch from the other socket's cores takes longer",
        setting=config("torchrun --numa-binding", "node"),
        risk="loader workers share the bound cores; needs torch 2.9 or later (else numactl --cpunodebind)",
        verify="record again: mean duration of cudaLaunchKernel falls",
        outcome=Refused("no trace tells on which cores a thread ran: compare `nvidia-smi topo -m` with the job's "
                        "CPU affinity, or record with nsys --cpuctxsw=process-tree"),
    )  # fmt: skip


def _gc(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    setting = in_dialect(case, {"megatron": config("--manual-gc --manual-gc-interval", str(EVERY))})
    yield Proposal(
        code="manual_gc",
        action=f"Collect garbage at the same step on all ranks, once in {EVERY} steps",
        why=f"{cost(finding)}; one rank that collects makes all others wait",
        setting=setting or python("gc", f"gc.freeze(); gc.disable(); gc.collect(1) every {EVERY} steps"),
        risk="memory held by reference cycles is freed later",
        verify="record again: the cause `gc` is gone; resident memory stays flat over a thousand steps",
        changes=(NoCollector(),),
    )


def _host_other(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    setting = in_dialect(case, {"megatron": config("--async-save", "")})
    yield Proposal(
        code="host_work_aside",
        action="Move the work of the evidence off the launching thread",
        why=f"{cost(finding)}; seen: {', '.join(_distinct(finding))}",
        setting=setting
        or python("torch.distributed.checkpoint.async_save", "for checkpoints; a thread or rarer for the rest"),
        risk="an asynchronous checkpoint needs a copy of the state in host memory",
        verify="record again: the cause `host_other` is gone",
        changes=(NoHostWork(),),
    )


def _distinct(finding: FindingEntry) -> list[str]:
    return [name for name, _ in groupby(sorted(evidence["name"] for evidence in finding["evidence"]))]


ANSWERS: dict[str, Callable[[Case, FindingEntry], Iterator[Proposal]]] = {
    "sync": _sync,
    "launch": _launch,
    "gc": _gc,
    "host_other": _host_other,
}

RULE = Rule(
    "host",
    (
        Knob("remove_syncs", ("sync",), "the blocking calls of the evidence, gone or every 100 steps"),
        Knob("cuda_graphs", ("launch",), '`torch.compile(mode="reduce-overhead")`, Megatron `--cuda-graph-impl`'),
        Knob("numa_binding", ("launch",), "`torchrun --numa-binding=node`"),
        Knob(
            "manual_gc",
            ("gc",),
            "`gc.freeze()`, `gc.disable()` and a collection at the same step on all ranks; Megatron `--manual-gc`",
        ),
        Knob("host_work_aside", ("host_other",), "asynchronous checkpoints, rarer logging"),
    ),
    propose,
)
