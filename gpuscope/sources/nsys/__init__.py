"""Nsight Systems reports and exports."""
