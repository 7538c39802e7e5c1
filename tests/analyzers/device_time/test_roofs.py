"""Floors, what they rest on, and operators below their roofs, on traces written by hand; times in µs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.analysed import report as analysed
from helpers.kineto import Event, call, kernel, note, op, write

from gpuscope.analyzers.device_time.kernel_facts import kernel_facts
from gpuscope.schema.document import FindingEntry, Report
from gpuscope.sources.opening import open_trace
from gpuscope.trace import kernel_categories

H100, MI300X = "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"
BF16 = "c10::BFloat16"
STEPS = 8
Launch = tuple[str, dict[str, Any], str, float]
"""Operator, what is recorded of its inputs, kernel, µs."""


def inputs(dims: Any, types: Any, concrete: Any = (), strides: Any = None) -> dict[str, Any]:
    told = {"Input Dims": dims, "Input type": types, "Concrete Inputs": list(concrete) or [""] * len(dims)}
    return told if strides is None else {**told, "Input Strides": strides}


def steps_of(*launches: Launch) -> list[Event]:
    """Steps of these launches, back to back on the device."""
    events, at, correlation = [], 1000.0, 1
    length = sum(dur for *_, dur in launches)
    for number in range(STEPS):
        host = 100.0 + number * length
        events.append(note(host, length - 1, f"ProfilerStep#{number}"))
        for place, (name, told, by, dur) in enumerate(launches):
            begin = host + 1 + place * min(10.0, length / (len(launches) + 1))
            events += [op(begin, 3, name, **told), call(begin + 1, 1, correlation), kernel(at, dur, correlation, by)]
            at, correlation = at + dur, correlation + 1
    return events


def look(folder: Path, *launches: Launch, gpu: str = H100) -> Report:
    properties = [{"id": 0, "name": gpu}]
    return analysed(write(folder / "trace.json", *steps_of(*launches), deviceProperties=properties))


def below(report: Report) -> list[FindingEntry]:
    return [one for one in report["findings"] if one["code"] == "below_roof"]


def product(m: int, k: int, n: int, dur: float, by: str = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n") -> Launch:
    return "aten::mm", inputs([[m, k], [k, n]], [BF16, BF16]), by, dur


def test_a_product_at_a_tenth_of_its_roof_is_found(tmp_path: Path) -> None:
    """2 · 4096³ FLOPs in 1.39 ms are a tenth of 989.4 TFLOP/s: 138.9 µs are needed."""
    report = look(tmp_path, product(4096, 4096, 4096, 1389.1))
    (finding,) = below(report)
    facts = finding["facts"]
    assert facts["rate"] == pytest.approx(0.1, rel=1e-3)
    assert (facts["operator"], facts["shapes"], facts["roof"]) == ("aten::mm", "4096×4096, 4096×4096", "compute")
    assert facts["call_floor_ns"] == pytest.approx(138_911, rel=1e-4)
    assert facts["leaves_ns"] == pytest.approx(1_389_100 - 138_911, rel=1e-4)
    assert finding["share_frac"] == pytest.approx(0.9, rel=1e-3)


@pytest.mark.parametrize(("dur", "told"), [(138.92 / 0.51, False), (138.92 / 0.49, True)])
def test_silent_above_half_of_the_roof(tmp_path: Path, dur: float, told: bool) -> None:
    assert bool(below(look(tmp_path, product(4096, 4096, 4096, dur)))) is told


def test_silent_where_it_holds_less_than_a_tenth(tmp_path: Path) -> None:
    """9 % of the step at a tenth of the roof, beside a product at 60 %; another name does not add to it."""
    slow, healthy = product(2048, 2048, 2048, 173.0), product(8192, 8192, 8192, 1750.0)
    assert not below(look(tmp_path, slow, ("aten::bmm", inputs([[64, 64], []], [BF16, ""]), "gemm", 1.0), healthy))
    twice = look(tmp_path / "twice", slow, slow, healthy)
    assert [one["facts"]["operator"] for one in below(twice)] == ["aten::mm"]


def test_elementwise_runs_against_the_memory(tmp_path: Path) -> None:
    """Three tensors of 134 MB at 3.352 TB/s: 120.1 µs of 400."""
    told = inputs([[8192, 8192], [8192, 8192], []], [BF16, BF16, "Scalar"], ["", "", "1"])
    (finding,) = below(look(tmp_path, ("aten::add", told, "vectorized_elementwise_kernel", 400.0)))
    assert finding["facts"]["roof"] == "memory"
    assert finding["facts"]["rate"] == pytest.approx(3 * 2 * 8192**2 / 3.352e12 / 400e-6, rel=1e-4)


def test_bytes_that_fit_the_cache_set_no_floor(tmp_path: Path) -> None:
    """12.6 MB lie in the 50 MB of an H100; the same kernel of 403 MB does not."""
    told = inputs([[2048, 1024], [2048, 1024], []], [BF16, BF16, "Scalar"], ["", "", "1"])
    report = look(tmp_path, ("aten::add", told, "vectorized_elementwise_kernel", 100.0))
    assert not below(report)
    (ideal,) = report["ideal"]
    assert (ideal["known_frac"], ideal["bounded_frac"], ideal["ideal_ns"]) == (1.0, 0.0, None)


def test_a_floor_above_the_measurement_is_a_problem(tmp_path: Path) -> None:
    """The work of 8192³ in a tenth of the time that an H100 needs: counted wrongly, and not capped in silence."""
    report = look(tmp_path, product(8192, 8192, 8192, 111.0))
    (problem,) = [one for one in report["problems"] if one["code"] == "floor_above_measurement"]
    assert problem["count"] == STEPS - 1, "the judged ones"
    assert "aten::mm" in problem["message"]
    assert report["ideal"][0]["ideal_ns"] is None


def test_a_little_above_the_peak_the_own_best_kernel_is_the_peak(tmp_path: Path) -> None:
    """1 % above the data sheet: no problem, and no other kernel of it is measured at less than that."""
    best, other = 1111.3 / 1.01, 4000.0
    report = look(tmp_path, product(8192, 8192, 8192, best), product(8192, 8192, 8192, other))
    assert not [one for one in report["problems"] if one["code"] == "floor_above_measurement"]
    rows = [row for row in report["operator_work"] if row["operator"] == "aten::mm"]
    assert sum(row["peak_ns"] or 0 for row in rows) == pytest.approx(2 * best * 1000, rel=1e-3)


def test_a_product_without_a_peak_has_no_floor(tmp_path: Path) -> None:
    """A V100 has no BF16: bytes alone would make the product look slow."""
    report = look(tmp_path, product(8192, 8192, 8192, 50_000.0), gpu="Tesla V100-SXM2-16GB")
    assert not below(report)
    assert report["ideal"][0]["ideal_ns"] is None


def test_integers_are_measured_at_their_own_peak(tmp_path: Path) -> None:
    """8192³ products of 8-bit integers at 1978.9 TOP/s take 555.6 µs."""
    told = inputs([[8192, 8192], [8192, 8192]], ["signed char", "signed char"])
    kernel_name = "sm90_xmma_gemm_i8i8_i8i32_i32_tn_n"
    (finding,) = below(look(tmp_path, ("aten::_int_mm", told, kernel_name, 5556.0)))
    assert finding["facts"]["rate"] == pytest.approx(0.1, rel=1e-3)
    assert finding["facts"]["precision"] == "int8"


def test_unknown_work_has_no_ideal_step(tmp_path: Path) -> None:
    """Six tenths of the time without a formula: nothing is told but the names; with four tenths it is."""
    unknown: Launch = ("mylib::mystery", inputs([[8192, 8192]], [BF16]), "mystery_kernel", 600.0)
    report = look(tmp_path, unknown, product(4096, 4096, 4096, 400.0))
    (ideal,) = report["ideal"]
    assert (ideal["ideal_ns"], ideal["unknown"]) == (None, ["mylib::mystery"])
    assert ideal["known_frac"] == pytest.approx(0.4, abs=0.01)
    report = look(tmp_path / "known", (*unknown[:3], 300.0), product(4096, 4096, 4096, 400.0))
    assert report["ideal"][0]["ideal_ns"] == pytest.approx(300_000 + 138_911, rel=1e-3)


def test_a_convolution_whose_stride_is_not_recorded_is_unknown(tmp_path: Path) -> None:
    told = {"Input Dims": [[64, 256, 56, 56], [512, 256, 3, 3], [512]], "Input type": [BF16] * 3}
    report = look(tmp_path, ("aten::convolution", told, "sm90_xmma_fprop_implicit_gemm_bf16", 4500.0))
    assert report["ideal"][0]["known_frac"] == 0
    assert not below(report)


def test_experts_are_neither_known_nor_ideal(tmp_path: Path) -> None:
    told = inputs([[16, 4096], [64, 22016, 4096], [64, 4096, 11008], [16, 2]], [BF16, BF16, BF16, "float"])
    report = look(tmp_path, ("sglang::fused_experts", told, "fused_moe_kernel", 280.0), gpu=MI300X)
    (ideal,) = report["ideal"]
    assert (ideal["ideal_ns"], ideal["unknown"]) == (None, ["sglang::fused_experts"])
    assert not below(report)


def test_a_chain_ends_with_its_step(tmp_path: Path) -> None:
    """One elementwise kernel a step is no chain, two are one of two."""
    told = inputs([[8192, 8192], [8192, 8192], []], [BF16, BF16, "Scalar"], ["", "", "1"])
    add: Launch = ("aten::add", told, "void at::native::vectorized_elementwise_kernel<4, at::native::f>(int)", 200.0)
    for number, expected in ((1, 0), (2, STEPS)):
        path = write(tmp_path / f"{number}.json", *steps_of(*[add] * number))
        chain = kernel_facts(open_trace(path)).chain
        assert len({int(place) for place in chain if place >= 0}) == expected


def test_no_prediction_lies_below_the_floors(tmp_path: Path) -> None:
    """Three kernels of 130 µs, each of which needs 120: fused, one of them still needs that."""
    told = inputs([[8192, 8192], [8192, 8192], []], [BF16, BF16, "Scalar"], ["", "", "1"])
    add: Launch = ("aten::add", told, "void at::native::vectorized_elementwise_kernel<4, at::native::f>(int)", 130.0)
    report = look(tmp_path, add, add, add)
    for suggestion in report["suggestions"]:
        assert suggestion["predicted"]["low_ns"] >= 120_000
        assert suggestion["predicted"]["step_ns_after"] >= 120_000


def test_the_first_screen_names_the_operator(tmp_path: Path) -> None:
    from gpuscope.report.view.first_lines import first_lines

    lines = first_lines(look(tmp_path, product(2048, 4096, 512, 600.0), gpu=MI300X))
    assert "aten::mm 2048×4096, 4096×512" in lines.why
    assert "1.1 % of the bf16 peak" in lines.why
    assert "32 tiles of 256 × 128 for 304" in lines.why


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("igemm_fwd_gtcx_nhwc_fp16_bx0_ex1_bt256x128x32_wt32x32x8", "fp16"),
        ("igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x32", "bf16"),
        ("igemm_wrw_gtcx2_nhwc_fp32_bx0_ex0_bt64x64x16", "fp32"),
        ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64", "fp16"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16", "tf32"),
        ("sm80_xmma_gemm_i8i8_i8i32_f32_tn_n_tilesize128x128x64", "int8"),
        ("cutlass_80_tensorop_i16832gemm_s8_128x128_128x3_tn_align16", "int8"),
        ("turing_igemm_int8_128x64_ldg4_nn", "int8"),
        ("void implicit_convolve_sgemm<float, float, 1024, 5, 5>", "fp32"),
        ("igemm_v4r4r2_xdlops_bwd_data", None),
    ],
)
def test_an_implicit_gemm_is_not_int8(name: str, precision: str | None) -> None:
    assert kernel_categories.of_kernel(name) == precision


def test_strides_are_read(tmp_path: Path) -> None:
    """The same for files with one event that the compiled reader leaves to the other."""
    told = inputs([[4, 8], [4, 8]], [BF16, BF16], strides=[[8, 1], [1, 4]])
    events = [op(100, 8, "aten::mul", **told), call(102, 2, 1), kernel(110, 20, 1)]
    for odd in ((), ({**op(300, 1, "aten::add"), "args": {"Input Dims": [], "odd\\u0041": 1}},)):
        trace = open_trace(write(tmp_path / f"{len(odd)}.json", *events, *odd))
        shapes = trace["shapes"]
        texts = [trace.names[int(code)] for code in shapes["strides"] if int(code) >= 0]
        assert json.loads(texts[0]) == [[8, 1], [1, 4]]
