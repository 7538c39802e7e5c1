"""Wheel and sdist from the committed sources, twice from different folders, byte for byte equal."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from release.environments import ROOT, Row


def build_twice(folder: Path) -> tuple[Path, Path, list[Row]]:
    """The wheel, the sdist, and whether a second build, and a wheel from the sdist, are the same."""
    epoch = _output("git", "log", "-1", "--format=%ct")
    first, second = (_built(folder / name, epoch) for name in ("one", "another place"))
    wheel, sdist = _one(first, "*.whl"), _one(first, "*.tar.gz")
    rows = [
        _same("two builds of the wheel", wheel, _one(second, "*.whl")),
        _same("two builds of the sdist", sdist, _one(second, "*.tar.gz")),
    ]
    unpacked = folder / "from sdist"
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    [source] = unpacked.iterdir()
    _hatchling(source, folder / "again", epoch, "wheel")
    rows.append(_same("the wheel built from the sdist", wheel, _one(folder / "again", "*.whl")))
    if left := _output("git", "status", "--porcelain"):
        rows.append(
            Row("the committed sources", "note", f"{len(left.splitlines())} changed files are not in the release")
        )
    return wheel, sdist, rows


def _built(place: Path, epoch: str) -> Path:
    """Check the last commit out into `place`, and build there."""
    source = place / "source"
    source.mkdir(parents=True)
    packed = place / "source.tar"
    subprocess.run(["git", "archive", "--output", str(packed), "HEAD"], cwd=ROOT, check=True)
    with tarfile.open(packed) as archive:
        archive.extractall(source, filter="tar")
    _hatchling(source, place / "dist", epoch, "sdist")
    _hatchling(source, place / "dist", epoch, "wheel")
    return place / "dist"


def _hatchling(source: Path, dist: Path, epoch: str, target: str) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "GPUSCOPE_NATIVE": "1"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(dist)]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{target} of {source} could not be built:\n{done.stderr}")


def _one(folder: Path, pattern: str) -> Path:
    [found] = folder.glob(pattern)
    return found


def _same(what: str, first: Path, second: Path) -> Row:
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (first, second)]
    if digests[0] == digests[1] and first.name == second.name:
        return Row(what, "equal", f"{first.name}, {first.stat().st_size:,} bytes, sha256 {digests[0][:16]}…")
    return Row(what, "FAILED", f"{first.name} {digests[0][:16]}…, {second.name} {digests[1][:16]}…")


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
