"""Archives are not read: what holds traces of many ranks may be large, and is unpacked once. They are recognised, so
that the error can say how."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

_TAR_AT, _TAR = 257, b"ustar"
_PACKED = {b"BZh": ".bz2", b"\xfd7zXZ\0": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_NAMES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip", ".7z")


def is_tar(head: bytes) -> bool:
    """Whether a file that begins so, once inflated, is a tar archive: its first member may well look like a trace."""
    return head[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR


def remedy(path: Path, head: bytes) -> str | None:
    """The commands that unpack an archive or a packed file; None where it is none."""
    name = path.name.lower()
    file = shlex.quote(str(path))
    if is_tar(head) or (name.endswith(_NAMES) and head.startswith(tuple(_PACKED))):
        return _into_folder(path, f"tar xf {file} -C")
    if head.startswith(b"PK\x03\x04"):
        return _into_folder(path, f"unzip {file} -d")
    if head.startswith(b"7z\xbc\xaf\x27\x1c"):
        return f"unpack it (7z x {file}), then analyse what it held"
    suffix = next((suffix for magic, suffix in _PACKED.items() if head.startswith(magic)), None)
    if suffix is None:
        return None
    program = {".bz2": "bunzip2 -k", ".xz": "unxz -k", ".zst": "unzstd"}[suffix]
    return f"unpack it: {program} {file}"


def _into_folder(path: Path, command: str) -> str:
    folder = path.name
    for suffix in sorted(_NAMES, key=len, reverse=True):
        folder = folder.removesuffix(suffix)
    folder = shlex.quote(f"{folder}-unpacked" if folder == path.name else folder)
    return f"unpack it: mkdir {folder} && {command} {folder}; then: gpuscope analyze {folder}"


def archives_in(names: Iterable[Path]) -> list[Path]:
    """Those that are called as archives are."""
    return sorted(path for path in names if path.name.lower().endswith(_NAMES))
