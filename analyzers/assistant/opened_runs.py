"""The runs that an assistant has opened, and what it may open: nothing outside the folders that it was given."""

from __future__ import annotations

import atexit
import glob
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from threading import Lock
from typing import cast

from gpuscope.analyzers.run.analysis import Analysis
from gpuscope.analyzers.run.file_part import Options
from gpuscope.analyzers.run.runner import run as analyse
from gpuscope.errors import InputError, UsageError
from gpuscope.report.terminal import screen
from gpuscope.schema.plan_document import TuneDocument
from gpuscope.sources import windows
from gpuscope.sources.opening import Input, inputs, open_inputs
from gpuscope.sources.source import ReadOptions, Role, suffixes_of
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Answers that an assistant can read at once: lines of plain text, under a fixed size, safe to show.

MOST_BYTES = 3_900
"""Of an answer in UTF-8: below 4 kB, with room for what the protocol adds."""
LINE = 400
NAME = 100


def answer(lines: Iterable[str], more: str = "ask for less at once") -> str:
    """Whole lines, each cropped, as many as fit; the rest is counted and `more` says how to get it."""
    kept: list[str] = []
    left, room = 0, MOST_BYTES - 120
    for line in lines:
        shown = units.crop(units.clean(line), LINE)
        size = len(shown.encode()) + 1
        if left or size > room:
            left += 1
            continue
        room -= size
        kept.append(shown)
    if left:
        kept.append(f"({units.plural(left, 'line')} left out: {units.crop(more, NAME)})")
    return "\n".join(kept)


def quoted(name: str, width: int = NAME) -> str:
    """A name out of a trace, marked as such: it is data, whatever it says."""
    return "`" + units.crop(units.clean(name).replace("`", "'"), width) + "`"


# `gpuscope tune` for an assistant: started, watched and read, one at a time, as a process of its own.
#
# Only of a server that was started with `--allow-tune`: it runs commands, which no question does.


class Tunings:
    """The tuning of a server. Recordings go below `root`, where commands run too."""

    def __init__(self, root: Path) -> None:
        self._root = root if root.is_dir() else root.parent
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._lock = Lock()
        atexit.register(self.stop)

    def start(self, command: Sequence[str], budget: str, output_argument: str = "") -> str:
        """Begin. Raises `UsageError` while another one goes on, or for no command."""
        with self._lock:
            if self._running():
                raise UsageError("a tuning goes on", hint="tune_status tells how far it is")
            if not command:
                raise UsageError("no command", hint='such as ["python", "train.py"]')
            self._folder = self._root / time.strftime("gpuscope-tune-%Y%m%d-%H%M%S")
            words = [sys.executable, "-m", "gpuscope", "tune", "-o", str(self._folder), "--budget", budget, "--json"]
            words += ["--out-arg", output_argument] if output_argument else []
            self._process = subprocess.Popen(
                [*words, "--", *command],
                cwd=self._root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._told.open("wb"),
                start_new_session=True,
            )
        return answer([f"tuning in {quoted(str(self._folder))}; tune_status tells how far it is"])

    def status(self) -> str:
        """What is going on, and what was tried so far. Raises `UsageError` where nothing was started."""
        lines = self._last_lines()
        state = "goes on" if self._running() else f"ended with {self._code()}"
        return answer([f"tuning {state}", *(quoted(line, 300) for line in lines[-2:]), *self._tried()])

    def result(self) -> str:
        """What was kept, and what to take along. Raises `UsageError` while it goes on."""
        lines = self._last_lines()
        if self._running():
            raise UsageError("the tuning goes on", hint="tune_status tells how far it is")
        found = self._found()
        if found is None:
            return answer([f"tuning ended with {self._code()}", *(quoted(line, 300) for line in lines[-8:])])
        took = (quoted(line, 300) for line in found["take"])
        by_hand = (f"by hand: {one['code']}: {quoted(one['setting'])}; {one['why']}" for one in found["by_hand"])
        return answer([screen.headline(found), *screen.facts(found), *self._tried(), *took, *by_hand])

    def stop(self) -> None:
        """End it; what was found so far is written."""
        if self._process is not None and self._running():
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(30)

    @property
    def _told(self) -> Path:
        """What it says on the way, beside its folder."""
        assert self._folder is not None
        return self._folder.with_name(f"{self._folder.name}.log")

    def _running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    def _last_lines(self) -> list[str]:
        if self._folder is None:
            raise UsageError("no tuning was started", hint="tune_start starts one")
        return self._told.read_text(encoding="utf-8", errors="replace").splitlines()

    def _found(self) -> TuneDocument | None:
        assert self._folder is not None
        with suppress(OSError, ValueError):
            return cast(TuneDocument, json.loads((self._folder / "result.json").read_text(encoding="utf-8")))
        return None

    def _tried(self) -> Iterator[str]:
        found = self._found()
        for row in found["changes"] if found is not None else ():
            times = f"{units.duration(row['before_ns'])} → {units.duration(row['measured_ns'])}"
            predicted = f"predicted {units.duration(row['predicted_ns'])}"
            yield f"{row['code']} ({quoted(row['setting'])}): {screen.mark(row)}; {times}, {predicted}; {row['why']}"


