"""NCCL's own cost model, and what it says of another choice."""
