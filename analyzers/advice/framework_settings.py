"""Settings as reports name them, and which framework's name for a change a trace calls for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from gpuscope.analyzers.advice.rule import Case
from gpuscope.analyzers.advice.settings import torch_settings
from gpuscope.analyzers.advice.settings.other_settings import OF_LIGHTNING
from gpuscope.analyzers.allocator.allocator_settings import merged, variable
from gpuscope.catalogue.optimizers import FUSED_ON_SHARDED
from gpuscope.report.view.per_step import per_step_ns
from gpuscope.schema.document import RankEntry, Setting


def env(name: str, value: str) -> Setting:
    """An environment variable."""
    return {"kind": "env", "name": name, "value": value}


def python(name: str, value: str) -> Setting:
    """An argument or call in the training script: `name` is where it goes, `value` is Python."""
    return {"kind": "python", "name": name, "value": value}


def config(name: str, value: str) -> Setting:
    """A key of a framework's configuration, or an option of its command line."""
    return {"kind": "config", "name": name, "value": value}


def allocator(case: Case, option: str, value: str) -> Setting:
    """An option of PyTorch's caching allocator, beside those that are recorded as set, by the variable that the job's
    torch reads."""
    name = variable(modern=case.version("torch") >= torch_settings.ALLOC_CONF.since, set_already=case.variables)
    return env(name, merged(case.variables.get(name, ""), option, value))


def in_dialect(case: Case, names: Mapping[str, Setting]) -> Setting | None:
    """The setting as the outermost framework of the trace names it; None where it has no name for it.

    A job of DeepSpeed, Megatron or Horovod is configured there and nowhere else, whatever it uses inside.
    """
    for framework in case.frameworks:
        if framework in names:
            return names[framework]
        if framework in ("deepspeed", "megatron", "horovod"):
            return None
    return None


def by_framework(case: Case, otherwise: Setting, **names: Setting) -> Setting:
    """The same, `otherwise` where the framework has no name for it."""
    return in_dialect(case, names) or otherwise


def of_wrapper(case: Case, setting: Setting) -> Setting:
    """An argument of DDP as Lightning's strategy takes it, which wraps the model itself."""
    known = OF_LIGHTNING.get(setting["name"])
    if known is None or "lightning" not in case.frameworks:
        return setting
    value = setting["value"]
    if setting["name"] == torch_settings.COMM_HOOK.name:
        state, _, hook = value.removeprefix("(").removesuffix(")").rpartition(", ")
        value = hook if state == "None" else f"{hook}, ddp_comm_state={state}"
    elif setting["name"] == torch_settings.NO_SYNC.name:
        value = "the micro-batches of a step"
    return {**setting, "kind": known.kind, "name": known.name, "value": value}


def fusable(case: Case, optimizers: Iterable[str]) -> list[str]:
    """Those of these classes whose fused form takes the parameters as the job holds them."""
    return [name for name in optimizers if name in FUSED_ON_SHARDED or "fsdp2" not in case.frameworks]


def spelled(case: Case, text: str) -> str:
    """Calls of CUDA's runtime as the job's own runtime names them."""
    return text.replace("cudaMallocHost", "hipHostMalloc").replace("cuda", "hip") if case.rocm else text


def megabytes(size: int) -> str:
    """Bytes as a whole number of MiB, the unit of DDP's buckets."""
    return str(size >> 20)


def step_now(case: Case) -> int:
    """What predictions start from, ns: «the step», without steps the longest window."""
    step = case.report["step_time"]
    return step["median_ns"] if step else max((rank["window_ns"] for rank in case.report["ranks"]), default=0)


def needed(case: Case, rank: RankEntry, *parts: PartName) -> int:
    """ns per step that these parts of a rank's breakdown take; without steps in its window."""
    spent = sum(rank["breakdown_ns"][part] for part in parts)
    of_step = per_step_ns(spent / max(rank["window_ns"], 1), case.step_ns)
    return spent if of_step is None else of_step


PartName = Literal["compute", "exposed_communication", "exposed_memory"]


def device_waits(case: Case) -> bool:
    """Whether the devices idle longer than they compute: there shorter kernels leave longer gaps."""
    parts = [rank["breakdown_ns"] for rank in case.report["ranks"]]
    return sum(part["idle"] for part in parts) > sum(part["compute"] for part in parts)


def on_cpu(case: Case) -> bool:
    """Whether the training threads are the devices."""
    return all(rank["device"] is None for rank in case.report["ranks"])
