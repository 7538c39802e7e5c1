"""Bad input: an error that says what and how to mend it, or counted problems; never a traceback."""

from __future__ import annotations

import gzip
import json
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.analysed import problems
from helpers.kineto import call, kernel, write

import gpuscope
from gpuscope.errors import InputError, UsageError
from gpuscope.report.view.first_lines import first_lines
from gpuscope.sources import stream


def text_of(path: Path, *names: str) -> bytes:
    return write(path, *(kernel(i * 10, 5, name=name) for i, name in enumerate(names))).read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.json", b"", "is empty"),
        ("blank.json", b"  \n ", "unrecognised trace format"),
        ("picture.json", b"\x89PNG\r\n\x1a\n" + bytes(100), "unrecognised trace format"),
        ("other.json", b'{"a": 1, "b": [1, 2, 3]}', "unrecognised trace format"),
        ("config.json", b'{"schemaVersion": 1, "hidden_size": 4096}', "no traceEvents"),
        ("none.json", b'{"schemaVersion": 1, "traceEvents": []}', "contains no events"),
        ("cut.json", b'{"schemaVersion": 1, "traceEvents": [', "contains no events|ends early"),
        ("notgz.json.gz", b"\x1f\x8b\x08garbage", "damaged|unrecognised|cut off|ends early"),
        ("report.json", b'{\n  "schema_version": 3,\n  "gpuscope_version": "0.1.0"\n}', "is a report of gpuscope"),
        ("html.json", b"<html><body>404 Not Found</body></html>", "is an HTML page"),
    ],
)
def test_unusable_files(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        gpuscope.open_trace(path)
    assert name in str(caught.value)


def test_missing_file_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        gpuscope.open_trace(tmp_path / "rank0.json")
    with pytest.raises(InputError, match="no trace in this folder"):
        gpuscope.open_trace(tmp_path)
    with pytest.raises(InputError, match="matches no file"):
        gpuscope.open_trace(tmp_path / "*.json")


@pytest.mark.parametrize("zipped", [False, True])
def test_cut_off_is_refused_unless_partial(tmp_path: Path, zipped: bool) -> None:
    """Cut in the middle of the fourth of five kernels."""
    content = text_of(tmp_path / "whole.json", *"abcde")
    cut = content[: content.index(b'"name": "d"') + 8]
    path = tmp_path / ("rank0.json.gz" if zipped else "rank0.json")
    path.write_bytes(gzip.compress(content)[:-20] if zipped else cut)
    with pytest.raises(InputError, match=r"ends early|cut off|damaged") as caught:
        gpuscope.open_trace(path)
    assert "--partial" in str(caught.value)
    trace = gpuscope.open_trace(path, partial=True)
    assert problems(trace)["truncated"] == 1
    if not zipped:
        assert len(trace["device_events"]) == 3
        assert problems(trace) == {"truncated": 1}


@pytest.mark.parametrize(
    ("names", "spoil", "read", "told"),
    [
        ("abcde", lambda text: text.replace(b'"c"', b'"c"" '), ["a", "b", "d", "e"], {"undecodable_event": 1}),
        (["ab"], lambda text: text.replace(b'"ab"', b'"a\xffb"'), ["a\ufffdb"], {"invalid_utf8": 1}),
        (["ab"], lambda text: text.decode().encode("utf-16"), ["ab"], {}),
        # Old profilers write bare nan; the event is kept.
        ("ab", lambda text: text.replace(b'"stream": 7', b'"occupancy": -nan, "stream": 7', 1), ["a", "b"], {}),
    ],
    ids=["one broken event loses no other", "invalid UTF-8", "UTF-16 with BOM", "nan"],
)
def test_what_can_be_read_is(
    tmp_path: Path, names: Sequence[str], spoil: Callable[[bytes], bytes], read: list[str], told: dict[str, int]
) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(spoil(text_of(tmp_path / "whole.json", *names)))
    trace = gpuscope.open_trace(path)
    assert trace.tables["device_events"]["name"].tolist() == read
    assert set(trace["device_events"]["stream"].tolist()) == {7}
    assert problems(trace) == told


def test_impossible_times_do_not_make_an_idle_gpu(tmp_path: Path) -> None:
    """An event at time zero beside events of 2023, one that ends before it starts, one that is no number."""
    epoch = 1_700_000_000_000_000
    path = write(
        tmp_path / "rank0.json",
        kernel(0, 5),
        kernel(epoch, 10),
        kernel(epoch + 10, -3),
        kernel("soon", 1),
        kernel(epoch + 20, 10),
    )
    trace = gpuscope.open_trace(path)
    assert trace.breakdown(trace.lanes()[0].rows).window == 30_000
    assert problems(trace) == {"impossible_time": 1, "negative_duration": 1, "bad_time": 1}


def test_gzip_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BOMB_FLOOR", 1 << 20)
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(b'{"schemaVersion": 1, "traceEvents": [' + b" " * (32 << 20)))
    with pytest.raises(InputError, match="gunzips to more than"):
        gpuscope.open_trace(path)


