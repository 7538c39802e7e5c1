"""Runs of thousands of ranks, as reduced parts."""
