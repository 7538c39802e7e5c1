"""What is paid once or now and then: start-up, warm-up steps, steps that stand out.

Nothing of it is part of the usual step, so no step time is predicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from gpuscope.analyzers.advice.framework_settings import config
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, is_startup
from gpuscope.analyzers.advice.rules.host.host_rules import EagerLoading, saved_beside
from gpuscope.analyzers.advice.settings import nccl_settings, other_settings, torch_settings
from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.trace.naming import kinds
from gpuscope.when_used import dataclass
from gpuscope.words import units

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


RULE = Rule(
    "once",
    (SteadySteps, CompiledCodeKept, CompiledProgramsKept, CompiledBefore, LazyLoading, SavedBeside),
    propose,
    programs=("pytorch", "jax", "native"),
    place=180,
)
