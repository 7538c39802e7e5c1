"""Late ranks and slow links in records of NCCL's Inspector, written as its plugin writes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gpuscope


def write(folder: Path, groups: dict[str, list[int]], *, late: tuple[int, int] | None, slow_link: int | None) -> Path:
    """60 all-reduces of 1 ms per communicator; rank `late[0]` comes 0.6 ms late from operation `late[1]` on."""
    chance = np.random.default_rng(1)
    folder.mkdir()
    for name, ranks in groups.items():
        lines: dict[int, list[str]] = {rank: [] for rank in ranks}
        for seq in range(60):
            arrived = {rank: chance.exponential(20.0) for rank in ranks}
            if late is not None and late[0] in arrived and seq >= late[1]:
                arrived[late[0]] += 600
            end = max(arrived.values()) + (2_000 if slow_link in ranks else 1_000) + chance.exponential(20.0)
            for rank in ranks:
                record = {
                    "header": {"id": name, "rank": rank, "n_ranks": len(ranks), "nnodes": 1},
                    "metadata": {"inspector_output_format_version": "v4.0", "hostname": "node"},
                    "coll_perf": {
                        "coll": "AllReduce",
                        "coll_sn": seq,
                        "coll_msg_size_bytes": 1 << 20,
                        "coll_exec_time_us": end - arrived[rank],
                        "coll_timing_source": "kernel_gpu",
                        "coll_algobw_gbs": 1.0,
                        "coll_busbw_gbs": 1.0,
                    },
                }
                lines[rank].append(json.dumps(record))
        for rank, own in lines.items():
            (folder / f"{name}-rank{rank}.log").write_text("\n".join(own) + "\n")
    return folder


def told(folder: Path) -> list[tuple[str, list[int], int | None]]:
    findings = gpuscope.analyze(folder).report["findings"]
    wanted = [one for one in findings if one["code"] in ("late_in_records", "slow_link")]
    return [(one["code"], one["ranks"], one["facts"]["since"]) for one in wanted]  # type: ignore[misc]


def test_a_rank_that_comes_late_from_some_operation_on(tmp_path: Path) -> None:
    ((code, ranks, since),) = told(write(tmp_path / "run", {"a": [0, 1, 2, 3]}, late=(2, 30), slow_link=None))
    assert (code, ranks) == ("late_in_records", [2])
    assert since == pytest.approx(30, abs=3)


def test_the_rank_whose_link_all_slow_communicators_share(tmp_path: Path) -> None:
    groups = {"a": [0, 1], "b": [2, 3], "c": [0, 2], "d": [1, 3], "e": [4, 5], "f": [6, 7], "g": [4, 6]}
    assert told(write(tmp_path / "run", groups, late=None, slow_link=3)) == [("slow_link", [3], None)]


def test_nobody_is_accused_where_nothing_is_wrong(tmp_path: Path) -> None:
    groups = {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7], "c": [0, 4]}
    assert told(write(tmp_path / "run", groups, late=None, slow_link=None)) == []
