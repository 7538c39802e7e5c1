"""What to take along for the changes that were kept: variables, arguments, and the lines of the script to change."""

from __future__ import annotations

import ast
import difflib
import re
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from gpuscope.errors import GpuscopeError
from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.record.applied.knobs.environment import PREFIX, UNSET
from gpuscope.instrumented_runtime.record.applied.launching import framework_arguments
from gpuscope.instrumented_runtime.record.applied.table import knob
from gpuscope.instrumented_runtime.record.run_folder import rank_parts
from gpuscope.instrumented_runtime.tune.tuning import Kept, Session
from gpuscope.recorded_environment import redacted_command

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
