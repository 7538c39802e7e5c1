"""Named ranges in a training script, recorded by an NVTX tool or torch's profiler if one is attached.

>>> with gpuscope.span("forward", step=3, micro_batch=2, stage=1):
...     loss = model(batch)

What a listener sees:

* NVTX: domain `gpuscope`, a category and colour by name, the label `forward#micro_batch=2,stage=1`, and
  the payload (step, micro_batch, stage, layer, bytes; those that were given) as a struct of int64.
* torch.profiler: a user annotation `gpuscope::forward#micro_batch=2,stage=1`. With `record_shapes=True`
  its `Concrete Inputs` are step, micro_batch, stage, layer, bytes, in this order, '' where absent.

The label holds only values with few variants, so that tools store few names; step and bytes are payload only.
With no listener a range costs two look-ups. Neither torch nor nvtx has to be installed.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

# Which rank a launcher made this process, and whether this process is a launcher itself. Light to import.


class LaunchedRank(NamedTuple):
    """A rank by its launcher's variables; `world_size` is 1 where only the rank is known."""

    rank: int
    world_size: int
    local_rank: int


# Rank, world size, local rank. torchrun and Kubeflow first: they may run inside a Slurm step. Of Slurm's variables only
# srun sets the number of tasks of a step; a batch script has SLURM_PROCID too and is no rank.
VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
SCRIPTS = {"torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun", "composer", "torchrun.py"}
MODULES = ("torch.distributed.", "accelerate.commands.", "deepspeed.launcher.", "ray.")
# Interpreter options that take the next word as their value.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def launched_rank(environment: Mapping[str, str] | None = None) -> LaunchedRank | None:
    """The rank by the variables of torchrun, mpirun, srun…; None in a process that no launcher numbered."""
    variables = os.environ if environment is None else environment
    for rank, size, local in VARIABLES:
        number, of = _number(variables, rank), _number(variables, size)
        if number is not None and (of is not None or rank == "RANK"):
            return LaunchedRank(number, of or 1, _number(variables, local) or 0)
    return None


def is_launcher(words: Sequence[str]) -> bool:
    """Whether `words`, a Python process's `sys.orig_argv`, start ranks and are none: torchrun, `accelerate launch`…

    A launcher may have RANK in its environment: Kubeflow gives every pod one.
    """
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "-m" or (word.startswith("-") and not word.startswith("--") and word.endswith("m")):
            return bool(rest) and f"{rest[0]}.".startswith(MODULES)
        if word == "-c":
            return False
        if word in _WITH_VALUE:
            rest[:1] = []
        elif not word.startswith("-"):
            return os.path.basename(word) in SCRIPTS
    return False


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "").strip()
    return int(text) if text.isdigit() else None


# Keeps torch.compile away from the recorder's own code, which C++ calls between compiled frames.


def leave_uncompiled(function: Callable[..., Any]) -> None:
    """Have Dynamo skip a function and all that it calls, without importing it as `torch.compiler.disable` does.

    Does nothing in a torch before 2.7, which has no strategies per code object.
    """
    from torch._C import _dynamo

    frames = _dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


# Calling back once a module has been imported, without importing it.


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls `then` once module `name` has been imported; looking it up (`importlib.util.find_spec`) changes nothing."""

    def __init__(self, name: str, then: Callable[[], None], failed: str = "does not record") -> None:
        self._name, self._then, self._failed = name, then, failed
        self._asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders have, with a loader that calls `then` after it."""
        if name != self._name or self._asking:
            return None
        self._asking = True
        try:
            found = (finder.find_spec(name, path, target) for finder in list(sys.meta_path) if finder is not self)
            spec = next(filter(None, found), None)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader)
        return spec

    def _wrap(self, loader: Any) -> None:
        execute = loader.exec_module

        def execute_then(module: ModuleType) -> None:
            execute(module)
            if self not in sys.meta_path:  # imported before, under another spec
                return
            sys.meta_path.remove(self)
            try:
                self._then()
            except Exception as error:  # no error of ours may stop the user's job
                print(f"gpuscope: pid {os.getpid()} {self._failed}: {error!r}", file=sys.stderr)

        loader.exec_module = execute_then


