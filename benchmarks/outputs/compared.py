"""Two folders of kept output, beside one another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

LONGEST = 240
"""Characters of a line of a difference."""


def digest(folder: Path) -> str:
    """One hash of all files in `folder`, by name and content."""
    total = hashlib.sha256()
    for path in _files(folder).values():
        total.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def changes(before: Path, after: Path, only: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Each file that differs, with the changed lines; a file that one side lacks is one line."""
    old, new = _files(before), _files(after)
    for name in sorted({*old, *new}):
        if only and not any(part in name for part in only):
            continue
        if name not in new or name not in old:
            yield name, ["gone" if name in old else "new"]
        elif old[name].read_bytes() != new[name].read_bytes():
            yield name, _lines(old[name], new[name])


def _files(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _lines(old: Path, new: Path) -> list[str]:
    """The changed lines; of a page or a table in one line, the place where they part."""
    texts = [path.read_text(encoding="utf-8").splitlines() for path in (old, new)]
    found = [line for line in unified_diff(*texts, lineterm="", n=0) if not line.startswith(("---", "+++", "@@"))]
    return [line if len(line) <= LONGEST else f"{line[:LONGEST]}…" for line in found]
