"""Calls that wait for the device: the place of each, and what to write there instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuscope.analyzers.advice.framework_settings import config, python, spelled
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.changes import Refused, RemovedSyncs
from gpuscope.analyzers.host_time.blocking_sites import site
from gpuscope.analyzers.host_time.fsdp_options import LIMITER
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.units import clean, memory

SMALL = 64 << 10
"""Bytes up to which a copy is of parameters and counters, not of data; CUDA itself treats host-to-device copies of at
most 64 KB apart (CUDA driver API, «API synchronization behavior»)."""
REPEATED = 2
"""Calls in a recording without steady steps from which a place is part of a loop."""
SHOWN = 3
"""Places that a suggestion names."""
TOGETHER = (1, 2, 4)
"""Places that are done without at once, those that block longest first; then all that the report names."""
GATHERS = ("all_gather", "reduce_scatter")
"""Collectives by which sharded parameters and gradients travel."""
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
    behind: str | None = None
    """The collective that it waits for."""

    @property
    def site(self) -> str:
        """As a change names it."""
        return site(self.copy or self.call, self.operator, self.within, self.behind)

    @property
    def of_library(self) -> bool:
        """Whether it is the wait of whoever issued a collective: a program that waits for all of its device's work
        (`torch.cuda.synchronize()`) calls another function."""
        return self.behind is not None and not self.call.endswith("DeviceSynchronize")

    @property
    def bulk(self) -> bool:
        """Whether it copies data rather than parameters or counters."""
        return self.copy is not None and (self.bytes or 0) > SMALL

    @property
    def reads(self) -> bool:
        """Whether it brings a value to the host, which may need it."""
        to_host = self.copy is not None and self.copy.startswith("DtoH")
        return to_host or any(name in (self.operator or self.call) for name in _VALUES)

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
            f"{often} host-to-device {'copies' if many else 'copy'}{self._moved('from')}"
            f"{' per step' if self.steady else ''}, each a wait for the device"
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
            key = (one["copy"] or one["call"], one["operator"], one["within"], one["copy"], one.get("behind"))
            place = (rank["steady"], one["bytes"], one["per_step"], one["dur_ns"], one["call"])
            found.setdefault(key, []).append(place)
    merged = [
        Place(
            call=own[0][4],
            operator=operator,
            within=within,
            copy=copy,
            bytes=max((size for _, size, _, _, _ in own if size is not None), default=None),
            per_rank=sum(count for _, _, count, _, _ in own) / len(own),
            steady=all(steady for steady, _, _, _, _ in own),
            blocked=sum(spent for _, _, _, spent, _ in own),
            behind=behind,
        )
        for (_, operator, within, copy, behind), own in found.items()
    ]
    return sorted(merged, key=lambda place: -place.blocked)


def in_loop(case: Case) -> list[Place]:
    """Places that are part of a step or of a loop, the longest first."""
    return [place for place in places(case) if place.steady or place.per_rank >= REPEATED]


def batches(where: Sequence[Place]) -> list[Place]:
    """Of some places those that copy data to the device from pageable memory."""
    return [one for one in where if one.bulk and one.copy and one.copy.startswith("HtoD pageable")]


@dataclass(frozen=True)
class NoBlocking(Suggestion):
    """Waiting calls gone or moved; known by their names in the evidence alone."""

    code = "remove_syncs"
    answers = ("sync",)
    sets = "the blocking call at its place: on the device, pinned, or a step later"
    action = "Do without these blocking calls within a step"
    why = "{cost}; {seen}"
    grounds = "{shown}"
    risk = (
        "where the step itself branches by the value or takes a size from it, the call stays and the step gets no "
        "shorter. A check (for NaN, say) may react a step later; a buffer must not be changed before its asynchronous "
        "copy has finished"
    )
    verify = "record again: the cause `sync` is gone{left}"

    places: list[Place]
    """The ones to do without, the longest first."""
    names: list[str]
    """Of the evidence, where calls are not listed by place."""
    program: str | None

    @property
    def seen(self) -> str:
        more = len(self.places) - SHOWN
        told = [one.text() for one in self.places[:SHOWN]] + ([f"{more} more places"] if more > 0 else [])
        return "; ".join(told) or ", ".join(self.names)

    @property
    def shown(self) -> str:
        return self.places[0].grounds() if self.places else ""

    @property
    def left(self) -> str:
        return "; torch.cuda.set_sync_debug_mode('warn') names those left" if self.program == "pytorch" else ""

    @property
    def call(self) -> str:
        return self.places[0].call


class BuiltOnDevice(NoBlocking):
    """A small tensor that is copied to the device."""

    action = "Build the small tensor on the device, or keep it there"


class KeptOnDevice(NoBlocking):
    """A value that the host reads."""

    action = "Leave values on the device instead of reading them within the step"


class CallRemoved(NoBlocking):
    """A call that only waits."""

    action = "Do without {call} within a step"


class AwaitedOnStream(NoBlocking):
    """The host's wait for a collective."""

    action = "Let the stream wait for the {collective}, not the host"
    risk = (
        "a library that waits for its own collectives has a setting of its own for it, or none; what reads the result "
        "on another stream has to wait for it there"
    )

    @property
    def collective(self) -> str:
        return (self.places[0].behind or "").replace("_", "-")


class ReadOutsideStep(NoBlocking):
    """A value that a program of JAX reads."""

    action = "Read values of the device outside the step"


