"""NCCL: measured bandwidth, what its logs record, and its own cost model."""
