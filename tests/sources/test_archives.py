"""Traces in archives: read as from a folder, whatever stands in them."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.kineto import kernel, write

import gpuscope
from gpuscope import archives
from gpuscope.errors import InputError
from gpuscope.plugins import COMMANDS, load

NAMES = ("run.tar", "run.tar.gz", "run.tar.xz", "run.zip")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder of two ranks, one of them below another."""
    for rank, name in enumerate(("rank0.json", "node1/rank1.json")):
        write(tmp_path / "run" / name, kernel(0, 10 + rank), rank=rank)
    return tmp_path / "run"


def packed(folder: Path, name: str) -> Path:
    """The folder as an archive beside it."""
    archive = folder.with_name(name)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if name.endswith(".zip"):
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
            for path in files:
                out.write(path, path.relative_to(folder.parent))
        return archive
    with tarfile.open(archive, f"w:{name.partition('.tar')[2].removeprefix('.')}") as tar:
        for path in files:
            tar.add(path, str(path.relative_to(folder.parent)))
    return archive


def analysed(path: Path) -> dict[str, object]:
    """What `gpuscope analyze --json` prints."""
    result = CliRunner().invoke(load(COMMANDS, "analyze"), [str(path), "--json", "--no-store"], standalone_mode=False)
    assert result.exception is None, result.output
    report: dict[str, object] = json.loads(result.stdout)
    return report


@pytest.mark.parametrize("name", NAMES)
def test_an_archive_is_read_as_its_folder(run: Path, name: str) -> None:
    archive = packed(run, name)
    of_folder, of_archive = analysed(run), analysed(archive)
    named = [source["path"] for source in of_archive["trace"]["sources"]]  # type: ignore[index,call-overload]
    assert named == [f"{archive}/run/rank0.json", f"{archive}/run/node1/rank1.json"]
    text = json.dumps(of_archive).replace(f"{archive}/run", str(run))
    assert json.loads(text) == of_folder


def test_a_folder_of_archives_is_read(run: Path) -> None:
    """One per node, say."""
    folder = run.parent / "nodes"
    folder.mkdir()
    for number, name in enumerate(("a.tar.gz", "b.zip")):
        own = run.parent / f"own{number}"
        write(own / f"rank{number}.json", kernel(0, 5), rank=number)
        packed(own, name).rename(folder / name)
    assert gpuscope.open_trace(folder).ranks == [0, 1]


def test_an_archive_of_no_traces_names_itself(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.txt").write_text("nothing")
    archive = packed(tmp_path / "logs", "logs.zip")
    with pytest.raises(InputError, match="no trace") as raised:
        gpuscope.open_trace(archive)
    assert str(archive) in raised.value.message


def _tar(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def test_names_that_lead_out_links_and_devices_are_left_out(tmp_path: Path) -> None:
    """Nothing is written but plain files below the temporary folder."""
    out, link, device, rooted = (tarfile.TarInfo(name) for name in ("../out", "link", "device", "/rooted"))
    out.size = rooted.size = 1
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    device.type = tarfile.CHRTYPE
    kept = tarfile.TarInfo("kept")
    kept.size = 3
    folder = archives.unpacked(_tar(tmp_path / "x.tar", out, link, device, rooted, kept))
    assert [path.name for path in folder.rglob("*")] == ["kept"]
    assert not (folder.parent / "out").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_archive_is_an_error(run: Path, name: str) -> None:
    write(run / "rank0.json", *(kernel(20 * place, 10, name=f"k{place * 7919}") for place in range(500)), rank=0)
    archive = packed(run, name)
    data = archive.read_bytes()
    archive.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError) as raised:
        gpuscope.open_trace(archive)
    assert str(archive) in raised.value.message
    assert raised.value.hint


def test_what_the_disk_has_no_room_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is written; and how much there is of it is not believed, but counted."""
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("zeros.json", bytes(1 << 20))
    monkeypatch.setattr(archives, "SPARED", 1 << 80)
    with pytest.raises(InputError, match="has room for"):
        archives.unpacked(tmp_path / "bomb.zip")


def test_too_many_files_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_FILES", 1)
    with pytest.raises(InputError, match="more than 1 files"):
        archives.unpacked(packed(run, "many.zip"))


def test_two_members_of_one_name_are_an_error(tmp_path: Path) -> None:
    """Neither overwrites the other."""
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as out:
        for text in ("1", "2"):
            with pytest.warns(UserWarning, match="Duplicate name") if text == "2" else nullcontext():
                out.writestr("rank0.json", text)
    with pytest.raises(InputError, match="can't be unpacked"):
        archives.unpacked(tmp_path / "twice.zip")
