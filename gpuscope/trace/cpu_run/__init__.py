"""Ranks without a device: their training threads are it."""
