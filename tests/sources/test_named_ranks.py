"""Ranks by the names of files: labelled, by an engine's parallel ranks, or by the one number in which they differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.kineto import kernel, write

import gpuscope
from gpuscope.errors import UsageError
from gpuscope.sources.opening import inputs
from gpuscope.sources.source import rank_in_name
from gpuscope.sources.windows import by_names


def ranks(folder: Path, *names: str) -> list[int]:
    """The ranks that traces of these names in a folder are read as; their durations tell which is which."""
    for place, name in enumerate(names):
        write(folder / name, kernel(0, 10 + place), rank=None)
    trace = gpuscope.open_trace(folder)
    device = trace["device_events"]
    by_length = dict(zip((device["end"] - device["start"]).tolist(), device["rank"].tolist(), strict=True))
    return [by_length[1000 * (10 + place)] for place in range(len(names))]


def test_an_engines_names_give_tensor_within_data_within_pipeline_parallel_ranks(tmp_path: Path) -> None:
    names = [f"1722-TP-{tp}-DP-{dp}.trace.json.gz" for dp in (0, 1) for tp in (0, 1)]
    assert ranks(tmp_path / "a", *names) == [0, 1, 2, 3]
    assert ranks(tmp_path / "b", "x-TP-1-DP-0.trace.json", "x-TP-0-DP-0.trace.json") == [1, 0]
    files = [Path(f"x-TP-{tp}-PP-{pp}.trace.json.gz") for pp in (0, 1) for tp in (0, 1)]
    assert list(by_names(files).values()) == [0, 1, 2, 3]


def test_the_one_number_that_differs_is_the_rank_where_all_are_there(tmp_path: Path) -> None:
    assert ranks(tmp_path / "a", "gpu1/trace.json", "gpu0/trace.json") == [1, 0]
    assert ranks(tmp_path / "b", "0.json", "1.json", "2.json") == [0, 1, 2]
    assert ranks(tmp_path / "c", "h100_run2_0.json", "h100_run2_1.json") == [0, 1]


def test_a_single_files_number_tells_nothing(tmp_path: Path) -> None:
    assert ranks(tmp_path, "gpu3/trace.json") == [0]


@pytest.mark.parametrize("names", [("gpu2/t.json", "gpu3/t.json"), ("0_1.json", "1_0.json"), ("a0.json", "b1.json")])
def test_numbers_that_leave_it_open_are_no_ranks(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        write(tmp_path / name, kernel(0, 10), rank=None)
    with pytest.raises(UsageError, match="both hold rank 0"):
        gpuscope.open_trace(tmp_path)


def test_what_a_file_records_goes_first(tmp_path: Path) -> None:
    for place, name in enumerate(("0.json", "1.json")):
        write(tmp_path / name, kernel(0, 10), rank=7 - place, world_size=8)
    assert gpuscope.open_trace(tmp_path).ranks == [6, 7]


def test_some_of_the_ranks_can_be_asked_for(tmp_path: Path) -> None:
    for name in ("0.json", "1.json"):
        write(tmp_path / name, kernel(0, 10), rank=None)
    assert [item.path.name for item in inputs([tmp_path], {1})] == ["1.json"]
    assert gpuscope.open_trace(tmp_path, ranks={1}).ranks == [1]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("trace_rank12.json", 12),
        ("fr_dump_7", 7),
        ("worker3.pt.trace.json", 3),
        ("gpu3/trace.json", None),
        ("procid2.json", 2),
        ("3.json", None),
    ],
)
def test_labelled_numbers_are_ranks_though_others_are_missing(name: str, rank: int | None) -> None:
    assert rank_in_name(Path(name)) == rank
