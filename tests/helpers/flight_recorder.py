"""Small Flight Recorder dumps written by hand."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Group = tuple[str, str, list[int]]
"""Name, description, ranks."""


def entry(group: Group, seq: int, op: str = "all_reduce", *, done: bool = False, **more: Any) -> dict[str, Any]:
    """One collective of 16 floats; `op` as torch names it (`send 0->1` with ranks within the group)."""
    p2p = op.startswith(("send", "recv"))
    return {
        "pg_id": 0,
        "process_group": (group[0], group[1]),
        "collective_seq_id": 0 if p2p else seq,
        "p2p_seq_id": seq if p2p else 0,
        "op_id": seq,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": 1_700_000_000_000_000_000 + seq,
        "input_sizes": [[16]],
        "input_dtypes": ["Float"],
        "output_sizes": [[16]],
        "output_dtypes": ["Float"],
        "state": "completed" if done else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": done,
        "is_p2p": p2p,
        "frames": [{"name": "step", "filename": "train.py", "line": 10 + seq}],
    } | more


def dump(
    folder: Path, rank: int, groups: Sequence[Group], entries: Sequence[Mapping[str, Any]], /, **more: Any
) -> Path:
    """Write a rank's dump; entries are numbered from 0, unless they tell."""
    ids = {group[0]: number for number, group in enumerate(groups)}
    numbered = [{"record_id": i, **told, "pg_id": ids[told["process_group"][0]]} for i, told in enumerate(entries)]
    document = {
        "version": "2.10",
        "pg_config": {name: {"name": name, "desc": text, "ranks": str(ranks)} for name, text, ranks in groups},
        "pg_status": {},
        "entries": numbered,
    } | more
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(pickle.dumps(document, protocol=2))
    return path
