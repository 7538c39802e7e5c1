"""Every cause of a stall, one file each."""
