"""The launching thread: garbage collection, and work of its own that is no launching."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from gpuscope import when_used
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, by_framework, config, on_cpu, python
from gpuscope.analyzers.advice.settings import nccl_settings, other_settings, torch_settings
from gpuscope.analyzers.step_graph.operations_from_ranges import computation_of
from gpuscope.analyzers.what_if_changes import NoCollector, NoHostWork, Refused
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.trace import kinds
from gpuscope.when_used import dataclass
from gpuscope.words.units import clean

MIN_STEADY = 2
"""Steady steps from which slow launches are part of them."""
LOOP = 100
"""Kernels of a recording from which it is of a loop: a single step of training launches as many."""
EVERY = 100
"""Steps between two collections: rare enough to cost nothing, often enough for memory."""


@dataclass(frozen=True)
class CollectedTogether(Suggestion):
    """Garbage collected on all ranks at once."""

    code = "manual_gc"
    answers = ("gc",)
    sets = "`gc.freeze()`, `gc.disable()` and a collection at the same step on all ranks; Megatron `--manual-gc`"
    action = "Collect garbage at the same step on all ranks, once in {steps} steps"
    why = "{cost}; one rank that collects makes all others wait"
    risk = "memory held by reference cycles is freed later"
    verify = "record again: the cause `gc` is gone; resident memory stays flat over a thousand steps"

    steps: int


@dataclass(frozen=True)
class _HostWork(Suggestion):
    """What the launching thread does besides launching."""

    answers: ClassVar[tuple[str, ...]] = ("host_other",)
    why = "{cost}; seen: {seen}"

    names: list[str]
    """Of the host's work, the longest first."""

    @property
    def seen(self) -> str:
        return ", ".join(clean(name) for name in self.names)

    @property
    def first(self) -> str:
        return clean(self.names[0])


class MovedAside(_HostWork):
    """Work beside training."""

    code = "host_work_aside"
    answers = ("host_other", "launch")
    sets = "asynchronous checkpoints, other work in a thread or less often"
    action = "Run {first} in another thread, or less often"
    risk = (
        "an asynchronous checkpoint needs a copy of the state in host memory; another thread or process needs a free "
        "CPU core"
    )
    verify = "record again: no idle gap lies in {first} any more"


class GilGivenUp(_HostWork):
    """The launching thread waits for other Python threads of its process."""

    code = "gil"
    sets = "other Python threads' work in processes, where the launching thread waits for the GIL"
    action = "Move the work of other Python threads into processes of their own"
    risk = (
        "what they hand over must be pickled; `sys.setswitchinterval(0.0005)` (default 5 ms) only makes threads that "
        "run Python code give the GIL up sooner"
    )
    verify = "record again with nsys -t osrt: the finding `waits_for_gil` is gone"


class NoBroadcastBuffers(_HostWork):
    """Buffers that every rank keeps itself."""

    code = "broadcast_buffers"
    sets = "DDP `broadcast_buffers=False`, where it packs buffers for long"
    action = "Turn off DDP's broadcast of buffers before each forward pass"
    why = "{cost}; {first} packs and unpacks every buffer (running statistics of batch norm) on the launching thread"
    why_not = "the replay can't estimate how much earlier the forward pass would begin: try it"
    risk = "each rank keeps its own running statistics: save those of one rank, or use SyncBatchNorm"
    verify = "record again: no broadcast before the forward pass"


class NoRecompilation(_HostWork):
    """Compilation inside steady steps: what was compiled does not fit any more."""

    code = "recompilation"
    sets = "`torch.compile(dynamic=True)`, the same shapes in every step"
    action = "Avoid compiling during steps: give all steps the same shapes, or compile for dynamic shapes"
    risk = "code for dynamic shapes may run more slowly; padding adds computation"
    verify = "TORCH_LOGS=recompiles names what changed; record again: no compilation within a step"


class NoRecompilationInJax(NoRecompilation):
    """The same of jitted functions."""

    verify = "JAX_LOG_COMPILES=1 names what is compiled"


class EagerLoading(_HostWork):
    """Launches of a millisecond and more with an empty queue: modules loaded at their first use."""

    code = "module_loading"
    sets = "`CUDA_MODULE_LOADING=EAGER`, where launches load modules"
    action = "Load kernels when the program starts, not at their first launch within a step"
    why = "{cost}; these launches took a millisecond or more: {seen}"
    risk = "the program starts later, and the code of all kernels takes device memory"
    verify = "record again: no launch takes a millisecond"


