"""What is paid once or now and then: start-up, warm-up steps, steps that stand out.

Nothing of it is part of the usual step, so no step time is predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from gpuscope import when_used
from gpuscope.analyzers.advice.prediction_cache import TIE_FRAC
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, by_framework, config, is_startup, python
from gpuscope.analyzers.advice.rules.host_rules import EagerLoading, saved_beside
from gpuscope.analyzers.advice.settings import nccl_settings, other_settings, torch_settings
from gpuscope.analyzers.what_if_changes import LinkSpeed, LoaderWorkers, MoreLoaderWorkers
from gpuscope.catalogue.suggestion import BY_CODE, Suggestion
from gpuscope.report.view.report_rows import per_step_ns
from gpuscope.schema.call_tree_section import CompileEntry, GraphBreakEntry
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.trace import kinds
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.vocabulary import frame_place, in_library

# The data loader: workers that load while the device computes.

WORKERS = (1, 2, 4, 8, 16)
NO_LINK = LinkSpeed(1e3, 1e-3)
"""Communication that costs next to nothing."""
TIMES = {2.0: "twice", 4.0: "four times"}
NO_WORKERS, WITH_WORKERS = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"
"""The iterators of a DataLoader with num_workers=0 and more (torch.utils.data.dataloader)."""


@dataclass(frozen=True)
class MoreWorkers(Suggestion):
    """More worker processes than there are, however many these are."""

    code = "loader_workers"
    answers = ("input",)
    sets = "`DataLoader(num_workers=…)`, by the framework's name for it"
    action = "Give the data loader {times:g} times as many worker processes as it has now"
    why = "{cost}; the worker processes make batches more slowly than the device takes them"
    risk = "each worker is a process with its own memory, per rank; {limit}, or than the storage serves, are no faster"
    verify = "record again: the cause `input` is gone; if not, the storage or the CPU cores are the limit"

    times: float
    cores: int | None
    """CPU cores for each rank; None where they are not recorded."""

    @property
    def limit(self) -> str:
        return _limit(self.cores)


@dataclass(frozen=True)
class Workers(Suggestion):
    """Worker processes where there are none."""

    code = MoreWorkers.code
    answers = MoreWorkers.answers
    sets = MoreWorkers.sets
    verify = MoreWorkers.verify
    action = "Load batches in {workers} worker process{plural} (with persistent_workers=True)"
    why = "{cost}; a worker loads the next batches while the device computes"
    risk = (
        "each worker is a process with its own memory, per rank; {limit} are no faster; the order of random "
        "augmentations changes"
    )

    workers: int
    cores: int | None
    """CPU cores for each rank; None where they are not recorded."""

    @property
    def limit(self) -> str:
        return _limit(self.cores)

    @property
    def plural(self) -> str:
        return "es" if self.workers > 1 else ""


def _limit(cores: int | None) -> str:
    if cores is None:
        return (
            "how many CPU cores the rank has is not recorded, as many are assumed to be free: more workers than these"
        )
    return f"unless they wait, more than the {units.plural(cores, 'CPU core')} of this machine for each rank"


def loader_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """The fewest workers that hide the loading, of a step without communication too: that may be mended at the same
    time. No more than there are cores, unless they are known to wait. Where there are some, more than now."""
    names, cores = [evidence["name"] for evidence in finding["evidence"]], case.cores_per_rank
    if any(WITH_WORKERS in name for name in names):
        for times, words in TIMES.items():
            value = f"{words} as many as now, {_at_most(cores)}"
            setting = python("the workers of the data loader", value)
            yield Proposal(finding, MoreWorkers(times, cores), setting, (MoreLoaderWorkers(times),))
        return
    for workers in _in_order(case, cores):
        setting = by_framework(
            case,
            torch_settings.NUM_WORKERS.to(str(workers)) | {"besides": "persistent_workers=True"},
            transformers=other_settings.TRAINER_WORKERS.to(str(workers))
            | {"besides": "dataloader_persistent_workers=True"},
            megatron=other_settings.NUM_WORKERS.to(str(workers)),
        )
        if names and all(NO_WORKERS in name for name in names):
            setting = setting | {"now": "0"}
        yield Proposal(finding, Workers(workers, cores), setting, (LoaderWorkers(workers, cores=cores),))


def _in_order(case: Case, cores: int | None) -> Sequence[int]:
    """From the fewest workers on that hide the loading of a step whose communication costs nothing, then fewer ones."""
    found = [one for one in case.report["findings"] if one["code"] in BY_CODE and one["severity"] != "low"]
    if all(BY_CODE[one["code"]].class_name != "communication" for one in found):
        return WORKERS
    told = {count: case.estimate((LoaderWorkers(count, cores=cores), NO_LINK)) for count in WORKERS}
    steps = {count: step for count, step in told.items() if isinstance(step, int)}
    near = min(steps.values(), default=0) + TIE_FRAC * (case.step_ns or 0)
    enough = next((count for count, step in steps.items() if step <= near), WORKERS[0])
    return [*(one for one in WORKERS if one >= enough), *reversed([one for one in WORKERS if one < enough])]


def _at_most(cores: int | None) -> str:
    return "as far as there are free CPU cores" if cores is None else f"{units.plural(cores, 'core')} per rank at most"


LOADER_RULE = Rule("loader", (MoreWorkers, Workers), loader_rules_propose, place=140)


# torch.compile: what makes it compile again, what breaks its graphs, ranks that compile unlike one another.


@dataclass(frozen=True)
class StableGuard(Suggestion):
    """What a guard is about no longer changes, or is dynamic."""

    code = "stable_guard"
    answers = ("recompiling",)
    sets = "`torch._dynamo.mark_dynamic`, `torch.compile(dynamic=True)`, `torch._dynamo.config.specialize_float`"
    action = "Compile {place} once for what changes there"
    why = "its guard failed: {guard}; compiling again took {took}"
    why_not = "{bound}"
    risk = "code for dynamic sizes may run more slowly; padding to a few sizes adds computation"
    verify = "record again with --compile-logs: the finding `recompiling` is gone"

    place: str
    guard: str
    took_ns: int
    saved_ns: int

    @property
    def took(self) -> str:
        return units.duration(self.took_ns)

    @property
    def bound(self) -> str:
        if not self.saved_ns:
            return "no judged step compiles again: what it takes of others is no part of the step"
        return f"no more than the {units.duration(self.saved_ns)} that it takes of a judged step can be saved"


@dataclass(frozen=True)
class WholeGraph(Suggestion):
    """Code that torch.compile can take as one graph."""

    code = "whole_graph"
    answers = ("graph_break",)
    sets = "the setting or the change that torch's hint for the break names"
    action = "Keep the compiled graph whole at {place}"
    why = "it breaks there: {reason}; {explanation}"
    why_not = "{bound}; what fusing over the break saves is not known"
    risk = "what is moved behind the compiled call runs later"
    verify = "record again with --compile-logs: no graph break there"

    place: str
    reason: str
    explanation: str
    idle_ns: int | None

    @property
    def subject(self) -> str:
        return self.place

    @property
    def bound(self) -> str:
        if self.idle_ns is None:
            return "without ranges of compiled regions in a trace its cost is not known"
        if not self.idle_ns:
            return "the device does not idle there: fusion alone can gain"
        return f"no more than the {units.duration(self.idle_ns)} per step that the device idles there can be saved"


@dataclass(frozen=True)
class AlikeCompiled(Suggestion):
    """All ranks compile the same code at the same time."""

    code = "alike_compiled"
    answers = ("compile_divergence",)
    sets = "the same inputs and the same branches on all ranks before compiling"
    action = "Make all ranks compile {place} alike"
    why = "{message}"
    why_not = "a rank that compiles alone makes the others wait, or hang; the replay does not know steps without it"
    risk = "padding every rank's batch to the largest adds computation"
    verify = "record again with --compile-logs on all ranks: the finding `compile_divergence` is gone"

    place: str


def compile_rules_propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """What answers the finding, by the guard that failed or the reason of the break."""
    section = case.report.get("compilation")
    if section is None:
        return
    if finding["code"] == "compile_divergence":
        first = section["divergence"][0]
        place = frame_place(first["function"], first["file"], first["line"])
        yield Proposal(finding, AlikeCompiled(place), config("inputs and branches", "the same on all ranks"))
    elif finding["code"] == "recompiling":
        again = [one for one in section["compiles"] if one["recompiled"] and one["reason"]]
        if again:
            yield _stable(case, finding, again)
    else:
        for one in _worth(section["graph_breaks"])[:MOST]:
            place = frame_place(None, one["file"], one["line"])
            told = WholeGraph(place, one["reason"], one["explanation"] or "", one["idle_ns_per_step"])
            yield Proposal(finding, told, _for_break(one, place))


def _worth(breaks: list[GraphBreakEntry]) -> list[GraphBreakEntry]:
    """Those that somebody can mend: not those of libraries at which nothing idles."""
    return [one for one in breaks if one["idle_ns_per_step"] or not in_library(one["file"])]


MOST = 3
"""Lines at which graphs break that have a suggestion of their own."""


def _stable(case: Case, finding: FindingEntry, again: list[CompileEntry]) -> Proposal:
    # Inner frames fail on what outer ones computed: the first guard in time is about the user's own input.
    first = min(again, key=lambda one: (in_library(one["file"]), one["start_ns"] or 0))
    place, guard = frame_place(first["function"], first["file"], first["line"]), first["reason"] or ""
    took = sum(one["dur_ns"] or 0 for one in again)
    saved = per_step_ns(finding["share_frac"], case.step_ns) or 0
    return Proposal(finding, StableGuard(place, guard, took, saved), _for_guard(guard))


_SIZE = when_used.pattern(r"tensor '(?P<name>\w+)' size mismatch at index (?P<axis>\d+)")
_FLOAT = when_used.pattern(r"== -?\d*\.\d+|<class 'float'>")


def _for_guard(guard: str) -> Setting:
    """What keeps a guard from failing, by what it is about."""
    found = _SIZE.search(guard)
    if found and not found["name"].startswith("_"):
        return torch_settings.MARK_DYNAMIC.to(f"{found['name']}, {found['axis']}")
    if _FLOAT.search(guard):
        return torch_settings.SPECIALIZE_FLOAT.to("False")
    if "grad_mode" in guard:
        return torch_settings.NO_GRAD.to("around every call of it, or around none")
    if "dtype mismatch" in guard or "requires_grad mismatch" in guard:
        return python("inputs", "always of the same dtype and requires_grad")
    return torch_settings.COMPILE_DYNAMIC.to("True")


_HINTED = when_used.pattern(r"`(?P<name>torch\._dynamo\.config\.\w+) = (?P<value>\w+)`")
_BUILTIN = when_used.pattern(r"builtin(?: operator)? `(?P<name>[\w.]+?)\.?`")


def _for_break(one: GraphBreakEntry, place: str) -> Setting:
    """What keeps a graph whole: the setting that torch's hint names, else what answers the usual reasons."""
    if found := _HINTED.search(one["hint"] or ""):
        return python(found["name"], found["value"])
    if "logging" in one["reason"]:
        return torch_settings.IGNORE_LOGGING.to("the logger's method, added")
    builtin = _BUILTIN.search(f"{one['reason']} {one['explanation'] or ''}")
    if builtin and builtin["name"] == "print":
        return torch_settings.REORDER_LOGGING.to("print, added")
    if "branching" in one["reason"].lower():
        return torch_settings.WHERE.to(f"or torch.cond, in place of the branch at {place}")
    if "graph_break()" in one["reason"]:
        return torch_settings.GRAPH_BREAK.to(f"taken out at {place}")
    if builtin:
        return python(builtin["name"], f"called outside of the compiled function, not at {place}")
    return config(place, (one["hint"] or "the code there outside of the compiled function").rstrip("."))


