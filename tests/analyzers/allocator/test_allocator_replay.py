"""The model of the caching allocator against rules worked by hand, and against real histories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gpuscope
from gpuscope.analyzers.allocator.allocator_replay import CANDIDATES, replay
from gpuscope.analyzers.allocator.allocator_settings import Settings, changed, from_snapshot, merged, segment_size
from gpuscope.analyzers.allocator.caching_allocator import Allocator, Block
from gpuscope.analyzers.allocator.history import histories
from gpuscope.trace.schema import NA
from tests.helpers.allocator import KIB, MIB, events, segment, snapshot

KEY = (0, -1)


def get(allocator: Allocator, size: int) -> Block:
    block = allocator.malloc(size, KEY)
    assert block is not None
    return block


def test_rounding() -> None:
    plain, steps = Settings(), changed(Settings(), "roundup_power2_divisions", "4")
    assert [plain.round(size) for size in (1, 512, 513, 1200)] == [512, 512, 1024, 1536]
    # PyTorch's notes: 1200 with 4 divisions lies between 1024 and 2048, whose steps are 1280, 1536, 1792.
    assert steps.round(5 * MIB + 1) == 6 * MIB  # between 4 and 8: 5, 6, 7
    assert steps.round(1200) == 1536  # but no size up to 4 × 512 is rounded so
    assert steps.round(4 * MIB) == 4 * MIB
    by_size = changed(Settings(), "roundup_power2_divisions", "[64:8,256:4,>:1]")
    assert by_size.round(33 * MIB) == 36 * MIB  # below 64 MiB as at 64: steps of 4
    assert by_size.round(300 * MIB) == 300 * MIB


def test_segments() -> None:
    assert segment_size(1 * MIB) == 2 * MIB
    assert segment_size(1 * MIB + 512) == 20 * MIB
    assert segment_size(10 * MIB) == 10 * MIB
    assert segment_size(11 * MIB) == 12 * MIB


def test_small_requests_share_a_segment() -> None:
    allocator = Allocator(Settings())
    blocks = [get(allocator, 512 * KIB) for _ in range(5)]
    assert (allocator.reserved, allocator.device_calls) == (4 * MIB, 2)
    assert [block.address - blocks[0].address for block in blocks[:4]] == [0, 512 * KIB, MIB, 1536 * KIB]


def test_a_remainder_of_a_mebibyte_is_not_split_off() -> None:
    allocator = Allocator(Settings())
    block = get(allocator, 20 * MIB)
    allocator.free(block)
    assert get(allocator, 19 * MIB).size == 20 * MIB


def test_best_fit_takes_the_smallest_and_neighbours_merge() -> None:
    allocator = Allocator(Settings())
    large, small = get(allocator, 40 * MIB), get(allocator, 30 * MIB)
    at = small.address
    allocator.free(large)
    allocator.free(small)
    first = get(allocator, 24 * MIB)
    assert first.address == at
    second = get(allocator, 6 * MIB)  # the remainder of it
    assert second.address == at + 24 * MIB
    allocator.free(first)
    allocator.free(second)
    assert get(allocator, 30 * MIB).size == 30 * MIB
    assert allocator.reserved == 70 * MIB


def test_streams_have_their_own_blocks() -> None:
    allocator = Allocator(Settings())
    allocator.free(get(allocator, 20 * MIB))
    allocator.malloc(20 * MIB, (1, -1))
    assert allocator.reserved == 40 * MIB


def test_oversize_blocks_are_kept_whole() -> None:
    allocator = Allocator(changed(Settings(), "max_split_size_mb", "64"))
    allocator.free(get(allocator, 100 * MIB))
    get(allocator, 32 * MIB)  # may not take it
    assert allocator.reserved == 132 * MIB
    assert get(allocator, 90 * MIB).size == 100 * MIB  # within 20 MiB: taken whole
    get(allocator, 70 * MIB)
    assert allocator.reserved == 202 * MIB


def test_a_retry_gives_whole_segments_back() -> None:
    allocator = Allocator(Settings(), limit=100 * MIB)
    whole, cut = get(allocator, 40 * MIB), get(allocator, 40 * MIB)
    allocator.free(whole)
    allocator.free(cut)
    get(allocator, 10 * MIB)  # of one of the two, which is then split and stays
    assert get(allocator, 60 * MIB).size == 60 * MIB
    assert (allocator.retries, allocator.reserved) == (1, 100 * MIB)
    assert allocator.malloc(60 * MIB, KEY) is None


def test_expandable_segments_grow_by_pages() -> None:
    allocator = Allocator(Settings(expandable=True))
    first = get(allocator, 30 * MIB)
    assert allocator.reserved == 40 * MIB  # two pages
    second = get(allocator, 30 * MIB)  # the ten left and one page more
    assert (second.address - first.address, allocator.reserved) == (30 * MIB, 60 * MIB)
    get(allocator, 3 * KIB)
    assert allocator.reserved == 62 * MIB  # small requests: a segment of their own with pages of 2 MiB
    allocator.free(first)
    allocator.empty_cache()  # of the 30 free MiB only the first page lies wholly within
    assert allocator.reserved == 42 * MIB - 2 * MIB + 2 * MIB
    assert get(allocator, 30 * MIB).address == first.address
    assert allocator.reserved == 62 * MIB


def test_old_garbage_is_collected_first() -> None:
    allocator = Allocator(changed(Settings(), "garbage_collection_threshold", "0.5"), limit=100 * MIB)
    old, young = get(allocator, 30 * MIB), get(allocator, 32 * MIB)
    allocator.free(old)
    allocator.free(young)
    allocator.free(get(allocator, 32 * MIB))  # the younger one once more
    get(allocator, 36 * MIB)  # 62 are reserved, 12 more than half of the limit
    assert allocator.reserved == 68 * MIB  # the older of the two went, which was enough
    assert allocator.retries == 0


def synthetic_history(folder: Path) -> Path:
    """Four requests of 120, 120, 60 and 200 MiB, worked by hand: the third is cut from the first's free block, the
    last finds none large enough."""
    a, b, c = 0x1000_0000, 0x2000_0000, 0x4000_0000
    history = events(
        ("segment_alloc", a, 120 * MIB),
        ("alloc", a, 120 * MIB),
        ("segment_alloc", b, 120 * MIB),
        ("alloc", b, 120 * MIB),
        ("free", a, 120 * MIB),
        ("alloc", a, 60 * MIB),
        ("segment_alloc", c, 200 * MIB),
        ("alloc", c, 200 * MIB),
    )
    left = [
        segment(a, (60 * MIB, "active_allocated"), (60 * MIB, "inactive")),
        segment(b, (120 * MIB, "active_allocated")),
        segment(c, (200 * MIB, "active_allocated")),
    ]
    return snapshot(folder / "s.pickle", left, history)


def test_every_request_of_a_synthetic_history_gets_its_address(tmp_path: Path) -> None:
    (history,) = histories(gpuscope.open_trace(synthetic_history(tmp_path)))
    outcome = replay(history, history.settings)
    assert history.inconsistent == 0
    assert (outcome.placed, outcome.requests) == (4, 4)
    assert outcome.peak_reserved == int(history.totals()[2].max()) == 440 * MIB
    assert replay(history, history.settings, empty=True).peak_reserved == 440 * MIB


def test_synthetic_expandable_segments_of_ascend(tmp_path: Path) -> None:
    """32 bytes more than asked for: 1,000 take 1,536. Two requests of 30 MiB need 61 MiB of pages of 20 MiB: four."""
    at, small = 0x1000_0000, 0x8000_0000
    large = 30 * MIB + 512  # 30 MiB and 32 bytes, rounded up
    history = events(
        ("segment_map", small, 2 * MIB),
        ("alloc", small, 1_000),
        ("segment_map", at, 40 * MIB),
        ("alloc", at, 30 * MIB),
        ("segment_map", at + 40 * MIB, 40 * MIB),
        ("alloc", at + large, 30 * MIB),
    )
    for event in history:
        del event["time_us"]
    left = [
        segment(small, (1_536, "active_allocated"), (2 * MIB - 1_536, "inactive"), segment_type="small"),
        segment(at, (large, "active_allocated"), (large, "active_allocated"), (80 * MIB - 2 * large, "inactive")),
    ]
    for each, asked in zip(left, (1_000, 30 * MIB), strict=True):
        each["is_expandable"] = True
        for block in each["blocks"]:
            if block["state"] == "active_allocated":
                block["requested_size"] = asked
    trace = gpuscope.open_trace(snapshot(tmp_path / "s.pickle", left, history, expandable_segments=True))
    assert set(trace["allocator_events"]["time"].tolist()) == {NA}
    (history_read,) = histories(trace)
    assert (history_read.settings.expandable, history_read.settings.padding) == (True, 32)
    outcome = replay(history_read, history_read.settings)
    assert outcome.requests == 3
    assert (outcome.peak_reserved, outcome.device_calls) == (82 * MIB, 3)


def test_every_request_gets_its_recorded_address(shared_traces: Path) -> None:
    """Thousands of requests of a real training on CUDA: the model puts each where PyTorch did."""
    (history,) = histories(gpuscope.open_trace(shared_traces / "memory/wedsonlin_medium_128_training.pickle"))
    outcome = replay(history, history.settings)
    assert history.inconsistent == 0
    assert outcome.placed == outcome.requests > 6_000
    assert outcome.peak_reserved == int(history.totals()[2].max())
    cold = replay(history, history.settings, empty=True)
    assert abs(cold.peak_reserved / outcome.peak_reserved - 1) < 0.005


def test_expandable_segments_of_ascend(shared_traces: Path) -> None:
    """It aligns large blocks to 16 KiB, so addresses differ; pages mapped and the peak are as recorded."""
    (history,) = histories(gpuscope.open_trace(shared_traces / "memory/ascend_expandable.pkl"))
    outcome = replay(history, history.settings)
    assert (history.settings.expandable, history.settings.padding) == (True, 32)
    assert (outcome.peak_reserved, outcome.device_calls) == (614 * MIB, 45)


def test_settings_of_a_snapshot() -> None:
    told: dict[str, Any] = {
        "max_split_size": 64 * MIB,
        "garbage_collection_threshold": 0.8,
        "expandable_segments": True,
        "roundup_power2_divisions": {str(1 << at): 4 for at in range(16)},
    }
    settings = from_snapshot(told)
    assert (settings.max_split, settings.gc_threshold, settings.expandable) == (64 * MIB, 0.8, True)
    assert settings.divisions == (4,) * 16
    assert from_snapshot({"max_split_size": -1}) == from_snapshot(None) == Settings()


def test_an_option_joins_those_that_are_set() -> None:
    before = "roundup_power2_divisions:[64:8,>:1], max_split_size_mb:128"
    after = "roundup_power2_divisions:[64:8,>:1],max_split_size_mb:256,expandable_segments:True"
    assert merged(merged(before, "max_split_size_mb", "256"), "expandable_segments", "True") == after


def test_values_are_those_that_pytorch_takes() -> None:
    torch = pytest.importorskip("torch")
    parse = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if parse is None:
        pytest.skip("this PyTorch has no parser of allocator settings outside of CUDA")
    refused = [
        ("max_split_size_mb", "19"),
        ("roundup_power2_divisions", "3"),
        ("garbage_collection_threshold", "1.5"),
        ("expandable_segments", "yes"),
    ]
    try:
        for option, value in CANDIDATES:
            parse(merged("", option, value))
            changed(Settings(), option, value)
        for option, value in refused:
            with pytest.raises((RuntimeError, ValueError)):
                parse(merged("", option, value))
            with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
                changed(Settings(), option, value)
    finally:
        parse("")
