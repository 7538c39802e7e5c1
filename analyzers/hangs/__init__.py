"""Where a job hung: the parts that `analyzers.hang` puts together."""
