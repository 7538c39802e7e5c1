"""Idle time that no recorded host event explains."""

from __future__ import annotations

from gpuscope.catalogue.cause import UNATTRIBUTED, Cause, Look
from gpuscope.words import palette

CAUSE = Cause(
    code=UNATTRIBUTED,
    place=130,
    class_name=None,
    label="no recorded cause",
    meaning="the trace holds no host events that could explain the gap",
    message="The device idles, and no recorded event explains it",
    look=Look(palette.GREY, "."),
    located=False,
    idle=True,
    about=(
        "The device is idle and the trace holds no host events that could explain it. If that dominates, the "
        "verdict abstains."
    ),
    recognised="no operator, runtime call, Python frame or operating-system call of the rank around the gap.",
    helps="record the host too: `ProfilerActivity.CPU`, or `nsys profile -t cuda,nvtx,osrt`.",
    misleads="host records of another process (a launcher that was profiled instead of the worker).",
)
