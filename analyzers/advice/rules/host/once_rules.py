"""What is paid once or now and then: start-up, warm-up steps, steps that stand out.

Nothing of it is part of the usual step, so no step time is predicted.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.advice.framework_settings import config, env, in_dialect, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule, is_startup
from gpuscope.analyzers.changes import Refused
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.trace.naming import kinds
from gpuscope.words import units

SEARCHES = ("cudnnfind", "miopenfind", "autotun")
LOADS = ("cumoduleload", "culibraryload", "cudamoduleload", "cudalibraryload", "hipmoduleload", "cukernelget")
INDUCTOR = ("inductor", "dynamo", "triton", "backend_compile", "compile_inner", "frame_compile", "cachingautotuner")


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """By what covers the time, as the evidence names it."""
    shown = " ".join(f"{one['name']} {one['note']}" for one in finding["evidence"])
    words = shown.lower()
    if finding["code"] == "outlier_steps":
        yield from _outliers(case, finding, shown)
        return
    if is_startup(case.report):
        yield _later_steps(case, finding)
    if _compiles(shown):
        yield _compile_cache(case, finding, words)
    yield from _module_loading(case, finding, shown)


def _proposal(
    finding: FindingEntry, *, code: str, action: str, setting: Setting, risk: str, verify: str, why_not: str = ""
) -> Proposal:
    """Without a predicted step time; `why_not` where the reason is not that it is paid once."""
    paid = units.duration(finding["cost_ns"])
    often = "now and then" if finding["code"] == "outlier_steps" else "once per run"
    return Proposal(
        code=code,
        action=action,
        why=finding["message"],
        setting=setting,
        risk=risk,
        verify=verify,
        outcome=Refused(why_not or f"it is paid {often} ({paid} here) and is no part of the usual step"),
    )


def _compiles(shown: str) -> bool:
    """Whether something is compiled, apart from loading what was."""
    words = [word.strip(",") for word in shown.split()]
    loading = (*LOADS, *SEARCHES, "cuinit", "hipinit")
    return any(kinds.is_compilation(word) and not any(name in word.lower() for name in loading) for word in words)


def _later_steps(case: Case, finding: FindingEntry) -> Proposal:
    by_nsys = any(source["format"].startswith("nsys") for source in case.report["trace"]["sources"])
    torch = python("torch.profiler.schedule", "wait=2, warmup=2, active=5")
    nsys = config("nsys profile --capture-range", "cudaProfilerApi, with cudaProfilerStart after the first steps")
    return _proposal(
        finding,
        code="record_steady_steps",
        action="Record steps after the first ones: this recording is start-up",
        setting=nsys if case.program != "pytorch" or by_nsys else torch,
        risk="none for the run",
        verify="the report lists steady steps",
        why_not="what a change gains per step, a recording of steady steps can predict",
    )


def _compile_cache(case: Case, finding: FindingEntry, words: str) -> Proposal:
    if case.program == "jax":
        action = "Keep compiled programs from run to run"
        setting = env("JAX_COMPILATION_CACHE_DIR", "a folder that outlives the job")
        risk, verify = "whoever can write to the folder can run code in the job", "JAX_LOG_COMPILES=1 shows its hits"
    elif case.program == "pytorch" and any(name in words for name in INDUCTOR):
        action = (
            "Keep compiled code from run to run (TORCHINDUCTOR_FX_GRAPH_CACHE=1 where it is off by default; "
            "torch.compiler.save_cache_artifacts() and load_cache_artifacts() carry it to other machines)"
        )
        setting = env("TORCHINDUCTOR_CACHE_DIR", "a folder that outlives the job (default: below /tmp)")
        risk = "code compiled by other versions or for other GPUs is compiled anew"
        verify = "record the first step of a second run: compilation is gone"
    else:
        action = "Compile before the first measured step, once per process"
        setting = config("warm-up steps", "a few of each shape before the measured ones, or kernels built beforehand")
        risk, verify = "none", "record steps after them: no compilation"
    return _proposal(finding, code="compile_cache", action=action, setting=setting, risk=risk, verify=verify)


def _module_loading(case: Case, finding: FindingEntry, shown: str) -> Iterator[Proposal]:
    """EAGER where warm-up steps hold slow first launches, LAZY where loading whole modules is what start-up takes."""
    if case.rocm:
        return
    work = [word.strip(",") for word in shown.split()]
    first = next((word for word in work if kinds.is_launch_call(word) or word.lower().startswith(LOADS)), "")
    if finding["code"] == "warmup" and kinds.is_launch_call(first):
        value, action = "EAGER", "Load kernels when the program starts, not at their first launch within a step"
        risk = "the program starts later and holds all code in device memory"
        verify = "record the first steps again: no launch takes a millisecond"
    elif finding["code"] == "startup" and first.lower().startswith(LOADS):
        value = "LAZY"
        action = "Load kernels at their first use, not all of them at the start (the default since CUDA 12.2)"
        risk = "the first launch of each kernel takes longer"
        verify = "record the start again: cuModuleLoad and cuLibraryLoad take less"
    else:
        return
    setting = env("CUDA_MODULE_LOADING", value)
    yield _proposal(finding, code="module_loading", action=action, setting=setting, risk=risk, verify=verify)


def _outliers(case: Case, finding: FindingEntry, shown: str) -> Iterator[Proposal]:
    if any(kinds.phase(word.strip(",")) == "checkpoint" for word in shown.split()) or "serialization.py" in shown:
        setting = in_dialect(case, {"megatron": config("--async-save", "")})
        if case.program == "jax":
            setting = python("orbax.checkpoint.AsyncCheckpointer", "in place of the call that saves")
        yield _proposal(
            finding,
            code="asynchronous_checkpoint",
            action="Save checkpoints beside training",
            setting=setting or python("torch.distributed.checkpoint.async_save", "in place of the call that saves"),
            risk="a copy of the state in host memory, per rank; wait for the one before it",
            verify="the step with a checkpoint takes as long as its neighbours but for the copy",
        )


RULE = Rule(
    "once",
    (
        Knob(
            "record_steady_steps", ("startup",), "`torch.profiler.schedule(wait=…, warmup=…)`, a capture range of nsys"
        ),
        Knob(
            "compile_cache",
            ("startup", "warmup"),
            "`TORCHINDUCTOR_CACHE_DIR`, `torch.compiler.save_cache_artifacts()`; `JAX_COMPILATION_CACHE_DIR`",
        ),
        Knob("module_loading", ("startup", "warmup"), "`CUDA_MODULE_LOADING`"),
        Knob("asynchronous_checkpoint", ("outlier_steps",), "`torch.distributed.checkpoint.async_save`"),
    ),
    propose,
    programs=("pytorch", "jax", "native"),
    place=180,
)
