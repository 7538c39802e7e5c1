"""What is recorded of machine and software, and what must not be."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions
from gpuscope.instrumented_runtime.record.environment import (
    Environment,
    TorchProfiler,
    describe,
    framework,
    parallelism,
)
from gpuscope.instrumented_runtime.record.launch import (
    check_inspector,
    inspector_variables,
    nccl_variables,
    written_files,
)
from gpuscope.instrumented_runtime.record.nvml_samples import COLUMNS, Nvml, summed
from gpuscope.instrumented_runtime.record.run_folder import RankFolder


@pytest.fixture
def folder(tmp_path: Path) -> RankFolder:
    return RankFolder.join(tmp_path / "run", rank=0, world_size=1)


def test_the_environment_keeps_knobs_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    found = describe()
    assert found["variables"]["NCCL_ALGO"] == "Ring"
    assert "secret" not in json.dumps(found)
    assert found["platform"]["cpus"] > 0


def test_versions_reach_the_manifest(folder: RankFolder) -> None:
    Environment().start(folder)
    assert {"gpuscope", "python", "torch"} <= set(folder.part.facts["versions"])
    assert folder.part.files[0].path == "environment/rank0.json"


def test_nccl_logs_into_the_folder_unless_the_user_has_chosen(tmp_path: Path) -> None:
    ours = nccl_variables(tmp_path, {})
    assert ours["NCCL_DEBUG"] == "INFO"
    assert ours["NCCL_DEBUG_FILE"] == f"{tmp_path}/nccl/nccl.%h.%p.log"
    assert "TUNING" not in ours["NCCL_DEBUG_SUBSYS"]  # a line per collective
    for theirs in ({"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG_SUBSYS": "ALL"}, {"NCCL_DEBUG_FILE": "/tmp/nccl.log"}):
        assert nccl_variables(tmp_path, theirs) == {}
    for asked in ({"NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING"}, {"NCCL_DEBUG_SUBSYS": "TUNING", "NCCL_DEBUG": "INFO"}):
        theirs = nccl_variables(tmp_path, asked)
        assert theirs["NCCL_DEBUG_FILE"] == ours["NCCL_DEBUG_FILE"]
        assert theirs.keys().isdisjoint(asked)


def test_the_inspector_is_loaded_only_if_asked(tmp_path: Path) -> None:
    plugin = tmp_path / "libnccl-profiler-inspector.so"
    plugin.touch()
    there = {"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"}
    assert "NCCL_PROFILER_PLUGIN" not in nccl_variables(tmp_path / "run", there)
    variables = inspector_variables(tmp_path / "run", there)
    assert variables["NCCL_PROFILER_PLUGIN"] == str(plugin)
    assert variables["NCCL_INSPECTOR_ENABLE"] == "1"
    theirs = {"NCCL_PROFILER_PLUGIN": "inspector", "NCCL_INSPECTOR_DUMP_DIR": "/theirs"}
    assert inspector_variables(tmp_path / "run", {**there, **theirs}).keys() == variables.keys() - theirs.keys()
    for usable in (there, theirs):
        check_inspector(usable)
    with pytest.raises(UsageError, match="NCCL loads one plugin"):
        check_inspector({**there, "NCCL_PROFILER_PLUGIN": "other.so"})


def test_empty_nccl_logs_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "nccl").mkdir()
    (tmp_path / "nccl/nccl.host.1.log").write_text("NCCL version 2.30")
    (tmp_path / "nccl/nccl.host.2.log").touch()
    assert written_files(tmp_path) == [(tmp_path / "nccl/nccl.host.1.log", "nccl_log")]


class FakeNvml:
    """A GPU at 1,200 MHz and 300 W, held down by its power cap; it answers `asked` times, then no more."""

    NVMLError = RuntimeError
    NVML_CLOCK_SM = 1

    def __init__(self, power: bool = True) -> None:
        self.asked, self.power = 0, power

    def nvmlDeviceGetClockInfo(self, _: object, clock: int) -> int:  # noqa: N802
        assert clock == self.NVML_CLOCK_SM
        self.asked += 1
        return 1200

    def nvmlDeviceGetPowerUsage(self, _: object) -> int:  # noqa: N802
        if not self.power:
            raise RuntimeError("not supported")
        return 300_000

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: object) -> int:  # noqa: N802
        return 0x4


def sampled(nvml: FakeNvml, times: int) -> None:
    """Wait until it was asked so often."""
    deadline = time.monotonic() + 20
    while nvml.asked < times and time.monotonic() < deadline:
        time.sleep(0.001)


def test_nvml_sums_up_each_step(folder: RankFolder) -> None:
    nvml = FakeNvml(power=False)
    capture = Nvml(interval_ms=1, device=lambda: (nvml, "handle"))
    capture.start(folder)
    assert nvml.asked == 0  # the device is known after the first step
    capture.step(0)
    assert capture.row() is None
    sampled(nvml, 3)
    capture.step(1)
    capture.stop()
    row = dict(zip(COLUMNS, capture.row() or [], strict=True))
    assert (row["step"], row["sm_mhz"], row["power_mw"]) == (1, 1200, None)
    assert (row["samples"] or 0) >= 2
    assert row["power_cap"] == row["samples"]
    assert (row["thermal"], row["power_brake"], row["set_clocks"]) == (0, 0, 0)


def test_bits_of_nvml() -> None:
    """Of four samples: power cap; software and hardware heat; set clocks; idle, which holds nothing down."""
    taken = [(1000, 100_000, 0x4), (1100, 200_000, 0x60), (None, 300_000, 0x2), (1200, None, 0x1)]
    assert summed(7, taken) == [7, 4, 1100, 200_000, 1, 1, 0, 1]


def test_without_a_gpu_nvml_samples_nothing(folder: RankFolder) -> None:
    capture = Nvml(interval_ms=1, device=lambda: None)
    capture.start(folder)
    capture.step(0)
    capture.step(1)
    capture.stop()
    assert capture.row() is None


def test_what_nvml_says_is_in_the_trace_and_in_the_report(folder: RankFolder) -> None:
    """Every recorded step waits for samples: all hold the power cap, and 300 W times the step are its joules."""
    import torch

    import gpuscope

    nvml = FakeNvml()
    capture = Nvml(interval_ms=1, device=lambda: (nvml, "handle"))
    profiler = TorchProfiler(wait=1, warmup=1, active=4, nvml=capture)
    for one in (capture, profiler):
        one.start(folder)
    for step in range(7):
        torch.ones(64, 64) @ torch.ones(64, 64)
        sampled(nvml, nvml.asked + 2 if step else 0)
        capture.step(step)
        profiler.step(step)
    profiler.stop()
    capture.stop()
    report = gpuscope.analyze(folder.path / "rank0.json.gz").report
    (power,) = report["power"]
    assert (power["sm_mhz"], power["power_w"], power["held_frac"]) == (1200, 300, {"power_cap": 1})
    assert report["step_time"] is not None
    assert power["joules_per_step"] == pytest.approx(300 * report["step_time"]["median_ns"] / 1e9)
    (finding,) = [one for one in report["findings"] if one["code"] == "clocks_held"]
    assert finding["message"] == (
        "The clock of rank 0's GPU is held down by its power cap in 100 % of the samples, 1,200 MHz on average at 300 W"
    )


def test_nvml_needs_steps_of_torch_profiler() -> None:
    for options in ({"profiler": "nsys"}, {"profiler": "none"}, {"whole": True}):
        with pytest.raises(UsageError, match="nvml_interval_ms"):
            RecordOptions(nvml_interval_ms=100, **options).check()  # type: ignore[arg-type]


def test_frameworks_and_their_parallelism_by_name() -> None:
    assert framework({"torch", "deepspeed", "accelerate"}) == "deepspeed"
    assert framework({"torch"}) is None
    groups = [
        {"pg_desc": "default_pg", "pg_size": 8},
        {"pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 2},
        {"pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "pg_size": 4},
        {"pg_desc": "CONTEXT_PARALLEL_GROUP", "pg_size": 1},
    ]
    assert parallelism(groups) == {"tp": 2, "pp": 4}
    assert parallelism([{"pg_desc": "mesh_dp_shard", "pg_size": 4}]) == {"dp_shard": 4}


WATCHED = """
import os, traceback
from gpuscope.instrumented_runtime.record.ranges import AfterImport

