"""Calls that wait for the device: the place of each, and what to write there instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, by_framework, config, on_cpu, python, spelled
from gpuscope.analyzers.advice.settings import other_settings, torch_settings
from gpuscope.analyzers.host_time.blocking_sites import site
from gpuscope.analyzers.host_time.fsdp_options import LIMITER
from gpuscope.analyzers.what_if_changes import CapturedGraphs, Change, PinnedCopies, Refused, RemovedSyncs
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.trace import kinds
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


BLOCKING_RULE = Rule(
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


# Launch overhead: graphs where the same kernels run step for step and nothing else holds the host up.

MIN_STEPS = 2
"""Steady steps from which it can be said that steps repeat."""
ALIKE = 0.95
"""Share of a step's kernels that the step before it must have run: a graph replays the same ones."""
OFTEN = 0.5
"""Blocking calls per step from which they are part of a step."""
BLOCKED = 0.01
"""Share of the time that calls which copy nothing must block: others found nothing to wait for."""
NO_STEPS = "no steps were found, so what a graph would hold can't be told: record two or more, with a range around each"
IDLE = ("input", "sync", "gc", "host_other", "allocator", "unattributed")
"""Other causes of idle time."""


@dataclass(frozen=True)
class Graphs(Suggestion):
    """A step's kernels launched at once."""

    code = "cuda_graphs"
    answers = ("launch",)
    sets = '`torch.compile(mode="reduce-overhead")`, Megatron `--cuda-graph-impl`; in C++ `cudaStreamBeginCapture`'
    action = "Launch the step's kernels as CUDA graphs"
    why = "{cost}; a graph launches hundreds of kernels for the price of one"
    grounds = "{assumed}"
    risk = (
        "every step must have the same shapes; the first steps take longer, because they compile; each graph keeps its "
        "memory; code that reads values on the host breaks a graph"
    )
    verify = "record again: far fewer cudaLaunchKernel calls, cudaGraphLaunch instead; the cause `launch` falls"

    steps: int
    """Steady ones that were recorded."""

    @property
    def assumed(self) -> str:
        if self.steps >= MIN_STEPS:
            return ""
        return (
            "inferred: a single steady step was recorded, which can't show that the next ones run the same kernels in "
            "the same shapes; the figure holds if they do (record two or more)"
        )


@dataclass(frozen=True)
class GraphsOnceFree(Graphs):
    """The same where calls block within a step: the gain is of both."""

    action = "Do without the calls that block within a step, then launch its kernels as CUDA graphs"
    why = "{cost}; a graph launches hundreds of kernels for the price of one, but can't hold calls that block: {shown}"

    places: list[Place]
    """The calls, the longest first."""

    @property
    def shown(self) -> str:
        return "; ".join(one.text() for one in self.places[:SHOWN])


@dataclass(frozen=True)
class BoundToNode(Suggestion):
    """Launching threads on the cores beside their GPU."""

    code = "numa_binding"
    answers = ("launch",)
    sets = "`torchrun --numa-binding=node`"
    action = "Bind each rank to the CPU cores beside its GPU"
    why = "{cost}; a launch from the other socket's cores takes longer"
    why_not = (
        "on which cores a thread ran is not recorded: compare `nvidia-smi topo -m` with the job's CPU affinity, or "
        "record with nsys --cpuctxsw=process-tree"
    )
    bounded = False
    risk = "loader workers share the bound cores; needs torch 2.9 or later (else numactl --cpunodebind)"
    verify = "record again: mean duration of cudaLaunchKernel falls"


