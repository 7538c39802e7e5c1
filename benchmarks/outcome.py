"""An outcome as benchmarks/outcomes keeps it, from which docs/generate.py makes a table: TOML."""

from __future__ import annotations

import json
from collections.abc import Sequence


def outcome(head: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The text of the file, behind comment lines `head`."""
    lines = [f"  {json.dumps(row, ensure_ascii=False)}," for row in rows]
    return "\n".join([head, f"columns = {json.dumps(columns, ensure_ascii=False)}", "rows = [", *lines, "]", ""])
