"""A run that stops and goes on, under the same, another, or no parallelism, has the losses of one that did not."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from helpers.warm_python import executable

pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("checkpoint")

import torch  # noqa: E402

from gpuscope.errors import InputError  # noqa: E402
from gpuscope.instrumented_runtime.train.checkpoint import Progress  # noqa: E402
from gpuscope.instrumented_runtime.train.mesh import World  # noqa: E402
from gpuscope.instrumented_runtime.train.run_options import find, newest  # noqa: E402
from tests.runtime.train.resume_worker import SAVED_AFTER, STEPS, losses_of, trainer_for  # noqa: E402

ALONE = World(0, 1, 0, torch.device("cpu"), None)
# Each parallelism saves once and loads once at least.
PAIRS = [
    ("ddp", "ddp"),
    ("ddp", "zero1"),
    ("zero1", "fsdp"),
    ("zero1", "zero1"),
    ("fsdp", "pp"),
    ("pp", "cp"),
    ("ep", "ddp"),
    ("fsdp", "ep"),
]


@pytest.fixture(scope="module")
def resumed() -> Iterator[tuple[Path, dict[str, list[float]]]]:
    """The folder with the checkpoints of two processes, and the losses after resuming by name of pair."""
    with TemporaryDirectory() as folder:
        worker = [executable(), str(Path(__file__).with_name("resume_worker.py")), folder, json.dumps(PAIRS)]
        with Path(folder, "stderr").open("w") as stderr:
            running = [
                subprocess.Popen(
                    worker,
                    env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"},
                    stderr=stderr,
                )
                for rank in range(2)
            ]
            codes = [process.wait(timeout=200) for process in running]
        assert codes == [0, 0], Path(folder, "stderr").read_text()[-4000:]
        yield Path(folder), json.loads(Path(folder, "result.json").read_text())


@cache
def uninterrupted() -> list[float]:
    return losses_of(trainer_for("single", ALONE, STEPS))


@pytest.mark.parametrize(("saving", "loading"), PAIRS)
def test_resuming_under_another_parallelism(
    resumed: tuple[Path, dict[str, list[float]]], saving: str, loading: str
) -> None:
    assert resumed[1][f"{saving} → {loading}"] == pytest.approx(uninterrupted()[SAVED_AFTER:], rel=1e-5)


@pytest.mark.parametrize("saving", ["zero1", "fsdp", "pp", "ep"])
def test_resuming_with_a_rank_lost(resumed: tuple[Path, dict[str, list[float]]], saving: str) -> None:
    alone = trainer_for("single", ALONE, STEPS)
    alone.resume(find(resumed[0] / saving))
    assert (alone.progress.step, alone.progress.samples) == (2, 16)
    assert losses_of(alone) == pytest.approx(uninterrupted()[SAVED_AFTER:], rel=1e-5)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    trainer = trainer_for("single", ALONE, 3)
    trainer.checkpoint_into(tmp_path)
    assert trainer.checkpoints is not None
    for step in (1, 2, 3):
        trainer.checkpoints.save(Progress(step=step))
    (tmp_path / "step-00000009").mkdir()  # cut off while it was written: no .metadata
    assert newest(tmp_path) == tmp_path / "step-00000003"
    assert not (tmp_path / "step-00000001").exists()


def test_nothing_to_resume_from(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no complete checkpoint"):
        find(tmp_path)


def test_a_checkpoint_of_another_model(resumed: tuple[Path, dict[str, list[float]]]) -> None:
    other = trainer_for("single", ALONE, STEPS)
    wider = other.config.replace("model", width=64)
    from gpuscope.instrumented_runtime.train.trainer import Trainer

    with pytest.raises(InputError, match="can't be loaded"):
        Trainer(wider, ALONE, other.degrees).resume(find(resumed[0] / "ddp"))
