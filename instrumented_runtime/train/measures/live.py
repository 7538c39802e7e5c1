"""Progress on stderr: a bar on a terminal, one line at the end elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpuscope.instrumented_runtime.train.measures.meter import StepRecord
from gpuscope.progress import watched
from gpuscope.words import units

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class LiveView:
    """Shows rank 0's steps; a rank that is not `shown` prints nothing."""

    def __init__(self, steps: int, first: int, *, shown: bool) -> None:
        self._steps, self._first, self._shown = steps, first, shown
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> LiveView:
        if self._shown and watched():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("step"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self._steps, completed=self._first, status="")
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, record: StepRecord) -> None:
        """One step more."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=record.step + 1, status=_status(record))

    def summary(self, summary: dict[str, Any]) -> None:
        """The whole run in one line."""
        if self._shown and summary["steps"]:
            print(f"gpuscope: {summary_line(summary)}", file=sys.stderr)


def _status(record: StepRecord) -> str:
    parts = [f"{record.step_ns / 1e6:.0f} ms", f"{record.tokens_per_s:,.0f} tok/s"]
    if record.loss is not None:
        parts.append(f"loss {record.loss:.3f}")
    if record.mfu is not None:
        parts.append(f"MFU {units.share(record.mfu)}")
    if record.peak_reserved_bytes is not None:
        parts.append(f"{record.peak_reserved_bytes / 2**30:.1f} GiB")
    if record.data_wait_ns > record.step_ns / 10:
        parts.append(f"waits for data {units.whole_share(record.data_wait_ns / record.step_ns)}")
    return "  ".join(parts)


def summary_line(summary: dict[str, Any]) -> str:
    """Such as `8 steps, 61 ms (p50; p99 80 ms), 33,000 tok/s, waits for data 1 %, goodput 93 %`."""
    times = summary["step_ns"]
    parts = [
        f"{summary['steps']} steps",
        f"{times['p50'] / 1e6:.1f} ms (p50; p99 {times['p99'] / 1e6:.1f} ms)",
        f"{summary['tokens_per_s']:,.0f} tok/s",
        f"waits for data {units.whole_share(summary['data_wait_frac'])}",
    ]
    if summary["mfu"] is not None:
        parts.append(f"MFU {units.share(summary['mfu'])}")
    if summary["exposed_communication_frac"] is not None:
        parts.append(f"exposed communication {units.whole_share(summary['exposed_communication_frac'])}")
    parts.append(f"goodput {units.whole_share(summary['goodput'])}")
    if summary["last_loss"] is not None:
        parts.append(f"loss {summary['last_loss']:.4f}")
    return ", ".join(parts)
