"""Counters of network ports, NVLink and PCIe in an nsys export, and what they say of exposed communication."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.nsys import BACKENDS, Export

import gpuscope

LIST = 1


def job(**ports: int) -> Export:
    """One GPU computes 0–1000 and communicates, exposed, 1000–2000 (µs), NVLink at 10 % and then 90 %. A port's
    counters by name with their value per sample of 1000."""
    export = Export()
    us = 1000
    export.call(0, 10, 1)
    export.kernel(0, 1000 * us, 1)
    export.call(20, 30, 2)
    export.kernel(1000 * us, 2000 * us, 2, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)")
    for number, name in enumerate(("NVLink TX Responses User Data [Throughput %]", "SMs Active [Throughput %]")):
        export.add("TARGET_INFO_GPU_METRICS", typeId=256, sourceId=0, typeName="", metricId=number, metricName=name)
    for at, value in ((0, 10), (1000, 90), (2000, 0)):
        export.add("GPU_METRICS", timestamp=at * us, typeId=256, metricId=0, value=value)
        export.add("GPU_METRICS", timestamp=at * us, typeId=256, metricId=1, value=value)
    export.add("TARGET_INFO_NIC_INFO", GUID=1, stateName="", nicId=5, name="mlx5_0", deviceId=0, vendorId=0)
    export.add("NIC_ID_MAP", nicId=5, globalId=77)
    for number, (name, value) in enumerate(ports.items()):
        export.add(
            "TARGET_INFO_NETWORK_METRICS",
            metricsListId=LIST,
            metricsIdx=number,
            name=name.replace("_", " "),
            description="",
            unit="B/ms" if "Bytes" in name else "",
        )
        for start in (0, 1000):
            export.add(
                "NET_NIC_METRIC",
                start=start * us,
                end=(start + 1000) * us,
                globalId=77,
                portId=1,
                metricsListId=LIST,
                metricsIdx=number,
                value=value,
            )
    return export


@pytest.mark.parametrize("backend", BACKENDS)
def test_counters_of_ports_and_nvlink_by_the_time_that_is_exposed(tmp_path: Path, backend: str) -> None:
    report = gpuscope.analyze(job(Bytes_sent=4_000_000).write(tmp_path, backend)).report
    told = {(one["place"], one["counter"]): one for one in report["link_counters"]}
    assert set(told) == {("GPU 0", "NVLink TX Responses User Data [Throughput %]"), ("NIC mlx5_0", "Bytes sent")}
    nvlink = told["GPU 0", "NVLink TX Responses User Data [Throughput %]"]
    assert (nvlink["mean"], nvlink["mean_while_exposed"], nvlink["peak"], nvlink["samples"]) == (50, 90, 90, 2)
    assert (nvlink["course"][0], nvlink["course"][50]) == (10, 90)
    assert told["NIC mlx5_0", "Bytes sent"]["unit"] == "B/ms"
    (finding,) = [one for one in report["findings"] if one["code"] == "link_at_peak"]
    assert "90.0 %" in finding["message"]


def test_congestion_is_a_finding_and_its_absence_is_none(tmp_path: Path) -> None:
    for count, folder in ((0, "a"), (7, "b")):
        (tmp_path / folder).mkdir()
        report = gpuscope.analyze(job(Send_waits=count).write(tmp_path / folder)).report
        assert [one["code"] for one in report["findings"]].count("network_congestion") == (count > 0)


def switched(events: int) -> Export:
    """The job with a switch of two ports: one sends 1000 and then 9000 B/ms, on the other packets are congested."""
    export, us = job(Bytes_sent=1), 1000
    export.add("NET_IB_DEVICE_INFO", networkId=1, guid=0xABC, name="leaf1", des="", lid=3)
    export.add("ENUM_NET_IB_CONGESTION_EVENT_TYPE", id=1, name="EgressPortQueueSize", label="Egress Port Queue Size")
    for port, guid in ((1, 0xABC), (2, 0xABC), (1, -2)):
        for start, value in ((0, 1000), (1000, 9000)):
            export.add(
                "NET_IB_SWITCH_METRIC",
                start=start * us,
                end=(start + 1000) * us,
                globalId=guid,
                portId=port,
                metricsListId=LIST,
                metricsIdx=0,
                value=value,
            )
    for number in range(events):
        export.add(
            "NET_IB_SWITCH_CONGESTION_EVENT",
            start=1_400_000 + number,
            globalId=0xABC,
            congestionType=1,
            packetSLID=1,
            packetDLID=2,
            switchIngressPort=1,
            switchEgressPort=2,
        )
    return export


@pytest.mark.parametrize("backend", BACKENDS)
def test_counters_of_infiniband_switches_by_port(tmp_path: Path, backend: str) -> None:
    report = gpuscope.analyze(switched(5).write(tmp_path, backend)).report
    told = {one["place"]: one for one in report["link_counters"] if one["counter"] == "Bytes sent"}
    assert set(told) == {
        "NIC mlx5_0",
        "IB switch leaf1, port 1",
        "IB switch leaf1, port 2",
        "IB switch 0xfffffffffffffffe",
    }
    assert (told["IB switch leaf1, port 1"]["mean"], told["IB switch leaf1, port 1"]["peak"]) == (5000, 9000)
    (events,) = [one for one in report["link_counters"] if one["counter"].startswith("Congestion events")]
    assert (events["place"], events["unit"], events["total"]) == ("IB switch leaf1, port 2", "/ms", 5)
    (finding,) = [one for one in report["findings"] if one["code"] == "network_congestion"]
    assert "Egress Port Queue Size: 5 in all" in finding["message"]


def test_a_switch_without_congestion_is_no_finding(tmp_path: Path) -> None:
    report = gpuscope.analyze(switched(0).write(tmp_path)).report
    assert "network_congestion" not in {one["code"] for one in report["findings"]}


def test_without_counters_there_is_no_section(tmp_path: Path) -> None:
    export = Export()
    export.call(0, 10, 1)
    export.kernel(0, 1000, 1)
    assert "link_counters" not in gpuscope.analyze(export.write(tmp_path)).report
