"""NCCL's Inspector: a header in every record (up to v4.2), or one per dump (from v4.3 on)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gpuscope
from gpuscope.errors import InputError


def head(comm: str = "0x1", rank: int = 0, version: str = "v4.3") -> dict[str, Any]:
    return {
        "header": {"id": comm, "comm_name": "DP", "rank": rank, "n_ranks": 4, "nnodes": 1},
        "metadata": {"inspector_output_format_version": version, "hostname": "node1", "pid": 7},
    }


def stats(colls: int, p2ps: int = 0, dropped: int = 0) -> dict[str, Any]:
    return {"dump_stats": {"coll_records": colls, "coll_dropped_total": dropped, "p2p_records": p2ps}}


def coll(number: int, time_us: int = 100) -> dict[str, Any]:
    told = {
        "coll": "AllReduce",
        "coll_algo": "RING",
        "coll_proto": "LL",
        "coll_sn": number,
        "coll_msg_size_bytes": 1_000_000,
        "coll_exec_time_us": time_us,
        "coll_busbw_gbs": 1.5,
    }
    return {"coll_perf": told}


def p2p(number: int) -> dict[str, Any]:
    told = {
        "p2p": "Send",
        "p2p_sn": number,
        "p2p_peer": 1,
        "p2p_msg_size_bytes": 4096,
        "p2p_exec_time_us": 9,
        "p2p_busbw_gbs": 0.4,
    }
    return {"p2p_perf": told}


def write(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "node1-pid7.log"
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return path


def read(path: Path) -> tuple[list[tuple[Any, ...]], list[tuple[str, int]]]:
    """(operation, communicator, rank, sequence number, ranks) of what was measured, and the problems."""
    trace = gpuscope.open_trace(path)
    found = [(r["op"], r["communicator"], r["rank"], r["seq"], r["group_size"]) for r in trace.rows("measurements")]
    return found, [(p.code, p.count) for p in trace.problems if p.severity == "data_loss"]


def test_one_header_per_dump_holds_for_the_records_that_follow(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        head() | stats(2, 1),
        coll(1),
        coll(2),
        p2p(1),
        {"proxy_trace": {"ops": []}},
        head("0x2", rank=3) | stats(1),
        coll(1),
    )
    assert read(path) == (
        [
            ("all_reduce", "0x1", 0, 1, 4),
            ("all_reduce", "0x1", 0, 2, 4),
            ("send", "0x1", 0, 1, 2),
            ("all_reduce", "0x2", 3, 1, 4),
        ],
        [],
    )


def test_one_header_for_the_whole_file(tmp_path: Path) -> None:
    assert read(write(tmp_path, head(), coll(1), coll(2)))[0] == [
        ("all_reduce", "0x1", 0, 1, 4),
        ("all_reduce", "0x1", 0, 2, 4),
    ]


@pytest.mark.parametrize("version", ["v4.0", "v4.1", "v4.2"])
def test_records_with_headers_of_their_own(tmp_path: Path, version: str) -> None:
    """The marker of v4.1 and v4.2 speaks for its own line alone."""
    marker = [] if version == "v4.0" else [head(version=version) | stats(1)]
    path = write(tmp_path, *marker, head("0x1", 2, version) | coll(1), head("0x9", 1, version) | p2p(5))
    assert read(path) == ([("all_reduce", "0x1", 2, 1, 4), ("send", "0x9", 1, 5, 2)], [])


def test_both_forms_give_the_same_bandwidth(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    old = write(tmp_path / "a", head(version="v4.0") | coll(1), head(version="v4.0") | coll(2, 300))
    new = write(tmp_path / "b", head() | stats(2), coll(1), coll(2, 300))
    first, second = (gpuscope.analyze(path).report["bandwidth"] for path in (old, new))
    assert first == second
    assert first[0]["dur_ns"] == 200_000


def test_records_beyond_a_dump_belong_to_no_communicator(tmp_path: Path) -> None:
    """As where the header of the next dump is damaged: its records are counted, not given to the last one."""
    found, lost = read(write(tmp_path, head() | stats(1), coll(1), coll(2)))
    assert found == [("all_reduce", "0x1", 0, 1, 4)]
    assert lost == [("record_unreadable", 1)]


def test_what_the_plugin_or_the_disk_lost_is_counted(tmp_path: Path) -> None:
    """The rings' losses are totals: 3, then 5 for one communicator. One announced record is not there."""
    path = write(tmp_path, head() | stats(1, dropped=3), coll(1), head() | stats(2, dropped=5), coll(9))
    assert read(path)[1] == [("inspector_overwritten", 5), ("inspector_dump_incomplete", 1)]


def test_a_damaged_line_is_counted_once(tmp_path: Path) -> None:
    path = write(tmp_path, head() | stats(2), coll(1), coll(2))
    path.write_text(path.read_text()[:-30])
    found, lost = read(path)
    assert len(found) == 1
    assert lost == [("record_unreadable", 1)]


def test_only_headers_are_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no readable Inspector record"):
        gpuscope.open_trace(write(tmp_path, head() | stats(0)))
