"""Runs docs/tutorial.md as it stands: its script and its commands, one after the other, in an empty folder.

`python docs/generate.py --record` puts what they print into the page; a test runs them and looks at what they say.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "tutorial.md"
WIDTH = 80
"""Columns of the terminal."""
_SCRIPT = re.compile(r"```python\n(.*?)```", re.DOTALL)
_COMMAND = re.compile(r"```sh\n(.*?)\n```", re.DOTALL)
_WORKERS = re.compile(r"num_workers=(?:\d+ → )?(\d+)")


@dataclass(frozen=True)
class Walked:
    """What became of the page's commands."""

    printed: dict[str, str]
    """Standard output by command, as the page has it."""
    advised: int
    """Loader processes that the report suggests; the second recording uses these."""


def walk(text: str, folder: Path) -> Walked:
    """Run the commands of the page `text` in `folder`. Raises `RuntimeError` where one of them fails, or where the
    report does not suggest more loader processes."""
    [script] = _SCRIPT.findall(text)
    (folder / "train.py").write_text(script, encoding="utf-8")
    printed: dict[str, str] = {}
    advised = 0
    for command in _COMMAND.findall(text):
        again = advised and " -- python train.py " in command
        line = re.sub(r"\d+$", str(advised), command) if again else command
        printed[command] = _run(line, folder)
        if not advised and (found := _WORKERS.search(printed[command])):
            advised = int(found[1])
    if not advised:
        raise RuntimeError("no report of the page suggests loader processes")
    return Walked(printed, advised)


def _run(line: str, folder: Path) -> str:
    words = [sys.executable if word == "python" else word for word in line.split()]
    environment = {**os.environ, "GPUSCOPE_NO_STORE": "1", "COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb"}
    program = [sys.executable, "-c", "from gpuscope.cli import main; main()"]
    done = subprocess.run(
        [*program, *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{line}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout
