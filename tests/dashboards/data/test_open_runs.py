"""Opening several runs, some of which can't be opened; and finding their history in the run store."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cli import call
from helpers.dashboards import viewer_of

from gpuscope.analyzers.run.runner import Options
from gpuscope.dashboards.data.open_runs import NoSuchRunError, job_of, open_run, open_runs, trend_of
from gpuscope.errors import InputError
from gpuscope.report.read_report import dumps

DASHBOARD = "import sys; from gpuscope.cli import main; main(['dashboard', *sys.argv[1:], '--port', '0'])"


@pytest.fixture
def runs(samples: Path, tmp_path: Path) -> Path:
    """A folder with a run, and a file that is no trace."""
    shutil.copytree(samples / "ddp_slow_rank", tmp_path / "runs" / "slow")
    (tmp_path / "runs" / "broken.json").write_text("{", encoding="utf-8")
    return tmp_path / "runs"


# ---- some that can't be opened ----


def test_the_others_are_opened_and_keep_their_numbers(runs: Path) -> None:
    opened = open_runs([str(runs / "broken.json"), str(runs / "slow"), str(runs / "absent")], Options())
    assert list(opened) == ["2"]
    assert [(one.key, Path(one.path).name) for one in opened.not_opened] == [("1", "broken.json"), ("3", "absent")]
    with pytest.raises(NoSuchRunError, match=r"broken\.json could not be opened"):
        opened.named("1")


def test_they_are_named_in_the_frame_of_every_page(runs: Path) -> None:
    opened = open_runs([str(runs / "slow"), str(runs / "absent")], Options())
    frame = viewer_of(opened).get("/_dash-layout").get_data(as_text=True)
    error = opened.not_opened[0].error
    shown = frame.encode().decode("unicode_escape")
    assert error.message in shown
    assert error.hint in shown


def test_none_that_opens_is_an_error_that_names_them_all(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(runs / "broken.json"), str(runs / "absent")]
    done = call(capsys, "dashboard", *paths, "--port", 0)
    assert done.returncode == InputError.exit_code == 3
    assert all(path in done.stderr for path in paths)


def test_the_terminal_names_them_and_goes_on(runs: Path) -> None:
    command = [sys.executable, "-c", DASHBOARD, str(runs / "absent"), str(runs / "slow")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert "http://127.0.0.1" in server.stdout.readline()
        assert server.stderr is not None
        said = server.stderr.readline()  # comes when the runs are read
        server.terminate()
        server.communicate(timeout=30)
    assert str(runs / "absent") in said


# ---- history ----


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("GPUSCOPE_NO_STORE")
    return tmp_path / "runs.db"


@pytest.mark.parametrize(
    ("analysed", "opened"),
    [
        ("slow", "slow"),
        ("slow", "absolute"),
        ("slow", "report"),
        ("../runs/slow", "link"),
        ("link", "slow"),
        ("slow/rank*.json.gz", "../runs/slow/"),
    ],
)
def test_a_run_has_its_history_however_it_is_named(
    runs: Path,
    store: Path,
    analysed: str,
    opened: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (runs / "link").symlink_to("slow")
    monkeypatch.chdir(runs)
    assert call(capsys, "analyze", analysed, "--store", store, "--quiet").returncode == 0
    if opened == "report":
        (runs / "report.json").write_text(dumps(open_run("1", "slow", Options()).report), encoding="utf-8")
    named = {"absolute": os.path.abspath("slow"), "report": "report.json"}.get(opened, opened)
    job = job_of(store, open_run("1", named, Options()).files)
    assert job == os.path.abspath(analysed)
    assert len(trend_of(store, job)) == 1


def test_a_folder_whose_name_begins_alike_is_another_job(
    runs: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(capsys, "analyze", runs / "slow", "--store", store, "--quiet").returncode == 0
    shutil.copytree(runs / "slow", runs / "slower")
    assert job_of(store, open_run("1", str(runs / "slower"), Options()).files) == ""