COMPILE_RULE = Rule("compile", (StableGuard, WholeGraph, AlikeCompiled), compile_rules_propose, place=105)


SEARCHES = ("cudnnfind", "miopenfind", "autotun")
LOADS = ("cumoduleload", "culibraryload", "cudamoduleload", "cudalibraryload", "hipmoduleload", "cukernelget")
INDUCTOR = ("inductor", "dynamo", "triton", "backend_compile", "compile_inner", "frame_compile", "cachingautotuner")


@dataclass(frozen=True)
class PaidOnce(Suggestion):
    """Something that is no part of the usual step."""

    answers: ClassVar[tuple[str, ...]] = ("startup", "warmup")
    why = "{message}"
    why_not = "it costs {paid} once per run, outside the usual step, which gets no shorter"
    bounded = False

    cost_ns: int | None

    @property
    def paid(self) -> str:
        return units.duration(self.cost_ns)


class SteadySteps(PaidOnce):
    """A recording behind the start."""

    code = "record_steady_steps"
    answers = ("startup",)
    sets = "`torch.profiler.schedule(wait=…, warmup=…)`, a capture range of nsys"
    action = "Record steps after the first ones: this recording is start-up"
    why_not = "only a recording of steady steps can tell what a change gains per step"
    risk = "none for the run"
    verify = "the report lists steady steps"


