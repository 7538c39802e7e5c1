"""Facts of pipeline parallelism: which rank is which stage, and the computations between two flushes."""
