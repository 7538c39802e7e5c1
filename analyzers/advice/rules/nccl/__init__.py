"""Rules for NCCL's own settings."""
