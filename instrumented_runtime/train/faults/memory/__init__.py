"""Faults of memory: allocator churn, pageable copies."""
