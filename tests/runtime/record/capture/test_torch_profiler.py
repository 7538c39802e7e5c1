"""torch.profiler in one process: what is written when a script is shorter, or worse, than planned."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuscope.errors import InputError
from gpuscope.instrumented_runtime.record.environment import TorchProfiler, check_complete
from gpuscope.instrumented_runtime.record.nvml_samples import ScriptProfilers
from gpuscope.instrumented_runtime.record.run_folder import RankFolder


@pytest.fixture
def folder(tmp_path: Path) -> RankFolder:
    return RankFolder.join(tmp_path / "run", rank=3, world_size=4)


def record(profiler: TorchProfiler, folder: RankFolder, steps: int) -> None:
    profiler.start(folder)
    for step in range(steps):
        torch.ones(2)
        profiler.step(step)
    profiler.stop()


def trace(folder: RankFolder) -> Any:
    return json.loads(gzip.decompress((folder.path / "rank3.json.gz").read_bytes()))


def steps_in(folder: RankFolder) -> list[int]:
    names = [event["name"] for event in trace(folder)["traceEvents"]]
    return sorted({int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#")})


def test_the_active_steps_are_recorded_and_no_other(folder: RankFolder) -> None:
    record(TorchProfiler(wait=2, warmup=1, active=2), folder, steps=10)
    assert steps_in(folder) == [3, 4]
    assert [(entry.kind, entry.rank) for entry in folder.part.files] == [("torch_profiler", 3)]
    assert folder.part.problems == []


def test_the_trace_says_whose_it_is(folder: RankFolder) -> None:
    record(TorchProfiler(wait=0, warmup=1, active=1, metadata={"parallel": {"tp": 2}}), folder, steps=3)
    recorded = trace(folder)
    assert (recorded["gpuscope_run"]["rank"], recorded["gpuscope_run"]["world_size"]) == (3, 4)
    assert recorded["parallel"] == {"tp": 2}


def test_events_are_not_parsed_in_python(folder: RankFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: Any, **__: Any) -> Any:
        pytest.fail("each event became a Python object: seconds per step of a large model")

    monkeypatch.setattr(torch.autograd.profiler.profile, "_parse_kineto_results", parse)
    record(TorchProfiler(wait=0, warmup=1, active=1), folder, steps=3)
    assert steps_in(folder) == [1]


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="this kernel does not count cores")
def test_the_trace_says_how_long_each_step_had_a_core(folder: RankFolder) -> None:
    profiler = TorchProfiler(wait=1, warmup=1, active=2)
    profiler.start(folder)
    for step in range(4):
        end = time.thread_time_ns() + (20_000_000 if step == 3 else 1_000_000)
        while time.thread_time_ns() < end:
            torch.ones(2)
        profiler.step(step)
    profiler.stop()
    recorded = trace(folder)["gpuscope_cores"]
    assert recorded["columns"] == ["step", "ran_ns", "waited_ns"]
    assert [row[0] for row in recorded["steps"]] == [2, 3]
    assert recorded["steps"][1][1] > 20_000_000 > recorded["steps"][0][1] > 1_000_000
    assert recorded["cores"] >= 1


def test_whole_records_without_steps(folder: RankFolder) -> None:
    profiler = TorchProfiler(whole=True)
    profiler.start(folder)
    torch.ones(2)
    profiler.stop()
    assert any(event["name"] == "aten::ones" for event in trace(folder)["traceEvents"])


@pytest.mark.parametrize(
    ("steps", "code", "severity", "written"),
    [
        (2, "no_active_steps", "data_loss", False),
        (3, "fewer_steps", "data_loss", True),
        (5, "fewer_steps", "info", True),
    ],
)
def test_a_script_that_ends_early(folder: RankFolder, steps: int, code: str, severity: str, written: bool) -> None:
    # Recording starts with step 3: after 2 steps the warm-up runs, after 3 the first active step has begun.
    record(TorchProfiler(wait=2, warmup=1, active=4), folder, steps=steps)
    (problem,) = folder.part.problems
    assert (problem.code, problem.severity) == (code, severity)
    assert (folder.path / "rank3.json.gz").exists() == written


def test_a_trace_cut_off_by_a_full_disk_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [\n{"ph": "X", "name": "aten')
    with pytest.raises(OSError, match="cut off"):
        check_complete(path)
    with pytest.raises(OSError, match="could not write"):
        check_complete(tmp_path / "missing.json")


def test_a_failed_write_leaves_no_half_file(folder: RankFolder) -> None:
    def fail(_: Path) -> None:
        raise OSError("No space left on device")

    profiler = TorchProfiler(wait=0, warmup=1, active=1, rewrite=fail)
    with pytest.raises(OSError, match="No space"):
        record(profiler, folder, steps=3)
    assert [path.name for path in folder.path.iterdir() if path.is_file()] == []


def events_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


@pytest.mark.parametrize(
    ("start", "codes"),
    [
        (0, []),  # ours waits: there is room for both
        (2, ["moved"]),  # it warms up: it begins anew
        (4, ["moved", "fewer_steps"]),  # it has one whole step
        (5, ["gave_way"]),  # two are worth keeping
    ],
)
def test_ours_gives_way_to_a_profiler_that_the_script_starts_and_goes_on(
    folder: RankFolder, start: int, codes: list[str]
) -> None:
    ours = TorchProfiler(wait=1, warmup=2, active=4)
    ours.start(folder)
    for step in range(10):
        if step == start:
            with torch.profiler.profile() as own:
                torch.ones(2)
        ours.step(step)
    ours.stop()
    assert any(event.key == "aten::ones" for event in own.key_averages())
    assert [problem.code for problem in folder.part.problems] == codes
    assert [entry.path for entry in folder.part.files] == ["rank3.json.gz"]
    marks = {e["name"] for e in events_of(folder.path / "rank3.json.gz") if e["name"].startswith("ProfilerStep")}
    first = {0: 3, 2: 5, 4: 7, 5: 3}[start]
    assert f"ProfilerStep#{first}" in marks
    assert f"ProfilerStep#{first - 1}" not in marks


def test_ours_begins_after_one_of_the_scripts_that_runs_over_several_steps(folder: RankFolder) -> None:
    """And a second one of the script's ends it for good."""
    ours = TorchProfiler(wait=1, warmup=1, active=3)
    ours.start(folder)
    with torch.profiler.profile() as own:
        for step in range(4):
            torch.ones(2)
            ours.step(step)
    assert any(event.key == "aten::ones" for event in own.key_averages())
    for step in range(4, 8):
        ours.step(step)
    assert (ours.first_step, ours.last_step) == (6, 8)
    for _ in range(2):
        with torch.profiler.profile():
            torch.ones(2)
        ours.step(8)
    ours.stop()
    assert [problem.code for problem in folder.part.problems] == ["moved", "gave_way"]


