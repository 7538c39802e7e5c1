"""Faults that hang the job."""