class HostWorkNamed(_HostWork):
    """The host works long without launching, and nothing says at what, or it is the program's own code."""

    code = "host_work_named"
    sets = "Python stacks recorded, where nothing names the work"
    action = "Find out what the launching thread does{inside} while the device idles"
    why = "{cost}"
    why_not = "{unknown}"
    risk = "recording stacks makes the host slower"
    verify = "the finding `host_other` names a function"

    @property
    def inside(self) -> str:
        return f" in {self.first}" if self.names else ""

    @property
    def unknown(self) -> str:
        if not self.names:
            return "the trace does not show what the host does then: record Python stacks or ranges"
        return (
            f"the launching thread is{self.inside} for long without launching anything, and the trace does not show "
            "what takes so long there: record Python stacks"
        )


class OtherProcess(_HostWork):
    """The host does nothing that is recorded, behind a blocking call, in a process that does not train."""

    code = "other_process"
    sets = "the process that hands out the work recorded too, where a server's worker may wait for it"
    action = "Record the process that hands out the work: this one may wait for it"
    why = (
        "{cost}; nothing is recorded on the launching thread once its blocking calls have returned, as in a worker "
        "that waits for an engine or a scheduler"
    )
    why_not = "what the other process does meanwhile is in no file"
    risk = "none: it only shows who is waited for"
    verify = "the traces of both processes show what the other one does while this one waits"
    bounded = False


class HostWorkSampled(HostWorkNamed):
    """The same where Python stacks are recorded and name no more."""

    sets = "the host's call stacks sampled, where Python stacks alone don't tell"
    risk = "sampling makes the host slower"

    @property
    def unknown(self) -> str:
        return f"the launching thread is{self.inside} for long, and the recorded stacks go no deeper: sample the host"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """What answers the finding's cause."""
    if finding["code"] == "gc":
        by_hand = python("gc", f"gc.freeze(); gc.disable(); gc.collect(1) every {EVERY} steps")
        setting = by_framework(case, by_hand, megatron=other_settings.MANUAL_GC.to(str(EVERY)))
        yield Proposal(finding, CollectedTogether(EVERY), setting, (NoCollector(),))
    elif finding["code"] == "launch":
        if names := [name for name in _recorded(finding) if _movable(name) and _launches_nothing(case, name)]:
            yield Proposal(finding, MovedAside(names), _aside(case, names[0]), (), Refused(_SHORT))
    elif (proposal := _host_other(case, finding, _recorded(finding))) is not None:
        yield proposal


_SHORT = "the replay takes away only long stretches, and work that its names tell from launching: measure it"


def _launches_nothing(case: Case, name: str) -> bool:
    """Whether it is a range in which nothing was launched on any rank."""
    own = [entry["device_ns"] for entry in case.report["ranges"] if entry["name"] == name]
    return bool(own) and not any(own)


def _host_other(case: Case, finding: FindingEntry, names: list[str]) -> Proposal | None:
    without = (NoHostWork(),)
    if _awaited(finding):
        setting = config("record", "the process that hands out the work (the engine, the scheduler), in the same time")
        return Proposal(finding, OtherProcess([]), setting)
    if names and kinds.is_compilation(names[0]):
        if "compilation" in case.report:  # the logs tell which guard failed
            return None
        if case.program == "jax":
            setting = python("shapes of jitted functions", "padded to a few sizes")
            return Proposal(finding, NoRecompilationInJax(names), setting, without)
        return Proposal(finding, NoRecompilation(names), torch_settings.COMPILE_DYNAMIC.to("True"), without)
    if names and kinds.is_launch_call(names[0]):
        if case.steady_steps < MIN_STEADY:  # the start of the program
            return None
        warmed = config("warm-up steps", "one of each shape before the measured ones")
        setting = warmed if case.rocm else nccl_settings.MODULE_LOADING.to("EAGER")
        return Proposal(finding, EagerLoading(names), setting, without)
    if names and "flatten_dense_tensors" in names[0] and "ddp" in case.frameworks and not case.without_buffers:
        setting = torch_settings.BROADCAST_BUFFERS.to("False")
        return Proposal(finding, NoBroadcastBuffers(names), setting, without)
    if names and names[0] == kinds.WAITS_FOR_GIL:
        return Proposal(finding, GilGivenUp(names), python("other Python threads", "in processes"), without)
    if names and _movable(names[0]):
        return Proposal(finding, MovedAside(names), _aside(case, names[0]), without)
    sampled = any(one.get("sampled") for one in finding["evidence"])
    # On a CPU the training thread's own code is all that is left; what samples show needs no finding out.
    if on_cpu(case) or sampled or not _repeats(case) or _waits_for_frees(case, finding):
        return None
    kind = HostWorkSampled if case.stacks else HostWorkNamed
    return Proposal(finding, kind(names), _recorded_with(case))


