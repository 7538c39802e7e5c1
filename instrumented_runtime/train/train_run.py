"""One rank of `gpuscope train`: record, join the world, train, and leave the run folder readable."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuscope.instrumented_runtime.record.run_folder import RankFolder
from gpuscope.instrumented_runtime.record.session import Session, active_session, gpuscope_session
from gpuscope.instrumented_runtime.train.checkpoint_paths import find, newest
from gpuscope.instrumented_runtime.train.faults import Fault
from gpuscope.instrumented_runtime.train.measures.live import LiveView
from gpuscope.instrumented_runtime.train.measures.meter import StepRecord
from gpuscope.instrumented_runtime.train.mesh import World, join_world
from gpuscope.instrumented_runtime.train.run_options import record_options
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallel_spec import validate
from gpuscope.instrumented_runtime.train.trainer import Trainer


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
