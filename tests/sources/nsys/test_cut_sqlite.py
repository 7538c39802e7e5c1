"""SQLite exports that are shorter than their header says."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.cli import call
from helpers.nsys import Export

from gpuscope import open_trace
from gpuscope.errors import InputError

STEPS = 3_000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    export = Export()
    for i in range(STEPS):
        export.call(1000 * i, 1000 * i + 100, i + 1)
        export.kernel(1000 * i + 200, 1000 * i + 900, i + 1)
    return export.write(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("lost", [1, 100, 4_096, 8_192, 60_000])
def test_a_cut_is_told(tmp_path: Path, whole: Path, lost: int) -> None:
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole.read_bytes()[:-lost])
    with pytest.raises(InputError, match="is cut off") as caught:
        open_trace(path)
    assert caught.value.exit_code == 3
    assert "--partial" in str(caught.value.hint)
    trace = open_trace(path, partial=True)
    assert [problem.severity for problem in trace.problems if problem.code == "truncated"] == ["data_loss"]
    assert STEPS * 0.5 < len(trace["host_events"]) <= STEPS
    assert 0 < len(trace["device_events"]) <= STEPS


def test_the_way_out_works_on_the_command_line(tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole.read_bytes()[:-5_000])
    refused = call(capsys, "analyze", str(path), "--no-store")
    assert (refused.returncode, "--partial" in refused.stderr) == (3, True)
    assert call(capsys, "analyze", str(path), "--no-store", "--partial").returncode == 0


def test_hardly_anything_left(tmp_path: Path, whole: Path) -> None:
    """Without its tables a file has nothing to take."""
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole.read_bytes()[:4_096])
    for partial in (False, True):
        with pytest.raises(InputError):
            open_trace(path, partial=partial)


def test_whole_files_and_foreign_counts_are_none(tmp_path: Path, whole: Path) -> None:
    """A file with room at its end is whole; a count that its last writer did not know of says nothing."""
    content = bytearray(whole.read_bytes())
    longer = tmp_path / "longer.sqlite"
    longer.write_bytes(bytes(content) + bytes(4_096))
    assert not [problem for problem in open_trace(longer).problems if problem.code == "truncated"]
    content[28:32] = (1 << 20).to_bytes(4, "big")
    content[92:96] = b"\0\0\0\0"
    stale = tmp_path / "stale.sqlite"
    stale.write_bytes(content)
    assert len(open_trace(stale)["device_events"]) == STEPS
