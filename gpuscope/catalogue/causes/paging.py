"""Migrations of unified memory."""

from __future__ import annotations

from gpuscope.catalogue.cause import Cause, Look, took
from gpuscope.words import palette

CAUSE = Cause(
    code="paging",
    place=110,
    class_name="memory",
    label="unified-memory paging",
    meaning="unified-memory faults and migrations",
    message="Unified-memory migrations are not hidden behind compute",
    look=Look(palette.PURPLE, "."),
    detail=took("migrations"),
    about="Pages of unified memory migrate while nothing else runs on the device.",
    recognised="exposed migrations of unified memory, as nsys records them.",
    helps="`cudaMemPrefetchAsync`, memory advice, a working set that fits; or explicit copies.",
    misleads=(
        "faults inside a running kernel: that kernel is slow, and counts as compute. The cost reported here "
        "is a lower bound."
    ),
)