def test_duplicate_ranks_and_mixed_jobs_name_the_files(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", kernel(0, 1), rank=1, world_size=4)
    b = write(tmp_path / "b.json", kernel(0, 1), rank=1, world_size=4)
    c = write(tmp_path / "c.json", kernel(0, 1), rank=2, world_size=8)
    with pytest.raises(UsageError, match=r"a\.json and .*b\.json both hold rank 1"):
        gpuscope.open_trace(a, b)
    with pytest.raises(UsageError, match=r"a\.json is of a job with 4 ranks, .*c\.json of one with 8"):
        gpuscope.open_trace(a, c)


def test_duplicate_correlation_ids_are_counted(tmp_path: Path) -> None:
    """Two launches with one id: the last before the kernel is taken."""
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "dur": 1}
    events = [{**launch, "ts": at, "args": {"correlation": 5}} for at in (0, 20, 60)]
    path = write(tmp_path / "r.json", *events, kernel(10, 5, 5), kernel(30, 5, 5))
    trace = gpuscope.open_trace(path)
    assert trace["host_events"]["start"][trace["device_events"]["launch"]].tolist() == [0, 20_000]
    assert problems(trace)["duplicate_correlation"] == 2


def test_any_prefix_of_a_trace_is_an_error_or_a_trace(tmp_path: Path) -> None:
    """Cut anywhere: `InputError`, or with --partial what is there; never anything else."""
    content = text_of(tmp_path / "whole.json", "a", "b")
    path = tmp_path / "rank0.json"
    opened = 0
    for end in range(0, len(content) - 1, 7):
        path.write_bytes(content[:end])
        with pytest.raises(InputError):
            gpuscope.open_trace(path)
        with suppress(InputError):
            opened += len(gpuscope.open_trace(path, partial=True)["device_events"])
    assert opened > 0


