"""Measured times of collectives: bandwidth, fits, and where they cross."""
