"""What NCCL, nccl-tests and its plugins write."""