def watch():
    import torch

    def asking(name):
        def asked(*_, **__):
            with open(f"asked{os.getpid()}", "a") as file:
                print(name, *traceback.format_stack()[-4:-1], file=file)
            return 0
        return asked

    for name in ("is_available", "device_count", "current_device", "get_device_properties", "init", "_lazy_init"):
        setattr(torch.cuda, name, asking(name))
    for name in ("_cuda_init", "_cuda_getDeviceCount", "_cuda_getDevice"):
        setattr(torch._C, name, asking(name))

import sys
sys.meta_path.insert(0, AfterImport("torch", watch))
"""
"""A `sitecustomize` that writes down whatever is asked of CUDA from torch's import on, before ours hears of it."""


def test_a_recorded_script_finds_cuda_untouched(
    record: Callable[..., SimpleNamespace], torchrun: tuple[str, ...], tmp_path: Path
) -> None:
    """After `import gpuscope`, after the hook has loaded, and once the recording has begun, with everything on."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(WATCHED)
    script = tmp_path / "train.py"
    script.write_text(
        """
import os, pathlib, gpuscope, torch
import torch.distributed as dist

asked = f"asked{os.getpid()}"  # torchrun asks too, in a process of its own
quiet = [torch.cuda.is_initialized(), os.path.exists(asked)]
dist.init_process_group("gloo")
quiet += [torch.cuda.is_initialized(), os.path.exists(asked)]
assert os.path.exists("run/environment/rank0.json"), "the recording has not begun"
pathlib.Path(f"quiet{dist.get_rank()}").write_text(str(any(quiet)))
torch.cuda.device_count()  # the script's own
dist.destroy_process_group()
"""
    )
    words = ("--nvml-interval", "100", "--memory", "on", "--profiler", "torch", "--", *torchrun, script)
    done = record(*words, PYTHONPATH=str(tmp_path / "site"))
    assert done.code == 0, done.err
    asked = [path.read_text() for path in sorted(tmp_path.glob("asked*"))]
    assert [(tmp_path / f"quiet{rank}").read_text() for rank in (0, 1)] == ["False", "False"], asked
    assert sum("the script's own" in one for one in asked) == 2  # the watch was there


def test_nothing_is_asked_of_cuda_before_the_script_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a session's start and in its first step: an early question fixes CUDA_VISIBLE_DEVICES and breaks forks."""
    import torch

    from gpuscope.instrumented_runtime.record.session import gpuscope_session

    def asked(*_: Any, **__: Any) -> Any:
        pytest.fail("CUDA was asked")

    for name in ("is_available", "device_count", "current_device", "get_device_properties", "init"):
        monkeypatch.setattr(torch.cuda, name, asked)
    monkeypatch.setattr(torch.profiler, "supported_activities", asked)
    with gpuscope_session(tmp_path / "asked", nvml_interval_ms=100, memory="on", flight_recorder=0) as session:
        session.step()
    assert {problem.code for problem in session.folder.part.problems} == {"no_active_steps"}
