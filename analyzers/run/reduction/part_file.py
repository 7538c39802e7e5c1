"""`.gsr` files: a part as a zip of numpy arrays, which `numpy.load` opens without running anything.

The first member is JSON in UTF-8: the version and what was reduced. `tree` is JSON too: the part, and where each of its
arrays lies in the members that hold all arrays of one type end to end.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path, PurePath
from tokenize import TokenError
from typing import Any, get_origin, get_type_hints

import msgspec
import numpy as np
from numpy.lib.format import read_array

from gpuscope.analyzers.base.analyzer import Attributed, Result
from gpuscope.analyzers.base.evidence import StepFacts
from gpuscope.analyzers.base.lanes import DECLARED, HostWork, LaneSummary, Sections, StepWindow
from gpuscope.analyzers.replay.graph import Call, Gradient, Graph
from gpuscope.analyzers.replay.recording import Recorded
from gpuscope.analyzers.run.file_part import Part
from gpuscope.errors import InputError
from gpuscope.output import write
from gpuscope.problems.problem import Problem
from gpuscope.report.section_tables import Replacing, hashed, texts
from gpuscope.schema.document import Diagnosis
from gpuscope.trace.intervals import Breakdown, Spans
from gpuscope.trace.name_pool import NamePool
from gpuscope.trace.schema import SCHEMAS
from gpuscope.trace.table import Array, Table, constant, is_constant
from gpuscope.trace.trace import SourceFile, Trace
from gpuscope.version import __version__

# Plain values and numpy arrays for objects, and back: a closed list of classes, so that no file can name another.

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


HEAD = "gpuscope_part"
TREE = "tree"
_MEMBER = ".npy"
_AGAIN = "make it again with gpuscope reduce"
FORMAT = 2
MOST_EXPANSION = 200
"""Times that a file may grow when it is unpacked: repeated numbers compress far, hostile zeros farther."""
_SMALL = 64 << 20
_LONGEST = 1 << 24
"""Rows that a column of one value may stand for: it takes no room in the file, however long it claims to be."""
_DAMAGED = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    RuntimeError,
    SyntaxError,
    TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""numpy parses a member's header as Python, and twice where it looks like one of Python 2."""


def write_part(path: Path, part: Part, steps: tuple[int, int] | None, share: bool = False) -> None:
    """Write a part, whole or not at all; with `share`, without what names people, machines and folders. Raises
    `InputError` where that can't be done."""
    arrays: list[Array] = []
    tree = pack(part, arrays)
    if share:
        tree = shared_tree(part, tree)
    columns, places = _joined(arrays)
    members = {TREE: _text({"part": tree, "arrays": places}), **columns}
    head = {
        "format": FORMAT,
        "digest": digest(members),
        "gpuscope_version": __version__,
        "fingerprint": fingerprint(),
        "ranks": part.trace.ranks,
        "steps": list(steps) if steps else None,
    }

    def fill(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **{HEAD: _text(head), **members})  # type: ignore[arg-type]

    write(path, fill)


def digest(members: Mapping[str, Array]) -> str:
    """SHA-256 of all members but the head: a part that was changed is refused, not half believed."""
    from hashlib import sha256

    found = sha256()
    for name in sorted(members):
        found.update(f"{name} {members[name].dtype} {members[name].shape}\n".encode())
        found.update(np.ascontiguousarray(members[name]).tobytes())
    return found.hexdigest()


def _text(values: Any) -> Array:
    return np.frombuffer(json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode(), np.uint8)


def _joined(arrays: Sequence[Array]) -> tuple[dict[str, Array], list[list[Any]]]:
    """All arrays of one type end to end, and where each is: a member of a zip costs more than most arrays hold."""
    by_type: dict[str, list[Array]] = {}
    places: list[list[Any]] = []
    ends: dict[str, int] = {}
    for array in arrays:
        name = array.dtype.name
        if is_constant(array):
            places.append([name, len(array), array[0].item()])
            by_type.setdefault(name, [])
            continue
        by_type.setdefault(name, []).append(array)
        places.append([name, len(array)])
        ends[name] = ends.get(name, 0) + len(array)
    empty = {name: np.empty(0, name) for name in by_type}
    return {name: np.concatenate(found) if found else empty[name] for name, found in by_type.items()}, places


