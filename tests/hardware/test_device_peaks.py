"""Peaks by the device's name as traces spell it."""

from __future__ import annotations

import pytest

from gpuscope.hardware.device_peaks import peak_flops, peaks_of


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "fp8", 1978.9),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7),
        ("NVIDIA H100 NVL", "bf16", 835.0),
        ("NVIDIA H100 PCIe", "fp32", 51.2),
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA GH200 480GB", "fp16", 989.4),
        ("NVIDIA H20", "bf16", 148.0),
        ("NVIDIA H800", "fp8", 1978.9),
        ("NVIDIA A100-PG509-200", "tf32", 155.95),
        ("NVIDIA A100-SXM4-40GB", "fp32", 19.5),
        ("Tesla V100-SXM2-32GB", "fp16", 125.0),
        ("Tesla T4", "fp16", 65.0),
        ("NVIDIA L4", "bf16", 121.0),
        ("NVIDIA L40S", "bf16", 362.1),
        ("NVIDIA A10G", "bf16", 70.0),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA B200", "bf16", 2250.0),
        ("NVIDIA GB200", "fp8", 5000.0),
        ("NVIDIA B300 SXM6 AC", "bf16", 2250.0),
        ("NVIDIA GB300", "bf16", 2500.0),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("AMD Instinct MI325X", "fp8", 2614.9),
        ("AMD Instinct MI250X / MI250", "bf16", 191.5),
        ("AMD Instinct MI355X", "bf16", 2516.6),
    ],
)
def test_known(name: str, precision: str, tflops: float) -> None:
    assert peak_flops(name, precision) == pytest.approx(tflops * 1e12)


def test_unknown() -> None:
    assert peak_flops("Tesla V100-SXM2-32GB", "bf16") is None, "no BF16 on Volta"
    assert "tf32" not in peaks_of("Tesla T4")
    assert peaks_of("NVIDIA GeForce RTX 3080 Ti") == {}, "another card than the RTX 3080"
    assert peaks_of("NVIDIA GeForce RTX 4090 Laptop GPU") == {}
    assert peaks_of("AMD Radeon Graphics") == {}
