"""Where a run's measures and verdicts can go: one file per library, each needing only that library."""
