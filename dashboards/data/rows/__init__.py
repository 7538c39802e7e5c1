"""Rows of the timeline: tracks on the run's clock, their tree, their looks and levels of detail."""
