"""torch's own Flight Recorder in this process: one for NCCL and one for every other backend, read as one."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

# The first one is there only in a torch that was built with NCCL.
READERS = ("_dump_nccl_trace", "_dump_fr_trace")


def has_nccl() -> bool:
    """Whether a group of this process may use NCCL. Of gloo alone the recorder tells nothing worth its cost: every
    entry stays `scheduled`, and thousands take a hundredth of a second and the GIL."""
    from torch.distributed import distributed_c10d as c10d

    configs = getattr(getattr(c10d, "_world", None), "pg_backend_config", {}).values()
    return any("nccl" in str(config) for config in configs)


def recorded(*, stacks: bool = True, only_active: bool = False) -> dict[str, Any]:
    """A dump in the recorder's format; empty on a torch that has none. Callable while a rank hangs."""
    try:
        from torch._C import _distributed_c10d as c10d
    except ImportError:
        return {}
    readers = [getattr(c10d, name) for name in READERS if hasattr(c10d, name)]
    return merged([_read(reader, stacks, only_active) for reader in readers])


def _read(reader: Callable[..., bytes], stacks: bool, only_active: bool) -> dict[str, Any]:
    dump: dict[str, Any] = pickle.loads(reader(includeStackTraces=stacks, onlyActive=only_active))
    return dump


def merged(dumps: list[dict[str, Any]]) -> dict[str, Any]:
    """Merges several dumps: entries in order of creation, each once; the first of equal keys wins."""
    whole: dict[str, Any] = {}
    for dump in dumps:
        for key, value in dump.items():
            if isinstance(value, dict):
                whole[key] = value | whole.get(key, {})
            elif key != "entries":
                whole.setdefault(key, value)
    entries = {_identity(entry): entry for dump in dumps for entry in dump.get("entries", [])}
    if entries:
        whole["entries"] = sorted(entries.values(), key=lambda entry: entry["time_created_ns"])
    return whole


def _identity(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry[key] for key in ("time_created_ns", "profiling_name", "pg_id", "record_id"))
