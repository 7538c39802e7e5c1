"""The checks of a release fail where something is wrong: on archives made wrong on purpose."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from release.building import _same
from release.contents import IN_SDIST, IN_WHEEL, ONCE, check_contents
from release.environments import ROOT, _oldest

INFO = "gpuscope-0.1.0.dist-info"


def archives(folder: Path, wheel: set[str], sdist: set[str], metadata: str) -> tuple[Path, Path]:
    made = folder / "gpuscope-0.1.0-py3-none-any.whl", folder / "gpuscope-0.1.0.tar.gz"
    with zipfile.ZipFile(made[0], "w") as archive:
        for name in sorted(wheel):
            archive.writestr(name, "")
        archive.writestr(f"{INFO}/METADATA", metadata)
    with tarfile.open(made[1], "w:gz") as packed:
        for name in sorted(sdist):
            packed.addfile(tarfile.TarInfo(f"gpuscope-0.1.0/{name}"), io.BytesIO())
    return made


def metadata(**without: bool) -> str:
    lines = [f"{key}: x" for key in ONCE if key not in without]
    lines += ["Classifier: Programming Language :: Python :: 3.11", *("Project-URL: a, b" for _ in range(4))]
    return "\n".join(lines) + "\n\n" + "readme " * 200


@pytest.mark.parametrize(
    ("wheel", "sdist", "text", "wrong"),
    [
        (set(IN_WHEEL), set(IN_SDIST), metadata(), [False, False, False]),
        ({*IN_WHEEL} - {IN_WHEEL[0]}, set(IN_SDIST), metadata(), [True, False, False]),
        ({*IN_WHEEL, "tests/test_x.py"}, set(IN_SDIST), metadata(), [True, False, False]),
        ({*IN_WHEEL, "gpuscope/native/module.c"}, set(IN_SDIST), metadata(), [True, False, False]),
        (set(IN_WHEEL), {*IN_SDIST, "sample_traces/x/rank0.json.gz"}, metadata(), [False, True, False]),
        (set(IN_WHEEL), {*IN_SDIST} - {"LICENSE"}, metadata(), [False, True, False]),
        (set(IN_WHEEL), set(IN_SDIST), metadata(Author=True), [False, False, True]),
    ],
)
def test_contents(tmp_path: Path, wheel: set[str], sdist: set[str], text: str, wrong: list[bool]) -> None:
    rows = check_contents(*archives(tmp_path, wheel, sdist, text))
    assert [row.failed for row in rows] == wrong


def test_two_builds_that_differ(tmp_path: Path) -> None:
    for folder, data in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.whl").write_bytes(data)
    assert not _same("", tmp_path / "a" / "x.whl", tmp_path / "b" / "x.whl").failed
    assert _same("", tmp_path / "a" / "x.whl", tmp_path / "c" / "x.whl").failed


def test_the_oldest_libraries_are_the_lower_bounds(tmp_path: Path) -> None:
    _, file = _oldest("3.11.7", tmp_path)
    pins = dict(line.split("==") for line in Path(file).read_text().split())
    assert pins["numpy"] == "2.0"
    assert {"click", "jinja2", "msgspec", "pandas", "rich", "sqlite-utils", "platformdirs"} < set(pins)
    _, file = _oldest("3.13.0", tmp_path)
    assert "numpy==2.1.0" in Path(file).read_text()  # the first that has a build for it


def test_every_placeholder_is_listed() -> None:
    page = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8").partition("## Placeholders")[2]
    for name in ("pyproject.toml", "CITATION.cff", "SECURITY.md"):
        assert "example.org" in (ROOT / name).read_text(encoding="utf-8")
        assert f"`{name}`" in page
