"""What is recorded of machine and software, and what must not be."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.instrumented_runtime.record.capture.environment import Environment, describe, framework, parallelism
from gpuscope.instrumented_runtime.record.capture.nccl_files import nccl_variables, written_files
from gpuscope.instrumented_runtime.record.capture.nvml_samples import COLUMNS, Nvml
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


def test_the_inspector_is_used_where_its_plugin_is(tmp_path: Path) -> None:
    plugin = tmp_path / "libnccl-profiler-inspector.so"
    plugin.touch()
    variables = nccl_variables(tmp_path / "run", {"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"})
    assert variables["NCCL_PROFILER_PLUGIN"] == str(plugin)
    assert variables["NCCL_INSPECTOR_ENABLE"] == "1"
    assert "NCCL_PROFILER_PLUGIN" not in nccl_variables(tmp_path / "run", {"LD_LIBRARY_PATH": "/nowhere"})


def test_empty_nccl_logs_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "nccl").mkdir()
    (tmp_path / "nccl/nccl.host.1.log").write_text("NCCL version 2.30")
    (tmp_path / "nccl/nccl.host.2.log").touch()
    assert written_files(tmp_path) == [(tmp_path / "nccl/nccl.host.1.log", "nccl_log")]


class FakeNvml:
    """A GPU that draws 300 W and does not report its energy."""

    NVMLError = RuntimeError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def nvmlDeviceGetTotalEnergyConsumption(self, _: object) -> int:  # noqa: N802
        raise RuntimeError("not supported")

    def nvmlDeviceGetUtilizationRates(self, _: object) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetMemoryInfo(self, _: object) -> Any:  # noqa: N802
        return SimpleNamespace(used=5)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 300_000 if name == "nvmlDeviceGetPowerUsage" else 1


def test_nvml_samples_what_the_gpu_tells(folder: RankFolder) -> None:
    capture = Nvml(interval_ms=10_000, device=lambda: (FakeNvml(), "handle"))
    capture.start(folder)
    assert not (folder.path / "nvml").exists()  # the device is known after the first step
    capture.step(0)
    capture.stop()
    first, last = map(json.loads, (folder.path / "nvml/rank0.jsonl").read_text().splitlines())
    assert set(first) == set(COLUMNS)
    assert (first["power_mw"], first["gpu_percent"], first["energy_mj"]) == (300_000, 97, None)
    assert last["time_ns"] >= first["time_ns"]
    assert folder.part.files[0].kind == "nvml"


def test_without_a_gpu_nvml_writes_nothing(folder: RankFolder) -> None:
    capture = Nvml(interval_ms=10, device=lambda: None)
    capture.start(folder)
    capture.stop()
    assert folder.part.files == []


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
