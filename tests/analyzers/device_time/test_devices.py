"""Whose roof it is where no file tells the device: the one that `--device` names, else the likeliest, said to be so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from simulator.kernel_faults import Case, cases

import gpuscope
from gpuscope.analyzers.device_time.kernel_roofs import likeliest_model
from gpuscope.cli import main
from gpuscope.errors import UsageError
from gpuscope.schema.document import Report

SLOW: Case = next(one for one in cases() if "mm few_tiles H100" in one.name)


def untold(folder: Path, kernel: str | None = None) -> Path:
    """The slow job of a file that does not tell its device."""
    case = SLOW if kernel is None else replace(SLOW, operator=replace(SLOW.operator, kernel=kernel))
    path = case.write(folder)
    document = json.loads(path.read_text(encoding="utf-8"))
    del document["deviceProperties"]
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def told(report: Report) -> tuple[str, bool]:
    (finding,) = [one for one in report["findings"] if one["code"] == "below_roof"]
    return finding["facts"]["device"], finding["facts"]["assumed_device"]


def test_the_likeliest_is_taken_and_said_to_be_so(tmp_path: Path) -> None:
    report = gpuscope.analyze(untold(tmp_path)).report
    assert told(report) == ("H100", True)
    assert "H100 (assumed)" in next(one["message"] for one in report["findings"] if one["code"] == "below_roof")
    assert report["ideal"][0]["ideal_ns"] is None, "nothing else rests on it"
    assert all(row["peak_ns"] is None for row in report["operator_work"])


def test_a_device_that_is_named_is_taken_for_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = untold(tmp_path)
    report = gpuscope.analyze(path, device="a100").report
    assert told(report) == ("A100", False)
    floor = next(row["peak_ns"] for row in report["operator_work"])
    assert floor == pytest.approx(SLOW.operator.flops / 311.9e12 * 1e9, rel=1e-3)
    with pytest.raises(SystemExit) as done:
        main(["analyze", str(path), "--device", "MI300X", "--json", "--no-store"])
    assert done.value.code in (0, None)
    assert told(json.loads(capsys.readouterr().out)) == ("MI300X", False)


def test_what_the_file_tells_is_not_overruled(tmp_path: Path) -> None:
    assert told(gpuscope.analyze(SLOW.write(tmp_path), device="A100").report) == (SLOW.device.name, False)


def test_a_device_without_peaks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="no peaks are known for a device called 'H10'"):
        gpuscope.analyze(untold(tmp_path), device="H10")
    with pytest.raises(SystemExit) as done:
        main(["analyze", str(untold(tmp_path)), "--device", "H10"])
    assert done.value.code == UsageError.exit_code
    assert "H100" in capsys.readouterr().err


def test_an_assumption_that_a_kernel_contradicts_is_dropped(tmp_path: Path) -> None:
    """The kernels' names say Ampere; one is faster than an A100 could be."""
    case = replace(SLOW, rate=0.9, operator=replace(SLOW.operator, kernel="ampere_bf16_s16816gemm_bf16_128x128"))
    path = case.write(tmp_path)
    document = json.loads(path.read_text(encoding="utf-8"))
    del document["deviceProperties"]
    path.write_text(json.dumps(document), encoding="utf-8")
    report = gpuscope.analyze(path).report
    assert not [one for one in report["findings"] if one["code"] == "below_roof"]
    assert not [one for one in report["problems"] if one["code"] == "floor_above_measurement"]


@pytest.mark.parametrize(
    ("names", "model"),
    [
        (["sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"], "H100"),
        (["ampere_sgemm_128x64_tn", "cudaLaunchKernel"], "A100"),
        (["Cijk_Alik_Bljk_BBS_BH_Bias", "hipLaunchKernel"], "MI300X"),
        (["kernel_gfx90a", "hipLaunchKernel"], "MI250X"),
        (["my_kernel", "cudaLaunchKernel"], None),
    ],
)
def test_the_likeliest_by_names(names: list[str], model: str | None) -> None:
    assert likeliest_model(names) == model
