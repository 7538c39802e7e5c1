"""Predicted gains against measured ones, on real runs of the instrumented runtime."""
