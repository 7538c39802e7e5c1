"""Advice on the network and on registration: where it speaks, and where it must not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.advice import finding, report
from helpers.kineto import call, kernel, note, write

import gpuscope
from gpuscope.analyzers.advice.rule import Case, Proposal, Rule
from gpuscope.analyzers.advice.rules.communication import network_limit_rules
from gpuscope.analyzers.advice.rules.nccl import nccl_rules, network_rules, registration_rules
from gpuscope.analyzers.frame.changes import Change, Predicted, Refused
from gpuscope.analyzers.nccl.logged.nccl_grammar import wrong
from gpuscope.report.schema.document import Report

MIB = 1 << 20


def asked(code: str, frameworks: tuple[str, ...] = (), **sections: Any) -> Report:
    return report(finding(code), frameworks=frameworks) | sections  # type: ignore[return-value, operator]


def proposals(rule: Rule, case: Report, code: str, predict: Any = lambda _: Refused("a test")) -> dict[str, Proposal]:
    found = {one.code: one for one in rule.propose(Case(case, predict), finding(code))}
    for one in found.values():
        if one.setting["kind"] == "env":
            assert wrong(one.setting["name"], one.setting["value"].split()[0]) == ""
    return found


def nccl(*transports: tuple[str, bool], ports: tuple[tuple[str, str], ...] = (), version: str = "2.29.2",
         **variables: str) -> dict[str, Any]:  # fmt: skip
    return {
        "transports": [{"transport": name, "same_node": same} for name, same in transports],
        "environment": [{"name": name, "value": value} for name, value in variables.items()],
        "communicators": [{"size": 16, "nodes": 2, "channels": 16}], "versions": [version], "gpus": [],
        "ports": [{"name": name, "link_layer": layer, "gpu_direct": True} for name, layer in ports],
    }  # fmt: skip


def row(**changed: Any) -> dict[str, Any]:
    usual = {"tool": "trace", "run": None, "op": "all_reduce", "group": "dp", "dur_ns": 1000, "count": 8,
             "bytes": 4 * MIB, "group_size": 16, "algorithm": "ring", "protocol": "simple", "channels": 16,
             "link": None, "peak_gbps": None, "efficiency_frac": None}  # fmt: skip
    return usual | changed


ROCE = nccl(("NET/IB/0/GDRDMA", False), ports=(("mlx5_0", "RoCE"),))


@pytest.mark.parametrize(
    ("shown", "op", "expected"),
    [
        (ROCE, "all_reduce", {"nccl_queue_pairs"}),
        (ROCE, "all_to_all", {"nccl_queue_pairs", "nccl_chunks"}),
        (nccl(("NET/IB/0", False), ports=(("mlx5_0", "IB"),)), "all_reduce", set()),
        (nccl(("NET/IB/0", False), ports=(("mlx5_0", "RoCE"),), NCCL_IB_QPS_PER_CONNECTION="8"), "all_reduce", set()),
        (nccl(("NET/Socket/0", False)), "all_reduce", {"nccl_sockets"}),
        (nccl(("NET/Socket/0", False), ports=(("mlx5_0", "IB"),)), "all_reduce", set()),  # RDMA is there: use that
        (nccl(("NET/Socket/0", False), NCCL_NSOCKS_PERTHREAD="2"), "all_reduce", set()),
        (nccl(("P2P/CUMEM", True)), "all_to_all", set()),  # one host
    ],
)
def test_the_network_as_the_log_shows_it(shown: dict[str, Any], op: str, expected: set[str]) -> None:
    found = proposals(network_rules.RULE, asked("bandwidth", nccl=shown, bandwidth=[row(op=op)]), "bandwidth")
    assert set(found) == expected
    for one in found.values():
        assert one.verify.startswith("mpirun -np 16")
        assert isinstance(one.outcome, Refused)


NVLINK = {"link": "18 × NVLink 4"}


def overlapping(case: Report, share: float) -> Report:
    case["ranks"][0] |= {"communication_ns": 100, "overlapped_communication_ns": round(100 * share)}  # type: ignore[typeddict-item]
    return case


@pytest.mark.parametrize(
    ("frameworks", "rows", "shown", "share", "expected"),
    [
        (("fsdp2",), row(op="all_gather", **NVLINK), nccl(), 0.8, {"nccl_symmetric", "nccl_zero_cta"}),
        (("fsdp2",), row(op="all_gather", **NVLINK), nccl(), 0.0, {"nccl_symmetric"}),  # nothing beside it to free
        (("fsdp2",), row(op="all_gather", bytes=512 * MIB, **NVLINK), nccl(), 0.0, set()),  # too large to gain
        (("fsdp2",), row(op="all_gather", **NVLINK), nccl(version="2.26.5"), 0.8,
         {"nccl_user_buffers"}),  # too old for windows
        (("fsdp2",), row(op="all_gather", link="2 network ports"), nccl(), 0.8, set()),
        (("ddp",), row(**NVLINK), nccl(), 0.8, {"nccl_cta_policy"}),
        (("ddp",), row(**NVLINK), nccl(NCCL_CTA_POLICY="1"), 0.8, set()),  # set already
        (("megatron",), row(**NVLINK), nccl(), 0.0, {"nccl_symmetric"}),
    ],
)  # fmt: skip
def test_registration_within_nvlink(
    frameworks: tuple[str, ...], rows: dict[str, Any], shown: dict[str, Any], share: float, expected: set[str]
) -> None:
    case = overlapping(asked("bandwidth", frameworks, nccl=shown, bandwidth=[rows], kernels=[]), share)
    assert set(proposals(registration_rules.RULE, case, "bandwidth")) == expected


def test_the_policy_is_spelled_as_the_version_reads_it() -> None:
    for version, value in (("2.28.3", "1"), ("2.29.2", "EFFICIENCY")):
        case = asked("bandwidth", nccl=nccl(version=version), bandwidth=[row(**NVLINK)], kernels=[])
        found = proposals(registration_rules.RULE, overlapping(case, 0.8), "bandwidth")
        assert found["nccl_cta_policy"].setting["value"] == value


def test_nothing_where_symmetric_kernels_run_already() -> None:
    kernels = [{"name": "ncclSymkDevKernel_AllGather_STMC(ncclSymkDevWorkArgs)"}]
    case = asked("bandwidth", ("fsdp2",), nccl=nccl(), bandwidth=[row(op="all_gather", **NVLINK)], kernels=kernels)
    assert proposals(registration_rules.RULE, overlapping(case, 0.8), "bandwidth") == {}


@pytest.mark.parametrize(("kernel_name", "group", "there"), [
    ("triton_poi_fused_add_0", "mesh_tp", True), ("void gemm", "mesh_tp", False), ("triton_poi_0", "mesh_dp", False),
])  # fmt: skip
def test_async_tensor_parallel_needs_compile_and_a_tensor_group(kernel_name: str, group: str, there: bool) -> None:
    rows = [row(op="all_gather", group=group, bytes=512 * MIB, **NVLINK)]
    case = overlapping(asked("bandwidth", nccl=nccl(), bandwidth=rows, kernels=[{"name": kernel_name}]), 0.0)
    assert ("async_tensor_parallel" in proposals(registration_rules.RULE, case, "bandwidth")) == there


def test_channels_of_one_group_among_several_are_set_on_its_communicator() -> None:
    rows = [row(protocol="ll"), row(group="tp", dur_ns=1)]
    found = proposals(nccl_rules.RULE, asked("bandwidth", nccl=nccl(), bandwidth=rows), "bandwidth")
    assert found["nccl_channels"].setting["name"] == "ProcessGroupNCCL.Options.config.min_ctas"
    alone = proposals(nccl_rules.RULE, asked("bandwidth", nccl=nccl(), bandwidth=rows[:1]), "bandwidth")
    assert alone["nccl_channels"].setting["name"] == "NCCL_MIN_CTAS"


def limited(*others: str, framework: str = "ddp", efficiency: float | None = 0.7, **changed: Any) -> Report:
    rows = [row(bytes=100 * MIB, count=2, efficiency_frac=efficiency, **changed)]
    case = asked("bandwidth", (framework,), nccl=nccl(("NET/IB/0/GDRDMA", False)), bandwidth=rows)
    case["findings"] += [finding(code) for code in others]
    case["steps"] = [{"step": 1}, {"step": 2}]  # type: ignore[typeddict-item]
    return case


def test_where_the_network_stays_the_limit_bytes_and_risk_are_named() -> None:
    """100 MiB per step; one average in eight steps leaves an eighth."""

    def predict(_: tuple[Change, ...]) -> Predicted:
        return Predicted(100_000_000, 70_000_000, 60_000_000, 80_000_000, "a test")

    found = proposals(network_limit_rules.RULE, limited(), "bandwidth", predict)
    one = found["local_sgd"]
    assert "saves 91.75 MB of 104.9 MB per step" in one.why
    assert "100.0 ms → 70.00 ms" in one.why
    assert "drift apart" in one.risk
    assert isinstance(one.outcome, Refused)
    assert one.alters_training
    quantized = proposals(network_limit_rules.RULE, limited(framework="deepspeed"), "bandwidth")
    assert quantized["quantized_collectives"].setting["name"] == "zero_quantized_gradients"
    fp8 = proposals(network_limit_rules.RULE, limited(framework="fsdp2", op="all_gather"), "bandwidth")
    assert set(fp8) == {"fp8_collectives"}


@pytest.mark.parametrize("case", [
    limited("forced_setting"), limited("no_gpu_direct"), limited("group_across_hosts"),  # to mend first
    limited(efficiency=0.2),  # the network could carry more
    asked("bandwidth", ("ddp",), nccl=nccl(("P2P/CUMEM", True)), bandwidth=[row(**NVLINK)]),  # no network
])  # fmt: skip
def test_never_before_what_can_be_mended(case: Report) -> None:
    assert proposals(network_limit_rules.RULE, case, "bandwidth") == {}


def crossing(folder: Path, devices: tuple[int, ...], description: str = "mesh_dp") -> Report:
    """Four ranks on two hosts, GPUs as given; each computes 50 µs and reduces 40 over its data-parallel group."""
    for rank, device in enumerate(devices):
        own = [0, 2] if rank in (0, 2) else [1, 3]
        told = {
            "Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "dtype": "Float",
            "Group size": 2, "Process Group Name": str(own[0] + 1), "Process Group Ranks": str(own), "Seq": 1,
        }  # fmt: skip
        events = [note(0, 1000, "ProfilerStep#1"), call(1, 2, 1), kernel(10, 50, 1, device=device)]
        reduced = kernel(60, 40, None, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 13, device=device, **told)
        path = write(folder / f"rank{rank}.json", *events, reduced, rank=rank, world_size=4, host_name=f"n{rank // 2}")
        document = json.loads(path.read_text())
        config = {"pg_name": told["Process Group Name"], "pg_desc": description, "pg_size": 2, "ranks": own}
        document["distributedInfo"]["pg_config"] = [config]
        path.write_text(json.dumps(document))
    return gpuscope.analyze(folder).report


@pytest.mark.parametrize(("devices", "crossed"), [((0, 1, 1, 0), True), ((0, 1, 0, 1), False)])
def test_groups_on_other_gpus_of_each_host_cross_rails(tmp_path: Path, devices: tuple[int, ...], crossed: bool) -> None:
    found = crossing(tmp_path, devices)
    assert any(one["code"] == "rails_crossed" for one in found["findings"]) == crossed
    codes = [one["code"] for one in found["advice"]["unpredicted"]]
    assert ("rail_placement" in codes) == crossed


@pytest.mark.parametrize(("description", "there"), [("mesh_tp", True), ("mesh_dp", False)])
def test_a_tensor_group_across_hosts(tmp_path: Path, description: str, there: bool) -> None:
    """Data-parallel groups may span hosts; tensor-parallel ones talk in every layer."""
    told = [one["code"] for one in crossing(tmp_path, (0, 1, 0, 1), description)["advice"]["unpredicted"]]
    assert ("inside_host" in told) == there
