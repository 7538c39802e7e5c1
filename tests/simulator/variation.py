"""The same job with other times and sizes, each within a third of what it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import crc32

from simulator.job import Job
from simulator.judged import Case

TIMES = ("gemm_ns", "small_ns", "op_ns", "call_ns", "rate", "alpha_ns", "layer_bytes", "loader_ns", "gc_ns")
INJECTED = ("host_work_ns", "item_own_ns", "allocation_ns", "copy_bytes", "outlier_ns", "compile_ns", "first_use_ns")


def varied_values(values: dict[str, Any], key: str, names: tuple[str, ...] = TIMES) -> dict[str, Any]:
    """Those of `values` that are of these names by a factor of 2/3 to 4/3, which hangs on the name and on `key`."""

    def factor(name: str) -> float:
        return 1 + (crc32(f"{key}.{name}".encode()) / 2**32 - 0.5) * 2 / 3

    return {name: type(old)(old * factor(name)) if name in names else old for name, old in values.items()}


def varied_job(job: Job, seed: int, key: str, names: tuple[str, ...] = TIMES) -> Job:
    """A job of another seed, with other times and sizes."""
    return replace(job, seed=seed, **varied_values({name: getattr(job, name) for name in names}, key, names))


def varied_case(case: Case, seed: int) -> Case:
    """What was injected stays, in another strength."""
    job = varied_job(case.job, seed, f"{seed}.{case.name}", TIMES + INJECTED)
    return replace(case, job=replace(job, name=f"{case.name}_{seed}"))
