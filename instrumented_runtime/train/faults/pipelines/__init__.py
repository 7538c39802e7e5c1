"""Faults of pipelines: too few micro-batches, an unbalanced stage."""
