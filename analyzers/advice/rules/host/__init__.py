"""Advice on the launching thread and the data loader."""
