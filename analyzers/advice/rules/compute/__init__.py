"""Advice on what the devices compute: precision, fusion, layout, attention, the optimizer."""
