"""Reports are exported once, by nsys; here by a stand-in that does as nsys does."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from helpers.nsys import Export

import gpuscope
from gpuscope.errors import InputError, UsageError
from gpuscope.sources.nsys.report_export import exported
from gpuscope.sources.source import ReadOptions

HEAD = b"NVIDIA Tegra Profiler Report 2026@1@3@140-251335620677v0.\n"
STAND_IN = """#!{python}
import os, pathlib, shutil, sys, time
if "--version" in sys.argv: sys.exit(print("NVIDIA Nsight Systems version 2022.4.2.1-df9881f"))
if "--help" in sys.argv: sys.exit(print("usage: nsys export --include-blobs="))
here = pathlib.Path(__file__).parent
(here / "called").open("a").write(" ".join(sys.argv[1:]) + chr(10))
output = sys.argv[sys.argv.index("--output") + 1]
print("Exporting 12 events: [=== 50%  ]", end=chr(13), flush=True)
if (here / "refuse").exists(): sys.exit((here / "refuse").read_text())
if (here / "hang").exists():
    pathlib.Path(output).write_text("half")
    (here / "pid").write_text(str(os.getpid()))
    print("60%", flush=True)
    time.sleep(600)
shutil.copy(here / "export.sqlite", output)
"""


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report, and on PATH only the stand-in for nsys (in the folder `bin` beside it)."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nsys").write_text(STAND_IN.format(python=sys.executable))
    (programs / "nsys").chmod(0o755)
    export = Export(EXPORT_PARAM_INPUT_FILE="run.nsys-rep")
    export.kernel(0, 10, 1)
    export.write(programs)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GPUSCOPE_NSYS", raising=False)
    path = tmp_path / "runs" / "run.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(HEAD + b"body")
    return path


def programs(report: Path) -> Path:
    return report.parents[1] / "bin"


def calls(report: Path) -> list[str]:
    called = programs(report) / "called"
    return called.read_text().splitlines() if called.exists() else []


def test_exported_once_and_again_when_the_report_changes(report: Path) -> None:
    trace = gpuscope.open_trace(report)
    assert trace["device_events"]["start"].tolist() == [0]
    assert trace.sources[0].path == report
    gpuscope.open_trace(report)
    assert len(calls(report)) == 1
    assert "--include-blobs=true" in calls(report)[0]  # the stand-in has this switch …
    assert "--include-json" not in calls(report)[0]  # … and not this one
    report.write_bytes(HEAD + b"Body")  # as long as before
    gpuscope.open_trace(report)
    assert len(calls(report)) == 2
    assert [p.name for p in report.parent.rglob("*")] == ["run.nsys-rep"]  # nothing beside the user's files


def test_a_folder_with_a_report_and_its_export_is_one_rank(report: Path) -> None:
    gpuscope.open_trace(report)
    assert gpuscope.open_trace(report.parent).ranks == [0]


def test_files_that_are_not_ours_are_neither_trusted_nor_written(report: Path) -> None:
    beside = report.with_suffix(".sqlite")
    Export().write(report.parent).rename(beside)
    older = report.stat().st_mtime_ns - 10**9
    os.utime(beside, ns=(older, older))
    before = beside.read_bytes()
    assert len(gpuscope.open_trace(report)["device_events"]) == 1
    assert beside.read_bytes() == before
    assert "cache" in exported(report, ReadOptions()).parts
    assert len(calls(report)) == 1


def test_an_export_that_someone_else_made_of_this_report_is_used(report: Path) -> None:
    shutil.copy(programs(report) / "export.sqlite", report.with_suffix(".sqlite"))
    assert exported(report, ReadOptions()) == report.with_suffix(".sqlite")
    other = Export(EXPORT_PARAM_INPUT_FILE="other.nsys-rep").write(report.parent)
    other.replace(report.with_suffix(".sqlite"))
    assert exported(report, ReadOptions()) != report.with_suffix(".sqlite")


def test_a_file_in_the_cache_that_is_not_ours_is_left_alone(report: Path) -> None:
    kept = exported(report, ReadOptions())
    assert "cache" in kept.parts
    kept.unlink()
    Export().write(kept.parent).rename(kept)
    before = kept.read_bytes()
    with pytest.raises(InputError) as error:
        exported(report, ReadOptions())
    assert "is not gpuscope's" in error.value.message
    assert "XDG_CACHE_HOME" in str(error.value.hint)
    assert kept.read_bytes() == before


def test_a_cache_directory_that_cannot_be_written_is_named(report: Path) -> None:
    (report.parents[1] / "cache").write_text("in the way")
    with pytest.raises(InputError) as error:
        exported(report, ReadOptions())
    assert "nowhere to keep its export" in error.value.message


def test_a_refusal_passes_on_nsys_own_words(report: Path) -> None:
    words = "Report was created in Nsight Systems version (2026.1.3.140), newer than your current version"
    (programs(report) / "refuse").write_text(words)
    with pytest.raises(InputError) as error:
        gpuscope.open_trace(report)
    assert words in error.value.message
    assert "Exporting" not in error.value.message
    hint = str(error.value.hint)
    assert "nsight-systems-2026.1.3 " in hint  # the package of that version
    assert "2022.4.2.1" in hint
    assert "nsys export --type sqlite --include-blobs=true --include-json=true --output run.sqlite run.nsys-rep" in hint


@pytest.mark.parametrize(
    "words",
    [
        "Report was created in Nsight Systems version (2025.6.1.190), newer than your current version",
        "Exportation error: Version number is invalid: 2025@6@1@190-251335620677v0",
    ],
)
def test_the_version_that_wrote_a_report_is_taken_from_nsys_where_the_report_does_not_begin_with_it(
    report: Path, words: str
) -> None:
    named = report.with_name("my run.nsys-rep")
    named.write_bytes(b"NVIDIA Tegra Profiler Report 1.\nbody")
    (programs(report) / "refuse").write_text(words)
    with pytest.raises(InputError) as error:
        gpuscope.open_trace(named)
    assert "nsight-systems-2025.6.1 " in str(error.value.hint)
    assert "nsys export --type sqlite --output 'my run.sqlite' 'my run.nsys-rep'" in str(error.value.hint)


def test_a_damaged_report_asks_for_no_newer_nsys(report: Path) -> None:
    report.write_bytes(HEAD.replace(b"2026@1@3@140", b"2021@1@3@140") + b"body")
    (programs(report) / "refuse").write_text("Corrupt stream")
    with pytest.raises(InputError) as error:
        gpuscope.open_trace(report)
    assert "nsight-systems-" not in str(error.value.hint)


def test_interrupted_it_leaves_nothing_half_made(report: Path) -> None:
    (programs(report) / "hang").touch()

    def interrupt(said: str) -> None:
        if "60 %" in said:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exported(report, ReadOptions(status=interrupt))
    left = [*report.parent.rglob("*"), *(report.parents[1] / "cache").rglob("*")]
    assert not [path for path in left if path.is_file() and path != report]
    child = int((programs(report) / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_progress_is_told(report: Path) -> None:
    said: list[str] = []
    exported(report, ReadOptions(status=said.append))
    assert "nsys export of run.nsys-rep: 50 %" in said


def test_without_nsys_the_command_to_run_elsewhere(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError) as error:
        gpuscope.open_trace(report)
    command = "nsys export --type sqlite --include-blobs=true --include-json=true --output run.sqlite run.nsys-rep"
    assert command in str(error.value.hint)


def test_nsys_by_option_and_by_variable(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = programs(report) / "nsys"
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="no such program"):
        gpuscope.open_trace(report, nsys="/nowhere/nsys")
    monkeypatch.setenv("GPUSCOPE_NSYS", str(program))
    assert gpuscope.open_trace(report).ranks == [0]
    report.write_bytes(HEAD + b"another")
    monkeypatch.delenv("GPUSCOPE_NSYS")
    assert gpuscope.open_trace(report, nsys=str(program)).ranks == [0]


def test_an_empty_report_is_told(report: Path) -> None:
    report.write_bytes(b"")
    with pytest.raises(InputError, match="is empty"):
        gpuscope.open_trace(report)
