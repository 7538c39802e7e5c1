"""Sections of the terminal report, one file each."""
