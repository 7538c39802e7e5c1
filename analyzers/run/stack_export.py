"""The tree of places for viewers of flame graphs: speedscope's own format, or collapsed stacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuscope.analyzers.base.lanes import views
from gpuscope.analyzers.base.sections import CALL_TREE
from gpuscope.analyzers.profile import call_stacks
from gpuscope.errors import InputError
from gpuscope.report.view import places
from gpuscope.schema.call_tree_section import PlaceEntry
from gpuscope.trace.trace import Trace
from gpuscope.version import __version__

IDLE = "(idle)"
"""Frame of idle time in collapsed stacks, which hold one number each."""
_PROFILES = (
    ("device_ns", "device time"),
    ("exposed_communication_ns", "exposed communication"),
    ("idle_ns", "idle time"),
)


def entries(trace: Trace) -> list[PlaceEntry]:
    """The places of a trace, summed over its ranks. Raises `InputError` where it has none."""
    found = call_stacks.run(trace, views(trace)).sections.get(CALL_TREE)
    if not found:
        raise InputError(
            "no place of the program is known: no host events were recorded that launches could be tied to",
            hint="record with the CPU activity of torch.profiler and with_stack=True, or `nsys profile -t cuda,nvtx`",
        )
    return found


def write_speedscope(found: Sequence[PlaceEntry], path: Path) -> None:
    """Write a file for https://www.speedscope.app (its file-format-schema.json): a profile each of device time, exposed
    communication and idle time, weights in ns."""
    frames: dict[str, int] = {}
    profiles: list[dict[str, Any]] = []
    for key, name in _PROFILES:
        weighed = [(stack, entry[key]) for stack, entry in places.stacks(found) if entry[key]]  # type: ignore[literal-required]
        profiles.append(
            {
                "type": "sampled",
                "name": name,
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": sum(weight for _, weight in weighed),
                "samples": [[frames.setdefault(frame, len(frames)) for frame in stack] for stack, _ in weighed],
                "weights": [weight for _, weight in weighed],
            }
        )
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"gpuscope {__version__}",
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": profiles,
    }
    path.write_text(json.dumps(document), encoding="utf-8")


def write_collapsed(found: Sequence[PlaceEntry], path: Path) -> None:
    """Write a line per stack, its frames parted by semicolons, and ns of device time; idle time as a frame below."""
    lines = []
    for stack, entry in places.stacks(found):
        text = ";".join(frame.replace(";", ",").replace("\n", " ") for frame in stack)
        lines += [f"{text} {entry['device_ns']}"] if entry["device_ns"] else []
        lines += [f"{text};{IDLE} {entry['idle_ns']}"] if entry["idle_ns"] else []
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="replace")
