"""Peak FLOP/s of a device, to which MFU relates: dense tensor-core figures of the vendors' data sheets."""

from __future__ import annotations

# Name as torch.cuda.get_device_name() contains it: (bf16, fp32 with TF32 off), TFLOP/s, without sparsity.
_TFLOPS: dict[str, tuple[float, float]] = {
    "B200": (2250.0, 80.0),
    "H200": (989.4, 66.9),
    "H100 PCIe": (756.0, 51.2),
    "H100 NVL": (835.0, 60.0),
    "H100": (989.4, 66.9),
    "A100": (311.9, 19.5),
    "L40S": (362.1, 91.6),
    "L4": (121.0, 30.3),
    "A10": (125.0, 31.2),
    "V100": (125.0, 15.7),
}


def peak_flops(device_name: str, precision: str) -> float | None:
    """FLOP/s at `precision` ("bf16" or "fp32"); None for a device that is not in the table.

    >>> peak_flops("NVIDIA H100 80GB HBM3", "bf16")
    989400000000000.0
    """
    for name, (half, single) in _TFLOPS.items():
        if f" {name} " in f" {device_name.replace('-', ' ')} ":
            return (half if precision == "bf16" else single) * 1e12
    return None