def _apart(members: Mapping[str, Array], places: Sequence[Sequence[Any]]) -> list[Array]:
    """The arrays that `_joined` put end to end."""
    ends = dict.fromkeys(members, 0)
    arrays: list[Array] = []
    for name, length, *value in places:
        whole, low = members[name], ends[name]
        if value:
            if not 0 <= length <= _LONGEST:
                raise UnpackableError(f"an array of {length} times one value")
            arrays.append(constant(value[0], length, whole.dtype.type))
            continue
        if not 0 <= length <= len(whole) - low:
            raise UnpackableError(f"an array of {length} values of which {len(whole) - low} are there")
        arrays.append(whole[low : low + length])
        ends[name] = low + length
    return arrays


def read_head(path: Path) -> dict[str, Any]:
    """What was reduced, without the part. Raises `InputError` for a damaged file, and one of another version."""
    with _opened(path) as packed:
        return _head(path, packed)


def read_part(path: Path) -> tuple[dict[str, Any], Part]:
    """What was reduced, and the part. Raises `InputError` for a file that is damaged or hostile, or of another
    version."""
    with _opened(path) as packed:
        head = _head(path, packed)
        names = [name.removesuffix(_MEMBER) for name in packed.namelist()]
        members = {name: _member(packed, name) for name in names if name != HEAD}
    try:
        if head["digest"] != digest(members):
            raise ValueError("it is not what was written")
        tree = _parsed(members.pop(TREE))
        part = unpack(tree["part"], _apart(members, tree["arrays"]))
        if not isinstance(part, Part):
            raise UnpackableError("it holds no part")
    except Exception as error:  # of whatever kind: what is in a hostile file may raise any
        raise InputError(f"{path}: is damaged: {error}", hint=_AGAIN) from None
    return head, part


def _head(path: Path, packed: zipfile.ZipFile) -> dict[str, Any]:
    head = _parsed(_member(packed, HEAD))
    if not isinstance(head, dict) or head.get("format") != FORMAT or head.get("fingerprint") != fingerprint():
        made = head.get("gpuscope_version") if isinstance(head, dict) else None
        raise InputError(
            f"{path}: was made by gpuscope {made}, and this is {__version__}",
            hint="reduce and analyse with one version",
        )
    return head


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The file, if unpacking it can't fill the memory. Raises `InputError` where it is damaged."""
    try:
        with zipfile.ZipFile(path) as packed:
            grown = sum(member.file_size for member in packed.infolist())
            if grown > max(MOST_EXPANSION * path.stat().st_size, _SMALL):
                raise InputError(f"{path}: would grow to {grown:,} bytes", hint="no reduced file does; make it again")
            yield packed
    except (*_DAMAGED, RecursionError) as error:
        # A zip that was changed can ask for encryption, or for a method that nobody wrote it with.
        raise InputError(f"{path}: is damaged: {error}", hint=_AGAIN) from None


def _member(packed: zipfile.ZipFile, name: str) -> Array:
    """An array of the file, as `numpy.load` reads it, without a pickle in any case."""
    # In memory at once: numpy reads from a zip's member in small pieces.
    found: Array = read_array(BytesIO(packed.read(f"{name}{_MEMBER}")), allow_pickle=False)
    return found


def _parsed(text: Array) -> Any:
    return json.loads(text.tobytes())


def shared_tree(part: Part, tree: Any) -> Any:
    """`tree`, which is `part` packed, with its texts replaced.

    Hosts and users get the first letters of a hash, so that parts made on several nodes still tell which ranks share a
    host. Whoever knows a name can therefore check whether it is meant.
    """
    paths = [str(source.path) for source in part.trace.sources]
    tree = Replacing(texts(tree), part.trace.hosts, paths, hashed).all(tree)
    trace = tree["of"]["trace"]
    trace["names"] = _distinct(trace["names"])
    return tree


def _distinct(names: list[str]) -> list[str]:
    """Names are referred to by their place, and two of them may have become one."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found
