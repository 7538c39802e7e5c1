"""Plain values and numpy arrays for objects, and back: a closed list of classes, so that no file can name another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any, get_origin, get_type_hints

import msgspec
import numpy as np

from gpuscope.analyzers.base.analyzer import Attributed, Result
from gpuscope.analyzers.base.lanes import HostWork, LaneSummary, StepWindow
from gpuscope.analyzers.base.sections import DECLARED, Sections
from gpuscope.analyzers.base.step_roles import StepFacts
from gpuscope.analyzers.replay.from_trace.recording import Recorded
from gpuscope.analyzers.replay.graph import Call, Gradient, Graph
from gpuscope.analyzers.run.file_part import Part
from gpuscope.problems.problem import Problem
from gpuscope.schema.document import Diagnosis
from gpuscope.trace.breakdown import Breakdown
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Array, Table
from gpuscope.trace.intervals import Spans
from gpuscope.trace.schema import SCHEMAS
from gpuscope.trace.trace import SourceFile, Trace

_RECORDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Part,
        LaneSummary,
        StepWindow,
        StepFacts,
        HostWork,
        Breakdown,
        Result,
        Attributed,
        Recorded,
        Graph,
        Call,
        Gradient,
        SourceFile,
        Problem,
    )
}
_DTYPES = frozenset(map(np.dtype, ("int64", "int32", "int16", "int8", "uint8", "bool", "float64", "float32")))
TAG = "·"
"""Key of an object that stands for something JSON has no form for."""


_LEAST, _MOST = -(2**63), 2**63 - 1


class UnpackableError(ValueError):
    """A value that was not packed by this version."""


@cache
def fingerprint() -> str:
    """Of everything whose form matters: classes and tables, with their fields and columns and the types of these."""
    classes = {name: [(field.name, field.type) for field in fields(kind)] for name, kind in _RECORDS.items()}
    tables = {name: [(column.name, column.dtype) for column in schema.columns] for name, schema in SCHEMAS.items()}
    sections = [section.key for section in DECLARED]
    return sha256(repr((classes, tables, sections)).encode()).hexdigest()[:16]


def pack(value: Any, arrays: list[Array]) -> Any:
    """`value` as JSON's values; its arrays go to `arrays`, referred to by their number.

    Raises `TypeError` for a class that is not listed.
    """
    if type(value) is int and not _LEAST <= value <= _MOST:
        return str(value)  # what a file says of itself; no time and no count is so large
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {TAG: "array", "n": len(arrays) - 1}
    if isinstance(value, np.generic):
        return pack(value.item(), arrays)
    if isinstance(value, Enum):
        return pack(value.value, arrays)
    if is_dataclass(value) and not isinstance(value, type):
        return _record(value, arrays)
    if isinstance(value, Trace | Table | Sections | Spans | PurePath):
        return _special(value, arrays)
    if isinstance(value, Mapping):
        if value and all(type(key) is str and isinstance(inner, np.ndarray) for key, inner in value.items()):
            return _columns(value, arrays)
        pairs = [[pack(key, arrays), pack(inner, arrays)] for key, inner in value.items()]
        if all(type(key) is str and key != TAG for key in value):
            return dict(pairs)
        return {TAG: "dict", "of": pairs}
    if isinstance(value, list):
        return [pack(inner, arrays) for inner in value]
    if isinstance(value, tuple | set | frozenset):
        kind = "tuple" if isinstance(value, tuple) else type(value).__name__
        ordered = value if isinstance(value, tuple) else sorted(value)
        return {TAG: kind, "of": [pack(inner, arrays) for inner in ordered]}
    raise TypeError(f"{type(value).__name__} is not packed")


def _columns(value: Mapping[str, Array], arrays: list[Array]) -> dict[str, Any]:
    """Arrays by name: graphs and tables consist of them, so they take one entry together."""
    arrays += value.values()
    return {TAG: "columns", "names": [*value], "n": len(arrays) - len(value)}


def _record(value: Any, arrays: list[Array]) -> dict[str, Any]:
    name = type(value).__name__
    kind = _RECORDS.get(name)
    if kind is not type(value):
        raise TypeError(f"{type(value).__module__}.{name} is not packed")
    names = [field.name for field in fields(kind)]
    return {TAG: name, "of": {own: pack(getattr(value, own), arrays) for own in names}}


def _special(value: Any, arrays: list[Array]) -> dict[str, Any]:
    if isinstance(value, Trace):
        names = list(value.names.names)
        tables = [value[name] for name in SCHEMAS]
        return {
            TAG: "Trace",
            "names": names,
            "tables": [pack(table, arrays) for table in tables],
            "sources": pack(value.sources, arrays),
            "problems": pack(value.problems, arrays),
        }
    if isinstance(value, Table):
        columns = {column.name: value[column.name] for column in value.schema.columns}
        first = _columns(columns, arrays)["n"] if len(value) else None
        return {TAG: "Table", "name": value.schema.name, "n": first}
    if isinstance(value, Sections):
        keyed = {key: pack(one, arrays) for key, one in value.printed().items()}
        return {TAG: "Sections", "of": keyed}
    if isinstance(value, Spans):
        return {TAG: "Spans", "of": [pack(value.start, arrays), pack(value.end, arrays)]}
    return {TAG: "path", "of": str(value)}


def unpack(value: Any, arrays: Sequence[Array]) -> Any:
    """What was packed. Raises `UnpackableError` for anything that `pack` does not write."""
    if isinstance(value, list):
        return [unpack(inner, arrays) for inner in value]
    if not isinstance(value, dict):
        if type(value) is int and not _LEAST <= value <= _MOST:
            raise UnpackableError(f"{value} is no number of 64 bits")
        return value
    kind = value.get(TAG)
    if kind is None:
        return {key: unpack(inner, arrays) for key, inner in value.items()}
    try:
        return _made(kind, value, arrays)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise UnpackableError(f"{kind}: {error}") from error


def _made(kind: Any, value: dict[str, Any], arrays: Sequence[Array]) -> Any:
    if kind == "array":
        return _array(arrays, value["n"])
    if kind == "columns":
        names = value["names"]
        return {str(name): _array(arrays, number) for number, name in enumerate(names, value["n"])}
    if kind == "Trace":
        return _trace(value, arrays)
    inner = value.get("of")
    if kind == "Table":
        return _table(value, arrays)
    if kind == "Sections":
        return _sections(inner, arrays)
    if kind in _RECORDS:
        return _as({name: unpack(one, arrays) for name, one in inner.items()}, _RECORDS[kind])  # type: ignore[union-attr]
    return _plain(kind, inner, arrays)


def _as(value: Any, kind: Any) -> Any:
    """`value` as an instance of a type, if it and all inside it are of the types declared; records inside were made,
    and so checked, before. Raises `ValueError` where it is not so, or where the instance contradicts itself."""
    made = msgspec.convert(value, kind, dec_hook=_checked)
    if hasattr(made, "check"):
        made.check()
    return made


def _checked(kind: Any, value: Any) -> Any:
    """msgspec compares the classes of what it does not know itself; this adds the types of arrays."""
    if get_origin(kind) is np.ndarray and isinstance(value, np.ndarray) and value.dtype != _number_type(kind):
        raise ValueError(f"an array of {value.dtype}, not {_number_type(kind)}")
    return value


@cache
def _number_type(kind: Any) -> Any:
    return np.dtype(kind.__args__[1].__args__[0])


def _array(arrays: Sequence[Array], number: int) -> Array:
    array = arrays[number]
    if array.dtype not in _DTYPES or array.ndim != 1 or number < 0:
        raise UnpackableError(f"an array of {array.dtype} with {array.ndim} dimensions")
    return array


def _plain(kind: Any, inner: Any, arrays: Sequence[Array]) -> Any:
    if kind == "dict":
        return {unpack(key, arrays): unpack(one, arrays) for key, one in inner}
    if kind == "path":
        return Path(str(inner))
    makers: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset, "Spans": lambda two: Spans(*two)}
    if kind not in makers:
        raise UnpackableError(f"an unknown kind {kind!r}")
    return makers[kind]([unpack(one, arrays) for one in inner])


def _sections(inner: Any, arrays: Sequence[Array]) -> Sections:
    known, types, found = {section.key: section for section in DECLARED if section.printed}, _printed(), Sections()
    for key, one in inner.items():
        found[known[key]] = _as(unpack(one, arrays), types[key])
    return found


@cache
def _printed() -> dict[str, Any]:
    """The type of each section that a file's analyses give."""
    return get_type_hints(Diagnosis)


def _table(value: dict[str, Any], arrays: Sequence[Array]) -> Table:
    schema = SCHEMAS[value["name"]]
    if value["n"] is None:
        return Table.empty(schema)
    columns = {column.name: _array(arrays, number) for number, column in enumerate(schema.columns, value["n"])}
    return Table(schema, columns)


def _trace(value: dict[str, Any], arrays: Sequence[Array]) -> Trace:
    names = NamePool()
    names.codes(map(str, value["names"]), len(value["names"]))
    tables = {table.schema.name: table for table in unpack(value["tables"], arrays)}
    if set(tables) != set(SCHEMAS):
        raise UnpackableError("a trace without all tables")
    sources = _as(unpack(value["sources"], arrays), list[SourceFile])
    return Trace(tables, names, sources, _as(unpack(value["problems"], arrays), list[Problem]))
