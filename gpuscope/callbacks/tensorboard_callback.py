"""Measures and verdicts for TensorBoard: scalars `gpuscope/…/rank0`, the verdict also as text."""

from __future__ import annotations

import os

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from gpuscope.callbacks.callback import AlertChange, StepMeasures, WindowVerdict


class TensorBoardCallback:
    """Writes event files into `folder`, which TensorBoard's `--logdir` names."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._writer = EventFileWriter(os.fspath(folder))

    def on_step(self, measures: StepMeasures) -> None:
        for name, value in measures.values.items():
            summary = scalar_pb(f"gpuscope/{name}/rank{measures.rank}", value)
            self._add(summary, measures.step, measures.end_ns)

    def on_verdict(self, verdict: WindowVerdict) -> None:
        for name, value in verdict.values.items():
            self._add(scalar_pb(f"gpuscope/{name}", value), verdict.step, verdict.end_ns)
        self._add(text_pb("gpuscope/verdict", verdict.sentence), verdict.step, verdict.end_ns)
        self._writer.flush()

    def on_alert(self, alert: AlertChange) -> None:
        self._add(scalar_pb(f"gpuscope/alert/{alert.code}", float(not alert.over)), alert.step, alert.end_ns)
        self._add(text_pb(f"gpuscope/alert/{alert.code}", alert.message), alert.step, alert.end_ns)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _add(self, summary: Summary, step: int, ns: int) -> None:
        self._writer.add_event(Event(wall_time=ns / 1e9, step=step, summary=summary))
