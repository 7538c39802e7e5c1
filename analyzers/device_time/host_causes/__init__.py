"""Causes of idle time that host events show by their names, one file each."""
