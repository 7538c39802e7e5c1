"""An exception nobody foresaw: exit code 4, one line, the traceback on request; an extra not installed is named."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from helpers.cli import call
from helpers.import_graph import imports, modules
from helpers.kineto import call as call_of_host
from helpers.kineto import kernel, write

from gpuscope.analyzers.run import runner
from gpuscope.errors import EXTRA_OF

LINE = "Error: unexpected ZeroDivisionError: broken on purpose, over two lines\n"
HINT = "Hint: this is a bug in gpuscope; --debug or GPUSCOPE_DEBUG=1 shows the traceback\n"


def broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError("broken on purpose,\n  over two lines")


def test_too_little_memory_is_no_bug(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 17.0 MiB")

    monkeypatch.setattr(runner, "build", full)
    done = call(capsys, "analyze", trace, "--no-store")
    assert done.returncode == 4
    assert done.stderr.startswith(
        "Error: this process may not take more memory\nHint: --jobs 1 reads one file at a time"
    )


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good trace for a broken program."""
    monkeypatch.delenv("GPUSCOPE_DEBUG", raising=False)
    monkeypatch.setattr(runner, "build", broken)
    return write(tmp_path / "rank0.json", kernel(0, 80, 1))


def test_one_line_and_how_to_get_the_traceback(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = call(capsys, "analyze", trace)
    assert (done.returncode, done.stdout, done.stderr) == (4, "", LINE + HINT)


@pytest.mark.parametrize("args", [["--debug", "analyze", "{}"], ["analyze", "{}", "--debug"]])
def test_debug_shows_the_traceback(args: list[str], trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = call(capsys, *(arg.format(trace) for arg in args))
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert "in broken\n" in done.stderr
    assert done.stderr.endswith(LINE)


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False)])
def test_by_environment(
    value: str, shown: bool, trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSCOPE_DEBUG", value)
    done = call(capsys, "analyze", trace)
    assert (done.returncode, "Traceback" in done.stderr) == (4, shown)


def test_the_next_call_is_not_debugged(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "--debug", "analyze", trace)
    assert "Traceback" not in call(capsys, "analyze", trace).stderr


def test_a_module_that_is_missing_and_in_no_extra(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gpuscope.commands.options", None)
    done = call(capsys, "analyze", trace)
    assert done.returncode == 4
    assert done.stderr.startswith("Error: unexpected ModuleNotFoundError: import of gpuscope.commands.options halted")


def test_debug_shows_where_a_known_error_was_raised(capsys: pytest.CaptureFixture[str]) -> None:
    plain, debugged = (call(capsys, *more, "info", "no/such/file.json") for more in ((), ("--debug",)))
    assert (plain.returncode, debugged.returncode) == (3, 3)
    assert debugged.stderr.startswith("Traceback")
    assert debugged.stderr.endswith(plain.stderr)


def test_a_failed_analysis_hides_no_other_and_debug_shows_its_traceback(tmp_path: Path) -> None:
    code = (
        "import sys, dataclasses, gpuscope.analyzers.device_time.kernel_times as kernels\n"
        "def broken(trace, lanes): raise RuntimeError('broken on purpose')\n"
        "kernels.ANALYZER = dataclasses.replace(kernels.ANALYZER, run=broken)\n"
        "from gpuscope.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    # 0–80 compute, 80–100 idle, 100–110 compute
    events = call_of_host(-5, 2, 1), kernel(0, 80, 1), call_of_host(90, 2, 2), kernel(100, 10, 2)
    trace = write(tmp_path / "rank0.json", *events)
    command = [sys.executable, "-c", code, "analyze", str(trace), "--json"]
    plain, debugged = (
        subprocess.run([*command, *more], capture_output=True, text=True, check=False) for more in ([], ["--debug"])
    )
    assert (plain.returncode, debugged.returncode) == (4, 4)
    assert json.loads(plain.stdout)["verdict"]["cause"] == "launch"
    assert plain.stderr == "Error: an analysis failed: kernels: RuntimeError: broken on purpose\n"
    assert "in broken\n" in debugged.stderr
    assert debugged.stderr.endswith(plain.stderr)


def test_debug_of_a_recorded_command_is_its_own(tmp_path: Path) -> None:
    """`gpuscope record python script.py --debug`: the script's option, not ours."""
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    command = [sys.executable, "-m", "gpuscope", "record", "--out", str(tmp_path / "run"), "--", sys.executable]
    done = subprocess.run([*command, str(script), "--debug"], capture_output=True, text=True, check=False)
    assert "['--debug']" in done.stdout


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("command", "library", "installs"),
    [
        ("bench collectives", "torch", "torch"),
        ("train --out run", "torch", "torch"),
        ("dashboard {sample} --port 0", "flask", "dash"),  # which brings flask
    ],
)
def test_without_its_library(command: str, library: str, installs: str, samples: Path, tmp_path: Path) -> None:
    without = f"import sys; sys.modules['{library}'] = None; from gpuscope.cli import main; main()"
    arguments = command.format(sample=samples / "ddp_healthy").split()
    done = subprocess.run(
        [sys.executable, "-c", without, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: this needs {library}, which is not installed\nHint: pip install '")
    assert f"'{installs}>=" in done.stderr


def test_every_library_that_is_imported_is_a_dependency_or_of_an_extra() -> None:
    """Without its line in `EXTRA_OF` a missing library would end in a traceback."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    always = {re.split(r"[>=<;\s]", line)[0].replace("-", "_") for line in needed} | sys.stdlib_module_names
    always |= {"google"} if "protobuf" in always else set()  # what protobuf is imported as
    found = {target.partition(".")[0] for path in modules().values() for target in imports(path)}
    assert found - always - {"gpuscope"} == set(EXTRA_OF)


def test_every_extra_named_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRA_OF.values()) <= set(extras)
