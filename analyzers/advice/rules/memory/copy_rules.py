"""Copies between host and device, and unified memory that migrates."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, cost, device_floor, in_dialect, python, spelled
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.advice.rules.host.blocking_rules import batches, in_loop
from gpuscope.analyzers.changes import CopyStream, PinnedCopies, Refused
from gpuscope.schema.document import FindingEntry, Setting

_AHEAD_IN_JAX = python("jax.device_put", "of the next batch, before the step that computes with this one")
_FAULTS = "record again with --cuda-um-cpu-page-faults=true and --cuda-um-gpu-page-faults=true"
_RISK = "pinned memory is taken from the host's for good; a buffer must not be changed before its copy has run"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Pinned memory for copies; for migrations the page moved before it is used."""
    if finding["code"] == "sync":
        waited = batches(in_loop(case))
        if waited and case.program == "pytorch":
            why = f"{waited[0].text()}: the host waits for it, and the launch queue is empty behind it"
            yield _pinned(case, finding, why)
    elif finding["code"] == "copy":
        if case.host_calls and not _blocks(case):
            if case.program != "native":  # from pinned memory already
                yield _own_stream(case, finding)
            return
        if case.program == "pytorch" or case.program is None:
            yield _pinned(case, finding, "a copy from pinned memory runs beside compute")
        else:
            yield _pinned_by_hand(case, finding)
    elif case.native:
        yield from _paging(case, finding)


def _blocks(case: Case) -> bool:
    """Whether the host waits for a copy to the device (in C++ also for one back), as it does for pageable memory."""
    wanted = ("HtoD", "DtoH") if case.native else ("HtoD",)
    places = (place["copy"] for rank in case.host_calls for place in rank["blocking_calls"])
    return any(copy is not None and copy.startswith(wanted) for copy in places)


def _pinned(case: Case, finding: FindingEntry, why: str) -> Proposal:
    """Batches from pinned memory, in PyTorch."""
    setting = in_dialect(case, {"transformers": python("TrainingArguments.dataloader_pin_memory", "True")})
    return Proposal(
        code="pinned_copies",
        action="Copy batches from pinned memory, asynchronously (.to(device, non_blocking=True))",
        why=f"{cost(finding)}; {why}",
        setting=setting or python("DataLoader.pin_memory", "True"),
        risk=_RISK,
        verify=f"record again: copies named «Pinned -> Device»; the cause `{finding['code']}` falls",
        changes=(PinnedCopies(),),
    )


def _pinned_by_hand(case: Case, finding: FindingEntry) -> Proposal:
    """In a program that manages its buffers itself."""
    setting: Setting = config(
        "host buffers of the copies",
        spelled(case, "cudaMallocHost or cudaHostRegister, then cudaMemcpyAsync on a stream"),
    )
    return Proposal(
        code="pinned_copies",
        action="Copy from and to pinned host memory, asynchronously, beside the kernels",
        why=f"{cost(finding)}; a pageable copy passes through the driver's own buffer and blocks the host",
        setting=setting if case.native else _AHEAD_IN_JAX,
        risk=_RISK,
        verify="record again: copies from pinned memory beside kernels; the cause `copy` falls",
        outcome=Refused("how fast pinned memory is here and what the copies could run beside is not recorded: measure "
                        "with nvbandwidth"),
    )  # fmt: skip


def _own_stream(case: Case, finding: FindingEntry) -> Proposal:
    return Proposal(
        code="copy_stream",
        action="Copy the next batch on a stream of its own while this one computes",
        why=f"{cost(finding)}; a copy on the stream of the kernels runs between them, not beside them",
        setting=_AHEAD_IN_JAX
        if case.program == "jax"
        else python("torch.cuda.Stream", "with torch.cuda.stream(copies): batch.to(device, non_blocking=True); then "
                    "torch.cuda.current_stream().wait_stream(copies) before its use"),
        risk="the next batch takes device memory too; batch.record_stream() keeps its memory until it is used",
        verify="record again: copies beside kernels; the cause `copy` falls",
        changes=(CopyStream(),),
        floor=device_floor(case, "compute"),
    )  # fmt: skip


def _paging(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Unless pages were evicted for others: a prefetch beyond what fits evicts again."""
    if not any(
        one["kind"].startswith("migration") and one["kind"].endswith("eviction") for one in case.report["copies"]
    ):
        yield _prefetched(case, finding)


def _prefetched(case: Case, finding: FindingEntry) -> Proposal:
    return Proposal(
        code="prefetch",
        action="Prefetch unified memory right before the kernel that uses it, behind the last access of the host",
        why=f"{cost(finding)}; a prefetch before the host touches the data is undone page by page, and the kernel "
        "fetches every page again",
        setting=config(spelled(case, "cudaMemPrefetchAsync"), "of its inputs just before the launch, of its results to "
                       "the host just behind it"),
        risk="a prefetch copies the whole range, also what the kernel does not touch",
        verify=f"{_FAULTS}: no faults",
        outcome=Refused("which accesses cause the faults is not recorded"),
    )  # fmt: skip


RULE = Rule(
    "copies",
    (
        Knob("pinned_copies", ("sync", "copy"), "`pin_memory=True` with `non_blocking=True`; in C++ `cudaMallocHost`"),
        Knob("copy_stream", ("copy",), "`torch.cuda.Stream` for copies from pinned memory, `jax.device_put` ahead"),
        Knob(
            "prefetch", ("paging",), "`cudaMemPrefetchAsync` behind the host's last access", verify=f"{_FAULTS}: none"
        ),
    ),
    propose,
    programs=("pytorch", "jax", "native"),
    place=60,
)
