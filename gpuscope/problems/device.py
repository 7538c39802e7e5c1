"""What devices did, where it can't be as it was recorded or counted."""

from __future__ import annotations

from gpuscope.problems.problem import ProblemKind

FLOOR_ABOVE_MEASUREMENT = ProblemKind(
    "floor_above_measurement",
    "info",
    "kernels ran faster than their device could do the work counted from their operators' inputs ({operators}): that "
    "work counts as unknown",
    about="Kernels that took less time than the FLOPs or bytes counted from their operators' inputs need at the "
    "device's peaks, by more than a twentieth. The work is counted wrongly (an operator that uses a part of its "
    "inputs, another precision than its name tells), or the device is another one than the file says. Their work "
    "counts as unknown, so that no floor rests on it.",
)
