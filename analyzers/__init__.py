"""Analyses: each reads Traces and returns a Result; `run` puts them together, `advice` says what to change."""
