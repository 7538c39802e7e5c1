"""A graph with changes, and what its replay comes to, before it is made a prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope.analyzers.changes import PipelineChange
from gpuscope.analyzers.replay.engine import Replayed
from gpuscope.analyzers.replay.graph import Graph
from gpuscope.schema.provenance import Provenance
from gpuscope.when_used import dataclass

if TYPE_CHECKING:
    from gpuscope.analyzers.replay.device_contention import AsFast


@dataclass(frozen=True)
class Changed:
    """A graph with changes, as they turn out by `bias`, and what that rests on."""

    graph: Graph
    bias: int
    pipelined: list[PipelineChange]
    """Those that are not in the graph."""
    basis: list[str]
    provenance: Provenance
    lacking: str
    first: AsFast | None
    """On a GPU."""


@dataclass(frozen=True)
class Outcome:
    """A replay with changes: «the step» in ns, and what that rests on."""

    step_ns: float
    floor_ns: float
    """What the device must compute in it, ns: a recorded time, which no error of the replay scales."""
    basis: str
    provenance: Provenance
    lacking: str = ""
    """Why costs of collectives in it are not known, and what to record."""
    moved: bool = False
    """Whether kernels and collectives run beside each other where they did not, or no longer."""
    pipeline_error: float = 0.0
    """Relative error of the pipelines' unchanged replay, where their computations are laid out anew."""
    chance: float = 0.0
    """How far another run's step with these changes may lie off, relative: its steps may differ where they did not."""
    timeline: tuple[Graph, Replayed] | None = None
    """Of the expected case, where all of the step is on it."""
