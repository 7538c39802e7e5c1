"""Paths and ranks as Python callers and shells give them: taken, or refused with the remedy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import gpuscope
from gpuscope.cli import main
from gpuscope.errors import UsageError


def test_a_list_of_paths_is_taken_as_its_paths(samples: Path) -> None:
    files = sorted((samples / "ddp_healthy").rglob("*.json*"))
    trace = gpuscope.open_trace([samples / "ddp_healthy"])  # type: ignore[arg-type]
    assert trace.ranks == gpuscope.open_trace(samples / "ddp_healthy").ranks
    assert files


@pytest.mark.parametrize("asked", ["0", 0, {0}, [0], range(1), "0-0"])
def test_ranks_are_numbers_or_text(samples: Path, asked: Any) -> None:
    assert list(gpuscope.open_trace(samples / "ddp_healthy", ranks=asked).ranks) == [0]


@pytest.mark.parametrize("asked", ["x", "1-0", "", set(), {"0"}, 0.5, {None}])
def test_other_ranks_are_refused_with_the_remedy(samples: Path, asked: Any) -> None:
    for call in (gpuscope.open_trace, gpuscope.analyze):
        with pytest.raises(UsageError) as error:
            call(samples / "ddp_healthy", ranks=asked)
        assert "0-7,64" in (error.value.hint or "")


@pytest.mark.parametrize("path", ["", [""], 7, None, b"x", {"a": 1}])
def test_what_is_no_path_is_refused_with_the_remedy(path: Any) -> None:
    with pytest.raises(UsageError) as error:
        gpuscope.open_trace(path)
    assert error.value.hint


def test_an_empty_path_is_not_the_current_folder(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(samples / "ddp_healthy", tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    for command in ("analyze", "info"):
        with pytest.raises(SystemExit) as ended:
            main([command, ""])
        assert ended.value.code == 2
        assert "an empty path" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_a_mistyped_output_makes_no_folder(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    if option == "--json":
        words = ["export", str(samples / "ddp_healthy"), "--perfetto", str(tmp_path / "nosuch" / "x.json.gz")]
    else:
        words = ["analyze", str(samples / "ddp_healthy"), "--no-store", option, str(tmp_path / "nosuch" / "x.html")]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 3
    assert "no such folder" in capsys.readouterr().err
    assert not (tmp_path / "nosuch").exists()
