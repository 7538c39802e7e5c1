"""Ranks by the names of files together, where neither the files nor a labelled number (`rank7`) tell them.

Definitions: «Ranks of a file and of a folder».
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuscope import when_used

_ENGINE = when_used.pattern(r"(?:.*-|^)TP-?(?P<tp>\d+)(?:-DP-?(?P<dp>\d+))?(?:-PP-?(?P<pp>\d+))?(?:-EP-?\d+)?(?=\.|$)")
"""SGLang's names: `1722…-TP-1-DP-0.trace.json.gz`, and `TP01-DP00` within a merged file; expert parallelism divides the
same ranks anew."""
_NUMBER = when_used.pattern(r"\d+")


def by_names(paths: Sequence[Path]) -> dict[Path, int]:
    """The rank of each file, for all or for none of them: the parallel ranks in an engine's names, tensor within data
    within pipeline parallelism; else the one number in which the names differ, if these are 0 … n−1."""
    engine = engine_ranks([path.name for path in paths])
    return dict(zip(paths, engine, strict=True)) if engine else _bare(paths)


def engine_ranks(names: Sequence[str]) -> list[int]:
    """The rank of each name by its places in the parallel groups; empty where a name has none, or two have the same."""
    found = [match for name in names if (match := _ENGINE.match(name))]
    if len(found) < len(names) or not names:
        return []
    places = [tuple(int(match[axis] or 0) for axis in ("pp", "dp", "tp")) for match in found]
    _, data, tensor = (1 + max(place[axis] for place in places) for axis in range(3))
    ranks = [(pp * data + dp) * tensor + tp for pp, dp, tp in places]
    return ranks if len(set(ranks)) == len(ranks) else []


def _bare(paths: Sequence[Path]) -> dict[Path, int]:
    """Of one file's number nothing tells what it means."""
    names = [f"{path.parent.name}/{path.name}" for path in paths]
    numbers = [[int(number) for number in _NUMBER.findall(name)] for name in names]
    if len(paths) < 2 or len({_NUMBER.sub("#", name) for name in names}) > 1:
        return {}
    columns = [column for column in zip(*numbers, strict=True) if sorted(column) == list(range(len(paths)))]
    return dict(zip(paths, columns[0], strict=True)) if len(columns) == 1 else {}