class CompiledCodeKept(PaidOnce):
    """Code of torch.compile kept from run to run."""

    code = "compile_cache"
    sets = "`TORCHINDUCTOR_CACHE_DIR`, `torch.compiler.save_cache_artifacts()`; `JAX_COMPILATION_CACHE_DIR`"
    action = (
        "Keep compiled code from run to run (TORCHINDUCTOR_FX_GRAPH_CACHE=1 where it is off by default; "
        "torch.compiler.save_cache_artifacts() and load_cache_artifacts() carry it to other machines)"
    )
    risk = "code compiled by other versions or for other GPUs is compiled anew"
    verify = "record the first step of a second run: compilation is gone"


class CompiledProgramsKept(CompiledCodeKept):
    """Programs of JAX kept from run to run."""

    action = "Keep compiled programs from run to run"
    risk = "whoever can write to the folder can run code in the job"
    verify = "JAX_LOG_COMPILES=1 shows its hits"


class CompiledBefore(CompiledCodeKept):
    """Compilation of other kinds."""

    action = "Compile before the first measured step, once per process"
    risk = "none"
    verify = "record steps after them: no compilation"


class LazyLoading(PaidOnce):
    """A start that loads whole modules, where that is not the default."""

    code = EagerLoading.code
    answers = ("startup",)
    sets = "`CUDA_MODULE_LOADING=LAZY`, where it is set to `EAGER` or CUDA is older than 12.2"
    action = "Load kernels at their first use, not all of them at the start (the default since CUDA 12.2)"
    risk = "the first launch of each kernel takes longer"
    verify = "record the start again: cuModuleLoad and cuLibraryLoad take less"


