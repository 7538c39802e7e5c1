"""`make gpu-check`: its paths run where there is a GPU, its judges everywhere, on traces that show a path or do not."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import needs

pytest.importorskip("torch", reason="gpu-check trains")

from click.testing import CliRunner
from helpers import allocator, flight_recorder, nsys
from helpers.collectives import KERNELS, collective
from helpers.kineto import Event, call, copy, kernel, note, op, span, write

from gpu_check import checking, judges
from gpu_check.__main__ import main, no_gpu
from gpu_check.checking import Checks
from gpu_check.gpu_paths import PATHS, RUNS, GpuPath
from gpu_check.judges import NotSeenError
from gpu_check.recorded_script import in_child
from gpuscope.instrumented_runtime.record.run_folder import RankFolder, RunFolder

STEPS = 8


@pytest.fixture(scope="session")
def checks(tmp_path_factory: pytest.TempPathFactory) -> Checks:
    return Checks(tmp_path_factory.mktemp("gpu"))


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_on_this_gpu(checks: Checks, path: GpuPath) -> None:
    if no_gpu() is not None:
        pytest.skip(needs.GPU)
    state, said = checks.judged(path)
    if state == "skipped":
        pytest.skip(said)
    assert state == "passed", said


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_every_path_has_a_stand_in_and_says_what_it_must_see(path: GpuPath) -> None:
    assert (Path(__file__).parents[1] / path.stand_in).is_file()
    assert path.judge.__doc__  # its line in docs/trust.md


@pytest.mark.skipif(no_gpu() is None, reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_checks_nothing(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--out", str(tmp_path / "gpu")])
    assert done.exit_code == 2
    assert "nothing was checked" in done.output
    assert not (tmp_path / "gpu").exists()


def test_outcomes_are_printed_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One path that is seen, one that is not, one whose program is missing, one whose command fails."""

    def seen(run: Path) -> str:
        return (run.parent / "log.txt").read_text().strip()

    def not_seen(_: Path) -> str:
        raise NotSeenError("no such rows")

    monkeypatch.setattr("gpu_check.__main__.no_gpu", lambda: None)
    monkeypatch.setitem(RUNS, "good", (sys.executable, "-c", "print('ran')"))
    monkeypatch.setitem(RUNS, "bad", (sys.executable, "-c", "raise ValueError('no device')"))
    paths = (
        GpuPath("seen", "good", seen),
        GpuPath("not seen", "good", not_seen),
        GpuPath("no program", "good", seen, program="a-program-that-nobody-has"),
        GpuPath("command fails", "bad", seen),
    )
    monkeypatch.setattr("gpu_check.__main__.PATHS", paths)
    done = CliRunner().invoke(main, ["--out", str(tmp_path)])
    assert done.exit_code == 1
    kept = json.loads((tmp_path / "checks.json").read_text())
    assert [(one["name"], one["state"]) for one in kept] == [
        ("seen", "passed"),
        ("not seen", "failed"),
        ("no program", "skipped"),
        ("command fails", "failed"),
    ]
    assert [one["said"] for one in kept][:2] == ["ran", "no such rows"]
    assert "exit 1: ValueError: no device" in kept[3]["said"]
    assert "1 passed, 2 failed, 1 skipped" in done.output
    assert CliRunner().invoke(main, ["--out", str(tmp_path), "--only", "seen", "--only", "no program"]).exit_code == 1
    assert CliRunner().invoke(main, ["--out", str(tmp_path), "--only", "no program"]).exit_code == 0


def test_a_run_is_made_once_and_ended_when_it_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(checking, "_call", lambda words, *_: begun.append(words[0]))
    found = Checks(tmp_path, limit_s=5)
    monkeypatch.setitem(RUNS, "slow", ("slow",))
    states = [found.judged(GpuPath(name, "slow", str)) for name in ("one", "two")]
    assert [state for state, _ in states] == ["failed", "failed"]
    assert "not done after 5 s" in states[0][1]
    assert begun == ["slow"]


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert checking._call(words, tmp_path / "log", 0.5) is None


def test_a_child_answers_for_itself() -> None:
    assert in_child(lambda: True)
    assert not in_child(lambda: False)
    assert not in_child(lambda: bool(1 / 0))


# The judges: each makes a run folder that shows its path, and another that does not.

Made = Callable[[Path], Path]


