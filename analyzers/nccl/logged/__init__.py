"""What NCCL's logs and its plugins record: choices, channels, transports, variables."""
