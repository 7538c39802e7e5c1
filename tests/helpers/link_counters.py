"""A small nsys export with counters of links."""

from __future__ import annotations

from pathlib import Path

from helpers.nsys import Export

US = 1000


def export(folder: Path) -> Path:
    """GPU 0 with NVLink at 10, 90 and 0 %, and a port that sends 4 MB in the second millisecond."""
    made = Export()
    made.call(0, 10, 1)
    made.kernel(0, 3000 * US, 1)
    made.add(
        "TARGET_INFO_GPU_METRICS",
        typeId=256,
        sourceId=0,
        typeName="",
        metricId=0,
        metricName="NVLink TX Responses User Data [Throughput %]",
    )
    for at, value in ((0, 10), (1000, 90), (2000, 0), (3000, 0)):
        made.add("GPU_METRICS", timestamp=at * US, typeId=256, metricId=0, value=value)
    made.add("TARGET_INFO_NIC_INFO", GUID=1, stateName="", nicId=5, name="mlx5_0", deviceId=0, vendorId=0)
    made.add("NIC_ID_MAP", nicId=5, globalId=77)
    made.add("TARGET_INFO_NETWORK_METRICS", metricsListId=1, metricsIdx=0, name="Bytes sent", description="", unit="B")
    for start, value in ((0, 0), (1000, 4_000_000)):
        made.add(
            "NET_NIC_METRIC",
            start=start * US,
            end=(start + 1000) * US,
            globalId=77,
            portId=1,
            metricsListId=1,
            metricsIdx=0,
            value=value,
        )
    return made.write(folder)
