"""What a recording tells of its changes, for whoever asked for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuscope.instrumented_runtime.record.run_folder import rank_parts


def left_out(folder: Path) -> Iterator[str]:
    """A line per change that no rank could make, or not everywhere, with the places and reasons."""
    ranks = [part.facts["applied"] for part in rank_parts(folder) if "applied" in part.facts]
    for name in ranks[0] if ranks else ():
        rows = [rank[name] for rank in ranks if name in rank]
        times = sum(row["times"] for row in rows)
        refusals = dict.fromkeys(
            f"at {one['where']}: {one['why']}" if one["where"] else one["why"] for row in rows for one in row["not"]
        )
        change = f"{name}={rows[0]['value']}"
        if refusals:
            yield f"{change} was not applied{' everywhere' if times else ''}: {'; '.join(refusals)}"
        elif not times:
            yield f"{change} was not applied: the script made nothing that takes it"
