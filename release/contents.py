"""What is in wheel and sdist, and what must not be; whether the metadata is complete."""

from __future__ import annotations

import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

from release.environments import Row

IN_WHEEL = (
    "gpuscope/py.typed",
    "gpuscope/cli.py",
    "gpuscope/hardware/boards.toml",
    "gpuscope/hardware/links.toml",
    "gpuscope/report/html/templates/report.html.j2",
    "gpuscope/report/html/templates/notebook.html.j2",
    "gpuscope/analyzers/assistant/SKILL.md",
    "gpuscope/dashboards/assets/gpuscope.js",
    "gpuscope/dashboards/assets/timeline/timeline.js",
    "gpuscope/instrumented_runtime/record/shim/sitecustomize.py",
)
IN_SDIST = (
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "pyproject.toml",
    "hatch_build.py",
    "gpuscope/native/module.c",
    "analyzers/__init__.py",
    "dashboards/__init__.py",
    "instrumented_runtime/__init__.py",
)
ONCE = ("Name", "Version", "Summary", "Author", "Requires-Python", "License-Expression", "Description-Content-Type")


def check_contents(wheel: Path, sdist: Path) -> list[Row]:
    """A row for each archive and one for the metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        parsed = Parser().parsestr(archive.read(metadata).decode())
    info = metadata.partition("/")[0]
    wrong = [f"lacks {name}" for name in IN_WHEEL if name not in names]
    wrong += [f"holds {name}" for name in names if name.partition("/")[0] not in ("gpuscope", info)]
    wrong += [f"holds {name}" for name in names if name.endswith((".c", ".h", ".pyc", ".sqlite", ".json.gz"))]
    wrong += [f"holds {name} twice" for name in set(names) if names.count(name) > 1]
    if "none-any" not in wheel.name:
        wrong += [] if any(name.startswith("gpuscope/native/_core") for name in names) else ["lacks the native core"]
    rows = [_row(f"contents of the wheel ({len(names)} files)", wrong)]
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    wrong = [f"lacks {name}" for name in IN_SDIST if name not in inside]
    wrong += [
        f"holds {name}"
        for name in inside
        if name.startswith(("tests/", "sample_traces/", "docs/", ".")) and name != ".gitignore"
    ]
    rows.append(_row(f"contents of the sdist ({len(inside)} files)", wrong))
    wrong = [f"lacks {key}" for key in ONCE if not parsed[key]]
    classifiers, urls = parsed.get_all("Classifier", []), parsed.get_all("Project-URL", [])
    wrong += [] if any("Python :: 3.11" in one for one in classifiers) else ["classifiers name no versions of Python"]
    wrong += [] if len(urls) >= 4 else ["lacks Project-URLs"]
    wrong += [] if len(parsed.get_payload()) > 1000 else ["lacks the README"]
    rows.append(_row(f"metadata ({len(classifiers)} classifiers, {len(urls)} urls)", wrong))
    return rows


def _row(what: str, wrong: list[str]) -> Row:
    return Row(what, "FAILED" if wrong else "passed", "; ".join(wrong[:8]) or "complete, and nothing else")
