"""`gpuscope tune` from its arguments to its document: checks first, then the session, then what is left of it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.errors import GpuscopeError, InputError, MissingExtraError, UsageError
from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.record.applied.launching import framework_arguments
from gpuscope.instrumented_runtime.record.applied.suggested import from_suggestion
from gpuscope.instrumented_runtime.record.applied.table import checked, knob
from gpuscope.instrumented_runtime.record.files.written_json import write_json
from gpuscope.instrumented_runtime.tune.budget import DEFAULT, Budget
from gpuscope.instrumented_runtime.tune.candidates import Applicable, of_advice
from gpuscope.instrumented_runtime.tune.measured import Run, step_ns
from gpuscope.instrumented_runtime.tune.take_along import take_along
from gpuscope.instrumented_runtime.tune.trial import Recorder
from gpuscope.instrumented_runtime.tune.tuning import Session
from gpuscope.progress import watched
from gpuscope.recorded_environment import redacted_command
from gpuscope.schema.tune_document import RESULT, TUNE_VERSION, TuneDocument
from gpuscope.version import __version__
from gpuscope.words import units

if TYPE_CHECKING:
    from gpuscope.instrumented_runtime.tune.communication.source import CommunicationSearch

TAKE = "take.txt"
STEPS = 40
SEARCH_SHARE = 0.25
"""Of the time that is left: the most that a search of the communication library's settings takes."""


@dataclass(frozen=True)
class Asked:
    """What is to be tuned, and within which limits."""

    command: Sequence[str]
    folder: Path
    budget: str = DEFAULT
    steps: int = STEPS
    allow: Sequence[str] = ()
    output_argument: str = ""
    nccl: bool = False
    """Search the communication library's own settings, too."""


def tune(asked: Asked) -> TuneDocument:
    """Tune a command. The document is in the folder too, written anew with each run from the baseline on.

    Raises `UsageError` and `InputError` for what can't be tuned, `GpuscopeError` where the command as it stands fails
    or has no steps, and `KeyboardInterrupt` where it is interrupted before the baseline is known; later that ends it.
    """
    budget = Budget(asked.budget)
    _check(asked)
    folder = _made(asked.folder)
    recorder = Recorder(asked.command, folder, budget, asked.steps, asked.allow, asked.output_argument)
    source = of_advice(applicable(asked.command), group, asked.allow)
    searches = [_search(folder, budget)] if asked.nccl else []
    session = Session(recorder, [source, *searches], lambda change: not knob(change.name).preserving)
    here = Path.cwd()
    before = files_seen(here, folder)

    def document(now: str = "") -> TuneDocument:
        written = files_changed(before, here, folder)
        return _document(asked, session, recorder, written, now)

    with shown() as told, _sigterm_interrupts():
        session.told = _saving(told, document, folder)
        for search in searches:
            search.told = lambda what: session.told(session, what)
        most = units.plural(int(budget.text), "run") if budget.text.isdigit() else budget.text
        _say(f"at most {most} (--budget); the first shows how long one takes")
        _refuse_failed(session, session.begin(), budget)
        if session.to_try:
            _say(estimate(session.to_try, budget, recorder.runs_s + recorder.analysis_s))
        try:
            session.improve()
        except KeyboardInterrupt:
            session.ended = "interrupted"
    found = document()
    write_json(folder / RESULT, found)
    (folder / TAKE).write_text("".join(f"{line}\n" for line in found["take"]), encoding="utf-8")
    return found


def estimate(changes: int, budget: Budget, spent_s: float) -> str:
    """What is going to run and for how long, by the runs so far, which with their analysis took `spent_s`."""
    each_s = spent_s / budget.runs
    runs = budget.runs_left(each_s)
    return (
        f"{units.plural(changes, 'change')} to try: the budget has room for {units.plural(runs, 'run')} of about "
        f"{units.long_duration(each_s * 1e9)}, {units.long_duration(runs * each_s * 1e9)} in all"
    )


def _say(what: str) -> None:
    print(f"gpuscope: {what}", file=sys.stderr, flush=True)


def _search(folder: Path, budget: Budget) -> CommunicationSearch:
    from gpuscope.instrumented_runtime.tune.communication.source import CommunicationSearch  # it imports torch

    return CommunicationSearch(folder, lambda: budget.left_s * SEARCH_SHARE)


def _check(asked: Asked) -> None:
    if not asked.command:
        raise UsageError("nothing to tune", hint="gpuscope tune -- torchrun --nproc-per-node 8 train.py")
    if find_spec("torch") is None:
        raise MissingExtraError("torch")
    if shutil.which(asked.command[0]) is None:
        raise InputError(f"can't run {asked.command[0]}: no such command", hint="is it on PATH?")
    checked((), asked.allow)


