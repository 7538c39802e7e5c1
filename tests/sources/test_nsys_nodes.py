"""Ranks over several nsys files of one run: one report per node, one per rank, and what is neither."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.nsys import Export

import gpuscope
from gpuscope.errors import UsageError
from gpuscope.trace.trace import Trace

DAY = 86_400 * 10**9


def node(host: str | None, *pids: int, devices: int = 1, epoch_ns: int | None = None, late: int = 0) -> Export:
    """A report of a node whose processes each ran one kernel on each of `devices`."""
    export = Export()
    if host is not None:
        export.host(host, epoch_ns=epoch_ns)
    for pid in pids:
        for device in range(devices):
            export.call(late + 10 * device, late + 10 * device + 1, device + 1, pid=pid)
            export.kernel(late + 100, late + 200, device + 1, pid=pid, device=device)
    return export


def seats(trace: Trace) -> list[tuple[int, str, int, int]]:
    """(rank, host, process, device)."""
    frame = trace.tables["ranks"]
    return list(zip(frame["rank"], frame["host"], frame["pid"], frame["device"], strict=True))


def test_one_report_per_node_is_numbered_by_host_name(tmp_path: Path) -> None:
    """The names of the files say the opposite order, and node10 comes after node9."""
    node("node10", 31, 30).write(tmp_path, name="a")
    node("node9", 41, 40).write(tmp_path, name="b")
    assert seats(gpuscope.open_trace(tmp_path)) == [
        (0, "node9", 40, 0),
        (1, "node9", 41, 0),
        (2, "node10", 30, 0),
        (3, "node10", 31, 0),
    ]


def test_devices_of_one_process_are_ranks_of_their_node(tmp_path: Path) -> None:
    for host in ("n0", "n1"):
        node(host, 7, devices=2).write(tmp_path, name=host)
    assert seats(gpuscope.open_trace(tmp_path)) == [(0, "n0", 7, 0), (1, "n0", 7, 1), (2, "n1", 7, 0), (3, "n1", 7, 1)]


def test_a_process_whose_kernels_were_lost_keeps_its_number(tmp_path: Path) -> None:
    lost = node("n0", 10)
    lost.call(5, 6, 9, pid=11)
    lost.write(tmp_path, name="x")
    node("n1", 10).write(tmp_path, name="y")
    assert seats(gpuscope.open_trace(tmp_path))[-1] == (2, "n1", 10, 0)


def test_analysing_numbers_the_nodes_as_opening_does(tmp_path: Path) -> None:
    for host in ("n0", "n1"):
        node(host, 10, 11).write(tmp_path, name=host)
    report = gpuscope.analyze(tmp_path).report
    assert report["trace"]["ranks_present"] == [0, 1, 2, 3]
    assert [source["ranks"] for source in report["trace"]["sources"]] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("variables", "rank", "size"),
    [
        ({"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1}, 5, 8),
        ({"OMPI_COMM_WORLD_RANK": 5, "OMPI_COMM_WORLD_SIZE": 8}, 5, 8),
        ({"PMI_RANK": 5, "PMI_SIZE": 8}, 5, 8),
        ({"SLURM_PROCID": 5, "SLURM_STEP_NUM_TASKS": 8, "SLURM_NTASKS": 99}, 5, 8),
        ({"SLURM_PROCID": 5}, 5, None),
    ],
)
def test_one_report_per_rank_by_its_environment(
    tmp_path: Path, variables: dict[str, int], rank: int, size: int | None
) -> None:
    export = node("n0", 10)
    export.environment(**variables)
    trace = gpuscope.open_trace(export.write(tmp_path))
    ranks = trace.tables["ranks"]
    assert trace.ranks == [rank]
    assert ranks["world_size"].isna().tolist() == [size is None]
    if size is not None:
        assert (ranks["world_size"].tolist(), ranks["world_basis"].tolist()) == ([size], ["environment"])


@pytest.mark.parametrize("name", ["rep_rank{}", "RANK={}", "train.rank-{}.gpu0", "procid{}", "worker_{}"])
def test_one_report_per_rank_by_its_name(tmp_path: Path, name: str) -> None:
    for rank in (2, 10):
        node(f"n{rank}", 5).write(tmp_path, name=name.format(rank))
    assert gpuscope.open_trace(tmp_path).ranks == [2, 10]


def test_names_without_a_rank_are_numbered_by_host_and_then_in_order(tmp_path: Path) -> None:
    """`nsys profile -o report_%h_%p`: the numbers are process ids, of which 900 comes before 1001."""
    for host, pid in (("n1", 52), ("n0", 1001), ("n0", 900)):
        node(host, pid).write(tmp_path, name=f"report_{host}_{pid}")
    assert [seat[:3] for seat in seats(gpuscope.open_trace(tmp_path))] == [
        (0, "n0", 900),
        (1, "n0", 1001),
        (2, "n1", 52),
    ]


def test_numbers_that_repeat_on_other_hosts_are_local_ranks(tmp_path: Path) -> None:
    for host, local in (("n1", 1), ("n1", 0), ("n0", 1), ("n0", 0)):
        node(host, 100 + local).write(tmp_path / host, name=f"local_rank{local}")
    trace = gpuscope.open_trace(tmp_path)
    assert [seat[:3] for seat in seats(trace)] == [(0, "n0", 100), (1, "n0", 101), (2, "n1", 100), (3, "n1", 101)]


def test_the_same_processes_twice_name_both_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        node("n0", 10, 11).write(tmp_path, name=name)
    with pytest.raises(UsageError, match=r"a\.sqlite and .*b\.sqlite both hold process 10 of n0"):
        gpuscope.open_trace(tmp_path)


def test_containers_of_one_name_are_told_apart_by_their_devices(tmp_path: Path) -> None:
    """Same host name, same process ids, other GPUs; with the same GPU it would be the same process."""
    for name, gpu in (("a", "GPU-1"), ("b", "GPU-2")):
        export = node("box", 10)
        export.tables.pop("TARGET_INFO_SYSTEM_ENV")
        export.host("box", [gpu])
        export.uses(10, 0, 0)
        export.write(tmp_path / "apart", name=name)
        export.write(tmp_path / "same", name=f"{name}{gpu}")
    assert gpuscope.open_trace(tmp_path / "apart").tables["ranks"]["device_id"].tolist() == ["GPU-1", "GPU-2"]
    first = next(iter(sorted((tmp_path / "same").iterdir())))
    (tmp_path / "same" / "copy.sqlite").write_bytes(first.read_bytes())
    with pytest.raises(UsageError, match="both hold process 10"):
        gpuscope.open_trace(tmp_path / "same")


def test_a_copy_without_host_or_device_is_known_by_its_work(tmp_path: Path) -> None:
    node(None, 10).write(tmp_path, name="a")
    node(None, 10).write(tmp_path, name="b")
    with pytest.raises(UsageError, match="both hold process 10 and the same work"):
        gpuscope.open_trace(tmp_path)


def test_one_run_after_the_other_is_no_run_of_both(tmp_path: Path) -> None:
    node("n0", 10, epoch_ns=DAY).write(tmp_path, name="before")
    node("n0", 20, epoch_ns=DAY + 3_600 * 10**9).write(tmp_path, name="after")
    with pytest.raises(UsageError, match=re.escape("recorded on n0 one after the other")):
        gpuscope.open_trace(tmp_path)


def test_a_world_size_that_counts_nodes_is_not_that_of_the_ranks(tmp_path: Path) -> None:
    """Some launchers of torchrun set WORLD_SIZE to the number of nodes for the launcher itself."""
    export = node("n0", 10, 11)
    export.environment(RANK=0, WORLD_SIZE=1)
    trace = gpuscope.open_trace(export.write(tmp_path))
    assert trace.ranks == [0, 1]
    assert trace.tables["ranks"]["world_size"].isna().all()
