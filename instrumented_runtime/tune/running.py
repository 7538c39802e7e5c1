"""`gpuscope tune` from its arguments to its document: checks first, then the session, then what is left of it."""

from __future__ import annotations

import ast
import difflib
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.errors import GpuscopeError, InputError, MissingExtraError, UsageError
from gpuscope.instrumented_runtime.record.applied.change import Change, checked, framework_arguments, knob
from gpuscope.instrumented_runtime.record.applied.knobs.environment import PREFIX, UNSET
from gpuscope.instrumented_runtime.record.applied.suggested import from_suggestion
from gpuscope.instrumented_runtime.record.manifest import write_json
from gpuscope.instrumented_runtime.record.run_folder import rank_parts
from gpuscope.instrumented_runtime.tune.budget import DEFAULT, Budget
from gpuscope.instrumented_runtime.tune.candidates import Applicable, of_advice
from gpuscope.instrumented_runtime.tune.measured import Recorder, Run, step_ns
from gpuscope.instrumented_runtime.tune.tuning import Kept, Session
from gpuscope.progress import watched
from gpuscope.recorded_environment import redacted_command
from gpuscope.schema.plan_document import RESULT, TUNE_VERSION, TuneDocument
from gpuscope.version import __version__
from gpuscope.words import units

if TYPE_CHECKING:
    from gpuscope.instrumented_runtime.tune.communication import CommunicationSearch


# What to take along for the changes that were kept: variables, arguments, and the lines of the script to change.

CALLS = {"dataloader": ("DataLoader",), "ddp": ("DistributedDataParallel", "DDP")}
"""What makes the objects of a family of knobs; optimizers tell their class."""
_LITERAL = re.compile(r"-?\d+(\.\d+)?|true|false|none|default")
Places = Mapping[str, Sequence[str]]
"""Per setting where in the script it was seen, `file.py:line`."""


def take_along(session: Session, command: Sequence[str]) -> list[str]:
    """Lines of text; empty where nothing was kept."""
    if not session.kept:
        return []
    places, values = _seen(session.best[0].folder)
    in_script = [change for change in session.changes if knob(change.name).how == "torch"]
    patches, left = _patches(in_script, places, values, command)
    lines = [*_variables(session.changes), *_arguments(session.changes, command), *patches]
    lines += _by_hand(session.kept, left, places)
    words = ["gpuscope", "record", "--profiler", "none"]
    for change in session.changes:
        words += ["--set", str(change)]
    for group in sorted({knob(change.name).allow for change in session.changes} - {""}):
        words += ["--allow", group]
    return [*lines, "# without changing anything:", shlex.join([*words, "--", *redacted_command(command)])]


