"""Arguments of collectives whose kernels carry none, from the `record_param_comms` range around the launch.

Kineto copies them from that range to the kernel; the CUPTI back end of torch 2.15 has no such link. The join is
kernel → (correlation) → launching call → innermost `record_param_comms` of its thread that covers the call's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuscope.sources.kineto.event_arguments import CommunicationArguments
from gpuscope.trace.schema import NA, Category

RANGE = "record_param_comms"
Communication = tuple[int, CommunicationArguments, str]
"""Row in device_events, arguments, name of the kernel."""


def with_launch_arguments(
    chunks: Sequence[tuple[str, int, dict[str, Any]]],
    collectives: Sequence[Communication],
    ranges: Sequence[tuple[int, CommunicationArguments]],
) -> list[Communication]:
    """`collectives`, each without arguments of its own given those of its launching range.

    `chunks` are the tables' columns as read, `ranges` the rows in host_events and arguments of the ranges.
    """
    bare = [place for place, (_, arguments, _) in enumerate(collectives) if not told(arguments)]
    if not bare or not ranges:
        return list(collectives)
    calls = _launching_calls(chunks, [collectives[place][0] for place in bare])
    around = _Ranges(chunks, ranges)
    found = list(collectives)
    for place, call in zip(bare, calls, strict=True):
        arguments = around.covering(call)
        if arguments is not None:
            found[place] = (found[place][0], arguments, found[place][2])
    return found


def told(arguments: CommunicationArguments) -> bool:
    """Whether anything of the collective was recorded."""
    return any(value is not None for value in (arguments.collective, arguments.group, arguments.seq, arguments.count))


def _column(chunks: Sequence[tuple[str, int, dict[str, Any]]], table: str, name: str) -> Any:
    return np.concatenate([columns[name] for held, _, columns in chunks if held == table] or [np.empty(0, np.int64)])


def _launching_calls(
    chunks: Sequence[tuple[str, int, dict[str, Any]]], rows: Sequence[int]
) -> list[tuple[int, int] | None]:
    """Thread and start of the call that launched each row of device_events; None where it was not recorded."""
    correlation = _column(chunks, "host_events", "correlation")
    calls = np.flatnonzero((correlation != NA) & (_column(chunks, "host_events", "category") == Category.RUNTIME))
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    ids = correlation[calls]
    wanted = _column(chunks, "device_events", "correlation")[list(rows)]
    places = np.searchsorted(ids, wanted, "right") - 1
    thread, start = (_column(chunks, "host_events", name) for name in ("thread", "start"))
    found: list[tuple[int, int] | None] = []
    for place, correlated in zip(places.tolist(), wanted.tolist(), strict=True):
        known = place >= 0 and correlated != NA and int(ids[place]) == correlated
        found.append((int(thread[calls[place]]), int(start[calls[place]])) if known else None)
    return found


class _Ranges:
    """The ranges by thread, in order of start; they nest at most where an operation is made of others."""

    def __init__(
        self, chunks: Sequence[tuple[str, int, dict[str, Any]]], ranges: Sequence[tuple[int, CommunicationArguments]]
    ) -> None:
        thread, start, end = (_column(chunks, "host_events", name) for name in ("thread", "start", "end"))
        by_thread: dict[int, list[tuple[int, int, CommunicationArguments]]] = {}
        for row, arguments in ranges:
            by_thread.setdefault(int(thread[row]), []).append((int(start[row]), int(end[row]), arguments))
        self._ranges = {key: sorted(own, key=lambda one: one[:2]) for key, own in by_thread.items()}
        self._starts = {key: np.array([one[0] for one in own], np.int64) for key, own in self._ranges.items()}

    def covering(self, call: tuple[int, int] | None) -> CommunicationArguments | None:
        """The arguments of the innermost range around a call, if they say anything."""
        if call is None or call[0] not in self._ranges:
            return None
        thread, at = call
        last = int(np.searchsorted(self._starts[thread], at, "right")) - 1
        for place in range(last, max(last - _NESTING, -1), -1):
            _, end, arguments = self._ranges[thread][place]
            if end >= at:
                return arguments if told(arguments) else None
        return None


_NESTING = 8
"""Ranges looked at, from the last that began before the call: deeper than that none nest."""
