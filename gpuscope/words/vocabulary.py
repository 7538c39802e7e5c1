"""The parts of the breakdown and the classes of stalls: words, colours and fills of every front."""

from __future__ import annotations

from typing import Literal

from gpuscope.when_used import dataclass
from gpuscope.words import palette

PartKey = Literal["compute", "exposed_communication", "exposed_memory", "idle"]


@dataclass(frozen=True)
class Part:
    """One part of the breakdown. The fills differ as the colours do."""

    key: PartKey
    label: str
    short: str
    colour: str
    fill: str
    plain_fill: str


PARTS = (
    Part("compute", "compute", "compute", palette.BLUE, "█", "#"),
    Part("exposed_communication", "exposed communication", "comm.", palette.ORANGE, "▒", "="),
    Part("exposed_memory", "exposed memory", "memory", palette.PURPLE, "▚", "%"),
    Part("idle", "idle", "idle", palette.GREY, "·", "."),
)

BOUND = {
    "cpu": "CPU-bound",
    "communication": "Communication-bound",
    "memory": "Memory-bound",
    "compute": "Compute-bound",
}

VERDICT_SHARE = 0.10
"""A class must hold this share of the window to bound the run (definitions: «Verdict»)."""

CLASSES = {"cpu": "CPU", "communication": "communication", "memory": "memory", "compute": "compute"}