def test_events_across_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks far smaller than the file, and names that look like boundaries between events."""
    monkeypatch.setattr(stream, "BLOCK", 256)
    names = [f'k{i}}},{{"ph": ]' for i in range(200)]
    events = [kernel(i * 10, 5, name=name) for i, name in enumerate(names)]
    path = write(tmp_path / "rank0.json", *events, traceName="tail")
    trace = gpuscope.open_trace(path)
    assert trace.tables["device_events"]["name"].tolist() == names
    assert problems(trace) == {}
    assert json.loads(path.read_text())["traceName"] == "tail"


def test_a_cut_takes_no_launch_for_idle_time(tmp_path: Path) -> None:
    """The first half holds all the launches and a fifth of the kernels: idle or lost, nobody can tell."""
    launches = [call(i * 100, 2, i) for i in range(50)]
    kernels = [kernel(i * 100 + 10, 60, i) for i in range(50)]
    content = write(tmp_path / "whole.json", *launches, *kernels, kernel(20_000, 1)).read_bytes()
    path = tmp_path / "rank0.json"
    path.write_bytes(content[: content.index(b'"ts": 1010')])
    verdict = gpuscope.analyze(path, partial=True).report["verdict"]
    assert verdict["abstained"]
    assert "40 of 50 kernel launches have no kernel" in verdict["why"]


def test_a_span_without_duration_is_not_zero_long(tmp_path: Path) -> None:
    events = [kernel(0, 10), kernel(20, 10), kernel(40, 10)]
    del events[1]["dur"]
    trace = gpuscope.open_trace(write(tmp_path / "rank0.json", *events))
    assert len(trace["device_events"]) == 2
    assert problems(trace) == {"bad_time": 1}


def test_nesting_without_end(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(text_of(tmp_path / "whole.json", "a", "b").replace(b'"stream": 7', b'"x": ' + b"[" * 100_000, 1))
    assert problems(gpuscope.open_trace(path, partial=True))["undecodable_event"] >= 1


def test_a_zero_length_kernel_alone(tmp_path: Path) -> None:
    report = gpuscope.analyze(write(tmp_path / "rank0.json", kernel(5, 0))).report
    assert report["verdict"]["abstained"]
    assert not [entry for entry in report["analyzers"] if entry["status"] == "failed"]


def test_an_empty_rank_in_a_folder_is_told(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", kernel(0, 5))
    (tmp_path / "rank1.json").touch()
    with pytest.raises(InputError, match=r"rank1\.json: is empty"):
        gpuscope.open_trace(tmp_path)
    (tmp_path / "rank1.json").write_text('{"lr": 0.1}')  # somebody else's JSON
    assert gpuscope.open_trace(tmp_path).ranks == [0]


def test_pipes_and_devices_are_no_traces(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.json")
    with pytest.raises(InputError, match="not a regular file"):
        gpuscope.open_trace(tmp_path / "rank0.json")


def test_two_runs_are_offered_a_comparison_by_name(tmp_path: Path) -> None:
    """Files side by side by their own paths, folders of ranks by the folders."""
    for name in ("old one.json", "new.json", "runs/a/rank0.json", "runs/b/rank0.json"):
        write(tmp_path / name, kernel(0, 1))
    with pytest.raises(UsageError) as raised:
        gpuscope.open_trace(tmp_path / "old one.json", tmp_path / "new.json")
    offered = shlex.split((raised.value.hint or "").partition("gpuscope diff ")[2])
    assert set(offered) == {str(tmp_path / "old one.json"), str(tmp_path / "new.json")}
    with pytest.raises(UsageError) as raised:
        gpuscope.open_trace(tmp_path / "runs")
    offered = shlex.split((raised.value.hint or "").partition("gpuscope diff ")[2])
    assert offered == [str(tmp_path / "runs" / "a"), str(tmp_path / "runs" / "b")]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("part", [10, 50, 90])
def test_a_cut_file_without_device_events_is_not_told_to_have_recorded_none(
    tmp_path: Path, zipped: bool, part: int
) -> None:
    """The host's events stand first in a file: what of the device there was may be beyond the cut."""
    calls = [call(at * 10, 2, at) for at in range(1, 3000)]
    whole = write(tmp_path / "whole.json", *calls, kernel(0, 80, 1)).read_bytes()
    content = gzip.compress(whole) if zipped else whole
    path = tmp_path / f"cut.json{'.gz' if zipped else ''}"
    path.write_bytes(content[: len(content) * part // 100])
    with pytest.raises(InputError):
        gpuscope.analyze(path)
    report = gpuscope.analyze(path, partial=True).report
    assert report["verdict"]["abstained"]
    assert any(problem["code"] == "truncated" for problem in report["problems"])
    for said in (report["verdict"]["why"], first_lines(report).one_line()):
        assert "cut off" in said
        assert "ProfilerActivity" not in said
    whole_report = gpuscope.analyze(write(tmp_path / "host.json", *calls)).report
    assert "cut off" not in whole_report["verdict"]["why"]
