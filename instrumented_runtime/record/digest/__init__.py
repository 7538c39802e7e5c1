"""A digest instead of a trace: one short line per rank and step, without a profiler."""
