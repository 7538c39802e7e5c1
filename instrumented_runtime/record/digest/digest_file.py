"""The file of a rank's digest: JSON lines, at most two files of `LIMIT` bytes; a kill cuts the last line at most."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from gpuscope.instrumented_runtime.record.gloo.collective_log import Collective, Group

LIMIT = 32 << 20
"""Bytes of a file; then it becomes the older one, and the one that was that is gone: at 1 kB a step the last 30,000 to
60,000 steps stay."""
VERSION = 2
encoded = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class DigestFile:
    """Writes lines; what they refer to by number (kinds of collectives) or name (groups) stands before them."""

    def __init__(self, path: Path, header: dict[str, Any], limit: int = LIMIT) -> None:
        self.path, self.older = path, path.with_name(path.name + ".older")
        self._header = {"gpuscope_digest": VERSION, **header}
        self._limit = limit
        self._written = 0
        self._file: IO[str]
        self._begin()

    def _begin(self) -> None:
        self._file = self.path.open("w", encoding="utf-8")
        self._kinds: dict[tuple[str, str, int], int] = {}
        self._groups: set[str] = set()
        self._written = 0
        self.line(self._header)
        self.flush()

    def line(self, values: dict[str, Any]) -> None:
        """Add a line; `flush` writes it."""
        self.text(encoded(values))

    def text(self, line: str) -> None:
        """Add a line that is encoded already."""
        self._written += self._file.write(line + "\n")

    def flush(self) -> None:
        """Write the lines added, so that a kill takes none of them."""
        self._file.flush()

    def rotate_if_full(self) -> None:
        """Between two steps: what a step refers to stands in its own file."""
        if self._written >= self._limit:
            self._file.close()
            self.path.replace(self.older)
            self._begin()

    def kind(self, one: Collective) -> int:
        """The number of a collective's kind: operation, group, bytes."""
        if one.group.name not in self._groups:
            self._groups.add(one.group.name)
            self._group(one.group)
        key = one.op, one.group.name, one.bytes
        if key not in self._kinds:
            self._kinds[key] = len(self._kinds)
            self.line(
                {
                    "kind": self._kinds[key],
                    "op": one.op,
                    "group": one.group.name,
                    "bytes": one.bytes,
                    "dtype": one.dtype,
                }
            )
        return self._kinds[key]

    def _group(self, group: Group) -> None:
        self.line({"group": group.name, "description": group.description, "ranks": list(group.ranks)})

    def close(self) -> None:
        """No more lines."""
        self._file.close()
