"""What torch's optimizers can do: for the advice, and for the recorder that carries it out."""

from __future__ import annotations

FUSED_ON_SHARDED = ("Adam", "AdamW")
"""Classes whose fused kernels take FSDP2's parameters (torch/distributed/tensor/_ops/_pointwise_ops.py)."""
