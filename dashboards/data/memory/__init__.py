"""What memory snapshots hold, for the pages: segments with their blocks, and use over time."""
