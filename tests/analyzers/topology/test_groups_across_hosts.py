"""Tensor-parallel groups across hosts that could be inside one (µs)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import call, kernel, note, write

import gpuscope


def job(folder: Path, hosts: str, tensor_parallel: list[list[int]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Four ranks, rank r on host `hosts[r]`; each computes 10–60 and then reduces over its tensor group 60–100.
    The findings, and the codes of the advice."""
    for rank, host in enumerate(hosts):
        own = next(group for group in tensor_parallel if rank in group)
        name = str(1 + tensor_parallel.index(own))
        told = {
            "Collective name": "allreduce",
            "In msg nelems": 1 << 20,
            "Out msg nelems": 1 << 20,
            "dtype": "Float",
            "Group size": 2,
            "Process Group Name": name,
            "Process Group Ranks": str(own),
            "Seq": 1,
        }
        events = [note(0, 1000, "ProfilerStep#1"), call(1, 2, 1), kernel(10, 50, 1)]
        reduced = kernel(60, 40, None, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 13, **told)
        path = write(folder / f"rank{rank}.json", *events, reduced, rank=rank, world_size=4, host_name=f"node-{host}")
        document = json.loads(path.read_text())
        config = {"pg_name": name, "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 2, "ranks": own}
        document["distributedInfo"]["pg_config"] = [config]
        path.write_text(json.dumps(document))
    report = gpuscope.analyze(folder).report
    findings = [dict(finding) for finding in report["findings"] if finding["code"] == "group_across_hosts"]
    return findings, [one["code"] for one in report["advice"]["unpredicted"]]


def test_a_tensor_group_across_hosts_is_named(tmp_path: Path) -> None:
    """40 of the 1,000 µs of each rank's one annotated step are exposed between the hosts."""
    [finding], advised = job(tmp_path, "abab", [[0, 1], [2, 3]])
    assert "inside_host" in advised
    assert finding["ranks"] == [0, 1, 2, 3]
    assert finding["share_frac"] == pytest.approx(40 / 1000)
    assert finding["message"].startswith("2 tp groups of 2 ranks cross hosts (node-a, node-b)")
    assert finding["evidence"][0]["dur_ns"] == 40_000


@pytest.mark.parametrize("hosts", ["aabb", "abcd"])
def test_nothing_where_groups_are_inside_or_fit_in_no_host(tmp_path: Path, hosts: str) -> None:
    findings, advised = job(tmp_path, hosts, [[0, 1], [2, 3]])
    assert not findings
    assert "inside_host" not in advised
