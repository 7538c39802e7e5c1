"""Outputs: whole or not at all, refused before any work, nothing of the user's lost."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.cli import gpuscope
from helpers.kineto import call, kernel, write

from gpuscope import output
from gpuscope.errors import EXIT_CODES, InputError, UsageError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "in" / "rank0.json", call(5, 2, 1), kernel(0, 80, 1), call(85, 2, 2), kernel(100, 10, 2))


def below(folder: Path) -> dict[str, str]:
    """Every path below a folder, with the content of files."""
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else "" for path in sorted(folder.rglob("*"))
    }


@contextmanager
def small_disk() -> Iterator[None]:
    """No file may grow beyond 200 bytes: writing fails amid a file, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


OUTPUTS = [
    ["analyze", "{trace}", "--html"],
    ["analyze", "{trace}", "--csv"],
    ["export", "{trace}", "--perfetto"],
    ["export", "{trace}", "--nccl-tuner"],
    ["reduce", "{trace}", "-o"],
    ["convert", "{trace}"],
    ["check", "{trace}", "--baseline", "{other}", "--junit"],
    ["tune", "--html", "{out}", "--", "python", "train.py"],
    ["tune", "--take", "{out}", "--", "python", "train.py"],
]


@pytest.mark.parametrize("args", OUTPUTS, ids=" ".join)
def test_what_can_t_be_written_is_an_error_before_any_work(trace: Path, tmp_path: Path, args: list[str]) -> None:
    """The output's folder would be below a file: nobody can write there, root neither."""
    other = tmp_path / "other.json"
    other.write_bytes(trace.read_bytes())
    before = below(tmp_path)
    named = args if "{out}" in args else [*args, "{out}"]
    done = gpuscope(*(arg.format(trace=trace, other=other, out=other / "out" / "file.csv") for arg in named))
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert str(other) in done.stderr
    assert "Traceback" not in done.stderr
    assert below(tmp_path) == before


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize("option", ["--html", "--csv"])
def test_a_folder_is_no_file_and_a_file_no_folder(trace: Path, tmp_path: Path, option: str, force: list[str]) -> None:
    place = tmp_path / "place"
    if option == "--html":
        place.mkdir()
    else:
        place.write_text("mine")
    before = below(tmp_path)
    assert gpuscope("analyze", trace, option, place, *force).returncode == 2
    assert below(tmp_path) == before


def test_a_file_that_may_not_be_written_is_left_alone(tmp_path: Path) -> None:
    """As another user, where this one may write everything."""
    mine = tmp_path / "report.html"
    mine.write_text("mine")
    mine.chmod(0o444)
    user = os.geteuid()
    if user == 0:
        for folder in (tmp_path, *tmp_path.parents):
            if folder.owner() == "root" and len(folder.parts) > 2:
                folder.chmod(folder.stat().st_mode | 0o055)
        os.chown(tmp_path, 65534, 65534)
        os.chown(mine, 65534, 65534)
        os.seteuid(65534)
    try:
        with pytest.raises(InputError):
            output.check_free([mine], force=True)
        tmp_path.chmod(0o555)
        with pytest.raises(InputError):
            output.check_free([tmp_path / "new.html"], force=False)
        with pytest.raises(InputError):
            output.check_free([], force=False, folders=[tmp_path / "tables"])
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o755)
    assert mine.read_text() == "mine"


def test_a_full_disk_leaves_no_half_folder(trace: Path, tmp_path: Path) -> None:
    before = below(tmp_path)
    with small_disk():
        done = gpuscope("analyze", trace, "--csv", tmp_path / "new" / "tables")
    assert (done.returncode, "tables" in done.stderr) == (3, True)
    assert below(tmp_path) == before


def test_a_full_disk_takes_nothing_from_a_folder_that_was_there(trace: Path, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    assert gpuscope("analyze", trace, "--csv", tables).returncode == 0
    (tables / "mine.txt").write_text("mine")
    (tables / "kernels.csv").write_text("older")
    before = below(tables)
    with small_disk():
        assert gpuscope("analyze", trace, "--csv", tables, "--force").returncode == 3
    assert below(tables) == before
    assert gpuscope("analyze", trace, "--csv", tables, "--force").returncode == 0
    assert set(below(tables)) == set(before)
    assert below(tables)["kernels.csv"] != "older"


def test_a_full_disk_takes_nothing_from_a_file(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("older")
    before = below(tmp_path)
    with small_disk():
        assert gpuscope("analyze", trace, "--html", page, "--force").returncode == 3
    assert below(tmp_path) == before


def test_a_writer_that_fails_for_another_reason_leaves_nothing_either(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "first.csv").write_text("1")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        output.write_folder(tmp_path / "a" / "b", fill)
    assert below(tmp_path) == {}


def test_every_exit_code_is_documented() -> None:
    """In the help, in the README and in the commands' reference: those of errors, of Ctrl-C and of a closed pipe."""
    raised = {kind.exit_code for kind in (InputError, UsageError)}
    assert raised | {0, 1, 4, 130, 141} == set(EXIT_CODES)
    told = {
        "help": gpuscope("--help").stdout.partition("Exit codes:")[2],
        "README": (ROOT / "README.md").read_text().partition("Exit codes:")[2].partition("\n\n")[0],
        "commands": (ROOT / "docs" / "commands.md").read_text().partition("| exit code |")[2].partition("\n\n")[0],
    }
    for where, text in told.items():
        assert {code for code in EXIT_CODES if str(code) not in text.replace("|", " ").split()} == set(), where


def test_ctrl_c_exits_with_its_code() -> None:
    code = (
        "import sys, gpuscope.sources.opening as opening\n"
        "def stop(*_, **__): raise KeyboardInterrupt\n"
        "opening.inputs = stop\n"
        "from gpuscope.cli import main\n"
        "main(['analyze', 'x.json', '--no-store'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (130, False)
    assert json.dumps(done.stdout) == '""'
