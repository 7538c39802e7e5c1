"""A reduced trace for a stranger's disk: no names of folders, hosts and users."""

from __future__ import annotations

from typing import Any

from gpuscope.analyzers.run.file_part import Part
from gpuscope.report.sharing import Replacing, hashed, texts


def shared_tree(part: Part, tree: Any) -> Any:
    """`tree`, which is `part` packed, with its texts replaced.

    Hosts and users get the first letters of a hash, so that parts made on several nodes still tell which ranks share a
    host. Whoever knows a name can therefore check whether it is meant.
    """
    paths = [str(source.path) for source in part.trace.sources]
    tree = Replacing(texts(tree), part.trace.hosts, paths, hashed).all(tree)
    trace = tree["of"]["trace"]
    trace["names"] = _distinct(trace["names"])
    return tree


def _distinct(names: list[str]) -> list[str]:
    """Names are referred to by their place, and two of them may have become one."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found
