"""PyTorch's caching allocator: its peak by stack, fragmentation, and a replay under other settings."""