def launch_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """Graphs, if the run can be one and launching costs much, be it less than something else; the cores beside each
    GPU."""
    largest = finding["share_frac"] >= max(_others(case), default=0.0)
    much = finding["severity"] == "high" or case.report["verdict"]["cause"] == finding["code"]
    kernels = sum(one["launches"] for one in case.report["launches"])
    if on_cpu(case) or not kernels or not (largest or much):
        return
    setting = None if _in_graphs(case) or not _has_graphs(case) else _setting(case)
    blocking, shapes = _blocking(case), _unlike_shapes(case)
    if setting is not None:
        steps = case.steady_steps
        record = GraphsOnceFree(steps, blocking) if blocking else Graphs(steps)
        changes = (*_freeing(blocking), CapturedGraphs())
        refused = Refused(shapes or NO_STEPS) if shapes or not steps else None
        yield Proposal(finding, record, setting, changes, refused)
    if not dominates(case, finding):
        return
    if (case.program == "pytorch" or case.program is None) and (case.report["trace"]["world_size"] or 1) > 1:
        yield Proposal(finding, BoundToNode(), torch_settings.NUMA_BINDING.to("node"))


def _has_graphs(case: Case) -> bool:
    """Whether the runtime that launches is one that has graphs: not MTIA's or another accelerator's."""
    called = [row["name"] for row in case.report["api_calls"]]
    return not called or any(name.startswith(("cu", "hip", "acl", "AscendCL")) for name in called)


def dominates(case: Case, finding: FindingEntry) -> bool:
    """Whether launching is most of the idle time."""
    return finding["share_frac"] >= sum(_others(case))


def _others(case: Case) -> list[float]:
    return [other["share_frac"] for other in case.report["findings"] if other["code"] in IDLE]


def _setting(case: Case) -> Setting | None:
    if case.native:
        return config("cudaStreamBeginCapture", "around the kernels of a step, then cudaGraphLaunch")
    if case.program == "jax":
        return None  # XLA forms command buffers itself
    if any(entry["runtime"] == "acl" for entry in case.host_calls):
        return None  # torch.compile's mode is CUDA's; Ascend's graphs come with torch_npu's own backend
    by_hand = torch_settings.COMPILE_MODE.to('"reduce-overhead"')
    return by_framework(case, by_hand, megatron=other_settings.CUDA_GRAPH_IMPL.to("local"))


def _in_graphs(case: Case) -> bool:
    """Whether graphs launch most of the kernels already."""
    counts = {True: 0, False: 0}
    for call in case.report["api_calls"]:
        if kinds.is_kernel_launch(call["name"]):
            counts["GraphLaunch" in call["name"]] += call["count"]
    kernels = sum(one["launches"] for one in case.report["launches"])
    return counts[True] > 0 and kernels - counts[False] >= kernels / 2


def _blocking(case: Case) -> list[Place]:
    """Calls that block within a step: no graph can hold them."""
    window = sum(rank["window_ns"] for rank in case.report["ranks"])
    return [
        place
        for place in places(case)
        if place.per_rank >= OFTEN and (place.copy is not None or place.blocked >= BLOCKED * window)
    ]


def _freeing(blocking: list[Place]) -> tuple[Change, ...]:
    """What makes a step free of them: data from pinned memory, the others gone."""
    copies = batches(blocking)
    others = [place for place in blocking if place not in copies]
    pinned: tuple[Change, ...] = (PinnedCopies(),) if copies else ()
    return (*pinned, freed(others)) if others else pinned


def _unlike_shapes(case: Case) -> str:
    """Why steps are not alike enough for a graph; empty where they are."""
    alike = [entry["repeated_frac"] for entry in case.host_calls if entry["repeated_frac"] is not None]
    if not alike or min(alike) >= ALIKE:
        return ""
    return (
        f"a graph replays the same kernels in every step, but only {units.share(min(alike))} of a step's kernels "
        "repeat in the next: first give all steps the same shapes (pad or pack to a few lengths)"
    )


LAUNCH_RULE = Rule(
    "launching",
    (Graphs, GraphsOnceFree, BoundToNode),
    launch_rules_propose,
    programs=("pytorch", "jax", "native"),
    place=130,
)


RULES = (BLOCKING_RULE, LAUNCH_RULE)
