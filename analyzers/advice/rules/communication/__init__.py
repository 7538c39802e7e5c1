"""Advice on collectives, pipelines and ranks that others wait for."""