LISTED, DEPTH = 30, 3
"""So many runs are listed, so many folders deep."""
MOST_RUNS = 16


@dataclass
class LastTrace:
    """The events of the run that was asked for last: those of several large runs at once would fill the memory."""

    of: OpenRun | None = None
    trace: Trace | None = None
    lock: Lock = field(default_factory=Lock)


@dataclass(eq=False)
class OpenRun:
    """A run that was analysed; its events are read again when a query asks for them."""

    name: str
    path: str
    items: Sequence[Input]
    ranks: frozenset[int] | None
    read: ReadOptions
    analysis: Analysis
    last: LastTrace = field(repr=False)

    @property
    def trace(self) -> Trace:
        """All its events."""
        last = self.last
        with last.lock:
            if last.of is not self or last.trace is None:
                last.of = last.trace = None
                last.trace = open_inputs(self.items, self.ranks, self.read)
                last.of = self
            return last.trace


class OpenRuns:
    """Opens runs below `roots` and keeps them by name."""

    def __init__(self, roots: Sequence[Path], read: ReadOptions) -> None:
        """Raises `InputError` for a root that is not there."""
        for root in roots:
            if not root.exists():
                raise InputError(f"{root}: no such file or directory", hint="name folders or traces that may be opened")
        self.roots = [root.resolve() for root in roots]
        self._read = read
        self._runs: dict[str, OpenRun] = {}
        self._last = LastTrace()
        self._lock = Lock()

    def open(self, path: str, ranks: frozenset[int] | None = None) -> OpenRun:
        """The run at `path`, analysed. Raises `UsageError` outside the roots, `InputError` for what can't be read."""
        with self._lock:
            for known in self._runs.values():
                if known.path == path and known.ranks == ranks:
                    return known
            if len(self._runs) >= MOST_RUNS:
                raise UsageError(f"{MOST_RUNS} runs are open", hint="start the server again to open others")
            items = inputs([self._allowed(path)], ranks)
            for item in items:
                self._check_inside(item.path.resolve(), path)
            analysis = analyse(items, Options(ranks, None, 1, self._read))
            made = OpenRun(self._name(path), path, items, ranks, self._read, analysis, self._last)
            self._runs[made.name] = made
            return made

    def get(self, name: str) -> OpenRun:
        """The open run of that name, or else the run at that path, opened now."""
        return self._runs[name] if name in self._runs else self.open(name)

    @property
    def opened(self) -> list[OpenRun]:
        """Those that are open, in the order of opening."""
        return list(self._runs.values())

    def there(self) -> Iterator[str]:
        """Folders and files below the roots that hold traces by their names, as paths for `open`."""
        suffixes = suffixes_of(Role.TIMELINE)
        for root in self.roots:
            if root.is_file():
                yield str(root)
                continue
            for parent, folders, files in os.walk(root):
                depth = len(Path(parent).relative_to(root).parts)
                folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < DEPTH else []
                if any(name.endswith(suffixes) for name in files):
                    yield str(Path(parent).relative_to(root)) if len(self.roots) == 1 else parent

    def _allowed(self, path: str) -> Path:
        """`path` below one of the roots, absolute; not yet checked: what a glob or a link leads to."""
        if windows.is_url(path) or "\0" in path:
            raise self._outside(path)
        for root in self.roots:
            base = root if root.is_dir() else root.parent
            found = Path(os.path.normpath(base / path))
            fixed = _before_magic(found)
            if any(_within(fixed.resolve(), one) for one in self.roots) and (found.exists() or glob.has_magic(path)):
                return found
        asked = [(Path(os.path.normpath(root / path)), root) for root in self.roots]
        if any(_within(one, root) and not _before_magic(one).exists() for one, root in asked):
            raise InputError(f"{path}: no such file or directory", hint="list_runs names what there is")
        raise self._outside(path)

    def _check_inside(self, resolved: Path, path: str) -> None:
        if not any(_within(resolved, root) for root in self.roots):
            raise self._outside(path)

    def _outside(self, path: str) -> UsageError:
        return UsageError(
            f"{path}: outside of what this server may open",
            hint="it may open what was named on its command line: gpuscope mcp FOLDER...",
        )

    def _name(self, path: str) -> str:
        base = Path(path).name.split(".")[0] or self.roots[0].name or "run"
        taken = sum(1 for name in self._runs if name == base or name.startswith(f"{base}-"))
        return f"{base}-{taken + 1}" if taken else base


def rank_set(text: str) -> frozenset[int]:
    """`0-7,64` as a set of ranks. Raises `UsageError` for anything else."""
    from click import BadParameter

    from gpuscope.commands.options import RankSet

    try:
        return RankSet().convert(text, None, None)
    except BadParameter as error:
        raise UsageError(error.message) from None


def _within(path: Path, root: Path) -> bool:
    return path == root or path.is_relative_to(root)


def _before_magic(path: Path) -> Path:
    """The part of a path before its first component with a wildcard."""
    fixed = Path(path.anchor)
    for part in path.parts[1:]:
        if glob.has_magic(part):
            break
        fixed /= part
    return fixed
