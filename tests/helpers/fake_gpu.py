"""A GPU that nobody has: runs code for CUDA on tensors without data, and writes the trace that CUPTI would have.

What is faithful: every operator is a launch of its own and returns at once; kernels run in order on one stream; a
launch waits while `QUEUE` others are queued; `.item()` and copies with pageable memory block the host until the device
is done; `cudaMalloc` and `cudaFree` block the host, the second one until the device is done. What is made up: all
durations. Graphs and pinned memory: a graph is captured from the launches of a forward pass, during which nothing may
wait for the device, and replayed by one call; copies from pinned memory return at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.kineto import Event, call, copy, kernel, note, op

HOST_US, LAUNCH_US, CALL_US = 8, 3, 10
"""Of an operator, the launch in it, and another runtime call."""
PRODUCT_US, SMALL_US, TINY_US = 40, 10, 2
"""Of a matrix product, another kernel, and one on a single element."""
PAGEABLE_GBPS, PINNED_GBPS = 6, 24
GRAPH_LAUNCH_US = 6
MALLOC_US = 500
QUEUE = 1000
_FAULTS = "gpuscope.instrumented_runtime.train.faults"


@dataclass
class FakeGpu:
    """Clocks of host and device, µs, and what was recorded."""

    now: float = 0.0
    free: float = 0.0
    """When the device has done all that was launched."""
    events: list[Event] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    correlation: int = 0
    captured: list[tuple[str, float]] | None = None
    """Kernels and durations of the graph that is being captured."""
    asleep: bool = False
    """What torch does inside an operation that the GPU carries out itself."""
    cached: bool = True
    """Whether the caching allocator has a block for whatever is asked."""
    tensors: FakeTensorMode = field(default_factory=FakeTensorMode)

    def launch(self, name: str, dur: float, *, copied: str = "", blocks: bool = False) -> None:
        """An operator that launches a kernel, or a copy; `blocks` until it has run."""
        if self.captured is not None:
            self._may_not(blocks)
            self.captured.append((f"{name}_kernel", dur))
            return
        begin, self.correlation = self.now, self.correlation + 1
        queued = self.ends[-QUEUE] if len(self.ends) >= QUEUE else 0.0
        issued = max(begin + HOST_US - LAUNCH_US, queued)
        start = max(issued + 1, self.free)
        self.free = start + dur
        self.ends.append(self.free)
        done = self.free if blocks else issued + LAUNCH_US
        runtime = "cudaMemcpyAsync" if copied else "cudaLaunchKernel"
        self.events += [op(begin, done - begin, name), call(issued, done - issued, self.correlation, runtime)]
        if copied:
            self.events.append(copy(start, dur, self.correlation, f"Memcpy {copied}"))
        else:
            self.events.append(kernel(start, dur, self.correlation, f"{name}_kernel"))
        self.now = done

    def runtime(self, name: str, dur: float, *, waits: bool = False) -> None:
        """A runtime call, which may wait for the device."""
        self._may_not(waits)
        begin, self.correlation = self.now, self.correlation + 1
        self.now = max(begin, self.free if waits else begin) + dur
        self.events.append(call(begin, self.now - begin, self.correlation, name))

    def _may_not(self, waits: bool) -> None:
        if waits and self.captured is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def graphed(self, modules: Sequence[torch.nn.Module], samples: Sequence[tuple[torch.Tensor, ...]]) -> None:
        """`torch.cuda.make_graphed_callables` of forward passes: replaces each module's forward by its graph."""
        for module, sample in zip(modules, samples, strict=True):
            assert not module._forward_hooks, "torch refuses modules with hooks"
            self.captured = []
            with torch.no_grad():
                output = module(*sample)
            kernels, self.captured = self.captured, None
            module.forward = self._replay(kernels, output)  # type: ignore[method-assign, assignment]

    def _replay(self, kernels: list[tuple[str, float]], output: Any) -> Any:
        def forward(*_: Any) -> Any:
            begin, self.correlation = self.now, self.correlation + 1
            self.now += GRAPH_LAUNCH_US
            self.events.append(call(begin, GRAPH_LAUNCH_US, self.correlation, "cudaGraphLaunch"))
            for name, dur in kernels:
                start = max(self.now, self.free)
                self.free = start + dur
                self.ends.append(self.free)
                self.events.append(kernel(start, dur, self.correlation, name))
            return output

        return forward

    def item(self) -> float:
        """`.item()`: four bytes to the host, and a wait for them."""
        self.launch("aten::_local_scalar_dense", TINY_US, copied="DtoH (Device -> Pageable)", blocks=True)
        self.runtime("cudaStreamSynchronize", CALL_US, waits=True)
        return 0.0

    def allocate(self) -> None:
        """Memory that the cache does not hold."""
        if not self.cached:
            self.runtime("cudaMalloc", MALLOC_US)
            self.cached = True

    def empty_cache(self) -> None:
        """`torch.cuda.empty_cache`: the next allocation is a `cudaMalloc`."""
        self.runtime("cudaFree", MALLOC_US, waits=True)
        self.cached = False

    def synchronize(self, *_: object) -> None:
        """`torch.cuda.synchronize`."""
        self.runtime("cudaDeviceSynchronize", CALL_US, waits=True)

    def step(self, number: int, begin: float) -> None:
        """The step that began then ends now."""
        self.events.append(note(begin, self.now - begin, f"ProfilerStep#{number}"))


