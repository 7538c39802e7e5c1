"""Many inputs of every format, their outcomes counted; what is bad is kept with the input that shows it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fuzzing.inputs import MARK, Input, Mutator
from fuzzing.judge import Outcome, Signature, analysed, judge
from fuzzing.seeds import SEEDS, Seed


@dataclass
class Tally:
    """Outcomes by format and by what was done."""

    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    bad: list[tuple[str, int, str, str]] = field(default_factory=list)
    """Format, number, what was done, why it is bad."""

    def add(self, seed: str, number: int, what: str, outcome: Outcome) -> None:
        """Count one."""
        self.kinds[seed, outcome.kind] += 1
        if outcome.is_bad:
            self.bad.append((seed, number, what, outcome.why))


class Target:
    """One format with what its undamaged input gives."""

    def __init__(self, seed: Seed, folder: Path) -> None:
        self.seed, self._folder = seed, folder / seed.file.replace(".", "_") / seed.name.replace(" ", "_")
        self.mutator = Mutator(seed, self._folder)
        self.whole: Signature = analysed(self.mutator.whole)

    def outcome(self, number: int) -> tuple[Input, Outcome]:
        """What becomes of one input. Every third is read with --partial, every eighth with advice."""
        made = self.mutator.input(number)
        found = judge(
            made.path,
            self.whole,
            is_edit=made.is_edit,
            partial=number % 3 == 0,
            advice=number % 8 == 0,
            mark=self._folder / MARK,
        )
        return made, found


def run(folder: Path, numbers: Iterable[int], names: Iterable[str] = (), keep: Path | None = None) -> Tally:
    """The outcomes of these numbers of every format (or only `names`); bad inputs are copied to `keep`."""
    wanted = set(names)
    tally, numbers = Tally(), list(numbers)
    for target in targets(folder, wanted):
        for number in numbers:
            made, found = target.outcome(number)
            tally.add(target.seed.name, number, made.what, found)
            if found.is_bad and keep is not None:
                _keep(keep / f"{target.seed.name} {number}".replace(" ", "_"), made.path)
    return tally


def targets(folder: Path, names: set[str]) -> Iterator[Target]:
    """The formats of those names; all where none is given."""
    for seed in SEEDS:
        if not names or seed.name in names:
            yield Target(seed, folder)


def _keep(folder: Path, path: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if path.is_dir():
        shutil.copytree(path, folder / path.name)
    else:
        shutil.copy(path, folder / path.name)