def _variables(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        name = change.name.removeprefix(PREFIX)
        if name != change.name:
            yield f"unset {name}" if change.value == UNSET else f"export {name}={shlex.quote(change.value)}"


def _arguments(changes: Sequence[Change], command: Sequence[str]) -> Iterator[str]:
    words = list(command)
    for change in changes:
        if knob(change.name).how == "framework option":
            try:
                words = framework_arguments(words, change) or words
            except GpuscopeError:
                continue
            if words == list(command):  # a key of a file
                yield f"# {change}"
    if words != list(command):
        yield "# start it as:"
        yield shlex.join(redacted_command(words))


def _seen(folder: Path) -> tuple[Places, Mapping[str, Sequence[str]]]:
    """Places and values of the settings that a run saw, of its first rank."""
    try:
        parts = rank_parts(folder)
    except GpuscopeError:
        parts = []
    rows = parts[0].facts.get("settings", {}) if parts else {}
    places = {name: [one["where"] for one in told if one.get("where")] for name, told in rows.items()}
    return places, {name: [str(one["value"]) for one in told] for name, told in rows.items()}


def _patches(
    changes: Sequence[Change], places: Places, values: Mapping[str, Sequence[str]], command: Sequence[str]
) -> tuple[list[str], list[Change]]:
    """Patches of files that can be found, and the changes that none of them makes."""
    by_place: dict[str, dict[str, str]] = defaultdict(dict)
    calls: dict[str, Sequence[str]] = {}
    made: dict[str, list[Change]] = defaultdict(list)
    left: list[Change] = []
    for change in changes:
        family, _, keyword = change.name.partition(".")
        where = dict.fromkeys(places.get(change.name, ()))
        names = values.get("optimizer.class", ()) if family == "optimizer" else CALLS.get(family, ())
        if not names or not where or not _LITERAL.fullmatch(change.value.lower()):
            left.append(change)
            continue
        for place in where:
            by_place[place][keyword] = _python(change.value)
            calls[place] = names
            made[place].append(change)
    lines: list[str] = []
    texts: dict[Path, tuple[str, str]] = {}
    for place, keywords in sorted(by_place.items(), key=lambda item: -int(item[0].rpartition(":")[2])):
        path = _found(place.rpartition(":")[0], command)
        before, after = texts.get(path, ("", "")) if path else ("", "")
        if path is not None and path not in texts:
            before = after = path.read_text(encoding="utf-8", errors="replace")
        # From the last line up: what is changed moves no line above it.
        patched = with_keywords(after, int(place.rpartition(":")[2]), calls[place], keywords) if path else None
        if path is None or patched is None:
            left += [change for change in made[place] if change not in left]
        else:
            texts[path] = before, patched
    for path, (before, after) in texts.items():
        lines += unified(path, before, after)
    return lines, left


def _by_hand(kept: Sequence[Kept], left: Sequence[Change], places: Places) -> Iterator[str]:
    for one in kept:
        own = [change for change in one.candidate.changes if change in left]
        if own:
            where = sorted({place for change in own for place in places.get(change.name, ())})
            yield f"# in the script{_at(where)}: {one.candidate.setting}"


def _found(name: str, command: Sequence[str]) -> Path | None:
    """The file of that name that the command starts, or that lies beside it."""
    for word in command:
        path = Path(word)
        if path.suffix == ".py":
            for one in (path, path.parent / name):
                if one.name == name and one.is_file():
                    return one
    return None


def _python(value: str) -> str:
    return {"true": "True", "false": "False", "none": "None", "default": "None"}.get(value.lower(), value)


def _at(where: Sequence[str]) -> str:
    return f" ({', '.join(where)})" if where else ""


def with_keywords(source: str, line: int, names: Collection[str], keywords: Mapping[str, str]) -> str | None:
    """A source whose call at a line, of one of these names, has these keyword arguments, Python values by name.

    None where no such call is there, or several are.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and _name(node.func) in names
    ]
    if len(calls) != 1 or any(one.arg is None for one in calls[0].keywords):  # `**options` may hold the same
        return None
    for name, value in keywords.items():
        call = _same_call(ast.parse(source), calls[0])
        source = _with_keyword(source, call, name, value)
    return source


def unified(path: Path, before: str, after: str) -> list[str]:
    """The change of a file as `patch -p1` takes it, here or, of a path from the root, in `/`."""
    name = path.as_posix().lstrip("/")
    return list(
        difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{name}", f"b/{name}", n=1, lineterm="")
    )


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _same_call(tree: ast.Module, call: ast.Call) -> ast.Call:
    place = call.lineno, call.col_offset  # where it begins, which no keyword moves
    return next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (node.lineno, node.col_offset, _name(node.func)) == (*place, _name(call.func))
    )


def _with_keyword(source: str, call: ast.Call, name: str, value: str) -> str:
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    text = b"".join(lines)

    def offset(line: int | None, column: int | None) -> int:
        return starts[(line or 1) - 1] + (column or 0)

    for keyword in call.keywords:
        if keyword.arg == name:
            first = offset(keyword.value.lineno, keyword.value.col_offset)
            last = offset(keyword.value.end_lineno, keyword.value.end_col_offset)
            return (text[:first] + value.encode() + text[last:]).decode()
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not given:
        end = offset(call.end_lineno, call.end_col_offset) - 1
        return (text[:end] + f"{name}={value}".encode() + text[end:]).decode()
    end = max(offset(one.end_lineno, one.end_col_offset) for one in given)
    # A generator as the only argument, or one in parentheses, ends before its own: those are stepped over.
    close = offset(call.end_lineno, call.end_col_offset) - 1
    end += len(text[end:close].rstrip().rstrip(b",").rstrip())
    return (text[:end] + f", {name}={value}".encode() + text[end:]).decode()


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
    session = Session(
        recorder,
        [source, *searches],
        lambda change: not knob(change.name).preserving,
        lambda change: knob(change.name).redraws,
    )
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
    from gpuscope.instrumented_runtime.tune.communication import CommunicationSearch  # it imports torch

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

    from gpuscope.report.terminal import screen
    from gpuscope.report.terminal.screen import Writer

    console = Console(stderr=True, highlight=False, emoji=False)
    writer = Writer(console)
    with Live(console=console, transient=True, refresh_per_second=4) as live:

        def told(session: Session, doing: str) -> None:
            parts: list[RenderableType] = [Text(_so_far(session))]
            if session.tried:
                parts.append(screen.tried(session.tried, writer))
            if doing:
                parts.append(Text(f"… {_doing(session, doing)}", style="dim"))
            live.update(Group(*parts))

        yield told


def _line(session: Session, doing: str) -> None:
    if doing:
        words = f"{_so_far(session)}; {_doing(session, doing)}"
    elif session.tried:
        from gpuscope.report.terminal.screen import mark  # it takes a while to import

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
