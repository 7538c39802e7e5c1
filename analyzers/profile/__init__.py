"""What users of other profilers look up: operators, ranges, runtime calls, copies, launches, streams. No verdict rests
on these tables."""
