"""From the events of one rank to its graph."""
