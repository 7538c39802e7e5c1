"""What CONTRIBUTING.md tells newcomers to do, carried out: its examples in a copy of the repository, and checked."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.kineto import call, kernel, note, write

pytest.importorskip("mypy")
pytest.importorskip("dash")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("mypy")]

ROOT = Path(__file__).resolve().parents[2]
HEADING = re.compile(r"^### ", re.MULTILINE)
RECIPE = re.compile(r"^`([\w/]+\.py)`.*?^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FOLDERS = {"sources", "causes", "rules", "pages", "commands", "parallelisms", "parallel"}
SKIPPED = (
    ".git",
    ".venv*",
    "build",
    "dist",
    "sample_traces",
    ".pytest_cache",
    ".hypothesis",
    "__pycache__",
    ".*_cache",
)


def recipes() -> dict[str, str]:
    """The complete examples, by the path that each is for."""
    sections = HEADING.split((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    return {found[1]: found[2] for section in sections if (found := RECIPE.search(section))}


def test_there_is_one_for_each_kind() -> None:
    assert {Path(path).parent.name for path in recipes()} == FOLDERS


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with all of them in it."""
    folder = tmp_path_factory.mktemp("recipes") / "gpuscope"
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(*SKIPPED))
    (folder / "sample_traces").symlink_to(ROOT / "sample_traces")
    for path, code in recipes().items():
        assert not (folder / path).exists()
        (folder / path).write_text(code, encoding="utf-8")
    return folder


def run(folder: Path, *words: str, code: int = 0) -> str:
    """What a Python prints in the copy, with the copy as the installed package."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "GPUSCOPE_NO_STORE": "1", "GPUSCOPE_NO_CACHE": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def gpuscope(folder: Path, *words: object, code: int = 0) -> str:
    return run(folder, "-c", "from gpuscope.cli import main; main()", *map(str, words), code=code)


def test_make_check_passes(copy: Path, request: pytest.FixtureRequest) -> None:
    """Lint, format, layers, and types: those of the new files, for the others are checked as they are."""
    assert request.config.cache is not None
    known = request.config.cache.mkdir("mypy-recipes")  # what mypy knows of libraries takes it a while
    run(copy, "-m", "ruff", "check", "--no-cache", ".")
    run(copy, "-m", "ruff", "format", "--no-cache", "--check", ".")
    run(copy, "-m", "mypy", f"--cache-dir={known}", "--follow-imports=silent", *recipes())
    run(copy, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/test_layers.py")


def test_the_documentation_is_made(copy: Path) -> None:
    """Nobody writes the cause's section, the suggestion's row or the command's options."""
    made = {
        "findings.md": "### `my_cause`",
        "advice.md": "| `my_knob` |",
        "commands.md": "### `gpuscope mine`",
        "definitions.md": "[`my_cause`]",
    }
    fill = "path.write_text(generate.filled(generate.with_new_commands(text) if name == 'commands.md' else text))"
    code = (
        "import sys; sys.path[:0] = ['docs']; import generate\n"
        f"for name in {list(made)!r}:\n"
        "    path = generate.ROOT / 'docs' / name\n"
        f"    text = path.read_text()\n    {fill}\n"
    )
    run(copy, "-c", code)
    assert not [page for page, part in made.items() if part not in (copy / "docs" / page).read_text(encoding="utf-8")]


def test_the_source_reads_its_files_and_says_what_is_damaged(copy: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "rank3.mine", tmp_path / "rank4.mine"
    good.write_text("MINE\n0 10 gemm\n20 30 gemm with blanks\n")
    bad.write_text("MINE\n0 ten gemm\n")
    report = json.loads(gpuscope(copy, "analyze", good, "--json"))
    assert report["trace"]["ranks_present"] == [3]
    assert {one["name"] for one in report["kernels"]} == {"gemm", "gemm with blanks"}
    assert "rank4.mine: is damaged" in gpuscope(copy, "analyze", bad, code=3)


def test_cause_and_rule_appear_in_the_report(copy: Path, tmp_path: Path) -> None:
    """In every step the device idles while the driver is called, and while the collector runs."""
    events = []
    for step in range(8):
        at = 1000 * step
        events += [
            note(at, 990, f"ProfilerStep#{step}"),
            note(at + 100, 300, "gc.collect"),
            call(at + 420, 300, 10_000 + step, "myDriverWait"),
            call(at + 730, 5, step + 1),
            kernel(at + 740, 250, step + 1),
        ]
    path = write(tmp_path / "rank0.json", *events)
    report = json.loads(gpuscope(copy, "analyze", path, "--json"))
    assert report["ranks"][0]["stall_ns"]["cpu"]["my_cause"] > 0
    assert "my_cause" in {one["code"] for one in report["findings"]}
    left = [*report["suggestions"], *report["advice"]["unpredicted"]]
    assert "my_knob" in {one["code"] for one in left}


def test_the_command_runs(copy: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", kernel(0, 5), kernel(10, 5))
    assert "2 kernels\n" in gpuscope(copy, "mine", path)
    assert "Count the kernels of a run." in gpuscope(copy, "--help")


def test_the_page_is_drawn(copy: Path) -> None:
    trace = str(ROOT / "sample_traces" / "ddp_slow_rank")
    code = (
        "from gpuscope.analyzers.run.file_part import Options\n"
        "from gpuscope.dashboards.data.open_runs import Runs, open_run\n"
        "from gpuscope.dashboards.ui import Shown, pages\n"
        "from gpuscope.dashboards.state import View\n"
        f"run = open_run('1', {trace!r}, Options())\n"
        "[page] = [page for page in pages() if page.path == '/mine']\n"
        "print(page.title, page.layout(Shown(run, View(), Runs([run]), dark=True)))\n"
    )
    drawn = run(copy, "-c", code)
    assert drawn.startswith("Mine ")
    assert "My card" in drawn


def test_the_parallelism_trains_as_ddp_does(copy: Path, tmp_path: Path) -> None:
    """Nothing but its two files knows of it: the help, the options and the manifest do all the same."""
    pytest.importorskip("torch")
    assert "cp, ep, mine, 3d" in gpuscope(copy, "train", "--help")
    assert "ranks of mine" in gpuscope(copy, "train", "--list-options")
    norms = {}
    for kind in ("mine", "ddp"):
        out = tmp_path / kind
        small = ("--set", "model.layers=1", "--set", "data.sequence=16", "--set", "data.batch=2")
        gpuscope(copy, "train", "--parallel", kind, "--nproc", 2, "--steps", 2, "--out", out, *small)
        lines = (out / "measures" / "rank0.jsonl").read_text(encoding="utf-8").splitlines()
        norms[kind] = [json.loads(line)["gradient_norm"] for line in lines]
    assert json.loads((tmp_path / "mine" / "manifest.json").read_text())["parallelism"]["mesh"]["mine"] == 2
    assert len(norms["mine"]) == 2
    assert norms["mine"] == pytest.approx(norms["ddp"], rel=1e-4)
