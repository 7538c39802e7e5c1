"""Peak FLOP/s of a device at each precision, to which MFU relates: dense figures of the vendors' data sheets.

Dense: without 2:4 sparsity, which data sheets since Ampere quote first and which doubles the figure. With FP32
accumulation, which is what PyTorch asks for (GeForce halves it). `fp32` is without TF32; AMD's is that of the matrix
cores. One device is what a trace counts as one: of an MI250X one of its two dies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from gpuscope import when_used
from gpuscope.errors import InputError, UsageError
from gpuscope.when_used import dataclass

# Parses what `nvidia-smi topo -m` prints: which path lies between every two devices of a node.

PATHS = {
    "NV": "NVLink",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches, without the CPU's host bridge",
    "PHB": "PCIe through the CPU's host bridge",
    "NODE": "PCIe and the link between host bridges of one NUMA node",
    "SYS": "PCIe and the link between CPU sockets (NUMA nodes)",
}
"""What each word of the matrix means, after the legend that nvidia-smi prints."""

_ANSI = when_used.pattern(r"\x1b\[[0-9;]*m")
_CELL = when_used.pattern(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|PSB|SOC")


@dataclass(frozen=True)
class Topology:
    """`paths[(a, b)]` is the word between two devices (`NV18`, `PIX`, `SYS` …), for both orders.

    `numa` holds what the matrix says per device; `nics` the real names behind `NIC0` ….
    """

    devices: tuple[str, ...]
    paths: Mapping[tuple[str, str], str]
    numa: Mapping[str, int | None]
    nics: Mapping[str, str]

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs, in the order of the matrix."""
        return tuple(device for device in self.devices if device.startswith("GPU"))


def parse_topology(text: str) -> Topology:
    """Read the matrix out of `nvidia-smi topo -m`'s output, with or without a prompt line before it.

    Raises `InputError` where there is no matrix, or a row has fewer cells than there are columns.
    """
    lines = [_ANSI.sub("", line).rstrip() for line in text.splitlines()]
    start, devices = _header(lines)
    rows = {}
    for line in lines[start + 1 :]:
        words = line.split()
        if words and words[0] in devices:
            rows[words[0]] = words[1:]
    missing = [device for device in devices if len(rows.get(device, ())) < len(devices)]
    if missing:
        raise InputError(
            f"the topology matrix has no complete row for {missing[0]}",
            hint="pass the whole output of `nvidia-smi topo -m`",
        )
    return Topology(
        devices=devices,
        paths=_paths(devices, rows),
        numa={device: _numa(rows[device], len(devices)) for device in devices},
        nics=_nics(lines),
    )


def _header(lines: list[str]) -> tuple[int, tuple[str, ...]]:
    for number, line in enumerate(lines):
        # The columns after the devices have names of two words: CPU Affinity, NUMA Affinity, GPU NUMA ID.
        names = re.split(r"\s+(?:CPU|NUMA) Affinity", line.strip())[0].split()
        if names and names[0] == "GPU0":
            if len(names) > 1 and _CELL.fullmatch(names[1]):
                continue  # the row of GPU0, in a text whose header was cut off
            return number, tuple(names)
    raise InputError(
        "no topology matrix: no header line that starts with GPU0",
        hint="pass the output of `nvidia-smi topo -m`",
    )


def _paths(devices: tuple[str, ...], rows: Mapping[str, list[str]]) -> dict[tuple[str, str], str]:
    paths = {}
    for a in devices:
        for b, cell in zip(devices, rows[a], strict=False):
            if not _CELL.fullmatch(cell):
                raise InputError(f"the topology matrix has {cell!r} between {a} and {b}")
            if a != b:
                paths[a, b] = cell
    return paths


def _numa(row: list[str], devices: int) -> int | None:
    """The column behind those of the devices and of the CPU affinity."""
    word = row[devices + 1] if len(row) > devices + 1 else ""
    return int(word) if word.isdecimal() else None


