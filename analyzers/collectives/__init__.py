"""Collectives matched over the ranks: who waited for whom, and what was transfer."""
