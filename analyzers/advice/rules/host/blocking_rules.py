"""Calls that wait for the device: the place of each, and what to write there instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuscope.analyzers.advice.framework_settings import config, cost, device_floor, python, spelled
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import Refused, RemovedSyncs
from gpuscope.analyzers.host_time.blocking_sites import site
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.words.units import clean, memory

SMALL = 64 << 10
"""Bytes up to which a copy is of parameters and counters, not of data; CUDA itself treats host-to-device copies of at
most 64 KB apart (CUDA driver API, «API synchronization behavior»)."""
REPEATED = 2
"""Calls in a recording without steady steps from which a place is part of a loop."""
SHOWN = 3
"""Places that a suggestion names."""
TOGETHER = (1, 2, 4)
"""Places that are done without at once, those that block longest first; then all."""
PER_KERNEL = 0.5
"""Waits per kernel from which one stands behind each."""
_VALUES = ("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "unique", "masked_select")
"""Operators that bring a value or a size to the host."""


@dataclass(frozen=True)
class Place:
    """A place of the program that waits for its device, on all ranks."""

    call: str
    operator: str | None
    within: str | None
    copy: str | None
    bytes: int | None
    per_rank: float
    """Per step and rank; without steady steps in the recording of a rank."""
    steady: bool
    blocked: int
    """ns over all ranks."""

    @property
    def site(self) -> str:
        """As a change names it."""
        return site(self.copy or self.call, self.operator, self.within)

    @property
    def bulk(self) -> bool:
        """Whether it copies data rather than parameters or counters."""
        return self.copy is not None and (self.bytes or 0) > SMALL

    def text(self) -> str:
        """One clause: how often, what, where."""
        where = f" in {clean(self.operator)}" if self.operator else ""
        where += f" under {clean(self.within)}" if self.within else ""
        times = f"{self.per_rank:.0f}" if self.per_rank >= 1 else f"{self.per_rank:.2g}"
        often = f"{times} per step" if self.steady else f"{times} in the recording of a rank"
        return f"{often}: {self._what()}{self.call}{where}"

    def grounds(self) -> str:
        """What the place does, and why it waits; the finding names the call."""
        if self.copy is None or not self.copy.startswith("HtoD"):
            return self.text()
        many = self.per_rank >= 2
        often = f"{self.per_rank:.0f}" if many else "a" if self.per_rank >= 1 else "now and then a"
        return (
            f"each rank makes {often} host-to-device {'copies' if many else 'copy'}{self._moved('from')}"
            f"{' per step' if self.steady else ''}, and waits in each until the device has caught up"
        )

    def _what(self) -> str:
        if self.copy is None:
            return ""
        if self.copy.startswith("HtoD"):
            return f"a host-to-device copy{self._moved('from')}, "
        return f"a device-to-host copy{self._moved('into')}, "

    def _moved(self, way: str) -> str:
        """` of 8 B from pageable memory`; `way`: from or into."""
        size = f" of {memory(self.bytes)}" if self.bytes is not None else ""
        return size + (f" {way} pageable memory" if self.copy is not None and self.copy.endswith("pageable") else "")


def places(case: Case) -> list[Place]:
    """Where the run blocks, the longest first; ranks that block at the same place together."""
    found: dict[tuple[str | None, ...], list[tuple[bool, int | None, float, int, str]]] = {}
    for rank in case.host_calls:
        for one in rank["blocking_calls"]:
            key = (one["copy"] or one["call"], one["operator"], one["within"], one["copy"])
            place = (rank["steady"], one["bytes"], one["per_step"], one["dur_ns"], one["call"])
            found.setdefault(key, []).append(place)
    merged = [
        Place(
            call=own[0][4], operator=operator, within=within, copy=copy,
            bytes=max((size for _, size, _, _, _ in own if size is not None), default=None),
            per_rank=sum(count for _, _, count, _, _ in own) / len(own),
            steady=all(steady for steady, _, _, _, _ in own), blocked=sum(spent for _, _, _, spent, _ in own),
        )
        for (_, operator, within, copy), own in found.items()
    ]  # fmt: skip
    return sorted(merged, key=lambda place: -place.blocked)


def in_loop(case: Case) -> list[Place]:
    """Places that are part of a step or of a loop, the longest first."""
    return [place for place in places(case) if place.steady or place.per_rank >= REPEATED]


def batches(where: Sequence[Place]) -> list[Place]:
    """Of some places those that copy data to the device from pageable memory."""
    return [one for one in where if one.bulk and one.copy and one.copy.startswith("HtoD pageable")]


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The waiting calls gone or moved; for copies of data pinned memory is enough (memory/copy_rules.py)."""
    where = in_loop(case)
    if case.host_calls and not where:
        return
    to_device = batches(where)
    if not where or len(to_device) < len(where):
        others = [one for one in where if one not in to_device] or where
        for count in dict.fromkeys(min(tried, len(others)) for tried in (*TOGETHER, len(others))):
            yield _removed(case, finding, others[:count], all_calls=count == len(where) or not where)


