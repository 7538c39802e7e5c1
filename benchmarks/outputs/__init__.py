"""What users see of every trace at hand, kept and compared: see the benchmarks' README."""
