"""The launching thread: garbage collection, and work of its own that is no launching."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from gpuscope.analyzers.advice.framework_settings import config, cost, in_dialect, on_cpu, python
from gpuscope.analyzers.advice.rule import Case, Knob, Proposal, Rule
from gpuscope.analyzers.changes import NoCollector, NoHostWork, Refused
from gpuscope.schema.document import FindingEntry, Setting
from gpuscope.trace.naming import kinds
from gpuscope.words.units import clean

MIN_STEADY = 2
"""Steady steps from which slow launches are part of them."""
LOOP = 100
"""Kernels of a recording from which it is of a loop: a single step of training launches as many."""
EVERY = 100
"""Steps between two collections: rare enough to cost nothing, often enough for memory."""


def propose(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    """What answers the finding's cause."""
    yield from ANSWERS[finding["code"]](case, finding)


def _gc(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    setting = in_dialect(case, {"megatron": config("--manual-gc --manual-gc-interval", str(EVERY))})
    yield Proposal(
        code="manual_gc",
        action=f"Collect garbage at the same step on all ranks, once in {EVERY} steps",
        why=f"{cost(finding)}; one rank that collects makes all others wait",
        setting=setting or python("gc", f"gc.freeze(); gc.disable(); gc.collect(1) every {EVERY} steps"),
        risk="memory held by reference cycles is freed later",
        verify="record again: the cause `gc` is gone; resident memory stays flat over a thousand steps",
        changes=(NoCollector(),),
    )


def _host_other(case: Case, finding: FindingEntry) -> Iterator[Proposal]:
    names = _recorded(finding)
    if names and kinds.is_compilation(names[0]):
        yield _recompiling(case, finding, names)
    elif names and kinds.is_launch_call(names[0]):
        if case.steady_steps >= MIN_STEADY:  # elsewhere it is the start of the program
            yield _first_use(case, finding, names)
    elif names and "flatten_dense_tensors" in names[0] and "ddp" in case.frameworks:
        yield _buffers(finding, names)
    elif names and _movable(names[0]):
        yield Proposal(
            code="host_work_aside",
            action=f"Move {clean(names[0])} off the launching thread, or do it less often",
            why=f"{cost(finding)}; seen: {_listed(names)}",
            setting=_aside(case, names[0]),
            risk="an asynchronous checkpoint needs a copy of the state in host memory; what runs beside needs a free "
            "core",
            verify="record again: the cause `host_other` is gone",
            changes=(NoHostWork(),),
        )
    elif not on_cpu(case) and _repeats(case):  # on a CPU the training thread's own code is all that is left
        yield _unrecorded(case, finding, names)


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
    return not (kinds.is_lock_or_sleep_call(name) or kinds.phase(name) or _OWN_WORK.search(name))


_OWN_WORK = re.compile(
    r"::|^(cu[A-Z]|cuda|hip)\w+|^(Optimizer|DistributedDataParallel|FullyShardedDataParallel|FSDP)\b|#|"
    r"^nn\.Module|Backward\d*$|\.py\(\d+\)"
)
"""Operators, runtime calls, modules and functions of the program."""


def _buffers(finding: FindingEntry, names: list[str]) -> Proposal:
    return Proposal(
        code="broadcast_buffers",
        action="Do without DDP's broadcast of buffers before each forward pass",
        why=f"{cost(finding)}; {clean(names[0])} packs and unpacks every buffer (running statistics of batch norm) on "
        "the launching thread",
        setting=python("DistributedDataParallel.broadcast_buffers", "False"),
        risk="each rank keeps its own running statistics: save those of one rank, or use SyncBatchNorm",
        verify="record again: no broadcast before the forward pass",
        changes=(NoHostWork(),),
        outcome=Refused("the replay can't estimate how much earlier the forward pass would begin: try it"),
    )


def _aside(case: Case, name: str) -> Setting:
    """Where the work that a name stands for can go."""
    saved = kinds.phase(name) == "checkpoint" or "serialization.py" in name
    if case.native:
        return config(clean(name), "in another thread, or once in several steps")
    if case.program == "jax":
        return python(
            clean(name), "orbax.checkpoint.AsyncCheckpointer" if saved else "in another thread, or more rarely"
        )
    megatron = in_dialect(case, {"megatron": config("--async-save", "")}) if saved else None
    if megatron is not None:
        return megatron
    if saved:
        return python("torch.distributed.checkpoint.async_save", "in place of the call that saves")
    return python(clean(name), "in a thread or a worker process, or once in several steps")


def _recompiling(case: Case, finding: FindingEntry, names: list[str]) -> Proposal:
    """Compilation inside steady steps: what was compiled does not fit any more."""
    jax = case.program == "jax"
    return Proposal(
        code="recompilation",
        action="Stop compiling within the steps: give them the same shapes, or compile for changing ones",
        why=f"{cost(finding)}; seen: {_listed(names)}",
        setting=python("shapes of jitted functions", "padded to a few sizes") if jax
        else python("torch.compile.dynamic", "True"),
        risk="code for changing shapes may run more slowly; padding computes more",
        verify="JAX_LOG_COMPILES=1 names what is compiled" if jax
        else "TORCH_LOGS=recompiles names what changed; record again: no compilation within a step",
        changes=(NoHostWork(),),
    )  # fmt: skip


def _first_use(case: Case, finding: FindingEntry, names: list[str]) -> Proposal:
    """Launches of a millisecond and more with an empty queue: modules loaded at their first use."""
    return Proposal(
        code="module_loading",
        action="Load the kernels' modules before the first step instead of at their first launch",
        why=f"{cost(finding)}; launches that take a millisecond and more: {_listed(names)}",
        setting=config("warm-up steps", "one of each shape before the measured ones") if case.rocm
        else {"kind": "env", "name": "CUDA_MODULE_LOADING", "value": "EAGER"},
        risk="start-up takes longer and more device memory holds code",
        verify="record again: no launch takes a millisecond",
        changes=(NoHostWork(),),
    )  # fmt: skip


def _unrecorded(case: Case, finding: FindingEntry, names: list[str]) -> Proposal:
    """The host works long without launching, and nothing says at what, or it is the program's own code."""
    torch = case.program == "pytorch"
    inside = f" in {clean(names[0])}" if names else ""
    why = f"the launching thread works{inside} for long without launching anything; how long that has to take is not "
    return Proposal(
        code="host_work_named",
        action=f"Find out what the launching thread does{inside} while the device idles",
        why=cost(finding),
        setting=python("torch.profiler.profile.with_stack", "True") if torch
        else config("nsys profile", "-t cuda,nvtx,osrt --sample=process-tree"),
        risk="recording stacks makes the host slower",
        verify="the finding `host_other` names a function",
        outcome=Refused(f"{why}recorded: record Python stacks" if names
                        else "nothing of the host is recorded there: record Python stacks or ranges"),
    )  # fmt: skip


def _recorded(finding: FindingEntry) -> list[str]:
    """Names of host work that covers at least half of a gap, the longest first."""
    shown = [one for one in finding["evidence"] if _covers(one["note"])]
    return list(dict.fromkeys(one["name"] for one in sorted(shown, key=lambda one: -one["dur_ns"])))


def _covers(note: str) -> bool:
    """Whether a note of evidence says that the named event covers half of the gap; one without a share does not."""
    covered = _SHARE.search(note)
    return covered is not None and float(covered.group(1)) >= HALF


_SHARE = re.compile(r"\bcovers ([\d.]+) % of the gap")
HALF = 50.0
"""Per cent."""


def _listed(names: list[str]) -> str:
    return ", ".join(clean(name) for name in names)


ANSWERS: dict[str, Callable[[Case, FindingEntry], Iterator[Proposal]]] = {"gc": _gc, "host_other": _host_other}

RULE = Rule(
    "host",
    (
        Knob(
            "manual_gc",
            ("gc",),
            "`gc.freeze()`, `gc.disable()` and a collection at the same step on all ranks; Megatron `--manual-gc`",
        ),
        Knob("host_work_aside", ("host_other",), "asynchronous checkpoints, other work in a thread or less often"),
        Knob("host_work_named", ("host_other",), "Python stacks recorded, where nothing names the work"),
        Knob("broadcast_buffers", ("host_other",), "DDP `broadcast_buffers=False`, where it packs buffers for long"),
        Knob("recompilation", ("host_other",), "`torch.compile(dynamic=True)`, the same shapes in every step"),
        Knob("module_loading", ("host_other",), "`CUDA_MODULE_LOADING=EAGER`, where launches load modules"),
    ),
    propose,
    programs=("pytorch", "jax", "native"),
    place=110,
)
