"""Settings of inference servers."""