def run_folder(path: Path, *events: Event, faults: Any = (), problems: Any = (), ranks: int = 1, **header: Any) -> Path:
    """A run folder as a launcher and its ranks leave it, each with a trace of those events."""
    run = path / "run"
    folder = RunFolder.create(run, command=["train.py"], faults=list(faults))
    for rank in range(ranks):
        part = RankFolder.join(run, rank=rank, world_size=ranks)
        if events:
            part.add_file(
                write(run / f"rank{rank}.json", *events, rank=rank, world_size=ranks, **header), "torch_profiler"
            )
        for code, message in problems:
            part.problem(code, message, severity="info")
        part.finish("completed")
    folder.finish("completed", exit_code=0)
    return run


def facts(path: Path, **told: Any) -> None:
    (path / "facts.json").write_text(json.dumps(told))


def stepped(*per_step: Event) -> list[Event]:
    """Steps of 1 ms with those events each, their times and correlations moved."""
    found: list[Event] = []
    for step in range(STEPS):
        found.append(note(step * 1000, 1000, f"ProfilerStep#{step}"))
        for event in per_step:
            moved = event | {"ts": event["ts"] + step * 1000, "args": dict(event["args"])}
            if "correlation" in moved["args"]:
                moved["args"]["correlation"] += step * 100
            found.append(moved)
    return found


BUSY = stepped(op(10, 100), call(20, 5, 1), kernel(50, 800, 1))


def untouched(**wrong: Any) -> Made:
    def make(path: Path) -> Path:
        good = {"initialised_by_import": False, "initialised_by_recording": False, "child_sees_no_device": True}
        facts(path, **{**good, "child_uses_cuda": True, **wrong})
        return run_folder(path, *BUSY)

    return make


def faulty(bound_by: str, cause: str | None) -> Made:
    """One that waits for its device in every step, and what its manifest calls the truth."""
    waits = stepped(op(10, 100), call(20, 5, 1), kernel(50, 100, 1), call(200, 700, 2, "cudaStreamSynchronize"))
    return lambda path: run_folder(path, *waits, faults=[{"bound_by": bound_by, "cause": cause}])


def two_ranks(late: int | None, *, size: int | None = 1 << 20, ranks: int = 2) -> Made:
    """Both reduce in each step; one of them computes 500 µs longer."""

    def make(path: Path) -> Path:
        run = run_folder(path, ranks=ranks)
        for rank in range(ranks):
            compute = 700 if rank == late else 200
            begin = 60 + compute
            told = collective(begin, 900 - begin, size or 0, 0, launch=2)
            if size is None:
                told["args"] = {name: told["args"][name] for name in ("device", "stream", "correlation")}
            events = stepped(
                op(10, 40), call(20, 5, 1), kernel(50, compute, 1), op(30, 10, "c10d"), call(32, 3, 2), told
            )
            for number, event in enumerate(one for one in events if one["name"] == KERNELS["allreduce"]):
                event["args"] |= {"Seq": number} if size is not None else {}
            write(run / f"rank{rank}.json", *events, rank=rank, world_size=ranks)
        return run

    return make


def graphs(nodes: int, name: str = "cudaGraphLaunch") -> Made:
    kernels = [kernel(100 + 50 * number, 40, 1) for number in range(nodes)]
    return lambda path: run_folder(path, *stepped(op(10, 40), call(20, 10, 1, name), *kernels))


def named(kernel_name: str) -> Made:
    return lambda path: run_folder(path, *stepped(call(20, 5, 1), kernel(50, 100, 1, kernel_name)))


def synced(*rows: Event) -> Made:
    return lambda path: run_folder(path, *BUSY, *rows)


def oom(happened: bool, action: str = "oom") -> Made:
    def make(path: Path) -> Path:
        facts(path, out_of_memory=happened)
        run = run_folder(
            path, *BUSY, problems=[("out_of_memory", "device 0 could not give 9 bytes")] if happened else []
        )
        (run / "memory").mkdir()
        blocks = allocator.segment(1 << 30, (2 << 20, "active_allocated"))
        events = allocator.events(("alloc", 1 << 30, 2 << 20), (action, 1 << 31, 8 << 20))
        allocator.snapshot(run / "memory/rank0_oom.pickle", [blocks], events)
        manifest = json.loads((run / "manifest.json").read_text())
        manifest["files"].append({"path": "memory/rank0_oom.pickle", "kind": "memory_snapshot", "rank": 0})
        (run / "manifest.json").write_text(json.dumps(manifest))
        return run

    return make


