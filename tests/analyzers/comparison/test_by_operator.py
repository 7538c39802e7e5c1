"""Two platforms by operator: generated pairs of which it is known what made the difference, by how much."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import unescape
from io import StringIO
from pathlib import Path

import pytest
from helpers.kineto import Event, call, kernel, note, op, python, write
from rich.console import Console

import gpuscope
from gpuscope.dashboards.pages.compare_page import _platform
from gpuscope.report.terminal.diff_text import render
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.diff_document import Diff, PlatformChange

SHARED = Path(__file__).parents[4] / "shared/traces/kineto/tracelens_qwen"
H100, MI300X, UNKNOWN = "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "Some GPU"
US = 1000
LAYERS = 4
STEPS = 4
M, K, N = 1024, 4096, 2048


@dataclass(frozen=True)
class Op:
    """An operator of a layer: its name, inputs, and how long its kernel runs (µs)."""

    name: str
    dims: tuple[tuple[int, ...], ...]
    us: float
    module: str
    kernel: str
    inside: str = ""
    """What runs in its place within it."""


MM = Op("aten::mm", ((M, K), (K, N)), 60.0, "Linear", "sm90_gemm")
ADD = Op("aten::add", ((M, N), (M, N)), 20.0, "Block", "vectorized_elementwise")
MUL = Op("aten::mul", ((M, N), (M, N)), 30.0, "Block", "vectorized_mul")
SDPA = Op(
    "aten::scaled_dot_product_attention",
    ((8, 16, 512, 64),) * 3,
    100.0,
    "Attention",
    "flash_fwd_kernel",
    "aten::_flash_attention_forward",
)
FALLBACK = (
    replace(SDPA, inside="aten::bmm", us=150.0, kernel="Cijk_bmm"),
    replace(SDPA, inside="aten::_softmax", us=90.0, kernel="softmax_warp"),
)
BASE = (MM, ADD, MUL, SDPA)


@dataclass(frozen=True)
class Machine:
    """A platform and the program on it."""

    device: str = H100
    ops: tuple[Op, ...] = BASE
    idle_us: float = 50.0
    """Nothing runs at the end of a step."""
    reduce_us: float = 0.0
    """An all-reduce that nothing hides."""
    shapes: bool = True
    modules: bool = True
    operators: bool = True
    header: tuple[tuple[str, str], ...] = ()


def scaled(ops: tuple[Op, ...], rename: str, **factors: float) -> tuple[Op, ...]:
    """Kernels of other names, at other speeds."""
    return tuple(
        replace(one, us=one.us * factors.get(one.name.removeprefix("aten::"), 1.0), kernel=f"{rename}{one.kernel}")
        for one in ops
    )


def trace(path: Path, machine: Machine) -> Path:
    """Steps of some layers of the operators, one after the other, all launched before the device comes to them."""
    events: list[Event] = []
    number, length = 0, sum(one.us for one in machine.ops) * LAYERS + machine.idle_us + machine.reduce_us
    for step in range(STEPS):
        begins = 10_000 + step * length
        events.append(note(begins - 5_000, length, f"ProfilerStep#{step}"))
        host, at = begins - 4_990, begins
        works = [one for _ in range(LAYERS) for one in machine.ops]
        reduced = Op("c10d::allreduce_", ((N, N),), machine.reduce_us, "", "ncclDevKernel_AllReduce_Sum_f32")
        for one in [*works, *([reduced] if machine.reduce_us else [])]:
            number += 1
            told = {"Input Dims": [*one.dims, []], "Input type": ["c10::BFloat16"] * len(one.dims) + ["Scalar"]}
            inputs = told if machine.shapes else {}
            if machine.modules and one.module:
                events.append(python(host, 3.5, f"nn.Module: {one.module}_{number % LAYERS}"))
            if machine.operators:
                events.append(op(host + 0.2, 3.0, one.name, **inputs))
                if one.inside:
                    events.append(op(host + 0.5, 2.0, one.inside, **inputs))
            events += [call(host + 1.0, 0.5, number), kernel(at, one.us, number, one.kernel)]
            host, at = host + 4, at + one.us
        events.append(call(host, 0.5, 100_000 + step))
        events.append(kernel(at + machine.idle_us - 0.001, 0.001, 100_000 + step, "end"))
    properties = [{"id": 0, "name": machine.device}]
    return write(path, *events, deviceProperties=properties, **dict(machine.header))


def compared(folder: Path, before: Machine, after: Machine) -> tuple[Diff, PlatformChange]:
    """The comparison of two machines; what explains the change sums to it."""
    diff = gpuscope.diff(trace(folder / "a.json", before), trace(folder / "b.json", after)).document
    found = diff["platform"]
    if found["comparable"]:
        assert sum(row["change_ns"] for row in found["explained"]) == diff["step"]["change_ns"]
        for row in found["explained"]:
            if row["what"] == "operators":
                assert row["change_ns"] == (row["work_ns"] or 0) + (row["peak_ns"] or 0) + (row["speed_ns"] or 0)
    return diff, found


FASTER = {"mm": 0.5, "add": 1.5, "mul": 1.2, "scaled_dot_product_attention": 2.0}


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        # Per step: attention +100 · 4, products −30 · 4, elementwise (+10 + 6) · 4 µs.
        (Machine(MI300X, scaled(BASE, "Cijk_", **FASTER)), [("attention", 400), ("gemm", -120), ("elementwise", 64)]),
        (Machine(MI300X, scaled(BASE, "x"), idle_us=650.0), [("idle", 600)]),
        (Machine(MI300X, scaled(BASE, "x", mm=1.1), reduce_us=90.0), [("exposed_communication", 90), ("gemm", 24)]),
        # Two products and a softmax where one kernel was.
        (Machine(MI300X, (MM, ADD, MUL, *FALLBACK)), [("attention", 560)]),
        # Two elementwise kernels became one of another operator, in the same module.
        (
            Machine(MI300X, (MM, replace(ADD, name="aten::add_mul_fused", kernel="triton_poi", us=22.0), SDPA)),
            [("elementwise", -112)],
        ),
        # Twice as many calls, and an operator that only one of them has.
        (
            Machine(MI300X, (MM, MM, ADD, MUL, SDPA, Op("aten::gelu", ((M, N),), 10.0, "Gelu", "gelu"))),
            [("gemm", 240), ("unmatched", 40)],
        ),
    ],
)
def test_what_explains_the_difference(tmp_path: Path, after: Machine, expected: list[tuple[str, int]]) -> None:
    """In their order, with their amounts; what did not change is not named."""
    _, found = compared(tmp_path, Machine(), after)
    told = [(row["category"] or row["what"], round(row["change_ns"] / US)) for row in found["explained"]]
    assert [row for row in told if row[1]] == expected
    assert found["changed"]


def test_how_much_is_work_peak_and_speed(tmp_path: Path) -> None:
    """A product of 2 · 1024 · 4096 · 2048 FLOPs takes 17.4 µs at H100's peak and 13.1 at MI300X's: 60 µs would become
    45.4. They become 120 in twice the calls, so 60 µs are more work, −2 · 14.6 the peak and the rest the speed."""
    both = (replace(MM, us=60.0), replace(MM, us=60.0), ADD, MUL, SDPA)
    _, found = compared(tmp_path, Machine(), Machine(MI300X, both))
    [row] = [row for row in found["explained"] if row["category"] == "gemm"]
    assert row["work_ns"] == pytest.approx(60_000 * LAYERS, rel=1e-6)
    peak = 2 * 60_000 * (989.4 / 1307.4 - 1) * LAYERS
    assert row["peak_ns"] == pytest.approx(peak, rel=1e-4)
    [pair] = [pair for pair in found["pairs"] if pair["operator"] == "aten::mm"]
    flops = 2 * M * K * N
    assert pair["before"]
    assert pair["after"]
    assert pair["before"]["flops_per_s"] == pytest.approx(flops / 60e-6, rel=1e-6)
    assert pair["before"]["peak_frac"] == pytest.approx(flops / 60e-6 / 989.4e12, rel=1e-4)
    assert (pair["before"]["calls"], pair["after"]["calls"]) == (LAYERS, 2 * LAYERS)


@pytest.mark.parametrize(
    ("change", "by", "comparable", "words"),
    [
        (lambda m: replace(m, shapes=False), ["module", "operator"], True, "shapes are not recorded in both"),
        (lambda m: replace(m, modules=False), ["operator", "shapes"], True, ""),
        (lambda m: replace(m, operators=False, modules=False), ["operator"], False, "recorded no operators"),
        (
            lambda m: replace(m, ops=tuple(replace(o, dims=((7, 7),) * 3, module="Other") for o in m.ops)),
            ["module", "operator", "shapes"],
            False,
            "another model, batch or sequence length",
        ),
        (lambda m: replace(m, device=UNKNOWN), ["module", "operator", "shapes"], True, ""),
    ],
)
def test_what_a_recording_lacks(
    tmp_path: Path, change: Callable[[Machine], Machine], by: list[str], comparable: bool, words: str
) -> None:
    _, found = compared(tmp_path, Machine(), change(Machine(MI300X, scaled(BASE, "x", mm=2.0))))
    assert (found["by"], found["comparable"]) == (by, comparable)
    assert words in found["why"]
    assert [row["category"] for row in found["explained"][:1]] == (["gemm"] if comparable else [])
    assert bool(found["pairs"]) == comparable


def test_versions_are_told_and_predictions_of_another_platform_are_not(tmp_path: Path) -> None:
    before = Machine(header=(("cuda_runtime_version", "12040"),))
    after = Machine(MI300X, scaled(BASE, "x"), header=(("hip_runtime_version", "60443483"),))
    diff, found = compared(tmp_path, before, after)
    assert {row["name"]: (row["before"], row["after"]) for row in found["versions"]} == {
        "cuda runtime": ("12.4", None),
        "hip runtime": (None, "6.4.43483"),
    }
    assert not diff["suggestions"]
    newer = replace(before, header=(("cuda_runtime_version", "13000"),))
    assert compared(tmp_path, before, newer)[1]["changed"]
    assert not compared(tmp_path, before, before)[1]["changed"]


def test_every_front_shows_it(tmp_path: Path) -> None:
    """The terminal, a notebook's cell and the dashboard, names in the trace as text."""
    hostile = replace(MM, module="<b>Linear")
    after = Machine(MI300X, scaled((hostile, *BASE[1:]), "x", mm=2.0))
    comparison = gpuscope.diff(
        trace(tmp_path / "a.json", replace(Machine(), ops=(hostile, *BASE[1:]))), trace(tmp_path / "b.json", after)
    )
    shown = StringIO()
    render(comparison.document, Writer(Console(file=shown, width=140)))
    cell = comparison._repr_html_()
    parts = [part.to_plotly_json() for part in _platform(comparison.document, dark=False)]
    cards = json.dumps(parts, default=vars, ensure_ascii=False)
    for text in (shown.getvalue(), unescape(cell), cards):
        assert "gemm" in text
        assert "mm 1024×4096, 4096×2048" in text
    assert "<b>Linear" not in cell
    assert "Kernels that moved most" not in shown.getvalue()


@pytest.mark.skipif(not SHARED.exists(), reason="the shared traces are not here")
def test_one_model_on_h100_and_on_mi300x() -> None:
    """Read by hand with pandas, by launching operator and shapes (µs of all of a kind, H100 → MI300X): attention 2,723
    → 3,909; products with 8944×1024 and 1024×2816 4,016 (without cuBLAS' memsets) → 5,308 in 48 calls each."""
    diff = gpuscope.diff(SHARED / "h100.json.gz", SHARED / "mi300.json.gz").document
    found = diff["platform"]
    assert sum(row["change_ns"] for row in found["explained"]) == diff["step"]["change_ns"]
    rows = {row["category"] or row["what"]: row for row in found["explained"]}
    assert round(rows["attention"]["change_ns"] / US) == 1186
    [pair] = [pair for pair in found["pairs"] if pair["shapes"] == "8944×1024, 1024×2816"]
    assert pair["before"]
    assert pair["after"]
    assert (round(pair["before"]["dur_ns"] / US), round(pair["after"]["dur_ns"] / US)) == (4016, 5308)
    assert [row["category"] for row in found["explained"]][:4] == ["elementwise", "gemm", "copy", "attention"]
    assert json.dumps(found)
