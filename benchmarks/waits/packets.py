"""Large Perfetto traces, as torch.profiler's encoder lays them out: synthetic, for sizes and not for any real run."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from helpers.kineto import Event, call, kernel, note, op
from helpers.pftrace import PftraceWriter, framed

PER_STEP = 6_000
"""Events of a step, in groups of four: an operator with shapes, one within it, a launch and its kernel."""
_STEP_US = 13_000
_STEP = "ProfilerStep#"
_NUMBERED = (b"External id", b"correlation", b"Ev Idx", b"Sequence number")
_SHAPED = (
    ("aten::mm", [[1024, 256], [256, 512]], ["float", "float"], ["", ""]),
    ("aten::add_", [[1024, 512], [512], []], ["float", "float", "Scalar"], ["", "", "1."]),
)


def synthetic_packets(path: Path, events: int) -> Path:
    """A trace of about that many events, in whole steps; one step of them is held in memory."""
    writer, steps = PftraceWriter(), max(2, events // PER_STEP)
    names = [writer.number("event_names", f"{_STEP}{step}") for step in range(steps)]
    host, calls, kernels = _step()
    runs: list[list[Any]] = []
    for group in (host, calls):
        before = len(writer.events)
        writer.slices(group)
        own = writer.events[before:]
        runs += [own[: len(group)], own[len(group) :]]
    before = len(writer.events)
    for number, event in enumerate(kernels, 1):
        writer.stage(number, event)
    runs.append(writer.events[before:])
    with path.open("wb") as file:
        for packet in islice(writer.all_packets(), 2 + len(writer.tracks)):
            file.write(framed(packet.SerializeToString()))
        for run in runs:
            for step in range(steps):
                file.writelines(framed(packet.SerializeToString()) for packet in run)
                for packet in run:
                    _move_on(packet, names, step + 1)
    return path


def _move_on(packet: Any, names: list[int], step: int) -> None:
    """Make an event of one step that of the next."""
    packet.timestamp += _STEP_US * 1000
    for annotation in packet.track_event.debug_annotations if packet.HasField("track_event") else ():
        if annotation.name in _NUMBERED:
            annotation.int_value += PER_STEP
    if packet.HasField("gpu_render_stage_event"):
        packet.gpu_render_stage_event.event_id += PER_STEP
        correlation = next(one for one in packet.gpu_render_stage_event.extra_data if one.name == b"correlation")
        correlation.value = b"%d" % (int(correlation.value) + PER_STEP)
    elif packet.track_event.name_iid == names[step - 1] and step < len(names):
        packet.track_event.name_iid = names[step]


def _step() -> tuple[list[Event], list[Event], list[Event]]:
    host, calls, kernels = [note(0, _STEP_US - 500, f"{_STEP}0")], [], []
    for one in range(PER_STEP // 4):
        at, (name, dims, types, concrete) = 5 + one * 8, _SHAPED[one % 2]
        ids = {"External id": one + 1, "Record function id": 0, "Ev Idx": one, "Sequence number": one}
        inputs = {"Input Dims": dims, "Input type": types, "Concrete Inputs": concrete}
        host += [op(at, 7, name, **ids, **inputs), op(at + 1, 1, "aten::empty", **ids, **{"Input Dims": []})]
        calls.append(call(at + 2, 3, one + 1))
        kernels.append(kernel(at + 5, 6, one + 1, f"ampere_sgemm_{one % 40}", **{"context id": 1, "arch": "sm_90"}))
    return host, calls, kernels
