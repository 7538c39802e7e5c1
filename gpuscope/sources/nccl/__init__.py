"""What NCCL, nccl-tests and its plugins write."""

NCCL_ALONE = "these files show how NCCL communicates, not where the time of a step goes: add a trace of the ranks"
"""What is said of these records where there is no timeline (`Files.alone`)."""
