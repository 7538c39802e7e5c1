"""A hang that was reported, and what becomes of it where the ranks go on after all.

Each rank notes in the hang's folder that what it waited in has completed; where all have, the rank that gave the
verdict withdraws it, and the others see that the folder is gone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpuscope.instrumented_runtime.record.gloo.collective_log import Collective
from gpuscope.instrumented_runtime.record.run_folder import RankFolder

FOLDER = "hang"
ON_A_HANG = "on a hang"
"""The note of a dump that is of a hang."""
_DUMP = "flight_recorder"


class ReportedHang:
    """One rank's side of a hang. `told` is its verdict, by the rank that gave it."""

    def __init__(self, folder: RankFolder, waits: Sequence[Collective], since_ns: int | None) -> None:
        self._folder, self._waits = folder, list(waits)
        self._since_ns = since_ns
        self._hang = folder.files / FOLDER
        self._paused = folder.files / _next_pause(folder.files)
        self.over = False
        self.told: str | None = None

    def withdrawn(self, pending: Sequence[Collective]) -> bool:
        """Whether it is no more: `pending` are the operations that this rank has under way now."""
        if self._hang.exists():
            self._note_own_end(pending)
            if self.told is None or not self._tell_if_all_went_on(self.told):
                return False
        self._move_own_files()
        return True

    def _note_own_end(self, pending: Sequence[Collective]) -> None:
        running = {entry.identity for entry in pending}
        if self.over or any(entry.identity in running or entry.error for entry in self._waits):
            return
        completed = [entry.completed_ns for entry in self._waits if entry.completed_ns is not None]
        lasted = max(completed, default=time.time_ns()) - self._since_ns if self._since_ns else 0
        note = self._hang / f".over{self._folder.part.rank}"
        partial = note.with_suffix(".partial")
        partial.write_text(str(lasted), encoding="utf-8")
        partial.replace(note)
        self.over = True

    def _tell_if_all_went_on(self, told: str) -> bool:
        ranks = [path.stem.removeprefix("rank") for path in self._hang.glob("rank*.json")]
        notes = [self._hang / f".over{rank}" for rank in ranks]
        if not all(note.exists() for note in notes):
            return False
        lasted = max(int(note.read_text(encoding="utf-8")) for note in notes) / 1e9
        for note in notes:
            note.unlink()
        self._hang.rename(self._paused)
        rank = self._folder.part.rank
        print(f"gpuscope: rank {rank}: no hang: all ranks went on after {lasted:.1f} s", file=sys.stderr, flush=True)
        self._folder.withdraw("hang")
        self._folder.problem("pause", f"a pause of {lasted:.1f} s; meanwhile: {told}", severity="info")
        return True

    def _move_own_files(self) -> None:
        """Into the pause's folder: the stacks went there with it, this rank's dump of that moment follows."""
        part = self._folder.part
        for entry in [entry for entry in part.files if entry.kind in ("stacks", _DUMP)]:
            old = self._folder.path / entry.path
            if old.parent == self._hang:
                self._folder.replace_file(entry, self._paused / old.name)
            elif entry.kind == _DUMP and entry.note == ON_A_HANG and old.exists():
                old.rename(self._paused / old.name)
                self._folder.replace_file(entry, self._paused / old.name)


def _next_pause(files: Path) -> str:
    number = 1
    while (files / f"pause{number}").exists():
        number += 1
    return f"pause{number}"
