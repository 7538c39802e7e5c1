"""Memory, power and usual network of a GPU, read from `boards.toml` beside this file (data sheets)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Board:
    """A GPU as it is sold. `network` is a key of the links; `domain` the GPUs joined directly, None for a host's."""

    name: str
    memory_gb: float
    power_w: float
    domain: int | None = None
    network: str | None = None
    staged: bool = False
    """Whether copies between GPUs go through host memory, because the driver has no peer-to-peer."""


@cache
def boards() -> Mapping[str, Board]:
    """Every board by each of its names, in the order in which they are tried."""
    import tomllib

    rows = tomllib.loads(Path(__file__).with_name("boards.toml").read_text(encoding="utf-8"))
    return {
        word: Board(word, **{key: value for key, value in row.items() if key != "match"})
        for row in rows["boards"]
        for word in row["match"]
    }


def board_of(name: str) -> Board | None:
    """The board of a GPU by its product name; None for one that the table does not hold."""
    return next(
        (board for word, board in boards().items() if re.search(rf"\b{re.escape(word)}\b", name, re.IGNORECASE)), None
    )
