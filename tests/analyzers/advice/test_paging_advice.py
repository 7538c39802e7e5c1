"""Advice on unified memory: by the direction in which pages migrate, and by what moved them."""

from __future__ import annotations

from pathlib import Path

from helpers.nsys import Export

import gpuscope
from gpuscope.schema.document import Report, UnpredictedEntry

MS = 1_000_000
TO_DEVICE, TO_HOST = 11, 12
PREFETCH, FAULT, SPECULATIVE, EVICTION = 1, 2, 3, 4


def migrating(folder: Path, *migrations: tuple[int, int], rounds: int = 6, kernel: str = "stencil") -> Report:
    """Rounds of a kernel of 1 ms, behind exposed migrations of (kind, cause) for 1 ms and 6 MB each."""
    export, at = Export(), MS
    for number in range(rounds):
        for kind, cause in migrations:
            export.copy(at, at + MS, 0, kind=kind, migrationCause=cause, bytes=6_000_000)
            at += MS
        export.call(at, at + 5_000, 10 * number + 1)
        export.kernel(at + 10_000, at + MS, 10 * number + 1, name=kernel)
        at += MS + 20_000
    return gpuscope.analyze(export.write(folder / f"um{len(list(folder.iterdir()))}")).report


def told(report: Report) -> list[UnpredictedEntry]:
    codes = ("prefetch", "memory_advice", "device_memory")
    return [one for one in report["advice"]["unpredicted"] if one["code"] in codes]


def settings(report: Report) -> list[tuple[str, str]]:
    return [(one["setting"]["name"], one["setting"]["value"].partition(":")[0]) for one in told(report)]


def test_each_direction_gets_its_prefetch(tmp_path: Path) -> None:
    to_device = migrating(tmp_path, (TO_DEVICE, FAULT), (TO_DEVICE, PREFETCH))
    assert settings(to_device) == [("cudaMemPrefetchAsync", "the device")]
    (one,) = told(to_device)
    assert one["grounds"] == "34.3 MiB moved to the device on demand, 34.3 MiB by a prefetch"
    assert one["bound"]["step_ns_low"] < one["bound"]["step_ns_before"]
    assert settings(migrating(tmp_path, (TO_HOST, SPECULATIVE))) == [("cudaMemPrefetchAsync", "cudaCpuDeviceId")]


def test_what_goes_to_and_fro_in_each_step_may_be_read_mostly(tmp_path: Path) -> None:
    both = (TO_DEVICE, FAULT), (TO_HOST, FAULT)
    prefetches = [("cudaMemPrefetchAsync", "the device"), ("cudaMemPrefetchAsync", "cudaCpuDeviceId")]
    assert settings(migrating(tmp_path, *both)) == [*prefetches, ("cudaMemAdvise", "cudaMemAdviseSetReadMostly")]
    assert settings(migrating(tmp_path, *both, rounds=1)) == prefetches  # inputs, then results


def test_where_pages_are_evicted_a_prefetch_would_evict_more(tmp_path: Path) -> None:
    (one,) = told(migrating(tmp_path, (TO_DEVICE, FAULT), (TO_HOST, EVICTION)))
    assert "cudaMemAdviseSetPreferredLocation" in one["setting"]["value"]


def test_in_pytorch_the_allocator_is_what_pages(tmp_path: Path) -> None:
    kernel = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"
    assert [one["code"] for one in told(migrating(tmp_path, (TO_DEVICE, FAULT), kernel=kernel))] == ["device_memory"]


def test_what_is_prefetched_already_is_left_alone(tmp_path: Path) -> None:
    assert told(migrating(tmp_path, (TO_DEVICE, PREFETCH))) == []
    assert told(migrating(tmp_path)) == []