def after_import(name: str, then: Callable[[], None], failed: str) -> None:
    """Call `then` now if the module is there, else once it is; `failed` says what it means if that raises."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, AfterImport(name, then, failed))


# The NVTX domain «gpuscope»: category, colour and payload of a range, for every nvtx package in use.
#
# `connect()` returns None unless a tool listens, so that the caller can skip NVTX altogether. Tools attach
# when the process starts (`nsys profile`, `NVTX_INJECTION64_PATH`), so one check is enough.

DOMAIN = "gpuscope"

# Category and ARGB colour by the first word of a range's name; anything else is «other», grey.
CATEGORIES: dict[str, tuple[str, int]] = {
    "step": ("step", 0xFF7F7F7F),
    "data": ("input", 0xFFEDC948),
    "forward": ("compute", 0xFF59A14F),
    "loss": ("compute", 0xFF59A14F),
    "backward": ("compute", 0xFF4E79A7),
    "optimizer": ("optimizer", 0xFF76B7B2),
    "all_reduce": ("communication", 0xFFE15759),
    "all_gather": ("communication", 0xFFE15759),
    "reduce_scatter": ("communication", 0xFFE15759),
    "all_to_all": ("communication", 0xFFE15759),
    "broadcast": ("communication", 0xFFE15759),
    "barrier": ("communication", 0xFFE15759),
    "send": ("pipeline", 0xFFF28E2B),
    "recv": ("pipeline", 0xFFF28E2B),
    "checkpoint": ("checkpoint", 0xFFB07AA1),
    "gc": ("gc", 0xFF9C755F),
}
OTHER = ("other", 0xFFBAB0AC)


def category(name: str) -> tuple[str, int]:
    """Category and colour of a range: by its name up to the first `.`, `:` or `/`."""
    for separator in ".:/":
        name = name.partition(separator)[0]
    return CATEGORIES.get(name, OTHER)


class Connection(Protocol):
    """A domain that a tool listens to."""

    def push(self, name: str, label: str, payload: dict[str, int]) -> None: ...

    def pop(self) -> None: ...

    def start(self, name: str, payload: dict[str, int]) -> Any:
        """Start a range that need not nest with others; pass the result to `end`."""

    def end(self, started: Any) -> None: ...


@cache
def connect() -> Connection | None:
    """The domain, or None if nvtx is missing or disabled (`NVTX_DISABLE`) or no tool listens."""
    try:
        import nvtx
    except ImportError:
        return None
    if not nvtx.enabled():
        return None
    if not hasattr(nvtx, "get_domain"):
        # nvtx < 0.2.11 can't report whether a tool listens; both ways to attach set a variable.
        listens = any(name.startswith(("NVTX_INJECTION", "NSYS_")) for name in os.environ)
        return _OldPackage(nvtx) if listens else None
    domain = nvtx.get_domain(DOMAIN)
    return None if type(domain).__name__ == "DummyDomain" else _Domain(domain)


class _Domain:
    """nvtx ≥ 0.2.11: a payload is a struct with one named int64 per value, described by a schema."""

    def __init__(self, domain: Any) -> None:
        self._domain = domain
        self._plain: dict[str, Any] = {}

    def push(self, name: str, label: str, payload: dict[str, int]) -> None:
        attributes = self._attributes(name, label, payload)
        self._domain.push_range(attributes)

    def pop(self) -> None:
        self._domain.pop_range()

    def start(self, name: str, payload: dict[str, int]) -> Any:
        return self._domain.start_range(self._attributes(name, name, payload))

    def end(self, started: Any) -> None:
        self._domain.end_range(started)

    def _attributes(self, name: str, label: str, payload: dict[str, int]) -> Any:
        attributes = None if payload else self._plain.get(label)
        if attributes is None:
            # With a payload new ones each time: two threads may push ranges of one label at once.
            attributes = self._domain.get_event_attributes(
                label, *reversed(category(name)), _struct(payload) if payload else None
            )
            if not payload:
                self._plain[label] = attributes
        return attributes


class _OldPackage:
    """nvtx 0.2.10, the last that an old nsys can record: one number per range, bytes before step."""

    def __init__(self, nvtx: Any) -> None:
        self._nvtx = nvtx

    def push(self, name: str, label: str, payload: dict[str, int]) -> None:
        self._nvtx.push_range(*self._arguments(name, label, payload))

    def pop(self) -> None:
        self._nvtx.pop_range(DOMAIN)

    def start(self, name: str, payload: dict[str, int]) -> Any:
        return self._nvtx.start_range(*self._arguments(name, name, payload))

    def end(self, started: Any) -> None:
        self._nvtx.end_range(started)

    def _arguments(self, name: str, label: str, payload: dict[str, int]) -> tuple[Any, ...]:
        kind, colour = category(name)
        return label, colour, DOMAIN, kind, payload.get("bytes", payload.get("step"))


def _struct(payload: dict[str, int]) -> Any:
    import numpy as np

    return np.array(tuple(payload.values()), dtype=_dtype(tuple(payload)))


@cache
def _dtype(fields: tuple[str, ...]) -> Any:
    import numpy as np

    return np.dtype([(field, np.int64) for field in fields])


PREFIX = "gpuscope::"

P = ParamSpec("P")
R = TypeVar("R")


class Span(Protocol):
    """What `span` returns: a context manager that also decorates functions."""

    def __enter__(self) -> Span: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


def span(
    name: str,
    *,
    step: int | None = None,
    micro_batch: int | None = None,
    stage: int | None = None,
    layer: int | None = None,
    nbytes: int | None = None,
) -> Span:
    """A range over a `with` block, or over each call of a function it decorates: `gpuscope.span`.

    `name` comes from a small set (`data`, `forward`, `backward`, `optimizer`, `all_reduce`, `send`,
    `checkpoint`…; `nvtx_domain.CATEGORIES` colours these). `nbytes` is what the range moves,
    in bytes; the others are numbers from 0. Works without torch and nvtx, and raises nothing.
    """
    if micro_batch is stage is layer is None:
        key: str | _Key = name
    else:
        key = (name, micro_batch, stage, layer)
    idle = _known.get(key)
    if idle is None:
        idle = _known[key] = _IdleRange(name, micro_batch, stage, layer)
    # `listening()`, written out: the call would double what an idle range costs.
    if _nvtx is None and not _profiler._is_profiler_enabled and (_profiler is not _NO_TORCH or not listening()):
        return idle
    return _RecordedRange(idle, step, nbytes)


def listening() -> bool:
    """Whether any tool would record a range now."""
    global _profiler
    if _profiler is _NO_TORCH:
        # Never import torch for a range: a process without it can't be profiling with it. The flag is
        # missing only while torch itself is half imported.
        module = sys.modules.get("torch.autograd.profiler")
        if module is not None and hasattr(module, "_is_profiler_enabled"):
            _profiler = module
    return _nvtx is not None or _profiler._is_profiler_enabled


_Key = tuple[str, int | None, int | None, int | None]
_nvtx = connect()
_NO_TORCH: Any = SimpleNamespace(_is_profiler_enabled=False)
_profiler: Any = _NO_TORCH  # torch.autograd.profiler once the script has imported it


class _IdleRange:
    """A range without a listener, shared by all its uses: it holds only constants."""

    __slots__ = ("label", "layer", "micro_batch", "name", "stage")

    def __init__(self, name: str, micro_batch: int | None, stage: int | None, layer: int | None) -> None:
        self.name, self.micro_batch, self.stage, self.layer = name, micro_batch, stage, layer
        few = {"micro_batch": micro_batch, "stage": stage, "layer": layer}
        suffix = ",".join(f"{key}={value}" for key, value in few.items() if value is not None)
        self.label = f"{name}#{suffix}" if suffix else name

    def __enter__(self) -> _IdleRange:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        return _wrap(function, self, None, None)


class _RecordedRange:
    """A range with a listener; keeps which listeners got its start, so that only they get its end."""

    __slots__ = ("_in_nvtx", "_in_profiler", "idle", "nbytes", "step")

    def __init__(self, idle: _IdleRange, step: int | None, nbytes: int | None) -> None:
        self.idle, self.step, self.nbytes = idle, step, nbytes
        self._in_nvtx = False
        self._in_profiler: Any = None

    def __enter__(self) -> _RecordedRange:
        idle = self.idle
        listening()  # finds torch's profiler if only NVTX was listening before
        if _nvtx is not None:
            _nvtx.push(idle.name, idle.label, self._payload())
            self._in_nvtx = True
        if _profiler._is_profiler_enabled:
            # Not record_function: this is its C entry, the same event at a quarter of the cost.
            self._in_profiler = _autograd()._record_function_with_args_enter(
                PREFIX + idle.label, self.step, idle.micro_batch, idle.stage, idle.layer, self.nbytes
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self._in_profiler is not None:
            _autograd()._record_function_with_args_exit(self._in_profiler)
            self._in_profiler = None
        if self._in_nvtx and _nvtx is not None:
            _nvtx.pop()
            self._in_nvtx = False

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        return _wrap(function, self.idle, self.step, self.nbytes)

    def _payload(self) -> dict[str, int]:
        idle = self.idle
        values = {
            "step": self.step,
            "micro_batch": idle.micro_batch,
            "stage": idle.stage,
            "layer": idle.layer,
            "bytes": self.nbytes,
        }
        return {key: value for key, value in values.items() if value is not None}


_known: dict[str | _Key, _IdleRange] = {}


def _autograd() -> Any:
    return sys.modules["torch"]._C._autograd


def _wrap(function: Callable[P, R], idle: _IdleRange, step: int | None, nbytes: int | None) -> Callable[P, R]:
    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        # Checked at each call: a profiler may start or stop between decoration and call.
        if not listening():
            return function(*args, **kwargs)
        with _RecordedRange(idle, step, nbytes):
            return function(*args, **kwargs)

    return inside