class _Operators(TorchDispatchMode):
    """Operators on the GPU become launches."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if (
            not self.gpu.asleep
            and isinstance(result, torch.Tensor)
            and result.device.type == "cuda"
            and not func.is_view
        ):
            if any(word in name for word in ("empty", "zeros", "ones", "new_", "full")):
                self.gpu.allocate()
            if "empty" not in name and name != "aten::detach":
                self.gpu.launch(name, TINY_US if result.numel() == 1 else PRODUCT_US if "mm" in name else SMALL_US)
        return result


class _Guarded(TorchFunctionMode):
    """What asks for a device guard, which CPU builds of torch lack: reads and copies. Elements are the whole tensor."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.item:
            return self.gpu.item()
        if func is torch.Tensor.__getitem__:
            return args[0]
        if func is torch.Tensor.copy_:
            return self._copied(*args[:2])
        if func is torch.Tensor.pin_memory:
            pinned = args[0].detach()
            pinned.in_pinned_memory = True
            return pinned
        if func is torch.Tensor.to and torch.device(args[1]).type == "cuda" and args[0].device.type == "cpu":
            return self._moved(*args[:2], **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _moved(self, source: torch.Tensor, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
        """A copy from pinned memory returns at once where it may; one from pageable memory never does."""
        pinned = getattr(source, "in_pinned_memory", False)
        dur = source.nbytes / (PINNED_GBPS if pinned else PAGEABLE_GBPS) / 1e3
        way = f"HtoD ({'Pinned' if pinned else 'Pageable'} -> Device)"
        self.gpu.launch("aten::_to_copy", dur, copied=way, blocks=not (pinned and non_blocking))
        self.gpu.asleep = True
        try:
            return torch.empty(source.shape, dtype=source.dtype, device=device)
        finally:
            self.gpu.asleep = False

    def _copied(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        way = "HtoD (Pageable -> Device)" if target.device.type == "cuda" else "DtoH (Device -> Pageable)"
        self.gpu.launch("aten::copy_", source.nbytes / PAGEABLE_GBPS / 1e3, copied=way, blocks=True)
        return target


@contextlib.contextmanager
def fake_gpu(monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu | None = None) -> Iterator[FakeGpu]:
    """A process whose device `cuda` is a `FakeGpu`, with the clock of that."""
    gpu = gpu or FakeGpu()
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "empty_cache", gpu.empty_cache)
        patched.setattr(torch.cuda, "synchronize", gpu.synchronize)
        patched.setattr(torch.cuda, "make_graphed_callables", gpu.graphed)
        clock = SimpleNamespace(perf_counter_ns=lambda: round(gpu.now * 1000))
        for name in ("burn", "host"):
            patched.setattr(f"{_FAULTS}.{name}.time", clock)
        # Tensors without data stand for real ones here.
        patched.setattr(f"{_FAULTS}.burn.is_shape_only", lambda _: False)
        with gpu.tensors, _Operators(gpu), _Guarded(gpu):
            yield gpu
