"""The words, colours and fills that the terminal and the HTML report share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PartKey = Literal["compute", "exposed_communication", "exposed_memory", "idle"]


@dataclass(frozen=True)
class Part:
    """One part of the breakdown. Colours are Okabe and Ito's, for the colour-blind; the fills differ too."""

    key: PartKey
    label: str
    short: str
    colour: str
    fill: str
    plain_fill: str


PARTS = (
    Part("compute", "compute", "compute", "#0072B2", "█", "#"),
    Part("exposed_communication", "exposed communication", "comm.", "#E69F00", "▒", "="),
    Part("exposed_memory", "exposed memory", "memory", "#CC79A7", "▚", "%"),
    Part("idle", "idle", "idle", "#8C8C8C", "·", "."),
)

BOUND = {
    "cpu": "CPU-bound",
    "communication": "Communication-bound",
    "memory": "Memory-bound",
    "compute": "Compute-bound",
}

CAUSES = {
    "input": "data loader",
    "sync": "blocking calls",
    "launch": "launching too slowly",
    "gc": "Python garbage collection",
    "host_other": "other host work",
    "straggler": "late ranks",
    "latency": "small messages",
    "bandwidth": "link speed",
    "pipeline_bubble": "pipeline bubble",
    "copy": "host-device copies",
    "paging": "unified-memory paging",
    "allocator": "memory allocator",
    "unattributed": "unexplained",
}

CLASSES = {"cpu": "CPU", "communication": "communication", "memory": "memory", "compute": "compute"}


def cause_label(cause: str) -> str:
    """`data loader (input)`: words first, then the name it has in definitions and in JSON."""
    words = CAUSES.get(cause)
    return f"{words} ({cause})" if words and words != cause.replace("_", " ") else words or cause
