"""Configurations that frameworks read: the names of their settings, and what a file of them says."""