def _removed(case: Case, finding: FindingEntry, where: Sequence[Place], all_calls: bool) -> Proposal:
    """Without the blocking calls of these places, or of all."""
    action, setting = _instead(case, where[0]) if where else _by_evidence(case, finding)
    names = "; ".join(one.text() for one in where[:SHOWN]) or ", ".join(_names(finding))
    return Proposal(
        code="remove_syncs",
        action=action,
        why=f"{cost(finding)}; {names}",
        setting=setting,
        grounds=where[0].grounds() if where else "",
        risk="what the host reads is older, or a buffer must not be changed before its copy has run; a check (for NaN, "
        "say) must not depend on it",
        verify="record again: the cause `sync` is gone"
        + ("; torch.cuda.set_sync_debug_mode('warn') names those left" if case.program == "pytorch" else ""),
        changes=(RemovedSyncs() if all_calls else RemovedSyncs(sites=tuple(place.site for place in where)),),
        outcome=_needed(case, where),
        floor=device_floor(case, "compute"),
    )


def _needed(case: Case, where: Sequence[Place]) -> Refused | None:
    """Why a program can't do without the first of these calls, where that is so."""
    first = where[0] if where else None
    if case.native and first is not None and first.bulk and first.copy and first.copy.startswith("DtoH"):
        return Refused("the host reads what this copy brings, and how long it can do without is not recorded")
    return None


def _instead(case: Case, place: Place) -> tuple[str, Setting]:
    """What to do about a place, in the words of the program."""
    if case.program == "pytorch" or case.program is None:
        return _in_pytorch(place)
    if case.program == "jax":
        return (
            "Read values of the device outside the step",
            python(
                "jax.block_until_ready, float(x), np.asarray(x)", "outside the loop of steps, or of the step before"
            ),
        )
    return _in_native(case, place)


def _in_pytorch(place: Place) -> tuple[str, Setting]:
    operator = clean(place.operator or place.call)
    around = clean(place.within or place.operator or place.call)
    if place.copy and place.copy.startswith("HtoD"):
        return (
            "Build the small tensor on the device, or keep it there",
            python(f"the tensor that {around} copies to the device",
                   "torch.tensor(…, device=device) once before the loop; else .pin_memory().to(device, "
                   "non_blocking=True)"),
        )  # fmt: skip
    if place.copy is not None or any(name in operator for name in _VALUES):
        return (
            "Leave values on the device instead of reading them within the step",
            python(f"the value read in {around} ({operator})",
                   "kept as a tensor (torch.where, a mask); for the host: copied into a pinned tensor with "
                   "non_blocking=True and read a step later, or only in the steps that log it"),
        )  # fmt: skip
    return (
        f"Do without {place.call} within a step",
        python(f"{place.call} in {around}" if around != place.call else f"torch.cuda.synchronize() ({place.call})",
               "only around measurements, outside the loop of steps"),
    )  # fmt: skip


def _in_native(case: Case, place: Place) -> tuple[str, Setting]:
    if place.copy is not None:
        value = "cudaMemcpyAsync on the kernels' stream, with memory of cudaMallocHost or cudaHostRegister"
        return (
            "Copy asynchronously from and to pinned memory, or leave the data on the device",
            config(place.call, spelled(case, value)),
        )
    kernels = max((rank["kernels_per_step"] for rank in case.host_calls), default=0.0)
    behind = " after each kernel" if place.per_rank >= PER_KERNEL * kernels else ""
    value = "none between kernels of one stream; cudaStreamSynchronize once where the host reads"
    return (
        f"Replace {place.call}{behind} by the order of the stream, or wait once per step",
        config(place.call, spelled(case, value)),
    )


def _by_evidence(case: Case, finding: FindingEntry) -> tuple[str, Setting]:
    """Where calls are not listed by place: by the names of the evidence."""
    names = ", ".join(_names(finding))
    setting = python if case.program in ("pytorch", None) else config
    return "Do without these blocking calls within a step", setting(names, "outside the loop of steps")


def _names(finding: FindingEntry) -> list[str]:
    return sorted({evidence["name"] for evidence in finding["evidence"]})


RULE = Rule(
    "blocking_calls",
    (Knob("remove_syncs", ("sync",), "the blocking call at its place: on the device, pinned, or a step later"),),
    propose,
    programs=("pytorch", "jax", "native"),
    place=30,
)
