"""Large Perfetto traces, as torch.profiler's encoder lays them out: synthetic, for sizes and not for any real run."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from helpers.kineto import Event, call, kernel, note, op
from helpers.pftrace import PftraceWriter

PER_STEP = 6_000
"""Events of a step, in groups of four: an operator with shapes, one within it, a launch and its kernel."""
_STEP_US = 13_000
_SHAPED = (
    ("aten::mm", [[1024, 256], [256, 512]], ["float", "float"], ["", ""]),
    ("aten::add_", [[1024, 512], [512], []], ["float", "float", "Scalar"], ["", "", "1."]),
)


def synthetic_packets(path: Path, events: int) -> Path:
    """A trace of about that many events, in whole steps."""
    writer, steps = PftraceWriter(), max(2, events // PER_STEP)
    host, calls, kernels = _step()
    for group in (host, calls):
        writer.slices(_moved(event, step) for step in range(steps) for event in group)
    for number, event in enumerate((_moved(event, step) for step in range(steps) for event in kernels), 1):
        writer.stage(number, event)
    path.write_bytes(writer.bytes())
    return path


def _step() -> tuple[list[Event], list[Event], list[Event]]:
    host, calls, kernels = [note(0, _STEP_US - 500, "ProfilerStep#0")], [], []
    for one in range(PER_STEP // 4):
        at, (name, dims, types, concrete) = 5 + one * 8, _SHAPED[one % 2]
        ids = {"External id": one + 1, "Record function id": 0, "Ev Idx": one, "Sequence number": one}
        inputs = {"Input Dims": dims, "Input type": types, "Concrete Inputs": concrete}
        host += [op(at, 7, name, **ids, **inputs), op(at + 1, 1, "aten::empty", **ids, **{"Input Dims": []})]
        calls.append(call(at + 2, 3, one + 1))
        kernels.append(kernel(at + 5, 6, one + 1, f"ampere_sgemm_{one % 40}", **{"context id": 1, "arch": "sm_90"}))
    return host, calls, kernels


def _moved(event: Event, step: int) -> Event:
    """An event of the first step in another, with numbers of its own."""
    args = dict(event["args"])
    for key in ("External id", "correlation", "Ev Idx", "Sequence number"):
        if key in args:
            args[key] += step * PER_STEP
    name = f"ProfilerStep#{step}" if event["name"].startswith("ProfilerStep#") else event["name"]
    return {**event, "ts": event["ts"] + step * _STEP_US, "name": name, "args": args}
