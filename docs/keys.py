"""The reference of a JSON document, made from the types that declare it: a section per part, a row per key.

A key's meaning is the docstring below it in `gpuscope/schema/`, a part's that of its type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from textwrap import wrap
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from gpuscope.analyzers.run.analysis import SECTIONS
from gpuscope.report.published import DOCUMENTS, json_schema, of_keys
from gpuscope.schema import nccl_sections
from gpuscope.store.tables import FOLLOWED_BY, TABLES, VIEWS

PROFILE = {section for section, row in SECTIONS.items() if row.__name__ in vars(nccl_sections)}
"""Parts of the report that are tables of a profiler, which no verdict rests on."""
DATA = {f"slowdown.{which}by_{name}": name for which in ("", "explained.") for name in ("operation", "rank", "stage")}
DATA |= {"trace.parallelism": "kind", "power[].held_frac": "reason"}
DATA |= {"trace.setup.versions": "package", "trace.setup.variables": "variable"}
DATA |= {"trace.clock.offset_ns": "rank", "trace.clock.drift_frac": "rank"}
"""What names that are data stand for, by the mapping they are in; elsewhere a cause."""
SAME = {"after": "before", "nearest": "candidates", "entry": "candidates"}
"""Parts that look like another one, which is described instead."""
WIDTH = 118
_WORDS = {int: "integer", str: "string", float: "number", bool: "boolean", type(None): "null"}
_NONE = re.compile(r"\bNone\b")


def rows(kind: Any, path: str, said: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Key, type and meaning of every key of a TypedDict, in order; `[]` for elements, `{…}` for names that are data."""
    for key, value in get_type_hints(kind).items():
        inner = f"{path}.{key}" if path else key
        yield inner, _type(value), meaning(kind, key, value, said)
        if key not in SAME:
            yield from _within(value, inner, said)


def _within(value: Any, path: str, said: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    if is_typeddict(value):
        yield from rows(value, path, said)
    elif get_origin(value) is list:
        yield from _within(get_args(value)[0], f"{path}[]", said)
    elif get_origin(value) is dict and (path in DATA or "stall_ns" in path):
        text = (
            ""
            if path in DATA
            else "a [cause](definitions.md#stalls-class-and-cause) of that class; absent where it took no time"
        )
        yield f"{path}.{{{DATA.get(path, 'cause')}}}", _type(get_args(value)[1]), text
    elif get_origin(value) in (Union, UnionType):
        for member in get_args(value):
            yield from _within(member, path, said)


def meaning(kind: Any, key: str, value: Any, said: dict[str, Any]) -> str:
    """What a key of a type means, in the words of JSON."""
    text = said.get(kind.__name__, {}).get("properties", {}).get(key, {}).get("description", "")
    text = _NONE.sub("null", text).rstrip(".").replace("|", "\\|")
    if text[1:2].islower() or text[:2] == "A ":
        text = text[0].lower() + text[1:]
    choices = [f"`{choice}`" for choice in _choices(value)]
    if choices and not any(choice in text for choice in choices):
        text = "; ".join(filter(None, [text, ", ".join(choices)]))
    return text


def _choices(value: Any) -> Iterator[str]:
    if get_origin(value) is Literal:
        yield from get_args(value)
    elif get_origin(value) in (Union, UnionType):
        for member in get_args(value):
            yield from _choices(member)


def _type(value: Any) -> str:
    """`int | None` in the words of JSON."""
    if get_origin(value) in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(member) for member in get_args(value)))
    if get_origin(value) is Literal:
        return "string"
    if is_typeddict(value) or get_origin(value) is dict:
        return "object"
    return "list" if get_origin(value) is list else _WORDS.get(value, str(value))


def document(name: str, level: str, only: set[str] | None = None, without: set[str] | None = None) -> str:
    """The parts of the document of that name (a key of `DOCUMENTS`) with their keys; all, some, or all but some."""
    kind, said = DOCUMENTS[name].of, json_schema(name, links=True)["$defs"]
    hints = {key: value for key, value in get_type_hints(kind).items() if key not in (without or ())}
    lines: list[str] = []
    if only is None:
        found = [(key, _type(value), meaning(kind, key, value, said)) for key, value in hints.items()]
        lines += [f"{level} Top level", "", *_table(found)]
    for key, value in hints.items():
        element = _element(value)
        if element is None or key in SAME or not (only is None or key in only):
            continue
        path = f"{key}[]" if get_origin(_bare(value)) is list else key
        about = _NONE.sub("null", cleandoc(element.__doc__ or ""))
        text = wrap(" ".join(about.split()), WIDTH, break_long_words=False, break_on_hyphens=False)
        lines += [f"{level} `{path}`", "", *text, "", *_table(rows(element, path, said))]
    return "\n".join(lines[:-1])


def flat(name: str) -> str:
    """All keys of the document of that name in one table."""
    return "\n".join(_table(rows(DOCUMENTS[name].of, "", json_schema(name, links=True)["$defs"]))[:-1])


def parts(kind: type) -> str:
    """All fields of a dataclass that a file of values fills, in one table."""
    said = {kind.__name__: {"properties": {key: {"description": text} for key, text in of_keys(kind).items()}}}
    return "\n".join(_table(rows(kind, "", said))[:-1])


def _table(found: Iterator[tuple[str, str, str]] | list[tuple[str, str, str]]) -> list[str]:
    return [
        "| key | type | meaning |",
        "|---|---|---|",
        *(f"| `{key}` | {shown} | {text} |" for key, shown, text in found),
        "",
    ]


def _bare(value: Any) -> Any:
    """A type without `None`."""
    if get_origin(value) in (Union, UnionType):
        return next(member for member in get_args(value) if member is not type(None))
    return value


def _element(value: Any) -> Any:
    """The TypedDict that a part of a document is, or is a list of; None for plain values."""
    bare = _bare(value)
    bare = get_args(bare)[0] if get_origin(bare) is list else bare
    return bare if is_typeddict(bare) else None


def store_tables() -> str:
    """The tables of the run store with their columns, and its views."""
    lines: list[str] = []
    for one in (*TABLES, FOLLOWED_BY):
        lines += [f"### `{one.name}`", "", f"{one.doc[0].upper()}{one.doc[1:]}.", "", "| column | type | meaning |"]
        lines += [
            "|---|---|---|",
            *(f"| `{column.name}` | {column.kind} | {column.doc} |" for column in one.columns),
            "",
        ]
    lines += ["Views:", "", *(f"- `{view}`: {doc}" for view, (doc, _) in VIEWS.items())]
    return "\n".join(lines)
