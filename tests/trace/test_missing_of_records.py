"""`gpuscope info` on records that hold no timeline: no advice on how to record what they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.kineto import kernel, op, write

import gpuscope
from gpuscope.trace.trace import missing

VERL = "step:{n} - timing_s/gen:20.0 - timing_s/update_actor:8.0 - timing_s/step:36.5\n"


@pytest.mark.parametrize("name", ["train.log", "rl.txt"])
def test_a_record_is_told_as_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("".join(VERL.format(n=n) for n in range(4)))
    (told,) = missing(gpuscope.open_trace(tmp_path / name))
    assert told == "no timeline (rl-metrics holds none): name it together with a trace of the same run"


def test_a_trace_of_the_host_still_lacks_its_device(tmp_path: Path) -> None:
    told = missing(gpuscope.open_trace(write(tmp_path / "rank0.json", op(0, 10))))
    assert any(one.startswith("no device events") for one in told)


def test_a_trace_of_the_device_still_lacks_its_host(tmp_path: Path) -> None:
    told = missing(gpuscope.open_trace(write(tmp_path / "rank0.json", kernel(0, 10))))
    assert any(one.startswith("no host events") for one in told)
