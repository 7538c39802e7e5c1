"""Faults of the host: slow loader, stalls, synchronisation, launch overhead."""
