"""Transfers limited by bytes over the link."""

from __future__ import annotations

from gpuscope.catalogue.cause import Cause, Look
from gpuscope.words import palette

CAUSE = Cause(
    code="bandwidth",
    place=80,
    class_name="communication",
    label="link bandwidth",
    meaning="exposed transfer limited by bytes over the link",
    message="Collectives are limited by link bandwidth",
    look=Look(palette.ORANGE),
    about="Exposed transfers are limited by bytes over the link.",
    recognised="S·factor/B ≥ α in the same model. Without a size: a transfer of four times α and more.",
    helps=(
        "overlap (prefetch, smaller first bucket), less volume (gradient accumulation, lower precision, "
        "hybrid sharding within the node), and a look at whether the link gives what it should: `busbw` in "
        "the report against [`gpuscope bench collectives`](bench.md)."
    ),
    misleads=(
        "an assumed model (PCI Express where there is NVLink: it then reports `bandwidth` too often); ranks "
        "that do not start together but are not all in the files, where the world is only assumed."
    ),
)