class CopiedAsynchronously(NoBlocking):
    """A copy of a program that calls CUDA itself."""

    action = "Copy asynchronously from and to pinned memory, or leave the data on the device"


class OrderOfStream(NoBlocking):
    """A wait of a program that calls CUDA itself."""

    action = "Remove {call}, and wait once per step where the host reads"


class OrderOfStreamForEach(NoBlocking):
    """A wait behind each kernel."""

    action = "Remove {call} after each kernel, and wait once per step"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The waiting calls gone or moved; for copies of data pinned memory is enough (memory/copy_rules.py), and FSDP1's
    limit of gathers is a setting of its own (communication/fsdp_rules.py)."""
    # Who gathers shards waits for them too: that is answered by gathering more at once, and earlier (fsdp_rules.py).
    where = [one for one in in_loop(case) if LIMITER not in (one.operator, one.within)]
    where = [one for one in where if not (one.of_library and one.behind in GATHERS)]
    if case.host_calls and not where:
        return
    to_device = batches(where)
    if not where or len(to_device) < len(where):
        others = [one for one in where if one not in to_device] or where
        for count in dict.fromkeys(min(tried, len(others)) for tried in (*TOGETHER, len(others))):
            yield _removed(case, finding, others[:count])


def _removed(case: Case, finding: FindingEntry, where: list[Place]) -> Proposal:
    """Without the blocking calls of these places; of all, where no places are known.

    What a value that the host reads is needed for is not recorded. The careful gain is that of reading it behind the
    step's last launch; the other one that of not waiting for it at all.
    """
    names = sorted({evidence["name"] for evidence in finding["evidence"]})
    if where:
        kind, setting = _instead(case, where[0])
    else:
        makes = python if case.program in ("pytorch", None) else config
        kind, setting = NoBlocking, makes(", ".join(names), "outside the loop of steps")
    if len(where) > 1:
        setting = setting | {"besides": f"and at {units.plural(len(where) - 1, 'other place')}"}
    careful = freed(where)
    return Proposal(
        finding,
        kind(where, [] if where else names, case.program),
        setting,
        (careful,),
        _needed(case, where),
        if_unused=(replace(careful, needed=False),) if careful.needed else (),
    )


def freed(where: Sequence[Place]) -> RemovedSyncs:
    """The change to a run without these blocking calls: what the host reads by one, it still needs."""
    reads = not where or any(place.reads for place in where)
    return RemovedSyncs(None, tuple(one.site for one in where), reads)


def _needed(case: Case, where: Sequence[Place]) -> Refused | None:
    """Why a program can't do without the first of these calls, where that is so."""
    first = where[0] if where else None
    if case.native and first is not None and first.bulk and first.copy and first.copy.startswith("DtoH"):
        return Refused("the host reads what this copy brings, and how long it can do without is not recorded")
    return None


def _instead(case: Case, place: Place) -> tuple[type[NoBlocking], Setting]:
    """What to do about a place, in the words of the program."""
    if case.program == "pytorch" or case.program is None:
        return _in_pytorch(place)
    if case.program == "jax":
        value = "outside the loop of steps, or of the step before"
        return ReadOutsideStep, python("jax.block_until_ready, float(x), np.asarray(x)", value)
    return _in_native(case, place)


def _in_pytorch(place: Place) -> tuple[type[NoBlocking], Setting]:
    operator = clean(place.operator or place.call)
    around = clean(place.within or place.operator or place.call)
    if place.copy and place.copy.startswith("HtoD"):
        value = "torch.tensor(…, device=device) once before the loop; else .pin_memory().to(device, non_blocking=True)"
        return BuiltOnDevice, python(f"the tensor that {around} copies to the device", value)
    if place.copy is not None or any(name in operator for name in _VALUES):
        return KeptOnDevice, python(
            f"the value read in {around} ({operator})",
            "kept as a tensor (torch.where, a mask); for the host: copied into a pinned tensor with non_blocking=True "
            "and read a step later, or only in the steps that log it",
        )
    if place.of_library:
        value = "async_op=True, and work.wait() where the result is used, which makes the stream wait"
        return AwaitedOnStream, python(f"the wait for {place.behind} ({place.call})", value)
    name = f"{place.call} in {around}" if around != place.call else f"torch.cuda.synchronize() ({place.call})"
    return CallRemoved, python(name, "only around measurements, outside the loop of steps")


def _in_native(case: Case, place: Place) -> tuple[type[NoBlocking], Setting]:
    if place.copy is not None:
        kind: type[NoBlocking] = CopiedAsynchronously
        value = "cudaMemcpyAsync on the kernels' stream, with memory of cudaMallocHost or cudaHostRegister"
    else:
        kernels = max((rank["kernels_per_step"] for rank in case.host_calls), default=0.0)
        kind = OrderOfStreamForEach if place.per_rank >= PER_KERNEL * kernels else OrderOfStream
        value = "none between kernels of one stream; cudaStreamSynchronize once where the host reads"
    return kind, config(place.call, spelled(case, value))


RULE = Rule(
    "blocking_calls",
    (
        NoBlocking,
        BuiltOnDevice,
        KeptOnDevice,
        CallRemoved,
        AwaitedOnStream,
        ReadOutsideStep,
        CopiedAsynchronously,
        OrderOfStream,
        OrderOfStreamForEach,
    ),
    propose,
    programs=("pytorch", "jax", "native"),
    place=30,
)
