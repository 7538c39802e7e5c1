"""The call that a recording saw at `file.py:line`, with other keyword arguments."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection, Mapping
from pathlib import Path


def with_keywords(source: str, line: int, names: Collection[str], keywords: Mapping[str, str]) -> str | None:
    """A source whose call at a line, of one of these names, has these keyword arguments, Python values by name.

    None where no such call is there, or several are.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    calls = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno)
        and _name(node.func) in names
    ]  # fmt: skip
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
        node for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (node.lineno, node.col_offset, _name(node.func)) == (*place, _name(call.func))
    )  # fmt: skip


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