class SavedBeside(PaidOnce):
    """Checkpoints saved while training goes on."""

    code = "asynchronous_checkpoint"
    answers = ("outlier_steps",)
    sets = "`torch.distributed.checkpoint.async_save`"
    action = "Save checkpoints asynchronously, while training continues"
    why_not = "it costs {paid} in a few steps, but the usual step gets no shorter"
    risk = "each rank needs a copy of its state in host memory; one checkpoint must be finished before the next begins"
    verify = "record again: a step with a checkpoint is longer than its neighbours only by the copy"


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By what covers the time, as the evidence names it."""
    shown = " ".join(f"{one['name']} {one['note']}" for one in finding["evidence"])
    for kind, setting in _answers(case, finding["code"], shown):
        yield Proposal(finding, kind(finding["cost_ns"]), setting)


def _answers(case: Case, code: str, shown: str) -> Iterator[tuple[type[PaidOnce], Setting]]:
    if code == "outlier_steps":
        if any(kinds.phase(word.strip(",")) == "checkpoint" for word in shown.split()) or "serialization.py" in shown:
            yield SavedBeside, saved_beside(case)
        return
    if is_startup(case.report):
        nsys = config("nsys profile --capture-range", "cudaProfilerApi, with cudaProfilerStart after the first steps")
        torch = torch_settings.PROFILER_SCHEDULE.to("wait=2, warmup=2, active=5")
        yield SteadySteps, nsys if case.program != "pytorch" or case.by_nsys else torch
    if _compiles(shown):
        yield _compile_cache(case, shown.lower())
    if code == "startup" and _loads_eagerly(case) and _loads_first(shown):
        yield LazyLoading, nccl_settings.MODULE_LOADING.to("LAZY")


def _compiles(shown: str) -> bool:
    """Whether something is compiled, apart from loading what was."""
    words = [word.strip(",") for word in shown.split()]
    loading = (*LOADS, *SEARCHES, "cuinit", "hipinit")
    return any(kinds.is_compilation(word) and not any(name in word.lower() for name in loading) for word in words)


def _compile_cache(case: Case, words: str) -> tuple[type[PaidOnce], Setting]:
    if case.program == "jax":
        return CompiledProgramsKept, other_settings.JAX_CACHE_DIR.to("a folder that outlives the job")
    if case.program == "pytorch" and any(name in words for name in INDUCTOR):
        return CompiledCodeKept, torch_settings.INDUCTOR_CACHE_DIR.to(
            "a folder that outlives the job (default: below /tmp)"
        )
    value = "a few of each shape before the measured ones, or kernels built beforehand"
    return CompiledBefore, config("warm-up steps", value)


def _loads_eagerly(case: Case) -> bool:
    """Whether it is recorded that whole modules are loaded: by the variable, or by a CUDA that did so by default."""
    told, cuda = case.variables.get(nccl_settings.MODULE_LOADING.name, ""), case.version("cuda")
    return not case.rocm and (told.upper() == "EAGER" or (not told and () < cuda < nccl_settings.LAZY_BY_DEFAULT))


def _loads_first(shown: str) -> bool:
    """Whether loading modules is what start-up takes longest."""
    work = [word.strip(",") for word in shown.split()]
    first = next((word for word in work if kinds.is_launch_call(word) or word.lower().startswith(LOADS)), "")
    return first.lower().startswith(LOADS)


ONCE_RULE = Rule(
    "once",
    (SteadySteps, CompiledCodeKept, CompiledProgramsKept, CompiledBefore, LazyLoading, SavedBeside),
    propose,
    programs=("pytorch", "jax", "native"),
    place=180,
)


RULES = (COMPILE_RULE, LOADER_RULE, ONCE_RULE)
