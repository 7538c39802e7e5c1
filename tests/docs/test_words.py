"""User-visible text uses the terms of docs/glossary.md; words that it replaced don't come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gpuscope.cli import cli

ROOT = Path(__file__).resolve().parents[2]
ROOTS = ("gpuscope", "analyzers", "dashboards", "instrumented_runtime", "docs", "README.md")
"""What is searched: of analyzers, dashboards, docs, gpuscope, instrumented_runtime, README.md."""
OWN_FOLDERS = ("analyzers", "dashboards", "instrumented_runtime")
"""Links in `gpuscope/` lead to these: they are roots of their own."""
NOT_SEARCHED = ("docs/decisions/",)
TEXT_FILES = (".md", ".j2", ".html", ".js")
BANNED = (
    r"(?:un)?told",
    r"tells?",
    r"mend(?:s|ed|ing)?",
    r"(?:of )?its like",
    r"by turns",
    r"last again and again",
    r"late words",
    r"lost on ranks?",
    r"launching too slowly",
    r"is no trace(?: that gpuscope knows)?",
    r"is no (?:set|range|percentage|plain file|source)",
    r"gain (?:is )?not told",
    r"held? (?:\w+ )?against",
    r"replayed unchanged",
    r"graver|less grave",
    r"blame",
)
WORD = re.compile(r"(?<![\w.\-`])(?:" + "|".join(BANNED) + r")(?![\w`(]|-\w|\.\w)", re.IGNORECASE)
PROSE = re.compile(r"\w+[^\w\s]*\s+\w")
"""Two words with a blank between: a literal without is a key, a name or an option."""


def strings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each literal that can be prose; neither docstrings nor regular expressions."""
    tree = ast.parse(source)
    hidden = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
            hidden.update(id(part) for argument in node.args for part in ast.walk(argument))
    docs = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_command(node))
    for function in docs:
        if text := ast.get_docstring(function):
            yield function.lineno, text
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            prose = node.value if PROSE.search(node.value) else ""
            yield node.lineno, prose


def _is_command(function: ast.FunctionDef) -> bool:
    return any(re.search(r"\b(command|group)\b", ast.unparse(one)) for one in function.decorator_list)


def markdown(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside of code blocks, which quote the output of programs."""
    quoted = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            quoted = not quoted
        elif not quoted:
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of all user-visible text of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from strings(text)
    elif path.suffix == ".md":
        yield from markdown(text)
    else:
        yield from enumerate(text.splitlines(), 1)


def files() -> Iterator[Path]:
    """Everything below `ROOTS` that can hold user-visible text."""
    for root in ROOTS:
        if (ROOT / root).is_file():
            yield ROOT / root
        for path in sorted((ROOT / root).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            linked = root == "gpuscope" and path.relative_to(ROOT / root).parts[0] in OWN_FOLDERS
            searched = path.suffix in (".py", *TEXT_FILES) and not linked and not name.startswith(NOT_SEARCHED)
            if searched and path.is_file():
                yield path


def commands(command: click.Command, context: click.Context) -> Iterator[click.Command]:
    """A command and all below it."""
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, context)


def test_every_root_exists_and_is_searched() -> None:
    found = {path.relative_to(ROOT).parts[0] for path in files()}
    assert found == set(ROOTS)


def test_no_banned_word_in_text() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r} in {text.strip()[:80]!r}"
        for path in files()
        for line, text in texts(path)
        if (match := WORD.search(text))
    ]
    assert not found, "\n".join([f"{len(found)} banned words; docs/glossary.md has the terms", *found])


def test_no_banned_word_in_the_help_of_a_command() -> None:
    with click.Context(cli, info_name="gpuscope") as context:
        for command in commands(cli, context):
            if _package(command) in ROOTS:
                assert WORD.search(command.get_help(context)) is None, command.name


def _package(command: click.Command) -> str:
    """The top-level folder that a command comes from."""
    parts = (command.callback.__module__ if command.callback else "gpuscope").split(".")
    return parts[1] if len(parts) > 1 and parts[1] in OWN_FOLDERS else parts[0]


@pytest.mark.parametrize(
    ("text", "banned"),
    [
        ("the file tells its rank", True),
        ("Gain not told: more workers", True),
        ("an untold rank", True),
        ("how to mend it", True),
        ("at the mean of its like", True),
        ("run.json: is no trace that gpuscope knows", True),
        ("the rank is not recorded", False),
        ("file.tell() says where", False),
        ("recommended settings", False),
        ("`untold`", False),
    ],
)
def test_what_is_banned(text: str, banned: bool) -> None:
    assert bool(WORD.search(text)) is banned


def test_prose_is_found_and_keys_are_not() -> None:
    source = (
        '"""It tells."""\nimport re\nKEY = "told"\nWHY = f"{KEY}: nothing is told here"\nBY = re.compile("it tells")\n'
    )
    assert [text for _, text in strings(source) if text] == [": nothing is told here"]


def test_a_quoted_output_is_not_searched() -> None:
    page = "It is known.\n```\nnsys tells more\n```\nThe `told` key tells.\n"
    assert [number for number, text in markdown(page) if WORD.search(text)] == [5]
