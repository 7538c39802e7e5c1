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
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib.format import read_array

from gpuscope.analyzers.run.file_part import Part
from gpuscope.analyzers.run.reduction.packing import UnpackableError, fingerprint, pack, unpack
from gpuscope.errors import InputError
from gpuscope.output import write
from gpuscope.report.sharing import Replacing, hashed, texts
from gpuscope.trace.columns.table import Array, constant, is_constant
from gpuscope.version import __version__

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
