"""Every trace at hand, as each front shows it."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simulator.catalogue import CASES

from gpuscope.analyzers.run.analysis import Analysis
from gpuscope.analyzers.run.runner import analyze
from gpuscope.cli import main
from gpuscope.commands.options import BY, print_report
from gpuscope.errors import GpuscopeError
from gpuscope.report.html.html_report import render
from gpuscope.report.read_report import dumps
from gpuscope.report.section_tables import share

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "traces"
WIDTH = "80"
_NO_TRACES = ("LICENSE", "License", "MANIFEST", "README")
SCREENS: dict[str, dict[str, Any]] = {
    "screen": {},
    "full": {"full": True},
    "quiet": {"quiet": True},
    "why": {"why": True},
    **{f"by_{by}": {"by": by} for by in BY},
}
EXPORTS = {
    "perfetto": ("run.json.gz", "run.pftrace"),
    "speedscope": ("run.json",),
    "collapsed": ("run.txt",),
    "nccl-tuner": ("run.csv",),
}


def save_all(folder: Path, only: tuple[str, ...] = ()) -> int:
    """Write what each front shows of each trace into `folder`; how many traces."""
    folder = folder.absolute()
    os.environ.update(COLUMNS=WIDTH, NO_COLOR="1", TERM="dumb", GPUSCOPE_NO_STORE="1", GPUSCOPE_NO_CACHE="1")
    total = 0
    last: dict[str, Path] = {}
    with TemporaryDirectory() as made:
        for name, path in traces(Path(made), only):
            place, kind = folder / name.replace("/", "_"), name.partition("/")[0]
            place.mkdir(parents=True, exist_ok=True)
            if _save(place, path):
                if kind in last:
                    _compare(last[kind], place)
                last[kind] = place
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


def _save(folder: Path, path: Path) -> bool:
    """Write each front's output; whether there is a report."""
    _tell(folder / "info.txt", "info", path)
    _tell(folder / "info.json", "info", path, "--json")
    try:
        analysis = analyze(path)
    except GpuscopeError as error:
        (folder / "error.txt").write_text(f"{error.message}\n{error.hint}\n", encoding="utf-8")
        return False
    report = analysis.report
    for name, options in SCREENS.items():
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            print_report(**{"report": report, "full": False, "top": None, "quiet": False, **options})
        (folder / f"{name}.txt").write_text(shown.getvalue(), encoding="utf-8")
    (folder / "report.json").write_text(dumps(report), encoding="utf-8")
    (folder / "shared.json").write_text(dumps(share(report, analysis.hosts)), encoding="utf-8")
    # A tag per line, so that a difference shows where it is.
    (folder / "page.html").write_text(render(report).replace("><", ">\n<"), encoding="utf-8")
    tables = Analysis(report).tables
    text = "".join(f"# {name}\n{frame.to_csv(index=False)}" for name, frame in tables.items())
    (folder / "tables.csv").write_text(text, encoding="utf-8")
    (folder / "exports.txt").write_text("".join(_exported(path)), encoding="utf-8")
    return True


def _exported(path: Path) -> Iterator[str]:
    """A hash of each file that `export` writes, which may be larger than the trace."""
    with TemporaryDirectory() as made:
        for option, names in EXPORTS.items():
            for out in (Path(made) / name for name in names):
                said = _said("export", path, f"--{option}", out, "--force").replace(made, "")
                held = out.read_bytes() if out.exists() else b""
                whole = gzip.decompress(held) if out.suffix == ".gz" and held else held
                yield f"{option} {out.name}: {hashlib.sha256(whole).hexdigest()}\n{said}"


def _compare(before: Path, after: Path) -> None:
    """What `diff` and `check` say of two neighbours' reports, named as they are in every folder of outputs."""
    one, other = (folder.relative_to(after.parent) / "report.json" for folder in (before, after))
    with contextlib.chdir(after.parent):
        for json in ((), ("--json",)):
            _tell(after / f"diff{'.json' if json else '.txt'}", "diff", one, other, *json)
        _tell(after / "check.txt", "check", other, "--baseline", one, "--fail-on-finding", "medium", "--github")


def _tell(file: Path, *argv: str | Path) -> None:
    file.write_text(_said(*argv), encoding="utf-8")


def _said(*argv: str | Path) -> str:
    """What a command prints on both outputs, and its exit code."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(shown):
        try:
            main([str(one) for one in argv])
        except SystemExit as end:
            return f"{shown.getvalue()}exit code {end.code}\n"
    raise AssertionError("the command line ends by itself")
