"""The recorder's options and the manifest's facts of a configuration. No torch: the launcher needs it too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuscope.errors import InputError
from gpuscope.instrumented_runtime.record.capture_options import option_texts
from gpuscope.instrumented_runtime.train.faults import Fault
from gpuscope.instrumented_runtime.train.settings.config import Degrees, TrainConfig

# Where checkpoints are: `CHECKPOINTS/step-00000010/`, complete once `.metadata`, written last, exists.


def whole(folder: Path) -> list[Path]:
    """The complete checkpoints in `folder`, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / ".metadata").is_file())


def newest(folder: Path) -> Path | None:
    """The newest complete checkpoint in `folder`, if any."""
    return next(reversed(whole(folder)), None)


def find(where: Path) -> Path:
    """The newest complete checkpoint of a run folder, a folder of checkpoints, or the checkpoint itself.

    Raises `InputError` if there is none.
    """
    if (where / ".metadata").is_file():
        return where
    found = newest(where / "checkpoints") or newest(where)
    if found is None:
        raise InputError(f"{where} holds no complete checkpoint", hint="record with --set checkpoint.every=N")
    return found


def describe(config: TrainConfig, degrees: Degrees, faults: tuple[Fault, ...], world_size: int) -> dict[str, Any]:
    """The manifest's facts of a run before it starts."""
    return {
        "parallelism": {"data": config.parallel.data, "mesh": degrees.as_dict()},
        "config": config.as_dict(),
        "faults": [fault.truth(config, world_size) for fault in faults],
    }


def record_options(config: TrainConfig) -> dict[str, Any]:
    """`capture.*` as session options."""
    capture = config.capture
    return {
        **{name: getattr(capture, name) for name in option_texts() if hasattr(capture, name)},
        **_window(config),
        "profiler": "torch" if capture.profile else "none",
        "hang_timeout_s": capture.hang_timeout_s or config.train.timeout_s / 2,
    }


def _window(config: TrainConfig) -> dict[str, int]:
    """Steps to skip and to warm up: fewer in a run too short for them, so that it leaves a trace of a step at least."""
    spare = config.train.steps - 1
    warmup = min(config.capture.warmup, spare)
    return {"warmup": warmup, "wait": min(config.capture.wait, spare - warmup)}