def _awaited(finding: FindingEntry) -> bool:
    """Whether most of what is shown of a finding may be waiting for another process."""
    spent = sum(one["dur_ns"] for one in finding["evidence"])
    return 2 * sum(one["dur_ns"] for one in finding["evidence"] if one.get("awaits")) > spent


def _waits_for_frees(case: Case, finding: FindingEntry) -> bool:
    """Whether calls of the allocator cost more: while another thread of the process is in one, this one waits for it,
    or for a device that waits."""
    freed = case.finding("allocator")
    return freed is not None and freed["share_frac"] > finding["share_frac"]


def _recorded_with(case: Case) -> Setting:
    """What shows the host's own work: of PyTorch stacks, unless the recording is nsys's, which samples them too."""
    if case.stacks and any(entry["runtime"] != "cuda" for entry in case.host_calls):
        return config("py-spy record", "--native --pid PID")  # nsys is NVIDIA's
    if case.program == "pytorch" and not case.by_nsys and not case.stacks:
        return torch_settings.WITH_STACK.to("True")
    # Of CPython nsys samples the stacks since 2023.4, and traces the GIL.
    interpreted = case.program in ("pytorch", "jax")
    more = ",python-gil --python-sampling=true" if interpreted else ""
    return config("nsys profile", f"-t cuda,nvtx,osrt{more} --sample=process-tree --cpuctxsw=process-tree")


def _repeats(case: Case) -> bool:
    """Whether the recording is of a loop: by how much it launches, else by its steps. What a short program does once
    is not worth recording again."""
    if not case.host_calls:
        return case.steady_steps >= MIN_STEADY
    return max(entry["kernels_per_step"] * entry["steps"] for entry in case.host_calls) >= LOOP


def _movable(name: str) -> bool:
    """Whether a name stands for work beside training: not for waiting for another thread, for operators, calls of the
    runtime or parts of a step."""
    if kinds.is_host_other(name) or kinds.is_file_or_network_call(name):
        return True
    own = kinds.is_lock_or_sleep_call(name) or kinds.phase(name) or computation_of(name) is not None
    return not (own or _OWN_WORK.search(name))


_OWN_WORK = when_used.pattern(
    r"::|^(cu[A-Z]|cuda|hip)\w+|^(Optimizer|DistributedDataParallel|FullyShardedDataParallel|FSDP)\b|#|"
    r"^nn\.Module|Backward\d*$|\.py\(\d+\)|^<built-in|^(gloo|nccl|mpi|c10d):|^record_param_comms|"
    r"^PP:\d|^Torch-Compiled Region|^TorchDynamo|^Pregraph|^AOTDispatcher|CompiledFunction"
)
"""Operators, runtime calls, modules, functions, messages, actions of a pipeline's schedule (`PP:2W0`, `PP:1SEND_F0`)
and compiled regions of the program."""


def _aside(case: Case, name: str) -> Setting:
    """Where the work that a name stands for can go."""
    saved = kinds.phase(name) == "checkpoint" or "serialization.py" in name
    if case.native:
        return config(clean(name), "in another thread, or once in several steps")
    if saved:
        return saved_beside(case)
    if case.program == "jax":
        return python(clean(name), "in another thread, or more rarely")
    return python(clean(name), "in a thread or a worker process, or once in several steps")


def saved_beside(case: Case) -> Setting:
    """Checkpoints saved while training goes on."""
    if case.program == "jax":
        return other_settings.ORBAX.to("in place of the call that saves")
    by_hand = torch_settings.ASYNC_SAVE.to("in place of the call that saves")
    return by_framework(case, by_hand, megatron=other_settings.ASYNC_SAVE.to(""))


def _recorded(finding: FindingEntry) -> list[str]:
    """Names of host work that covers at least half of a gap, the longest first; none that is the step itself."""
    shown = [
        one
        for one in finding["evidence"]
        if one.get("covered_frac", 0.0) >= HALF and not one.get("sampled") and not one.get("holds_step")
    ]
    return list(dict.fromkeys(one["name"] for one in sorted(shown, key=lambda one: -one["dur_ns"])))


HALF = 0.5
"""Share of a gap from which a host event stands for what the thread did in it."""


RULE = Rule(
    "host",
    (
        CollectedTogether,
        MovedAside,
        OtherProcess,
        HostWorkNamed,
        HostWorkSampled,
        GilGivenUp,
        NoBroadcastBuffers,
        NoRecompilation,
        NoRecompilationInJax,
        EagerLoading,
    ),
    propose,
    programs=("pytorch", "jax", "native"),
    place=110,
)
