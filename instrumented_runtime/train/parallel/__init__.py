"""Each parallelism is one file with one `apply` function."""
