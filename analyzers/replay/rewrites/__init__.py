"""One file per kind of change: each takes a graph and returns the graph with the change made."""
