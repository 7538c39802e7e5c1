"""The suggestions of every run under a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuscope.analyzers.advice.rule import rules
from gpuscope.analyzers.run.runner import analyze
from gpuscope.errors import GpuscopeError
from gpuscope.report.schema.document import Report
from gpuscope.report.view import units

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "traces"
NOT_TRACES = ("LICENSE", "License", "MANIFEST", "README")


@dataclass(frozen=True)
class Row:
    """A suggestion, or a run without one (`rule` and `code` are empty then, `outcome` says why)."""

    trace: str
    rule: str
    code: str
    finding: str
    setting: str
    outcome: str
    predicted: bool

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies it from one revision to the next."""
        return self.trace, self.code, self.setting

    @property
    def cells(self) -> tuple[str, ...]:
        """As a row of the table."""
        return self.trace, self.rule, self.code, self.finding, self.setting, self.outcome


def collect(path: Path, root: Path | None = None) -> Iterator[Row]:
    """The rows of a file or folder: a folder is one run, or, where its files don't form one, several."""
    root = root or path.parent
    files = sorted(one for one in path.iterdir() if one.is_file() and _readable(one)) if path.is_dir() else [path]
    folders = sorted(one for one in path.iterdir() if one.is_dir()) if path.is_dir() else []
    whole = path if path.is_dir() and files and not folders and len(files) > 1 else None
    if whole is not None and (report := _report(whole)) is not None:
        yield from rows(report, str(whole.relative_to(root)))
    else:
        for file in files:
            found = _report(file)
            name = str(file.relative_to(root))
            yield from rows(found, name) if found else [Row(name, "", "", "", "", "not read", False)]
    for folder in folders:
        yield from collect(folder, root)


def _readable(file: Path) -> bool:
    """Not a licence, nor a report of nsys whose export lies beside it."""
    return not file.name.startswith(NOT_TRACES) and not (
        file.suffix == ".nsys-rep" and file.with_suffix(".sqlite").exists()
    )


def _report(path: Path) -> Report | None:
    try:
        return analyze(path).report
    except GpuscopeError:
        return None


def rows(report: Report, trace: str) -> list[Row]:
    """The suggestions of a report, those without an estimated gain after the others."""
    by_code = {(knob.code, finding): rule.name for rule in rules() for knob in rule.knobs for finding in knob.answers}
    found = []
    for one in report["suggestions"]:
        step = one["predicted"]
        told = (
            step["basis"]
            if not step["step_ns_before"]
            else (
                f"{units.duration(step['step_ns_before'])} → {units.duration(step['step_ns_after'])} "
                f"({units.duration(step['low_ns'])} to {units.duration(step['high_ns'])})"
            )
        )
        found.append((one["code"], one["finding"], one["setting"], told, True))
    for other in report["advice"]["unpredicted"]:
        found.append((other["code"], other["finding"], other["setting"], other["why_not"], False))
    listed = [
        Row(
            trace,
            by_code.get((code, finding), "?"),
            code,
            finding,
            f"{setting['name']}={setting['value']}",
            told,
            gains,
        )
        for code, finding, setting, told, gains in found
    ]
    return listed or [Row(trace, "", "", "", "", report["advice"]["why"], False)]
