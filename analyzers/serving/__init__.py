"""Inference servers: their steps by phase."""
