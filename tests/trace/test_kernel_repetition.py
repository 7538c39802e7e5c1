"""Steps found by repetition hold what repeats as a whole: a layer is no step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.kineto import call as launch_call
from helpers.kineto import copy, kernel, note, write
from helpers.nsys import KERNEL, Export
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope
from gpuscope.analyzers.base.lanes import views
from gpuscope.trace.kernel_repetition import _spacing

SEQUENCE = "repetition of the kernel sequence"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def steps_of(path: Path) -> tuple[list[int], str | None]:
    """Lengths (µs) of the device's steps of the first rank, and what they were found from."""
    (view,) = views(gpuscope.open_trace(path))
    proper = [step for step in view.steps if step.step >= 0]
    return [(step.end - step.start) // 1000 for step in proper], view.basis


class Device:
    """Kernels one behind the other, 8 long every 10; launches are recorded 1 apart, in order, if asked for."""

    def __init__(self, *, launches: bool = False) -> None:
        self.at, self.number, self.events = 0, 0, list[Any]()
        self.launches = launches

    def run(self, names: str, stream: int = 7, dur: int = 8) -> Device:
        for name in names:
            self.number += 1
            if self.launches:
                self.events.append(launch_call(self.at - 5, 1, self.number))
            self.events.append(kernel(self.at, dur, self.number, NCCL if name == "N" else name, stream))
            self.at += dur + 2
        return self

    def copy(self) -> Device:
        self.number += 1
        self.events.append(copy(self.at, 8, self.number, stream=9))
        self.at += 10
        return self

    def idle(self, time: int) -> Device:
        self.at += time
        return self


@pytest.mark.parametrize("launches", [False, True])
@pytest.mark.parametrize("layer", ["g", "ab", "abcd"])
def test_a_collective_between_groups_of_layers(tmp_path: Path, layer: str, launches: bool) -> None:
    device = Device(launches=launches)
    for _ in range(5):
        device.run(layer * 6).run("N", stream=20)
    long = 60 * len(layer) + 10
    assert steps_of(write(tmp_path / "r.json", *device.events)) == ([long] * 4 + [long - 2], SEQUENCE)


def test_a_kernel_that_the_layers_lack(tmp_path: Path) -> None:
    """An optimizer on a stream of its own, behind a copy."""
    device = Device()
    for _ in range(4):
        device.run("ab" * 5).copy().run("u", stream=9)
    assert steps_of(write(tmp_path / "r.json", *device.events))[0] == [120, 120, 120, 118]


def test_copies_alone_interrupt_nothing(tmp_path: Path) -> None:
    device = Device()
    for _ in range(4):
        device.run("ab" * 5).copy()
    assert len(steps_of(write(tmp_path / "r.json", *device.events))[0]) == 20


def test_idle_longer_than_the_layer_with_a_collective_in_each(tmp_path: Path) -> None:
    device = Device()
    for _ in range(4):
        for _ in range(6):
            device.run("g").run("N", stream=20)
        device.idle(50)
    assert steps_of(write(tmp_path / "r.json", *device.events))[0] == [170, 170, 170, 118]


def test_shorter_pauses_are_within_the_loop(tmp_path: Path) -> None:
    """A pause of 15 behind every sixth period of 20 is no bound of anything."""
    device = Device()
    for _ in range(5):
        device.run("ab" * 6).idle(15)
    assert len(steps_of(write(tmp_path / "r.json", *device.events))[0]) == 30


def test_a_period_of_one_kernel_that_nothing_interrupts(tmp_path: Path) -> None:
    device = Device().run("g" * 12)
    assert steps_of(write(tmp_path / "r.json", *device.events)) == ([10] * 11 + [8], SEQUENCE)


def test_a_pause_now_and_then_makes_no_groups(tmp_path: Path) -> None:
    """A checkpoint, an evaluation: their distances differ."""
    device = Device()
    for length in (9, 4, 15, 6, 3):
        device.run("ab" * length).idle(300)
    assert len(steps_of(write(tmp_path / "r.json", *device.events))[0]) == 37


def test_one_pause_more_than_the_groups(tmp_path: Path) -> None:
    """A checkpoint within a group leaves the bounds of the groups as they are."""
    device = Device()
    for group in range(7):
        device.run("g" * 4).idle(90 if group == 3 else 0).run("g" * 6).idle(50)
    assert steps_of(write(tmp_path / "r.json", *device.events))[0] == [150, 150, 150, 240, 150, 150, 98]


def test_several_collectives_to_a_step(tmp_path: Path) -> None:
    """Buckets of gradients at unequal distances: their round is the step."""
    device = Device(launches=True)
    for _ in range(4):
        device.run("g" * 3).run("N", stream=20).run("g" * 5).run("N", stream=20).run("g" * 4).run("N", stream=20)
    assert steps_of(write(tmp_path / "r.json", *device.events))[0] == [150, 150, 150, 148]


def test_groups_that_change_their_length(tmp_path: Path) -> None:
    """Layers for certain, in steps that nothing bounds."""
    device = Device()
    for length in (6, 6, 6, 6, 6, 6, 9, 4, 7, 5):
        device.run("g" * length).run("N", stream=20)
    assert steps_of(write(tmp_path / "r.json", *device.events)) == ([], None)


def test_the_host_range_that_repeats_with_the_groups(tmp_path: Path) -> None:
    """It bounds the step, with the copy of the input that it holds; of two such ranges the outer one does, and one that
    repeats once per layer bounds nothing."""
    events: list[Any] = []
    for k in range(4):
        begin = 1_000 * k
        events += [note(begin, 400, "execute"), note(begin + 5, 300, "model"), launch_call(begin + 6, 2, 100 * k)]
        events += [copy(begin + 10, 20, 100 * k)]
        for i in range(1, 6):
            at = begin + 10 + 40 * i
            events += [note(at - 5, 20, "layer"), launch_call(at, 2, 100 * k + i), kernel(at + 10, 30, 100 * k + i)]
    path = write(tmp_path / "r.json", *events)
    assert steps_of(path) == ([1000, 1000, 1000, 240], "ranges named 'execute'")


def test_groups_in_an_nsys_export(tmp_path: Path) -> None:
    """Without host rows: steps of 20 kernels and their all-reduce, the recording begins within one."""
    export = Export()
    at = 0
    for index in range(8, 100):
        export.kernel(at, at + 80_000, index)
        at += 85_000
        if index % 20 == 19:
            export.kernel(at, at + 300_000, 1_000 + index, NCCL)
            export.tables[KERNEL][-1]["streamId"] = 20
            at += 400_000
    lengths, basis = steps_of(export.write(tmp_path))
    assert (set(lengths[:-1]), basis) == ({2_100}, SEQUENCE)


@given(length=st.integers(3, 40), groups=st.integers(3, 12), before=st.integers(0, 39), behind=st.integers(0, 39))
@settings(max_examples=200, deadline=None)
def test_marks_at_equal_distances_are_found(length: int, groups: int, before: int, behind: int) -> None:
    """Whatever is cut off at both ends; no distance is found that is not theirs."""
    before, behind = before % length, behind % length
    marks = before + length * np.arange(groups + 1)
    spacing = _spacing(marks, before + length * groups + behind, 1)
    assert spacing is not None
    assert spacing.length == length


@given(seed=st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_marks_by_chance_have_no_distance(seed: int) -> None:
    count = 400
    marks = np.array(sorted(random.Random(seed).sample(range(1, count), 12)))
    spacing = _spacing(marks, count, 1)
    assert spacing is None or spacing.length == 0
