"""The trace as a graph, replayed unchanged and with changes."""
