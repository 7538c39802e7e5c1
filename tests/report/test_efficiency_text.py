"""MFU in the terminal report, from a trace of one product."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.cli import call as run
from helpers.kineto import call, kernel, op, write

SHAPES = {"Input Dims": [[1000, 2000], [2000, 3000]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
EVENTS = (op(100, 8, "aten::mm", **SHAPES), call(102, 2, 1), kernel(110, 20, 1, "nvjet_tst_128x256"))


def test_mfu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """12 GFLOP in 20 µs are 600 TFLOP/s, 60.6 % of an H100's 989.4."""
    path = write(tmp_path / "t.json", *EVENTS, deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}])
    assert "MFU 60.6 %" in run(capsys, "analyze", path, "--full").stdout


def test_no_mfu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "analyze", write(tmp_path / "t.json", *EVENTS), "--full").stdout
    assert "No MFU: the model of the device is not recorded" in out
