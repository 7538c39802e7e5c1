"""Jobs of one kernel a step, fast or slow for one known reason, as torch.profiler would record them.

The truth is by formula: the work of a matrix product, a convolution, an attention or a pass over memory, the peaks of
three data sheets, and the share of the roof that the kernel is given. Imports nothing of gpuscope.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

STEPS = 8
BF16 = "c10::BFloat16"


@dataclass(frozen=True)
class Device:
    """A device by its data sheet: dense FLOP/s, B/s of its memory, bytes of its last-level cache."""

    name: str
    peaks: dict[str, float]
    bandwidth: float
    cache: float


DEVICES = (
    Device("NVIDIA H100 80GB HBM3", {"bf16": 989.4e12, "tf32": 494.7e12, "fp32": 66.9e12}, 3352e9, 50e6),
    Device("NVIDIA A100-SXM4-80GB", {"bf16": 311.9e12, "tf32": 155.95e12, "fp32": 19.5e12}, 2039e9, 40e6),
    Device("AMD Instinct MI300X", {"bf16": 1307.4e12, "tf32": 653.7e12, "fp32": 163.4e12}, 5325e9, 256e6),
)


@dataclass(frozen=True)
class Operator:
    """A call as it is recorded, and its work."""

    name: str
    dims: list[list[int]]
    types: list[str]
    flops: float
    bytes: float
    kernel: str
    concrete: list[str] = field(default_factory=list)
    strides: list[list[int]] | None = None
    precision: str = "bf16"
    beside: int = 0
    """Further elementwise kernels of the same size in a step, each of which reads what the last one wrote."""

    def floor_ns(self, device: Device) -> float:
        """What it needs at the roof of a device; what fits its cache need not come from memory."""
        computing = self.flops / device.peaks[self.precision] if self.flops else 0.0
        moving = self.bytes / device.bandwidth if self.bytes > device.cache else 0.0
        return 1e9 * max(computing, moving)


@dataclass(frozen=True)
class Case:
    """One job and its truth."""

    name: str
    device: Device
    operator: Operator
    rate: float
    """Share of its roof at which the kernel runs."""
    reason: str
    """Why, by the code of the finding; empty where nothing recorded explains it."""
    healthy: bool

    def write(self, folder: Path) -> Path:
        """The trace of it."""
        path = folder / f"{self.name.replace(' ', '_')}.json"
        path.write_text(json.dumps(self._document()), encoding="utf-8")
        return path

    def _document(self) -> dict[str, Any]:
        own, events = self.operator, []
        dur = own.floor_ns(self.device) / self.rate / 1000
        at, correlation = 1000.0, 1
        ahead = 4.0 * (2 + own.beside)  # the host queues all steps long before the device has run them
        for step in range(STEPS):
            host = 100.0 + step * ahead
            events.append(_event("user_annotation", f"ProfilerStep#{step}", host, ahead - 1))
            for place in range(1 + own.beside):
                begin = host + 1 + 4 * place
                told: dict[str, Any] = {
                    "Input Dims": own.dims,
                    "Input type": own.types,
                    "Concrete Inputs": own.concrete or [""] * len(own.dims),
                }
                if own.strides is not None:
                    told["Input Strides"] = own.strides
                events.append(_event("cpu_op", own.name, begin, 3, **told))
                events.append(_event("cuda_runtime", "cudaLaunchKernel", begin + 1, 1, correlation=correlation))
                events.append(
                    _event("kernel", own.kernel, at, dur, pid=0, tid=7, device=0, stream=7, correlation=correlation)
                )
                at, correlation = at + dur, correlation + 1
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": self.device.name}],
            "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
            "traceEvents": events,
        }


def _event(category: str, name: str, ts: float, dur: float, pid: int = 1, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": round(ts, 3),
        "dur": round(dur, 3),
        "pid": pid,
        "tid": tid,
        "args": args,
    }


# -- operators


def product(name: str, m: int, k: int, n: int, batch: int = 1, dtype: str = BF16, precision: str = "bf16") -> Operator:
    size = 4 if dtype == "float" else 2
    a, b = [[batch, m, k], [batch, k, n]] if batch > 1 else [[m, k], [k, n]]
    dims, types = [a, b], [dtype, dtype]
    moved = size * batch * (m * k + k * n + m * n)
    if name == "aten::addmm":
        dims, types, moved = [[n], a, b], [dtype] * 3, moved + size * n
    kernel = "Cijk_Alik_Bljk_gemm" if dtype == "float" else "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"
    return Operator(name, dims, types, 2.0 * batch * m * k * n, moved, kernel, precision=precision)


def attention(batch: int, heads: int, sequence: int, width: int) -> Operator:
    """Without a mask, not causal."""
    dims = [[batch, heads, sequence, width]] * 3
    flops = 4.0 * batch * heads * sequence * sequence * width
    return Operator(
        "aten::_scaled_dot_product_flash_attention",
        [*dims, [], [], [], []],
        [BF16] * 3 + ["Scalar"] * 4,
        flops,
        2 * 4 * prod(dims[0]),
        "pytorch_flash::flash_fwd_kernel",
        ["", "", "", "0.", "False", "False", ""],
    )


def convolution(
    batch: int, channels: int, filters: int, side: int, window: int, groups: int = 1, channels_last: bool = True
) -> Operator:
    """Of images as large as their results: stride 1, as much padding as that takes."""
    image, weight = [batch, channels, side, side], [filters, channels // groups, window, window]
    out = batch * filters * side * side
    strides = (
        [channels * side * side, 1, channels * side, channels]
        if channels_last
        else [
            channels * side * side,
            side * side,
            side,
            1,
        ]
    )
    pad = str(window // 2)
    return Operator(
        "aten::convolution",
        [image, weight, [], [], [], [], [], [], []],
        [BF16, BF16, *[""] * 7],
        2.0 * out * prod(weight[1:]),
        2 * (prod(image) + prod(weight) + out),
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc",
        ["", "", "", "[1, 1]", f"[{pad}, {pad}]", "[1, 1]", "False", "[0, 0]", str(groups)],
        [strides, [prod(weight[1:]), window * window, window, 1], *[[]] * 7],
    )


def depthwise(batch: int, channels: int, side: int, window: int) -> Operator:
    """Each channel by itself."""
    return convolution(batch, channels, channels, side, window, groups=channels)


def elementwise(name: str, rows: int, columns: int, transposed: bool = False, beside: int = 0) -> Operator:
    dims, straight = [[rows, columns], [rows, columns]], [columns, 1]
    strides = [straight, [1, rows] if transposed else straight]
    if name == "aten::add":
        dims, strides = [*dims, []], [*strides, []]
    types = [BF16, BF16, *["Scalar"] * (len(dims) - 2)]
    concrete = ["", "", *["1"] * (len(dims) - 2)]
    kernel = f"void at::native::vectorized_elementwise_kernel<4, at::native::{name[6:]}>(int)"
    return Operator(name, dims, types, 0.0, 2 * 3 * rows * columns, kernel, concrete, strides, beside=beside)


def copy(rows: int, columns: int, transposed: bool = False) -> Operator:
    strides = [[columns, 1], [1, rows] if transposed else [columns, 1], []]
    dims = [[rows, columns], [rows, columns], []]
    return Operator(
        "aten::copy_",
        dims,
        [BF16, BF16, "Scalar"],
        0.0,
        2 * 2 * rows * columns,
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>(int)",
        ["", "", "False"],
        strides,
    )


def layer_norm(rows: int, columns: int, transposed: bool = False) -> Operator:
    strides = [[1, rows] if transposed else [columns, 1], [], [1], [1], []]
    return Operator(
        "aten::native_layer_norm",
        [[rows, columns], [], [columns], [columns], []],
        [BF16, "ScalarList", BF16, BF16, "Scalar"],
        0.0,
        2 * (2 * rows * columns + 2 * columns),
        "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>(int)",
        ["", f"[{columns}]", "", "", "1e-05"],
        strides,
    )


def softmax(rows: int, columns: int) -> Operator:
    dims, moved = [[rows, columns], [], []], 2 * 2 * rows * columns
    return Operator(
        "aten::_softmax",
        dims,
        [BF16, "Scalar", "Scalar"],
        0.0,
        moved,
        "void cunn_SoftMaxForward<8, c10::BFloat16, float>(int)",
        ["", "-1", "False"],
        [[columns, 1], [], []],
    )


Make = Callable[[random.Random], Operator]
FAULTS: tuple[tuple[str, Make, float], ...] = (
    ("few_tiles", lambda draw: product("aten::mm", draw.choice((256, 384, 512)), 16384, draw.choice((384, 512))), 0.10),
    ("few_tiles", lambda draw: product("aten::addmm", 256, draw.choice((8192, 16384)), draw.choice((768, 1024))), 0.08),
    ("few_tiles", lambda draw: product("aten::bmm", 256, draw.choice((8192, 16384)), 256, draw.randint(2, 5)), 0.08),
    ("few_tiles", lambda draw: attention(1, draw.randint(2, 4), draw.choice((1024, 2048)), 128), 0.15),
    ("few_tiles", lambda draw: softmax(draw.choice((8, 16, 24)), 33_554_432), 0.05),
    ("odd_sizes", lambda draw: product("aten::mm", 8192, draw.choice((4095, 5001)), draw.choice((8190, 9999))), 0.30),
    ("odd_sizes", lambda draw: product("aten::addmm", 16384, draw.choice((2049, 4097)), 8191), 0.25),
    ("odd_sizes", lambda draw: convolution(1024, draw.choice((1, 3)), 64, 224, 7), 0.20),
    ("tall_and_skinny", lambda draw: product("aten::mm", draw.choice((4, 8, 24)), 16384, 131072), 0.30),
    ("tall_and_skinny", lambda draw: product("aten::addmm", 131072, 16384, draw.choice((8, 16, 32))), 0.25),
    ("short_sequence", lambda draw: attention(1024, draw.choice((16, 24)), draw.choice((48, 64, 96)), 128), 0.10),
    ("short_sequence", lambda draw: attention(512, 32, draw.choice((160, 192, 224)), 128), 0.20),
    ("narrow_head", lambda draw: attention(8, 64, draw.choice((4096, 8192)), draw.choice((32, 64))), 0.20),
    ("narrow_head", lambda draw: attention(16, 128, 4096, draw.choice((8, 16))), 0.10),
    ("depthwise", lambda draw: depthwise(256, draw.choice((384, 512)), 56, draw.choice((3, 5))), 0.15),
    ("depthwise", lambda draw: depthwise(128, 1024, draw.choice((48, 56)), 7), 0.10),
    ("channels_last", lambda draw: convolution(256, draw.choice((128, 256)), 256, 56, 3, channels_last=False), 0.30),
    ("channels_last", lambda draw: convolution(512, 512, 1024, 28, draw.choice((1, 3)), channels_last=False), 0.30),
    ("wrong_precision", lambda draw: product("aten::mm", 8192, 8192, draw.choice((4096, 8192)), 1, "float", "tf32"), 0),
    ("strided_input", lambda draw: elementwise("aten::mul", 16384, draw.choice((16384, 20480)), transposed=True), 0.25),
    ("strided_input", lambda draw: copy(32768, draw.choice((8192, 16384)), transposed=True), 0.20),
    ("strided_input", lambda draw: layer_norm(65536, draw.choice((4096, 8192)), transposed=True), 0.20),
    ("unfused_chain", lambda draw: elementwise("aten::add", 16384, 16384, beside=draw.randint(2, 5)), 0.40),
    ("", lambda draw: product("aten::mm", 8192, draw.choice((4096, 8192)), 8192), 0.35),
    ("", lambda draw: elementwise("aten::add", 16384, draw.choice((16384, 32768))), 0.35),
)
"""Reason, operator, and about the share of its roof at which it runs."""
HEALTHY: tuple[Callable[[], Operator], ...] = (
    lambda: product("aten::mm", 8192, 8192, 8192),
    lambda: product("aten::mm", 512, 16384, 512),
    lambda: product("aten::addmm", 16384, 4096, 16384),
    lambda: product("aten::addmm", 16384, 2049, 8191),
    lambda: product("aten::bmm", 2048, 2048, 2048, 64),
    lambda: product("aten::mm", 8, 16384, 131072),
    lambda: product("aten::mm", 8192, 8192, 8192, 1, "float", "tf32"),
    lambda: attention(8, 32, 8192, 128),
    lambda: attention(8, 64, 8192, 64),
    lambda: attention(1024, 16, 256, 128),
    lambda: convolution(256, 256, 256, 56, 3),
    lambda: convolution(256, 256, 256, 56, 3, channels_last=False),
    lambda: convolution(256, 512, 512, 56, 3, groups=512),
    lambda: elementwise("aten::mul", 16384, 16384),
    lambda: elementwise("aten::mul", 16384, 16384, transposed=True),
    lambda: elementwise("aten::add", 16384, 32768),
    lambda: elementwise("aten::add", 16384, 16384, beside=3),
    lambda: copy(32768, 16384),
    lambda: layer_norm(65536, 8192),
    lambda: softmax(65536, 8192),
)
"""Operators that run at more than half of their roof, with the same oddities or without."""


def cases(seed: int = 0) -> Iterator[Case]:
    """Every fault on every device, and as many healthy jobs; `seed` draws sizes and rates."""
    draw = random.Random(seed)
    for device in DEVICES:
        short = device.name.split()[2 if device.name.startswith("AMD") else 1].split("-")[0]
        for number, (reason, make, rate) in enumerate(FAULTS):
            operator = make(draw)
            name = f"{number:02} {operator.name[6:]} {reason or 'unexplained'} {short}"
            own = rate * draw.uniform(0.85, 1.1)
            if reason == "wrong_precision":  # 90 % of what the FP32 units do
                own = 0.9 * device.peaks["fp32"] / device.peaks["tf32"]
            yield Case(name, device, operator, own, reason, healthy=False)
        for number, sound in enumerate((*HEALTHY, *HEALTHY[: len(FAULTS) - len(HEALTHY)])):
            operator = sound()
            name = f"{number:02} {operator.name[6:]} healthy {short}"
            yield Case(name, device, operator, draw.uniform(0.55, 0.95), "", healthy=True)
