"""Every trace at hand, as each front shows it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from simulator.catalogue import CASES

from gpuscope.analyzers.run.analysis import Analysis
from gpuscope.analyzers.run.runner import analyze
from gpuscope.commands.report_options import print_report
from gpuscope.errors import GpuscopeError
from gpuscope.report.html.html_report import render
from gpuscope.report.json_report import dumps

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "traces"
WIDTH = "80"
_NO_TRACES = ("LICENSE", "License", "MANIFEST", "README")


def save_all(folder: Path, only: tuple[str, ...] = ()) -> int:
    """Write what each front shows of each trace into `folder`; how many traces."""
    folder = folder.absolute()
    os.environ.update(COLUMNS=WIDTH, NO_COLOR="1", TERM="dumb", GPUSCOPE_NO_STORE="1", GPUSCOPE_NO_CACHE="1")
    total = 0
    with TemporaryDirectory() as made:
        for name, path in traces(Path(made), only):
            _save(folder / name.replace("/", "_"), path)
            total += 1
    return total


def traces(made: Path, only: tuple[str, ...] = ()) -> Iterator[tuple[str, Path]]:
    """A name and a path, relative to the working folder, so that no output depends on where a checkout lies."""
    for kind, root in (("samples", ROOT / "sample_traces"), ("shared", SHARED)):
        if root.is_dir():
            with contextlib.chdir(root):
                runs = (path for path in Path().iterdir() if path.is_dir()) if kind == "samples" else _runs(Path())
                for path in sorted(runs):
                    if _wanted(name := f"{kind}/{path}", only):
                        yield name, path
    for case in CASES:
        if _wanted(name := f"simulated/{case.name}", only):
            case.write(made)
            with contextlib.chdir(made):
                yield name, Path(case.name)


def _wanted(name: str, only: tuple[str, ...]) -> bool:
    return not only or any(part in name for part in only)


def _runs(folder: Path) -> Iterator[Path]:
    """The readable files below `folder`, and the folders that hold several of them."""
    inside = [path for path in folder.iterdir() if not path.name.startswith((*_NO_TRACES, "."))]
    files = [path for path in inside if path.is_file()]
    yield from files
    if len(files) > 1 and folder != Path():
        yield folder
    for path in inside:
        if path.is_dir():
            yield from _runs(path)


def _save(folder: Path, path: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        analysis = analyze(path)
    except GpuscopeError as error:
        (folder / "error.txt").write_text(f"{error.message}\n{error.hint}\n", encoding="utf-8")
        return
    report = analysis.report
    for name, full in (("screen.txt", False), ("full.txt", True)):
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            print_report(report, full, None, False)
        (folder / name).write_text(shown.getvalue(), encoding="utf-8")
    (folder / "report.json").write_text(dumps(report), encoding="utf-8")
    # A tag per line, so that a difference shows where it is.
    (folder / "page.html").write_text(render(report).replace("><", ">\n<"), encoding="utf-8")
    tables = Analysis(report).tables
    text = "".join(f"# {name}\n{frame.to_csv(index=False)}" for name, frame in tables.items())
    (folder / "tables.csv").write_text(text, encoding="utf-8")
