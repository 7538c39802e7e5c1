"""Where checkpoints are: `CHECKPOINTS/step-00000010/`, complete once `.metadata`, written last, exists."""

from __future__ import annotations

from pathlib import Path

from gpuscope.errors import InputError


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
