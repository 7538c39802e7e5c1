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
import sys
from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from gpuscope.instrumented_runtime.record import nvtx_domain

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
_nvtx = nvtx_domain.connect()
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
