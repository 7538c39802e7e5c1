"""Kernels by operator: time, category, FLOPs, efficiency."""
