"""The planner beside published layouts, and beside runs of our own."""
