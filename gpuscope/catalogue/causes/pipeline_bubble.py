"""Pipeline stages that wait for a neighbour."""

from __future__ import annotations

from gpuscope.catalogue.cause import Cause, Look
from gpuscope.words import palette

CAUSE = Cause(
    code="pipeline_bubble",
    place=90,
    class_name="communication",
    label="pipeline bubble",
    meaning="a pipeline stage with nothing to do: it waits for an activation or gradient from a neighbour",
    message="Pipeline stages wait for their neighbours",
    look=Look(palette.ORANGE, "-"),
    about="A pipeline stage has nothing to do: its send or receive waits for a neighbour.",
    recognised=(
        "the exposed wait of a matched send or receive, on either side. The bubble of the section `pipeline` "
        "is more: whatever keeps a stage from computing."
    ),
    helps="more micro-batches; an interleaved or zero-bubble schedule; stages of equal cost.",
    misleads=(
        "send and receive that are not pipeline (an all-to-all that NCCL carries out as `SendRecv`, context "
        "parallelism in a ring). Sends and receives whose other end is not recorded are not matched: without "
        "sizes their time is `exposed_communication`."
    ),
)
