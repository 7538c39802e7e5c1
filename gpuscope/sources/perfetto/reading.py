"""What is known while a Perfetto trace is read, packet after packet."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.sources.kineto.event_columns import EventColumns
from gpuscope.sources.perfetto.packet_rows import LIMIT, NAME, SEQUENCE, TIME, Integers, PacketRows
from gpuscope.sources.perfetto.sequence_state import Interned, Tracks
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.name_pool import Codes
from gpuscope.trace.schema import NA

MISSING = -1
WHOLE_WORLD = "default_pg"
"""Description of the process group of all ranks (`torch.distributed.distributed_c10d`)."""


@dataclass
class Reading:
    """The state of the recorder as its packets give it, and what is counted on the way."""

    builder: TraceBuilder
    columns: EventColumns
    interned: defaultdict[int, Interned] = field(default_factory=lambda: defaultdict(Interned))
    """Names by the number of their sequence."""
    tracks: Tracks = field(default_factory=Tracks)
    shift: int | None = None
    """ns from the trace's clock to the time of day."""
    undecodable: int = 0
    """Packets that are no valid message, and slices and stages that name what was never given."""
    other: Counter[str] = field(default_factory=Counter)
    """Packets of kinds that torch.profiler does not write."""
    work: int = 0
    """Rows that torch.profiler's categories and stages gave."""
    world: dict[str, int] = field(default_factory=dict)
    """`rank` and `world_size`, where a collective over all ranks says them."""

    def times(self, packets: PacketRows, rows: Integers) -> Integers:
        """When each packet's event began or ended, ns since the epoch; `NA` where that is beyond any clock."""
        recorded, shift = packets.rows[rows, TIME], self.shift or 0
        if abs(shift) >= LIMIT:
            return np.full(len(recorded), NA, np.int64)
        times = np.where(recorded == NA, 0, recorded) + shift
        return np.where((recorded == NA) | (times <= 0) | (times >= LIMIT), NA, times)

    def looked_up(
        self, packets: PacketRows, rows: Integers, column: int, table: Callable[[Interned], Mapping[int, int]]
    ) -> npt.NDArray[np.int32]:
        """What the numbers in a column stand for in their sequence's table; `MISSING` where that has none."""
        found = np.empty(len(rows), np.int32)
        sequences = packets.rows[rows, SEQUENCE]
        for sequence in np.unique(sequences).tolist():
            own = np.flatnonzero(sequences == sequence)
            known = table(self.interned[sequence])
            numbers, places = np.unique(packets.rows[rows[own], column].view(np.uint64), return_inverse=True)
            found[own] = np.array([known.get(number, MISSING) for number in numbers.tolist()], np.int32)[places]
        return found

    def names(self, packets: PacketRows, rows: Integers, otherwise: Callable[[int], str]) -> Codes:
        """The code of each name; `otherwise` gives that of a row whose number names nothing."""
        found = self.looked_up(packets, rows, NAME, lambda interned: interned.names)
        missing = np.flatnonzero(found == MISSING)
        self.undecodable += int(np.count_nonzero(packets.rows[rows[missing], NAME]))
        for place in missing.tolist():
            found[place] = self.builder.names.code(otherwise(int(rows[place])))
        return found

    def learn_world(self, told: Mapping[str, Any]) -> None:
        """Take rank and size of the job from the arguments of a collective over all ranks."""
        size, rank = told.get("Group size"), told.get("Rank")
        if told.get("Process Group Description") == WHOLE_WORLD and isinstance(size, int) and 0 < size < LIMIT:
            self.world.setdefault("world_size", size)
            if isinstance(rank, int) and 0 <= rank < size:
                self.world.setdefault("rank", rank)
