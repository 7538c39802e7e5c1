"""Copies between host and device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from gpuscope.analyzers.advice.framework_settings import by_framework, config, spelled
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.rules.host.blocking_rules import Place, batches, in_loop
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.analyzers.changes import CopyStream, PinnedCopies
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.when_used import dataclass

_AHEAD_IN_JAX = other_settings.DEVICE_PUT.to("of the next batch, before the step that computes with this one")


@dataclass(frozen=True)
class PinnedBatches(Suggestion):
    """Batches from pinned memory, in PyTorch."""

    code = "pinned_copies"
    answers: ClassVar[tuple[str, ...]] = ("sync", "copy")
    sets = "`pin_memory=True` with `non_blocking=True`; in C++ `cudaMallocHost`"
    action = "Copy batches from pinned memory, asynchronously (.to(device, non_blocking=True))"
    why = "{cost}; a copy from pinned memory runs beside compute"
    risk = (
        "the operating system can't use pinned memory for anything else; a buffer must not be changed before its copy "
        "has finished"
    )
    verify = "record again: copies named «Pinned -> Device»; the cause `{finding}` falls"


@dataclass(frozen=True)
class PinnedWaitedFor(PinnedBatches):
    """The same where the host was seen to wait for a copy."""

    why = "{cost}; {waits}: the host waits for it, and the launch queue runs empty meanwhile"

    place: Place

    @property
    def waits(self) -> str:
        return self.place.text()


class PinnedByHand(PinnedBatches):
    """In a program that manages its buffers itself."""

    answers = ("copy",)
    action = "Copy from and to pinned host memory, asynchronously, beside the kernels"
    why = "{cost}; a pageable copy passes through the driver's own buffer and blocks the host"
    why_not = (
        "the trace does not show how fast pinned memory is here, nor what the copies could run beside: measure with "
        "nvbandwidth"
    )
    verify = "record again: copies from pinned memory beside kernels; the cause `copy` falls"


@dataclass(frozen=True)
class OwnCopyStream(Suggestion):
    """Copies beside kernels."""

    code = "copy_stream"
    answers = ("copy",)
    sets = "`torch.cuda.Stream` for copies from pinned memory, `jax.device_put` ahead"
    action = "Copy the next batch on its own stream, beside compute"
    why = "{cost}; a copy on the stream of the kernels runs between them, not beside them"
    risk = (
        "the next batch needs device memory as well; batch.record_stream() keeps that memory from being reused too "
        "early"
    )
    verify = "record again: copies beside kernels; the cause `copy` falls"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Pinned memory for copies, on a stream beside the kernels."""
    if finding["code"] == "sync":
        waited = batches(in_loop(case))
        if waited and case.program == "pytorch":
            yield Proposal(finding, PinnedWaitedFor(waited[0]), _pinned(case), (PinnedCopies(),))
    else:
        yield from _copies(case, finding)


def _copies(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    if case.host_calls and not _blocks(case):
        if case.program != "native":  # from pinned memory already
            by_hand = torch_settings.STREAM.to(
                "with torch.cuda.stream(copies): batch.to(device, non_blocking=True);"
                " then torch.cuda.current_stream().wait_stream(copies) before its use"
            )
            setting = _AHEAD_IN_JAX if case.program == "jax" else by_hand
            yield Proposal(finding, OwnCopyStream(), setting, (CopyStream(),))
    elif case.program == "pytorch" or case.program is None:
        yield Proposal(finding, PinnedBatches(), _pinned(case), (PinnedCopies(),))
    else:
        value = "cudaMallocHost or cudaHostRegister, then cudaMemcpyAsync on a stream"
        by_hand = config("host buffers of the copies", spelled(case, value))
        yield Proposal(finding, PinnedByHand(), by_hand if case.native else _AHEAD_IN_JAX)


def _blocks(case: Case) -> bool:
    """Whether the host waits for a copy to the device (in C++ also for one back), as it does for pageable memory."""
    wanted = ("HtoD", "DtoH") if case.native else ("HtoD",)
    places = (place["copy"] for rank in case.host_calls for place in rank["blocking_calls"])
    return any(copy is not None and copy.startswith(wanted) for copy in places)


def _pinned(case: Case) -> Setting:
    """Batches in pinned memory, in PyTorch."""
    # The Trainer's loader pins by default, so what is pageable there is copied by the model or a callback.
    by_hand = torch_settings.TENSOR_TO.to(
        "device, non_blocking=True  # of a tensor in pinned memory: .pin_memory() first"
    )
    return by_framework(case, torch_settings.PIN_MEMORY.to("True"), transformers=by_hand)


RULE = Rule(
    "copies",
    (PinnedBatches, PinnedWaitedFor, PinnedByHand, OwnCopyStream),
    propose,
    programs=("pytorch", "jax", "native"),
    place=60,
)
