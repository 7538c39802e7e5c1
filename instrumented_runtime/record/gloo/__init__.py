"""Records what gloo does not: its collectives with group, sequence number, size and end."""
