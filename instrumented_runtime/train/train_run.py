"""One rank of `gpuscope train`: record, join the world, train, and leave the run folder readable."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.instrumented_runtime.record.run_folder import RankFolder
from gpuscope.instrumented_runtime.record.session import Session, active_session, gpuscope_session
from gpuscope.instrumented_runtime.train.faults import Fault
from gpuscope.instrumented_runtime.train.measures import StepRecord
from gpuscope.instrumented_runtime.train.mesh import World, join_world
from gpuscope.instrumented_runtime.train.run_options import find, newest, record_options
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallel_spec import validate
from gpuscope.instrumented_runtime.train.trainer import Trainer
from gpuscope.progress import watched
from gpuscope.words import units

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


# Progress on stderr: a bar on a terminal, one line at the end elsewhere.


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


def run_rank(config: TrainConfig, faults: tuple[Fault, ...], out: Path, facts: Mapping[str, Any] | None = None) -> None:
    """Train as this rank and record into the run folder `out`.

    `facts` go into the manifest if no launcher wrote them (`run_options.describe`).
    """
    for fault in faults:
        fault.before_join(int(os.environ.get("RANK", "0")))
    # The recorder before the process group: it also wraps the groups created after it.
    with recording(config, out, facts or {}) as session, join_world(config) as world:
        trainer = Trainer(config, world, validate(config, world.size), faults)
        _checkpoints(trainer, config, out, session.folder)
        trainer.context.ledger.keep = lambda rows: session.folder.note(injected=rows)
        try:
            _train(trainer, world, session)
        finally:
            trainer.context.ledger.flush()


@contextmanager
def recording(config: TrainConfig, out: Path, facts: Mapping[str, Any]) -> Iterator[Session]:
    """A session into `out`, or the one that `gpuscope record` has opened around this process."""
    around = active_session()
    if around is not None:
        yield around
        return
    with gpuscope_session(out, metadata=facts, **record_options(config)) as session:
        yield session


def _checkpoints(trainer: Trainer, config: TrainConfig, out: Path, rank_folder: RankFolder) -> None:
    folder = Path(config.checkpoint.folder) if config.checkpoint.folder else out / "checkpoints"
    if config.checkpoint.every:
        trainer.checkpoint_into(folder)
    # After a restart the job resumes from its own checkpoint.
    own = newest(folder) if rank_folder.part.restart else None
    start = own or (find(Path(config.checkpoint.resume)) if config.checkpoint.resume else None)
    if start is not None:
        trainer.resume(start)
        rank_folder.note(resumed={"checkpoint": str(start), "step": trainer.progress.step})


def _train(trainer: Trainer, world: World, session: Session) -> None:
    folder, meter = session.folder, trainer.meter
    path = folder.file(f"measures/rank{world.rank}.jsonl") if trainer.config.measures.write else None
    if path is not None:
        meter.write_to(path, folder.part.restart)
        folder.add_file(path, "measures")  # listed now, in case this rank is killed
    with LiveView(trainer.config.train.steps, trainer.progress.step, shown=trainer.shows_progress) as view:

        def after_step(record: StepRecord) -> None:
            view.show(record)
            session.step()

        try:
            trainer.run(after_step)
        finally:
            summary = meter.close()
            folder.note(measures=summary)
            if path is not None:
                folder.add_file(path, "measures")
    view.summary(summary)
