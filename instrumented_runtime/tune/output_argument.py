"""The argument by which a script is told where to write: each trial gets a folder of its own there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def with_output(command: Sequence[str], argument: str, folder: Path) -> list[str]:
    """The command with `argument` naming `folder`: in place of what it names, else at the end; unchanged where there is
    none. `--out` takes the next word, `--out=` and `hydra.run.dir=` (with the `=`) are one word with it."""
    words = list(command)
    if not argument:
        return words
    name = argument.removesuffix("=")
    for at, word in enumerate(words):
        if word.startswith(f"{name}="):
            return [*words[:at], f"{name}={folder}", *words[at + 1 :]]
        if word == name and at + 1 < len(words):
            return [*words[: at + 1], str(folder), *words[at + 2 :]]
    return [*words, f"{name}={folder}"] if argument.endswith("=") else [*words, name, str(folder)]
