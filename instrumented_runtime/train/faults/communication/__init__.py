"""Faults of communication: slow link, slow rank, tiny buckets, uneven data."""