def _nics(lines: list[str]) -> dict[str, str]:
    found = (re.fullmatch(r"\s*(NIC\d+):\s+(\S+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


_Peaks = dict[str, float]


def _nvidia(
    bf16: float, fp32: float, tf32: float | None = None, fp8: float | None = None, fp4: float | None = None
) -> _Peaks:
    """TFLOP/s; from Ampere on bf16 and fp16 are equal and TF32 half of them."""
    peaks = {"bf16": bf16, "fp16": bf16, "tf32": bf16 / 2 if tf32 is None else tf32, "fp32": fp32}
    return peaks | ({"fp8": fp8} if fp8 else {}) | ({"fp4": fp4} if fp4 else {})


# Name as torch.cuda.get_device_name() and the traces hold it, words in this order; the longest that fits is taken.
_TFLOPS: dict[str, _Peaks] = {
    # Blackwell: NVIDIA HGX B200 / HGX B300 and GB200 / GB300 NVL72 data sheets, figures of a system by its GPUs.
    "GB300": _nvidia(2500.0, 80.0, fp8=5000.0, fp4=15000.0),
    "GB200": _nvidia(2500.0, 80.0, fp8=5000.0, fp4=10000.0),
    "B300": _nvidia(2250.0, 75.0, tf32=1125.0, fp8=4500.0, fp4=13500.0),
    "B200": _nvidia(2250.0, 75.0, tf32=1125.0, fp8=4500.0, fp4=9000.0),
    # Hopper: NVIDIA H100 architecture white paper, tables 2 and 3; H100 NVL, H200 and GH200 data sheets.
    "H100": _nvidia(989.4, 66.9, fp8=1978.9),
    "H100 PCIe": _nvidia(756.0, 51.2, fp8=1513.0),
    "H100 NVL": _nvidia(835.0, 60.0, fp8=1671.0),
    "H200": _nvidia(989.4, 66.9, fp8=1978.9),
    "H200 NVL": _nvidia(835.0, 60.0, fp8=1671.0),
    "GH200": _nvidia(989.4, 66.9, fp8=1978.9),
    # For China: H800 is an H100 but for NVLink and FP64; H20 by its data sheet (148 TFLOP/s BF16, 296 FP8, 44 FP32).
    "H800": _nvidia(989.4, 66.9, fp8=1978.9),
    "H800 PCIe": _nvidia(756.0, 51.2, fp8=1513.0),
    "H20": _nvidia(148.0, 44.0, fp8=296.0),
    # Ampere: NVIDIA A100 white paper, table 1; A10, A30, A40 data sheets; GA102 white paper, appendix A.
    "A100": _nvidia(311.9, 19.5),
    "A800": _nvidia(311.9, 19.5),
    "A30": _nvidia(165.0, 10.3),
    "A40": _nvidia(149.7, 37.4),
    "A10": _nvidia(125.0, 31.2),
    "A10G": _nvidia(70.0, 31.5),
    "RTX A6000": _nvidia(154.8, 38.7),
    "RTX 3090": _nvidia(71.0, 35.6),
    "RTX 3080": _nvidia(59.5, 29.8),
    # Ada: NVIDIA Ada GPU architecture white paper, appendix A and B; L4 and L40S data sheets.
    "L4": _nvidia(121.0, 30.3, fp8=242.5),
    "L40": _nvidia(181.0, 90.5, fp8=362.0),
    "L40S": _nvidia(362.1, 91.6, fp8=733.0),
    "RTX 6000 Ada": _nvidia(364.2, 91.1, fp8=728.5),
    "RTX 4090": _nvidia(165.2, 82.6, fp8=330.3),
    # GeForce Blackwell: NVIDIA RTX Blackwell white paper, appendix A.
    "RTX 5090": _nvidia(209.5, 104.8, fp8=419.0),
    # Volta and Turing have neither BF16 nor TF32: NVIDIA V100, V100S and T4 data sheets.
    "V100": {"fp16": 125.0, "fp32": 15.7},
    "V100 PCIE": {"fp16": 112.0, "fp32": 14.0},
    "V100S": {"fp16": 130.0, "fp32": 16.4},
    "T4": {"fp16": 65.0, "fp32": 8.1},
    # AMD Instinct data sheets; MI250X and MI250 halved, for a trace counts each die as a device.
    "MI100": {"bf16": 92.3, "fp16": 184.6, "fp32": 46.1},
    "MI210": {"bf16": 181.0, "fp16": 181.0, "fp32": 45.3},
    "MI250": {"bf16": 181.05, "fp16": 181.05, "fp32": 45.25},
    "MI250X": {"bf16": 191.5, "fp16": 191.5, "fp32": 47.85},
    "MI300A": {"bf16": 980.6, "fp16": 980.6, "tf32": 490.3, "fp32": 122.6, "fp8": 1961.2},
    "MI300X": {"bf16": 1307.4, "fp16": 1307.4, "tf32": 653.7, "fp32": 163.4, "fp8": 2614.9},
    "MI325X": {"bf16": 1307.4, "fp16": 1307.4, "tf32": 653.7, "fp32": 163.4, "fp8": 2614.9},
    "MI350X": {"bf16": 2309.6, "fp16": 2309.6, "fp32": 144.2, "fp8": 4619.3},
    "MI355X": {"bf16": 2516.6, "fp16": 2516.6, "fp32": 157.3, "fp8": 5033.2},
}


# TOP/s of 8-bit integers and TFLOP/s of FP64 on tensor (matrix) cores, dense, of the same data sheets.
_INT8: dict[str, float] = {
    "GB200": 5000.0,
    "B200": 4500.0,
    "H100": 1978.9,
    "H100 PCIe": 1513.0,
    "H100 NVL": 1671.0,
    "H200": 1978.9,
    "H200 NVL": 1671.0,
    "GH200": 1978.9,
    "H800": 1978.9,
    "H800 PCIe": 1513.0,
    "H20": 296.0,
    "A100": 623.8,
    "A800": 623.8,
    "A30": 330.0,
    "A40": 299.3,
    "A10": 250.0,
    "L4": 242.5,
    "L40": 362.0,
    "L40S": 733.0,
    "MI210": 181.0,
    "MI250": 181.05,
    "MI250X": 191.5,
    "MI300A": 1961.2,
    "MI300X": 2614.9,
    "MI325X": 2614.9,
    "MI350X": 4619.3,
    "MI355X": 5033.2,
}
_FP64: dict[str, float] = {
    "GB200": 40.0,
    "B200": 37.0,
    "H100": 66.9,
    "H100 PCIe": 51.2,
    "H100 NVL": 60.0,
    "H200": 66.9,
    "H200 NVL": 60.0,
    "GH200": 66.9,
    "A100": 19.5,
    "A30": 10.3,
    "MI210": 45.3,
    "MI250": 45.25,
    "MI250X": 47.85,
    "MI300A": 122.6,
    "MI300X": 163.4,
    "MI325X": 163.4,
    "MI350X": 72.1,
    "MI355X": 78.6,
}


# GB/s of the device's memory, from the same data sheets (of the 80 GB A100 the SXM module's, of GH200 the 96 GB one's);
# MI250 and MI250X halved as above.
_MEMORY_GB_PER_S: dict[str, float] = {
    "GB300": 8000.0,
    "GB200": 8000.0,
    "B300": 8000.0,
    "B200": 8000.0,
    "H100": 3352.0,
    "H100 PCIe": 2039.0,
    "H100 NVL": 3938.0,
    "H200": 4800.0,
    "H200 NVL": 4800.0,
    "GH200": 4000.0,
    "H800": 3352.0,
    "H800 PCIe": 2039.0,
    "H20": 4000.0,
    "A100": 1555.0,
    "A100 80GB": 2039.0,
    "A100 SXM4 80GB": 2039.0,
    "A100 80GB PCIe": 1935.0,
    "A800": 2039.0,
    "A30": 933.0,
    "A40": 696.0,
    "A10": 600.0,
    "A10G": 600.0,
    "RTX A6000": 768.0,
    "RTX 3090": 936.0,
    "RTX 3080": 760.0,
    "L4": 300.0,
    "L40": 864.0,
    "L40S": 864.0,
    "RTX 6000 Ada": 960.0,
    "RTX 4090": 1008.0,
    "RTX 5090": 1792.0,
    "V100": 900.0,
    "V100S": 1134.0,
    "T4": 320.0,
    "MI100": 1229.0,
    "MI210": 1638.0,
    "MI250": 1638.0,
    "MI250X": 1638.0,
    "MI300A": 5325.0,
    "MI300X": 5325.0,
    "MI325X": 6000.0,
    "MI350X": 8000.0,
    "MI355X": 8000.0,
}

# What the best of many matrix products reached of the peak, BF16 and FP8: Bekman, Machine Learning Engineering,
# compute/accelerator, «Maximum Achievable Matmul FLOPS» (torch 2.5 to 2.10). GB300 as GB200, A800 and H800 as theirs.
_REACHED: dict[str, tuple[float, float]] = {
    "A100": (0.869, 0.869),
    "A800": (0.869, 0.869),
    "GH200": (0.838, 0.776),
    "H100": (0.803, 0.709),
    "H800": (0.803, 0.709),
    "H200": (0.803, 0.734),
    "B300": (0.786, 0.745),
    "B200": (0.776, 0.763),
    "GB200": (0.729, 0.723),
    "GB300": (0.729, 0.723),
    "MI355X": (0.68, 0.68),
    "MI325X": (0.604, 0.604),
    "MI300X": (0.514, 0.514),
}
_USUAL_REACHED = (0.78, 0.73)
"""Of a device that is not in that table: about the median of those in it."""
_REACHED_FP4 = 0.5
"""Of the peak at FP4: nobody's table has it. Fitted to published training rates (benchmarks/planner.py)."""

SPARSE_TIMES = 2
"""How much faster than dense ones matrices of 2:4 sparsity are multiplied, from Ampere and MI300 on."""
# Multiprocessors (compute units of AMD, of MI250X and MI250 those of one die) and MB of the last-level cache, MI300's
# and its successors' being the Infinity Cache: the same data sheets and white papers.
_UNITS_AND_CACHE: dict[str, tuple[int, int]] = {
    "GB300": (160, 126),
    "GB200": (148, 126),
    "B300": (160, 126),
    "B200": (148, 126),
    "H100": (132, 50),
    "H100 PCIe": (114, 50),
    "H100 NVL": (132, 50),
    "H200": (132, 50),
    "H200 NVL": (132, 50),
    "GH200": (132, 50),
    "H800": (132, 50),
    "H800 PCIe": (114, 50),
    "H20": (78, 60),
    "A100": (108, 40),
    "A800": (108, 40),
    "A30": (56, 24),
    "A40": (84, 6),
    "A10": (72, 6),
    "A10G": (80, 6),
    "RTX A6000": (84, 6),
    "RTX 3090": (82, 6),
    "RTX 3080": (68, 5),
    "L4": (58, 48),
    "L40": (142, 96),
    "L40S": (142, 96),
    "RTX 6000 Ada": (142, 96),
    "RTX 4090": (128, 72),
    "RTX 5090": (170, 96),
    "V100": (80, 6),
    "V100 PCIE": (80, 6),
    "V100S": (80, 6),
    "T4": (40, 4),
    "MI100": (120, 8),
    "MI210": (104, 8),
    "MI250": (104, 8),
    "MI250X": (110, 8),
    "MI300A": (228, 256),
    "MI300X": (304, 256),
    "MI325X": (304, 256),
    "MI350X": (256, 256),
    "MI355X": (256, 256),
}

MODELS = tuple(_TFLOPS)
"""Whose peaks are known."""
_VARIANT = when_used.pattern(r" rtx \d+ (ti|super|d|laptop|max q) ")
"""Cards with the name of another and other figures."""


def _row(device_name: str, names: Iterable[str]) -> str | None:
    """The longest of `names` whose words stand in a device's name in this order; None for another card's variant."""
    text = f" {' '.join(device_name.replace('-', ' ').replace('_', ' ').split())} ".casefold()
    if _VARIANT.search(text):
        return None
    named = [name for name in names if f" {name} ".casefold() in text]
    return max(named, key=len, default=None)


def known_model(name: str) -> str:
    """A device whose peaks are known, as the table names it. Raises `UsageError` for any other.

    >>> known_model("mi300x")
    'MI300X'
    """
    row = _row(name, _TFLOPS)
    if row is None:
        close = get_close_matches(name.upper(), MODELS, 3, 0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(MODELS)}"
        raise UsageError(f"no peaks are known for a device called {name!r}", hint=hint)
    return row


def same_model(one: str, other: str) -> bool:
    """Whether two names are of one model, as far as the table tells models apart.

    >>> same_model("NVIDIA H100 80GB HBM3", "H100")
    True
    """
    rows = _row(one, _TFLOPS), _row(other, _TFLOPS)
    return one == other or (rows[0] is not None and rows[0] == rows[1])


def peaks_of(device_name: str) -> _Peaks:
    """FLOP/s by precision (`bf16`, `fp16`, `tf32`, `fp32`, `fp8`, `fp4`, `int8`, `fp64`); empty for a device that is
    not in the table.

    >>> peaks_of("Tesla T4")
    {'fp16': 65000000000000.0, 'fp32': 8100000000000.0}
    """
    # «AMD Instinct MI250X / MI250» is one name for both.
    row = _row(device_name, _TFLOPS)
    if row is None:
        return {}
    further = {name: table[row] for name, table in (("int8", _INT8), ("fp64", _FP64)) if row in table}
    return {precision: tflops * 1e12 for precision, tflops in (_TFLOPS[row] | further).items()}


def memory_bandwidth(device_name: str) -> float | None:
    """Bytes per second of the device's own memory; None for a device that is not in the table.

    >>> memory_bandwidth("NVIDIA A100-SXM4-80GB")
    2039000000000.0
    """
    row = _row(device_name, _MEMORY_GB_PER_S)
    return None if row is None else _MEMORY_GB_PER_S[row] * 1e9


def multiprocessors(device_name: str) -> int | None:
    """Multiprocessors of a GPU (compute units); None for a device that is not in the table.

    >>> multiprocessors("NVIDIA H100 80GB HBM3")
    132
    """
    row = _row(device_name, _UNITS_AND_CACHE)
    return None if row is None else _UNITS_AND_CACHE[row][0]


def cache_bytes(device_name: str) -> int:
    """Bytes of the last-level cache; 0 for a device that is not in the table.

    >>> cache_bytes("AMD Instinct MI300X")
    256000000
    """
    row = _row(device_name, _UNITS_AND_CACHE)
    return 0 if row is None else _UNITS_AND_CACHE[row][1] * 1_000_000


def reached_frac(device_name: str, precision: str) -> float:
    """Share of the peak that large matrix products reach at `bf16`, `fp8` or `fp4`.

    >>> reached_frac("NVIDIA H100 80GB HBM3", "fp8")
    0.709
    """
    if precision == "fp4":
        return _REACHED_FP4
    row = _row(device_name, _REACHED)
    return (_USUAL_REACHED if row is None else _REACHED[row])[precision != "bf16"]


def peak_flops(device_name: str, precision: str) -> float | None:
    """FLOP/s at `precision`; None for a device that is not in the table or has no such precision.

    >>> peak_flops("NVIDIA H100 80GB HBM3", "bf16")
    989400000000000.0
    """
    return peaks_of(device_name).get(precision)