def sampled(bus: int | None, *, samples: bool = True) -> Made:
    def make(path: Path) -> Path:
        facts(path, nvml_bus=bus, torch_bus=7)
        columns = ("step", "samples", "sm_mhz", "power_mw", "power_cap", "thermal", "power_brake", "set_clocks")
        rows = [[step, 3, 1200, 300_000, 0, 0, 0, 0] for step in range(STEPS)]
        header = {"gpuscope_gpu": {"columns": columns, "steps": rows}} if samples else {}
        return run_folder(path, *BUSY, **header)

    return make


def copied(memory: str, cause: str | None = "copy") -> Made:
    way = f"Memcpy HtoD ({memory} -> Device)"
    events = stepped(op(5, 910, "aten::copy_"), call(10, 900, 1, "cudaMemcpyAsync"), copy(20, 880, 1, way))
    return lambda path: run_folder(path, *events, faults=[{"bound_by": "memory", "cause": cause}])


def hung(sleeper: int, told: str) -> Made:
    """Rank `sleeper` enqueued one all-reduce less than the other."""

    def make(path: Path) -> Path:
        run = run_folder(path, ranks=2, problems=[("hang", told)] if told else [])
        (run / "flight_recorder").mkdir()
        world = ("0", "default_pg", [0, 1])
        done = [flight_recorder.entry(world, seq, done=True) for seq in (1, 2)]
        for rank in (0, 1):
            waits = [] if rank == sleeper else [flight_recorder.entry(world, 3, state="started")]
            status = {"0": {"last_enqueued_collective": 3 - (rank == sleeper), "last_completed_collective": 2}}
            flight_recorder.dump(run / "flight_recorder", rank, [world], [*done, *waits], pg_status=status)
        return run

    return make


def exported(*kernels: str, ranks: int = 2) -> Made:
    def make(path: Path) -> Path:
        run = run_folder(path, ranks=ranks)
        manifest = json.loads((run / "manifest.json").read_text())
        for rank in range(ranks):
            export = nsys.Export()
            for number, name in enumerate(kernels):
                export.call(number * 1000, number * 1000 + 10, number)
                export.kernel(number * 1000 + 20, number * 1000 + 900, number, name)
            export.write(run / "nsys", name=f"rep.{rank}")
            manifest["files"].append({"path": f"nsys/rep.{rank}.sqlite", "kind": "nsys", "rank": rank})
        (run / "manifest.json").write_text(json.dumps(manifest))
        return run

    return make


def messages(name: bytes = b"nccl:coalesced", status: str = "completed", problem: str = "") -> Made:
    """Two dumps with that name in them, and a manifest that says how it ended."""

    def make(path: Path) -> Path:
        run = path / "run"
        (run / "flight_recorder").mkdir(parents=True)
        paths = [f"flight_recorder/nccl_trace_rank_{rank}" for rank in range(2)]
        for dump in paths:
            (run / dump).write_bytes(name)
        files = [{"path": dump, "kind": "flight_recorder"} for dump in paths]
        problems = [{"code": problem, "message": f"{problem}: of rank 0"}] if problem else []
        (run / "manifest.json").write_text(json.dumps({"status": status, "files": files, "problems": problems}))
        return run

    return make


