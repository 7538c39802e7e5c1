"""Perfetto's own trace format: its messages, reading a file packet by packet, and what torch.profiler writes in it."""
