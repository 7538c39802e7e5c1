"""Where checkpoints are: `CHECKPOINTS/step-00000010/`, whole once it has its `.metadata`, which comes last."""

from __future__ import annotations

from pathlib import Path

from gpuscope.errors import InputError


def whole(folder: Path) -> list[Path]:
    """The whole checkpoints in `folder`, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / ".metadata").is_file())


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint in `folder`, if there is one."""
    return next(reversed(whole(folder)), None)


def find(where: Path) -> Path:
    """The newest whole checkpoint of a run folder, a folder of checkpoints, or the checkpoint itself.

    Raises `InputError` where there is none.
    """
    if (where / ".metadata").is_file():
        return where
    found = newest(where / "checkpoints") or newest(where)
    if found is None:
        raise InputError(f"{where} holds no whole checkpoint", hint="record with --set checkpoint.every=N")
    return found
