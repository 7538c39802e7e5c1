"""The n-th hostile input of a format: the same for the same number, whatever was made before."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from fuzzing import parts, raw_bytes, tables, values
from fuzzing.packets import mutated as mutated_packets
from fuzzing.seeds import Seed

MARK = "was_run"
"""The file that a hostile pickle would make if any code in it were run."""


@dataclass(frozen=True)
class Input:
    """One hostile input."""

    path: Path
    what: str
    """What was done to the seed."""
    is_edit: bool
    """Whether it may be another, consistent recording: then less of it is no loss."""


class Mutator:
    """Makes inputs from one seed, in a folder of its own."""

    def __init__(self, seed: Seed, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.data = seed.data(folder)
        self.whole = self.write(self.data, folder / "whole")
        self._bytes = b"" if self.whole.is_dir() else self.whole.read_bytes()

    def input(self, number: int) -> Input:
        """The input of that number."""
        random = Random(f"{self.seed.name} {number}")
        folder = self.folder / "hostile"
        structured = not isinstance(self.data, bytes)
        if self.seed.name.startswith(("flight recorder", "allocator")) and random.random() < 0.1:
            return self._program(folder, random)
        if self.seed.name == "pftrace" and random.random() < 0.6:
            data, what = mutated_packets(self.data, random)
            return Input(self._put(folder, data), what, True)
        if self.seed.name == "reduced" and random.random() < 0.7:
            data, what = parts.mutated(self.data, random)
            return Input(self._put(folder, data), what, True)
        if structured and random.random() < 0.6:
            data, what = self.data, []
            for _ in range(random.choice([1, 1, 1, 2, 4])):
                data, done = (tables if self.seed.tabular else values).mutated(data, random)
                what.append(done)
            return Input(self.write(data, folder), what[0], not _damages(what))
        if self.whole.is_dir():
            path = self.write(self.data, folder)
            one = random.choice(sorted(path.iterdir()))
            data, done = raw_bytes.mutated(one.read_bytes(), random)
            one.write_bytes(data)
            return Input(path, done, True)
        data, done = raw_bytes.mutated(self._bytes, random)
        return Input(self._put(folder, data), done, True)

    def _put(self, folder: Path, data: bytes) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.seed.file
        path.write_bytes(data)
        return path

    def write(self, data: Any, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.seed.file
        if isinstance(data, bytes):
            path.write_bytes(data)
        elif self.seed.tabular == "sqlite":
            tables.write_sqlite(path, data)
        elif self.seed.tabular == "parquet":
            return self._parquet(path, data)
        elif self.seed.tabular:
            return tables.write_arrow(folder, data, self.seed.tabular)
        elif self.seed.write is not None:
            self.seed.write(path, data)
        return path

    def _parquet(self, path: Path, data: Any) -> Path:
        made = tables.write_arrow(path.parent, data, "parquetdir")
        found = next(iter(made.glob("rows.parquet")), None)
        path.write_bytes(found.read_bytes() if found is not None else b"")
        return path

    def _program(self, folder: Path, random: Random) -> Input:
        """A pickle that would run a program if it were loaded as pickles are."""
        mark = str(self.folder / MARK)
        line = random.choice([b"cbuiltins\nexec\n", b"cos\nsystem\n", b"cposix\nsystem\n", b"cbuiltins\neval\n"])
        argument = f"open({mark!r}, 'w').close()" if b"exec" in line or b"eval" in line else f"touch {mark}"
        call = line + b"(V" + argument.encode() + b"\ntR"
        plain = pickle.dumps(self.data, protocol=2)
        data = random.choice([call + b".", b"\x80\x02" + call + b"0" + plain[2:], b"(" + call + b"l."])
        return Input(self._put(folder, data), "program in a pickle", False)


DAMAGE = (*tables.OF_A_COLUMN, "times reversed")
"""What no recorder writes: a difference that it makes must be told."""


def _damages(what: list[str]) -> bool:
    # Numbers for names are names too.
    return len(what) == 1 and what[0].startswith(DAMAGE) and not what[0].endswith("wrong type: StringIds.value")
