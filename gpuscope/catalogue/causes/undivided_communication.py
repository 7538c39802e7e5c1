"""Exposed communication that can't be divided into waiting and transferring."""

from __future__ import annotations

from gpuscope.catalogue.cause import UNDIVIDED_COMMUNICATION, Cause, Look
from gpuscope.words import palette

CAUSE = Cause(
    code=UNDIVIDED_COMMUNICATION,
    place=140,
    class_name="communication",
    label="communication (wait or transfer)",
    meaning=(
        "exposed communication that can't be divided into waiting and transfer: ranks or sizes are missing; "
        "`unattributed` within its class"
    ),
    message=("Communication is not hidden behind compute"),
    look=Look(palette.ORANGE, "x"),
    finding="exposed_communication",
    about=(
        "Communication is exposed, and the trace does not separate waiting from transferring. In `stall_ns` "
        "of the JSON report it is `unattributed` under `communication`. Where it dominates, the verdict is "
        "`communication` and only its cause abstains."
    ),
    recognised=(
        "a communication event that is not matched over the ranks, or is matched but has no recorded size and "
        "takes between two and four times the link's fixed cost."
    ),
    helps=(
        "record all ranks of a group; torch ≥ 2.4 records sizes; nsys exports NCCL's arguments with "
        "`--include-blobs=true` or `--include-json=true`."
    ),
    misleads="–",
)
