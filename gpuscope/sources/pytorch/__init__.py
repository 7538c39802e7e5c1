"""Dumps of PyTorch itself: Flight Recorder, allocator snapshots."""
