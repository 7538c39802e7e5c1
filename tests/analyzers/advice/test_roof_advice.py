"""Advice on operators below their roofs: by the reason, with a prediction that holds once it is mended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.analysed import report
from simulator.kernel_faults import FAULTS, Case, cases

CODES = {
    "few_tiles": "more_tiles",
    "odd_sizes": "aligned_sizes",
    "tall_and_skinny": "wider_products",
    "short_sequence": "packed_sequences",
    "narrow_head": "wider_heads",
    "channels_last": "channels_last_images",
    "wrong_precision": "tensor_cores",
    "strided_input": "one_layout",
    "": "tuned_kernel",
}
ON_H100 = {case.reason: case for case in reversed([*cases()][: len(FAULTS)])}


@pytest.mark.parametrize("reason", CODES)
def test_each_reason_has_its_advice(reason: str, tmp_path: Path) -> None:
    """`odd_sizes` of a product has a finding and a rule of its own, which then answers."""
    found = report(ON_H100[reason].write(tmp_path))
    codes = {one["code"] for one in found["suggestions"]}
    assert CODES[reason] in codes or (reason == "odd_sizes" and "padded_sizes" in codes)


def test_an_odd_convolution_is_aligned(tmp_path: Path) -> None:
    """Three channels are no finding of products of odd sizes."""
    case = next(one for one in cases() if "convolution odd_sizes H100" in one.name)
    assert "aligned_sizes" in {one["code"] for one in report(case.write(tmp_path))["suggestions"]}


@pytest.mark.parametrize("reason", ["few_tiles", "channels_last", "strided_input", ""])
def test_above_half_of_the_roof_nothing_is_advised(reason: str, tmp_path: Path) -> None:
    healthy = replace(ON_H100[reason], rate=0.55)
    found = report(healthy.write(tmp_path))
    assert not {one["code"] for one in found["suggestions"]} & set(CODES.values())
    assert not [one for one in found["findings"] if one["code"] == "below_roof"]


@pytest.mark.parametrize("reached", [0.45, 0.6, 0.78])
@pytest.mark.parametrize("reason", ["channels_last", "short_sequence", "wrong_precision"])
def test_the_mended_job_lies_in_the_range(reason: str, reached: float, tmp_path: Path) -> None:
    """The same kernel at another share of its roof is what the advice promises, and no less than the floor."""
    slow: Case = ON_H100[reason]
    found = report(slow.write(tmp_path))
    predicted = next(one["predicted"] for one in found["suggestions"] if one["code"] == CODES[reason])
    floor = slow.operator.floor_ns(slow.device)
    assert predicted["low_ns"] <= floor / reached <= predicted["high_ns"]
    assert predicted["low_ns"] >= floor
