"""Messages whose fixed cost dominates."""

from __future__ import annotations

from gpuscope.catalogue.cause import Cause, Look
from gpuscope.words import palette

CAUSE = Cause(
    code="latency",
    place=70,
    class_name="communication",
    label="small messages (latency)",
    meaning="exposed transfer of messages so small that the fixed cost dominates",
    message="Collectives are so small that latency dominates",
    look=Look(palette.ORANGE, "."),
    about="Exposed messages are so small that their fixed cost exceeds the cost of their bytes.",
    recognised=(
        "α > S·factor/B in the [cost model](definitions.md#latency-or-bandwidth-the-cost-of-a-message), "
        "fitted where message sizes vary, else assumed (with less confidence). Without a size: a transfer of "
        "less than twice α. A barrier is all latency."
    ),
    helps=(
        "larger buckets (DDP `bucket_cap_mb`), fusing many small collectives, overlapping them with compute, "
        "fewer groups."
    ),
    misleads="an assumed model; on CPU the assumption is 1 ms per gloo collective.",
)
