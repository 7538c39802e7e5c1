"""Allocator snapshots written by hand. Synthetic: addresses and sizes are chosen, not recorded."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
Entry = dict[str, Any]
EPOCH_US = 1_700_000_000_000_000


def frame(name: str) -> Entry:
    return {"name": name, "filename": "/job/train.py", "line": 7}


def segment(address: int, *blocks: tuple[int, str], **more: Any) -> Entry:
    """A segment of blocks (bytes, state) one behind the other; requests are as large as their blocks."""
    at, told = address, []
    for size, state in blocks:
        told.append(
            {
                "address": at,
                "size": size,
                "requested_size": size,
                "state": state,
                "frames": [frame("step")] if state != "inactive" else [],
            }
        )
        at += size
    total = at - address
    return {
        "device": 0,
        "address": address,
        "total_size": total,
        "stream": 0,
        "segment_type": "large",
        "allocated_size": sum(size for size, state in blocks if state == "active_allocated"),
        "active_size": sum(size for size, state in blocks if state != "inactive"),
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": told,
        "frames": [],
    } | more


def events(*told: tuple[str, int, int], **more: Any) -> list[Entry]:
    """Events (action, address, bytes), one per microsecond; `free` is both of its halves, at once."""
    found: list[Entry] = []
    for action, address, size in told:
        for part in ("free_requested", "free_completed") if action == "free" else (action,):
            where = {"device_free": address} if part == "oom" else {"addr": address}
            found.append(
                {
                    "action": part,
                    "size": size,
                    "stream": 0,
                    "time_us": EPOCH_US + len(found),
                    "frames": [frame("step")],
                    **where,
                }
                | more
            )
    return found


def snapshot(path: Path, segments: Sequence[Entry], trace: Sequence[Entry] = (), **settings: Any) -> Path:
    """Write one as `torch.cuda.memory._dump_snapshot` does."""
    told = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False} | settings
    whole = {
        "segments": list(segments),
        "device_traces": [list(trace)],
        "allocator_settings": told,
        "external_annotations": [],
    }
    path.write_bytes(pickle.dumps(whole))
    return path