SYNC = span("cuda_sync", "Stream Sync", 500, 20, tid=7, pid=0, device=0, stream=7, correlation=9)
SLEPT = "hang: rank 0 waits in all_reduce #3 of group default_pg; rank 1 has not joined: it is at x.py:1 in main"
SHOWN: list[tuple[Callable[[Path], str], Made, str]] = [
    (judges.cuda_untouched, untouched(), "not initialised"),
    (judges.verdict_of_fault, faulty("cpu", "sync"), "cpu, cause sync"),
    (judges.slow_rank, two_ranks(late=1), "communication, cause straggler, rank 1"),
    (judges.cuda_graphs, graphs(8), "1 graph launches per step, 64 kernels"),
    (judges.compiled, named("triton_poi_fused_add_0"), "8 kernels"),
    (judges.sync_events, synced(SYNC), "1 Stream Sync"),
    (judges.out_of_memory, oom(True), "rank0_oom.pickle: 2 entries"),
    (judges.nvml, sampled(bus=7), "1,200 MHz, 300 W"),
    (judges.pinned, copied("Pinned"), "8 copies"),
    (judges.pageable, copied("Pageable"), "8 copies from pageable memory; memory, cause copy"),
    (judges.nccl_ranks, two_ranks(late=None), "16 all-reduces on two ranks"),
    (judges.flight_recorder, hung(1, SLEPT), "rank 1 has not joined"),
    (judges.coalesced_messages, messages(), "2 dumps"),
    (judges.captured_graphs, messages(), "to the end"),
    (judges.nsys_reports, exported("gemm", KERNELS["allreduce"]), "kernels in both"),
]
NOT_SHOWN: list[tuple[Callable[[Path], str], Made, str]] = [
    (judges.cuda_untouched, untouched(initialised_by_import=True), "by the import"),
    (judges.cuda_untouched, untouched(initialised_by_recording=True), "as the recording began"),
    (judges.cuda_untouched, untouched(child_sees_no_device=False), "is ignored"),
    (judges.cuda_untouched, untouched(child_uses_cuda=False), "forked"),
    (judges.verdict_of_fault, faulty("cpu", "launch"), "cpu, cause sync, not cpu, cause launch"),
    (judges.slow_rank, two_ranks(late=0), "late ranks: [0]"),
    (judges.cuda_graphs, graphs(8, "cudaLaunchKernel"), "graph launches by step"),
    (judges.cuda_graphs, graphs(0), "0 kernels"),
    (judges.compiled, named("gemm"), "no kernel of Triton's"),
    (judges.sync_events, synced(), "no cuda_sync rows"),
    (judges.out_of_memory, oom(False), "got all"),
    (judges.out_of_memory, oom(True, "alloc"), "no out-of-memory"),
    (judges.nvml, sampled(bus=None), "did not find"),
    (judges.nvml, sampled(bus=3), "another device"),
    (judges.nvml, sampled(bus=7, samples=False), "no samples"),
    (judges.pinned, copied("Pageable"), "no copy from pinned"),
    (judges.pageable, copied("Pinned"), "no copy from pageable"),
    (judges.pageable, copied("Pageable", "allocator"), "not memory, cause allocator"),
    (judges.nccl_ranks, two_ranks(late=None, ranks=1), "all-reduces of ranks [0]"),
    (judges.nccl_ranks, two_ranks(late=None, size=None), "without a size"),
    (judges.flight_recorder, hung(0, SLEPT), "first causes [0]"),
    (judges.flight_recorder, hung(1, ""), "said nothing"),
    (judges.coalesced_messages, messages(problem="hang"), "hang: of rank 0"),
    (judges.coalesced_messages, messages(b"nccl:send 0->1"), "0 of 2 dumps"),
    (judges.captured_graphs, messages(status="failed"), "the run failed"),
    (judges.captured_graphs, messages(problem="hang_watch_failed"), "hang_watch_failed"),
    (judges.nsys_reports, exported("gemm", KERNELS["allreduce"], ranks=1), "1 reports of 2 ranks"),
    (judges.nsys_reports, exported("gemm"), "no kernel of NCCL's"),
]


@pytest.mark.parametrize(("judge", "make", "said"), SHOWN, ids=[judge.__name__ for judge, *_ in SHOWN])
def test_what_is_there_is_seen(judge: Callable[[Path], str], make: Made, said: str, tmp_path: Path) -> None:
    assert said in judge(make(tmp_path))


@pytest.mark.parametrize(
    ("judge", "make", "why"), NOT_SHOWN, ids=[f"{judge.__name__}: {why}" for judge, _, why in NOT_SHOWN]
)
def test_what_is_not_there_is_not_seen(judge: Callable[[Path], str], make: Made, why: str, tmp_path: Path) -> None:
    with pytest.raises(NotSeenError, match=re.escape(why)):
        judge(make(tmp_path))


def test_every_judge_has_been_shown_both() -> None:
    used = {path.judge for path in PATHS}
    assert used == {judge for judge, *_ in SHOWN} == {judge for judge, *_ in NOT_SHOWN}


def test_a_missing_module_is_said(tmp_path: Path) -> None:
    path = replace(PATHS[0], module="a_module_that_nobody_has")
    assert Checks(tmp_path).judged(path) == ("skipped", "the Python module a_module_that_nobody_has is not installed")
