"""Copies and memsets that nothing hides."""

from __future__ import annotations

from gpuscope.catalogue.cause import Cause, Look, took
from gpuscope.words import palette

CAUSE = Cause(
    code="copy",
    place=100,
    class_name="memory",
    label="host–device copies",
    meaning="exposed host–device copies and memsets",
    message="Host–device copies are not hidden behind compute",
    look=Look(palette.PURPLE),
    detail=took("copies and memsets"),
    about="Copies between host and device, or memsets, are not hidden behind compute or communication.",
    recognised="exposed memory time of memcpy and memset.",
    helps=(
        "pinned memory and `non_blocking=True` on a stream of its own; prefetch of the next batch; fewer, "
        "larger copies; keep data on the device."
    ),
    misleads="little. A copy by a kernel (`.copy_` on the device) is compute.",
)