def _made(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists already", hint="choose a new folder with -o")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"can't write {folder}: {error.strerror}", hint="choose another folder with -o") from None
    return folder.resolve()


def _refuse_failed(session: Session, failed: Run | None, budget: Budget) -> None:
    """Raise where the command as it stands gives nothing to judge others by."""
    if session.baseline:
        return
    if failed is None or failed.failed == "budget":
        raise UsageError(
            f"--budget {budget.text} is too little for a baseline", hint="it takes one run of the command at least"
        )
    log = failed.folder.with_name(f"{failed.folder.name}.log")
    if failed.failed == "no_steps":
        raise GpuscopeError(
            "the command has no steps to time",
            hint="a step is what an optimizer's step() ends, and several are needed; what only "
            f"`gpuscope record --whole` can record can't be tuned. Its output: {log}",
        )
    if failed.failed == "hung":
        raise GpuscopeError(
            f"the command had not ended after {failed.detail} s", hint=f"fewer steps: --steps. Its output: {log}"
        )
    raise GpuscopeError(
        "the command fails as it stands; its last lines:\n"
        + "\n".join(f"  {one}" for one in failed.detail.splitlines()),
        hint=f"all of its output: {log}",
    )


def _saving(told: Told, document: Any, folder: Path) -> Told:
    """What to show, and from the baseline on the document on disk."""

    def both(session: Session, doing: str) -> None:
        told(session, doing)
        if session.baseline:
            write_json(folder / RESULT, document(doing or "analysis"))

    return both


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does: what was found so far is written, and no process stays behind."""

    def interrupt(number: int, frame: object) -> None:
        del number, frame
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _document(asked: Asked, session: Session, recorder: Recorder, written: list[str], now: str) -> TuneDocument:
    budget = recorder.budget
    return {
        "tune_version": TUNE_VERSION,
        "gpuscope_version": __version__,
        "command": redacted_command(asked.command),
        "folder": str(asked.folder),
        "ended": session.ended,
        "now": now,
        **session.figures(),  # type: ignore[typeddict-item]
        "changes": session.tried,
        "by_hand": session.by_hand,
        "runs": budget.runs,
        "seconds": round(budget.spent_s, 1),
        "seconds_of_runs": round(recorder.runs_s, 1),
        "seconds_of_analysis": round(recorder.analysis_s, 1),
        "budget": asked.budget,
        "take": take_along(session, asked.command),
        "written": written,
    }


def default_folder() -> Path:
    """Where recordings go unless another folder is named."""
    return Path(os.curdir) / time.strftime("gpuscope-tune-%Y%m%d-%H%M%S")


def group(change: Change) -> str:
    """The group by which a change has to be allowed; empty where it preserves what is trained."""
    return knob(change.name).allow


def applicable(command: Sequence[str]) -> Applicable:
    """From a suggestion to the changes that follow it, none where the command takes them in no way."""

    def changes(setting: Mapping[str, Any], code: str, facts: Mapping[str, Any]) -> Sequence[Change] | None:
        found = from_suggestion(setting, code, facts)  # type: ignore[arg-type]
        options = [one for one in found or () if knob(one.name).how == "framework option"]
        return None if any(framework_arguments(command, one) is None for one in options) else found

    return changes


MOST_FILES = 20_000
"""A larger folder is not watched."""
TOLD = 20
_LEFT_OUT = {"__pycache__", ".git"}

Seen = Mapping[str, tuple[int, int]]
"""Size and time of change by path."""


def files_seen(folder: Path, without: Path) -> Seen | None:
    """The files below a folder, but for those below `without`; None of too many."""
    found: dict[str, tuple[int, int]] = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and Path(parent, name) != without]
        for name in files:
            path = os.path.join(parent, name)
            try:
                told = os.lstat(path)
            except OSError:
                continue
            found[path] = (told.st_size, told.st_mtime_ns)
            if len(found) > MOST_FILES:
                return None
    return found


def files_changed(before: Seen | None, folder: Path, without: Path) -> list[str]:
    """Files that are new or others than before, by their paths within the folder; the first of them."""
    after = files_seen(folder, without) if before is not None else None
    if before is None or after is None:
        return []
    return sorted(os.path.relpath(path, folder) for path, told in after.items() if before.get(path) != told)[:TOLD]


Told = Callable[[Session, str], None]


@contextmanager
def shown() -> Iterator[Told]:
    """What to call with the session and with what begins."""
    if not watched():
        yield _line
        return
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.text import Text

    from gpuscope.report.terminal import tune_text
    from gpuscope.report.terminal.screen import Writer

    console = Console(stderr=True, highlight=False, emoji=False)
    writer = Writer(console)
    with Live(console=console, transient=True, refresh_per_second=4) as live:

        def told(session: Session, doing: str) -> None:
            parts: list[RenderableType] = [Text(_so_far(session))]
            if session.tried:
                parts.append(tune_text.tried(session.tried, writer))
            if doing:
                parts.append(Text(f"… {_doing(session, doing)}", style="dim"))
            live.update(Group(*parts))

        yield told


def _line(session: Session, doing: str) -> None:
    if doing:
        words = f"{_so_far(session)}; {_doing(session, doing)}"
    elif session.tried:
        from gpuscope.report.terminal.tune_text import mark  # it takes a while to import

        last = session.tried[-1]
        words = f"{last['code']}: {mark(last)}, {last['why']}"
    else:
        return
    print("gpuscope:", words, file=sys.stderr, flush=True)


def _so_far(session: Session) -> str:
    if not session.baseline:
        return "no step yet"
    best = f", best {units.duration(step_ns(session.best))}" if session.kept else ""
    return f"step {units.duration(step_ns(session.baseline))}{best}"


def _doing(session: Session, doing: str) -> str:
    if session.trying is None or doing != session.trying.code:
        return doing
    changes = ", ".join(str(change) for change in session.trying.changes)
    return f"{doing} ({changes})"
