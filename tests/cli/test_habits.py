"""What users expect of any command line: near misses, completion, a settings file, opening a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.cli import gpuscope
from helpers.kineto import call, kernel, write

from gpuscope.errors import InputError
from gpuscope.hardware import link_rates


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "rank0.json", call(5, 2, 1), kernel(0, 80, 1), call(85, 2, 2), kernel(100, 10, 2))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own, below one that may hold a settings file."""
    folder = tmp_path / "project" / "inner"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    for name in ("GPUSCOPE_CONFIG", "GPUSCOPE_NO_STORE", "GPUSCOPE_STORE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("analyse", "did you mean: gpuscope analyze run/"),
        ("dif", "did you mean: gpuscope diff run/"),
        ("frobnicate", "gpuscope --help lists them"),
    ],
)
def test_near_misses(typed: str, hint: str) -> None:
    done = gpuscope(typed, "run/")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: no command {typed!r}\nHint: {hint}\n"


def test_a_path_mistyped(trace: Path) -> None:
    done = gpuscope("analyze", trace.with_name("rnak0.json"))
    assert done.returncode == 3
    assert done.stderr.endswith(f"rnak0.json: no such file or directory\nHint: did you mean {trace}?\n")
    assert "did you mean" not in gpuscope("analyze", trace.with_name("something-else")).stderr


def test_a_model_mistyped() -> None:
    done = gpuscope("advise", "--model", "lama-3-70b", "--cluster", "8xH100")
    assert "Hint: did you mean llama-3-70b? known: " in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = gpuscope("completion", shell)
    assert "_GPUSCOPE_COMPLETE" in done.stdout
    assert "To have it in every shell" in done.stderr


def test_completion_of_an_unknown_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert gpuscope("completion").stderr.startswith("Error: no completion for the shell tcsh\nHint: name one: bash")


def test_a_settings_file_gives_defaults_and_options_win(here: Path, trace: Path) -> None:
    (here.parent / "pyproject.toml").write_text("[tool.gpuscope.analyze]\nquiet = true\nno-store = true\n")
    assert len(gpuscope("analyze", trace).stdout.splitlines()) == 1
    (here / "gpuscope.toml").write_text('store = "mine.db"\n[analyze]\nlabel = "nightly"\n')  # the nearer one
    assert len(gpuscope("analyze", trace).stdout.splitlines()) > 5
    assert (here / "mine.db").exists()
    [row] = json.loads(gpuscope("runs", "--json").stdout)
    assert row["label"] == "nightly"
    gpuscope("analyze", trace, "--label", "mine")
    assert json.loads(gpuscope("runs", "--json").stdout)[0]["label"] == "mine"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[analyze]\nquite = true\n", "no setting 'analyze.quite'", "did you mean analyze.quiet?"),
        ("[analyse]\nquiet = true\n", "no setting 'analyse'", "did you mean analyze?"),
        ("stor = 'x'\n", "no setting 'stor'", "did you mean store?"),
        ("store = \n", "is not TOML", "GPUSCOPE_CONFIG=none uses no settings file"),
    ],
)
def test_a_settings_file_with_a_mistake(here: Path, trace: Path, text: str, message: str, hint: str) -> None:
    (here / "gpuscope.toml").write_text(text)
    done = gpuscope("analyze", trace)
    assert done.returncode in (2, 3)
    assert message in done.stderr
    assert hint in done.stderr


def test_a_table_of_link_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built_in = link_rates.links()["pcie4"]
    own = tmp_path / "links.toml"
    own.write_text('[links.pcie4]\nusable = 1.0\n[links.mine]\nname = "Mine"\n')
    monkeypatch.setenv("GPUSCOPE_HARDWARE", str(own))
    with pytest.raises(InputError, match=r"links\.mine lacks kind, peak, units, usable"):
        link_rates._data.__wrapped__()
    own.write_text("[links.pcie4]\nusable = 1.0\n")
    row = link_rates._data.__wrapped__()["links"]["pcie4"]
    assert (row["usable"], row["peak"] * row["units"]) == (1.0, built_in.peak)


def test_open_makes_a_page_and_nothing_beside_the_report(
    here: Path, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: cache)
    report = here / "report.json"
    report.write_text(gpuscope("analyze", trace, "--json", "--no-store").stdout)
    done = gpuscope("open", report, "--print")
    assert Path(done.stdout.strip()) == cache / "pages" / "report.html"
    assert "<h1>" in (cache / "pages" / "report.html").read_text()
    assert list(here.iterdir()) == [report]
    gpuscope("analyze", trace, "--store", tmp_path / "runs.db")
    assert gpuscope("open", "1", "--print", "--store", tmp_path / "runs.db").stdout.endswith("run-1.html\n")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda uri: opened.append(uri) or True)
    assert gpuscope("open", cache / "pages" / "run-1.html").returncode == 0
    assert opened == [(cache / "pages" / "run-1.html").as_uri()]


def test_open_what_is_no_report(trace: Path) -> None:
    done = gpuscope("open", trace)
    assert done.returncode == 3
    assert f"gpuscope analyze {trace} --html report.html" in done.stderr
    assert gpuscope("open", "nothing.html").returncode == 3