def test_no_room_beside_the_scripts_own_is_said(folder: RankFolder) -> None:
    ours = TorchProfiler(wait=1, warmup=2, active=4)
    ours.start(folder)
    for step in range(2):
        ours.step(step)
    with torch.profiler.profile():
        ours.step(2)
    ours.stop()
    (problem,) = folder.part.problems
    assert (problem.code, problem.severity) == ("gave_way", "data_loss")
    assert "the script's own torch.profiler ran" in problem.message


def test_the_traces_of_the_scripts_profilers_are_named(folder: RankFolder, tmp_path: Path) -> None:
    watch = ScriptProfilers(beside_nsys=False)
    watch.start(folder)
    with torch.profiler.profile() as own:
        torch.ones(2)
    own.export_chrome_trace(str(tmp_path / "own.json"))
    with torch.profiler.profile() as inside:
        torch.ones(2)
    inside.export_chrome_trace(str(folder.path / "ours.json"))
    watch.stop()
    assert folder.part.facts["script_traces"] == [str(tmp_path / "own.json")]


@pytest.mark.parametrize("beside_nsys", [False, True])
def test_the_scripts_profilers_are_watched_whatever_records(folder: RankFolder, beside_nsys: bool) -> None:
    prepare = torch.autograd.profiler.profile._prepare_trace
    watch = ScriptProfilers(beside_nsys=beside_nsys)
    watch.start(folder)
    for _ in range(2):
        with torch.profiler.profile() as own:
            torch.ones(2)
        assert any(event.key == "aten::ones" for event in own.key_averages())
    watch.stop()
    assert [problem.code for problem in folder.part.problems] == ["script_profiler"] * beside_nsys
    assert torch.autograd.profiler.profile._prepare_trace is prepare


def test_a_script_that_profiles_itself_keeps_its_profiler(folder: RankFolder) -> None:
    with torch.profiler.profile() as own:
        with pytest.raises(InputError, match="another torch"):
            TorchProfiler().start(folder)
        torch.ones(2)
    assert any(event.key == "aten::ones" for event in own.key_averages())


def test_synchronisations_are_asked_for(folder: RankFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options that torch.profiler is made with, field by field of what it gives to Kineto."""
    from torch._C._profiler import _ExperimentalConfig

    asked: list[Any] = []
    make = torch.profiler.profile

    def profile(**options: Any) -> Any:
        asked.append(options["experimental_config"])
        return make(**options)

    monkeypatch.setattr(torch.profiler, "profile", profile)
    record(TorchProfiler(wait=0, warmup=1, active=1), folder, steps=3)
    (config,) = asked
    assert config.__getstate__() == _ExperimentalConfig(enable_cuda_sync_events=True).__getstate__()
    assert config.__getstate__() != _ExperimentalConfig().__getstate__()
