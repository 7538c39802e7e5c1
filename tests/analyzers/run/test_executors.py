"""Who reads the files, in how many processes, changes nothing; what can't be read is refused, or left out and said."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import kineto
from helpers.cli import call

from gpuscope.analyzers.run import runner
from gpuscope.analyzers.run.analysis import OnDask, executor_named, in_turn, side_by_side
from gpuscope.analyzers.run.file_part import Options, analyze_file
from gpuscope.analyzers.run.runner import analyze, run
from gpuscope.errors import InputError, UsageError
from gpuscope.report.read_report import dumps
from gpuscope.sources.opening import inputs

RUN = Path(__file__).resolve().parents[3] / "sample_traces" / "ddp_slow_rank"


def test_processes_give_the_same_report() -> None:
    with_two = run(inputs([RUN]), Options(workers=2), executor=side_by_side)
    assert dumps(with_two.report) == dumps(analyze(RUN).report)


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, processes=False, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def test_dask_gives_the_same_report(scheduler: str) -> None:
    on_dask = run(inputs([RUN]), Options(), executor=OnDask(scheduler))
    assert dumps(on_dask.report) == dumps(analyze(RUN).report)


def test_names_of_executors() -> None:
    assert executor_named(None) is None
    assert executor_named("dask=tcp://a:1") == OnDask("tcp://a:1")
    with pytest.raises(UsageError, match="unknown"):
        executor_named("spark")


def test_a_file_that_cannot_be_read_is_left_out_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("rank0.json.gz", "rank1.json.gz"):
        (tmp_path / name).write_bytes((RUN / name).read_bytes())
    (tmp_path / "rank1.json.gz").write_bytes((RUN / "rank1.json.gz").read_bytes()[:5000])
    assert call(capsys, "analyze", str(tmp_path), "--no-store").returncode == 3
    told = run(inputs([tmp_path]), Options(skip_unreadable=True)).report
    assert told["trace"]["ranks_present"] == [0]
    problem = next(problem for problem in told["problems"] if problem["code"] == "file_left_out")
    assert (problem["severity"], "rank1.json.gz" in problem["message"]) == ("data_loss", True)
    assert told["verdict"]["confidence"] < analyze(RUN).report["verdict"]["confidence"]
    (tmp_path / "rank0.json.gz").write_bytes((RUN / "rank0.json.gz").read_bytes()[:5000])
    with pytest.raises(InputError, match="none of 2 files"):
        run(inputs([tmp_path]), Options(skip_unreadable=True))


@pytest.mark.parametrize("spoiled", ["empty", "a link to nothing", "a link to itself"])
def test_so_is_one_that_cannot_even_be_opened(tmp_path: Path, spoiled: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank0.json.gz").write_bytes((RUN / "rank0.json.gz").read_bytes())
    path = tmp_path / "rank1.json.gz"
    if spoiled == "empty":
        path.touch()
    else:
        path.symlink_to("elsewhere" if spoiled == "a link to nothing" else path.name)
    refused = call(capsys, "analyze", str(tmp_path), "--no-store")
    assert (refused.returncode, str(path) in refused.stderr, "Hint: " in refused.stderr) == (3, True, True)
    told = call(capsys, "analyze", str(tmp_path), "--no-store", "--skip-unreadable", "--json")
    assert [one["code"] for one in json.loads(told.stdout)["problems"]].count("file_left_out") == 1


class Deadly:
    """A source whose reader kills its process, as one that runs out of memory is killed."""

    name, files = "kineto", None

    def read(self, *_: object) -> None:
        os._exit(9)


def test_a_process_that_dies_costs_its_file_alone() -> None:
    items = inputs([RUN])
    items = [item if item.rank == 0 else replace(item, source=Deadly()) for item in items]  # type: ignore[arg-type]
    told = run(items, Options(workers=2), executor=side_by_side).report
    assert told["trace"]["ranks_present"] == [0]
    assert any("the process that read it died" in problem["message"] for problem in told["problems"])


def test_a_url_is_fetched_where_it_is_read() -> None:
    pytest.importorskip("fsspec")
    items = inputs([f"file://{RUN}"])
    assert [item.rank for item in items] == [0, 1]
    report = run(items, Options(), executor=in_turn).report
    here = analyze(RUN).report
    assert report["verdict"] == here["verdict"]
    assert report["steps"] == here["steps"]
    assert report["trace"]["sources"][0]["path"].endswith("ddp_slow_rank/rank0.json.gz")


@pytest.mark.parametrize("url", ["file:///nowhere/rank0.json", "s4://bucket/run", f"file://{RUN}/*.none"])
def test_a_url_that_leads_nowhere(url: str) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(InputError, match=r"no such file|can't be read|no traces"):
        inputs([url])


def test_processes_change_nothing(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = inputs([samples / "ddp_slow_rank"])
    alone = run(items, Options()).report
    monkeypatch.setattr(runner, "PARALLEL_FROM", 0)
    assert run(items, Options(workers=2)).report == alone


def test_only_the_steps_asked_for(samples: Path) -> None:
    items = inputs([samples / "ddp_slow_rank"])
    whole, one = (run(items, Options(steps=steps)).report for steps in (None, (5, 5)))
    assert [step["step"] for step in one["steps"]] == [5, 5]
    (same,) = [step for step in whole["steps"] if (step["rank"], step["step"]) == (0, 5)]
    assert one["ranks"][0]["breakdown_ns"] == same["breakdown_ns"]
    assert one["ranks"][0]["window_ns"] == same["dur_ns"]


def test_what_stays_of_a_file_does_not_grow_with_its_events(samples: Path) -> None:
    (item, _) = inputs([samples / "ddp_slow_rank"])
    part = analyze_file(item, Options())
    kept = sum(len(part.trace[name]) for name in ("device_events", "host_events"))
    assert kept <= 2 * len(part.trace["collectives"])


def job_of_three(folder: Path, where: str) -> list[Path]:
    """Three ranks that record no world size."""
    return [
        kineto.write(
            folder / where.format(rank=rank),
            *(
                event
                for i in range(4)
                for event in (
                    kineto.op(100 * i, 20),
                    kineto.call(100 * i, 5, i + 1),
                    kineto.kernel(100 * i + 9, 80, i + 1),
                )
            ),
            rank=None,
        )
        for rank in range(3)
    ]


SPOILED = {
    "empty": b"",
    "cut": b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "na',
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n",
    "page": b"<!DOCTYPE html><html>Sign in</html>",
    "gzip": b"\x1f\x8b\x08damaged",
}


@pytest.mark.parametrize("content", SPOILED.values(), ids=SPOILED)
@pytest.mark.parametrize("where", ["rank{rank}.json", "rank_{rank}/trace.json", "profile_{rank}.json"])
def test_the_way_out_is_named_and_the_world_stays(
    tmp_path: Path, where: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of three ranks can be read: the error names the option, and with it the job still has three."""
    paths = job_of_three(tmp_path, where)
    for path in paths[1:]:
        path.write_bytes(content)
    refused = call(capsys, "analyze", str(tmp_path), "--no-store")
    assert refused.returncode == 3
    assert "--skip-unreadable" in refused.stderr
    told = call(capsys, "analyze", str(tmp_path), "--no-store", "--skip-unreadable")
    assert told.returncode == 0
    assert "1 of 3 ranks" in " ".join(told.stdout.split())


def test_one_bad_file_alone_has_no_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(SPOILED["cut"])
    refused = call(capsys, "analyze", str(path), "--no-store")
    assert (refused.returncode, "--skip-unreadable" in refused.stderr) == (3, False)


def test_a_recorded_world_stands(tmp_path: Path) -> None:
    for rank in range(2):
        kineto.write(
            tmp_path / f"rank{rank}.json",
            kineto.op(0, 20),
            kineto.call(1, 5, 1),
            kineto.kernel(9, 80, 1),
            rank=rank,
            world_size=8,
        )
    (tmp_path / "rank2.json").touch()
    told = run(inputs([tmp_path], skip_unreadable=True), Options(skip_unreadable=True)).report
    assert (told["trace"]["ranks_present"], told["trace"]["world_size"]) == ([0, 1], 8)
