"""Matrix products for a given time, to make a rank or stage compute too long."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from gpuscope.instrumented_runtime.train.faults import StepContext
from gpuscope.instrumented_runtime.train.model import Block

# The transformer blocks of a model, however it is wrapped, and a test for real forwards.


def blocks(context: StepContext) -> list[nn.Module]:
    """The blocks this rank holds, of all its pipeline stages."""
    return [module for part in context.parts for module in part.modules() if isinstance(module, Block)]


def is_shape_only(tensor: Tensor) -> bool:
    """Whether this forward only infers shapes: before 2.13 a pipeline does so first, computing nothing."""
    return isinstance(tensor, FakeTensor) or tensor.device.type == "meta"


_SIZE = {"cpu": 128, "cuda": 1024}
_CALIBRATION = 20


class Burner:
    """Keeps a device busy with real kernels without synchronising in between."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        size = _SIZE["cuda" if device.type == "cuda" else "cpu"]
        self.matrix = torch.ones(size, size, device=device)
        self.ns_per_product = self._calibrate() if device.type == "cuda" else 0

    def run(self, ns: int) -> int:
        """Compute for about `ns`; the time it took, on a GPU the time its kernels will take."""
        if self.device.type == "cuda":
            # Only enqueued: a rank with a slow GPU does not stop launching.
            products = max(1, round(ns / self.ns_per_product))
            self._products(products)
            return products * self.ns_per_product
        start = time.perf_counter_ns()
        while (spent := time.perf_counter_ns() - start) < ns:
            self._products(1)
        return spent

    def _products(self, count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                torch.mm(self.matrix, self.matrix)

    def _calibrate(self) -> int:
        self._products(_CALIBRATION)
        torch.cuda.synchronize(self.device)
        start = time.perf_counter_ns()
        self._products(_CALIBRATION)
        torch.cuda.synchronize(self.device)
        return (time.perf_counter_ns() - start) // _CALIBRATION
