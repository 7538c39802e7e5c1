"""Which framework a job runs and how it is parallelised, told by its process groups and modules."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from gpuscope.trace.naming.frameworks import parallelism as degrees

_MODULES = {
    "megatron.core": "megatron",
    "deepspeed": "deepspeed",
    "torchtitan": "torchtitan",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "transformers.trainer": "transformers",
    "accelerate": "accelerate",
}


def framework(modules: Iterable[str] | None = None) -> str | None:
    """The training framework among the imported modules, the most specific one; None for plain torch."""
    loaded = set(sys.modules if modules is None else modules)
    return next((name for module, name in _MODULES.items() if module in loaded), None)


def parallelism(groups: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Degree per kind of parallelism, of groups as torch's `_get_all_pg_configs` lists them."""
    return degrees((str(group.get("pg_desc") or ""), group["pg_size"]) for group in groups)
