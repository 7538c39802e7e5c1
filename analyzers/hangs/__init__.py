"""Where a job hung: the parts that `gpuscope.analyzers.hangs.hang_analysis` puts together."""
