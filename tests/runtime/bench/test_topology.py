"""`nvidia-smi topo -m` and sysfs, and what each pair's link should give."""

from pathlib import Path

import pytest

from gpuscope.errors import InputError
from gpuscope.hardware.device_peaks import parse_topology
from gpuscope.instrumented_runtime.bench.topology_links import numa_nodes, parse_gpus, pci_gpus, ports, report

# As nvidia-smi prints it: tabs, an underlined header, network ports with their legend.
FOUR = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tPIX\tNODE\tSYS\tPXB\t0-15,32-47\t0\t\tN/A
GPU1\tPIX\t X \tNODE\tSYS\tPHB\t0-15,32-47\t0\t\tN/A
GPU2\tNODE\tNODE\t X \tSYS\tNODE\t0-15,32-47\t0\t\tN/A
GPU3\tSYS\tSYS\tSYS\t X \tSYS\t16-31\t1\t\tN/A
NIC0\tPXB\tPHB\tNODE\tSYS\t X

Legend:
  X    = Self
NIC Legend:
  NIC0: mlx5_0
"""
SWITCHED = """\
      GPU0  GPU1  GPU2  CPU Affinity  NUMA Affinity
GPU0   X    NV18  NV18  0-51          0
GPU1  NV18   X    NV18  0-51          0
GPU2  NV18  NV18   X    52-103        1
"""


def test_matrix_with_network_ports() -> None:
    topology = parse_topology(FOUR)
    assert topology.gpus == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert topology.paths["GPU0", "NIC0"] == "PXB"
    assert topology.paths["GPU3", "GPU1"] == "SYS"
    assert (topology.numa["GPU3"], topology.numa["NIC0"]) == (1, None)
    assert topology.nics == {"NIC0": "mlx5_0"}


def test_nvswitch_gives_every_pair_all_links() -> None:
    pairs = report(SWITCHED, {}, "NVIDIA H100 80GB HBM3", sysfs=None).pairs
    assert [(p.a, p.b) for p in pairs] == [("GPU0", "GPU1"), ("GPU0", "GPU2"), ("GPU1", "GPU2")]
    assert pairs[0].peak_gbps == 450.0  # 18 × 25
    assert pairs[0].usable_gbps == pytest.approx(370.8)  # 18 × 20.6
    assert pairs[0].link == "18 × NVLink 4, through NVSwitch"


def test_without_a_name_the_generation_is_not_guessed() -> None:
    pair = report(SWITCHED, {}, sysfs=None).pairs[0]
    assert pair.peak_gbps is None
    assert pair.note == "GPU name unknown, peak is 450 if NVLink 4, 900 if NVLink 5"


def test_more_links_than_the_named_gpu_has() -> None:
    pair = report(SWITCHED, {}, "Tesla V100", sysfs=None).pairs[0]
    assert "is the GPU's name right?" in pair.note


def test_pcie_pairs_and_far_network_ports() -> None:
    found = report(FOUR, {}, "NVIDIA L40S", sysfs=None)
    by_pair = {(p.a, p.b): p for p in found.pairs}
    near, far = by_pair["GPU0", "GPU1"], by_pair["GPU0", "GPU3"]
    assert (near.usable_gbps, near.note) == (24.0, "")  # PCIe 4.0 ×16: 16 × 1.5
    assert far.usable_gbps is None  # bounded by the link between sockets, which is not in the matrix
    assert far.peak_gbps == pytest.approx(31.508, abs=0.001)
    assert [note.split(":")[0] for note in found.notes] == ["GPU1", "GPU2", "GPU3"]
    assert "mlx5_0, is PHB away" in found.notes[0]


def test_card_in_half_of_its_lanes() -> None:
    gpus = parse_gpus("0, NVIDIA A100-PCIE-40GB, 4, 16, 8\n1, NVIDIA A100-PCIE-40GB, 4, 16, 16\n")
    pair = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tPIX\t0-3\nGPU1\tPIX\tX\t0-3\n"
    found = report(pair, gpus, sysfs=None)
    assert found.pairs[0].usable_gbps == 12.0  # the narrower end: 8 × 1.5
    assert found.notes == ("GPU0: runs on 8 of 16 PCIe lanes",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no matrix here",
        "\tGPU0\tGPU1\nGPU0\tX\tPIX\n",
        "GPU0\tX\tNV4\nGPU1\tNV4\tX\n",
        "\tGPU0\nGPU0\t??\n",
    ],
    ids=["empty", "prose", "row missing", "header missing", "unknown word"],
)
def test_what_is_no_matrix(text: str) -> None:
    with pytest.raises(InputError):
        parse_topology(text)


def test_machine_from_sysfs(tmp_path: Path) -> None:
    for path, text in {
        "devices/system/node/node0/cpulist": "0-15",
        "devices/system/node/node0/distance": "10 21",
        "bus/pci/devices/0000:17:00.0/vendor": "0x10de",
        "bus/pci/devices/0000:17:00.0/class": "0x030200",
        "bus/pci/devices/0000:17:00.0/numa_node": "-1",
        "bus/pci/devices/0000:17:00.0/current_link_speed": "2.5 GT/s PCIe",
        "bus/pci/devices/0000:17:00.0/current_link_width": "16",
        "bus/pci/devices/0000:17:00.0/max_link_speed": "32.0 GT/s PCIe",
        "bus/pci/devices/0000:17:00.0/max_link_width": "16",
        "bus/pci/devices/0000:00:1f.0/vendor": "0x8086",
        "class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
        "class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
        "class/net/eth0/device/numa_node": "1",
        "class/net/eth0/speed": "25000",
        "class/net/lo/speed": "10",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")

    (node,) = numa_nodes(tmp_path)
    assert (node.cpus, node.distances) == ("0-15", (10, 21))
    (gpu,) = pci_gpus(tmp_path)
    assert gpu.numa is None
    assert gpu.link is None  # asleep at 2.5 GT/s, slower than any generation in the table
    assert gpu.best is not None
    assert gpu.best.name == "PCIe 5.0"
    rates = {port.name: port.link and port.link.peak for port in ports(tmp_path)}
    assert rates == {"mlx5_0:1": 50.0, "eth0": 3.125}


def matrix(gpus: int, path: str) -> str:
    """What `nvidia-smi topo -m` prints of a machine whose GPUs are all linked the same way; synthetic."""
    names = [f"GPU{number}" for number in range(gpus)]
    rows = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity"])]
    for name in names:
        rows.append("\t".join([name, *(" X " if other == name else path for other in names), "0-63", "0"]))
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("gpus", "path", "gpu", "count", "peak"),
    [
        (2, "NV2", "V100", 1, 50.0),  # 2 × 25
        (2, "PHB", "T4", 1, 15.75),  # PCIe 3.0 × 16
        (8, "NV12", "A100", 28, 300.0),  # 12 × 25
        (8, "NV18", "H100", 28, 450.0),  # 18 × 25
    ],
)
def test_machines_whose_gpus_are_all_linked_alike(gpus: int, path: str, gpu: str, count: int, peak: float) -> None:
    pairs = report(matrix(gpus, path), {}, gpu, sysfs=None).pairs
    assert len(pairs) == count
    assert [pair.peak_gbps for pair in pairs] == pytest.approx([peak] * count, abs=0.01)


@pytest.mark.parametrize(
    ("name", "gpu", "count", "peak"),
    [
        ("stas00_01", "V100", 1, 50.0),
        ("stas00_02", "T4", 1, 15.75),
        ("stas00_03", "A100", 28, 300.0),
        ("stas00_04", "H100", 28, 450.0),
    ],
)
def test_real_matrices(shared_traces: Path, name: str, gpu: str, count: int, peak: float) -> None:
    pairs = report((shared_traces / "nccl" / "nvidia_smi_topo" / f"{name}.txt").read_text(), {}, gpu, sysfs=None).pairs
    assert len(pairs) == count
    assert pairs[0].peak_gbps == pytest.approx(peak, abs=0.01)
