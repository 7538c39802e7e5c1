"""The classes and causes of stalls, as docs/definitions.md has them: one table for everyone."""

from __future__ import annotations

from gpuscope.report.schema.document import Class

CLASS_OF: dict[str, Class] = {
    "input": "cpu",
    "sync": "cpu",
    "launch": "cpu",
    "gc": "cpu",
    "host_other": "cpu",
    "straggler": "communication",
    "latency": "communication",
    "bandwidth": "communication",
    "pipeline_bubble": "communication",
    "copy": "memory",
    "paging": "memory",
    "allocator": "memory",
}
"""Class of each cause."""

UNATTRIBUTED = "unattributed"
"""Idle time that no host event explains."""
UNTOLD_COMMUNICATION = "communication:unattributed"
"""Exposed communication whose cause the trace can't tell: no sizes recorded, other ranks missing."""

VERDICT_SHARE = 0.10
"""A class must hold this share of the window to bound the run (definitions: «Verdict»)."""
