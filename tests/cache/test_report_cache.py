"""The same question on the same large file is answered by the kept report: the same bytes, and hardly any import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.kineto import call, kernel, note, write

from gpuscope import cache
from gpuscope.sources.run_manifest import MANIFEST

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions are those of POSIX")

HEAVY = (
    "numpy",
    "pandas",
    "rich",
    "sqlite3",
    "msgspec",
    "google",
    "gpuscope.trace",
    "gpuscope.sources.opening",
    "gpuscope.analyzers.run.runner",
    "gpuscope.analyzers.base.analyzer",
    "gpuscope.report.view",
)
LOOK = """
import sys
from gpuscope import cache as file_cache
from gpuscope.cli import main

file_cache.WORTH = 1
try:
    main(sys.argv[1:])
finally:
    print(*sys.modules, file=sys.stderr)
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    events = [note(i * 1000, 1000, f"ProfilerStep#{i}") for i in range(4)]
    for i in range(40):
        events += [call(i * 100, 5, i + 1), kernel(i * 100 + 20, 50, i + 1)]
    path = tmp_path / "run" / "rank0.json"
    path.parent.mkdir()
    write(path, *events)
    return path


def look(trace: Path, *options: str) -> tuple[str, set[str]]:
    """What `gpuscope analyze` prints in a fresh process, and the modules that it imported."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(trace.parents[1] / "cache"), "GPUSCOPE_CONFIG": "none"}
    environment.pop("GPUSCOPE_NO_CACHE", None)
    command = [sys.executable, "-c", LOOK, "analyze", str(trace), "--no-store", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout, set(done.stderr.split())


def test_a_second_look_prints_the_same_and_imports_little(trace: Path) -> None:
    first, modules = look(trace, "--json")
    assert "numpy" in modules
    again, modules = look(trace, "--json")
    assert again == first
    assert not modules & set(HEAVY)
    json.loads(again)


def test_what_is_printed_of_a_kept_report_is_the_same(trace: Path) -> None:
    for options in ((), ("--full",), ("-q",)):
        first, _ = look(trace, "--no-cache", *options)
        look(trace, *options)
        again, modules = look(trace, *options)
        assert again == first
        assert "gpuscope.analyzers.run.runner" not in modules


def test_another_question_has_another_answer(trace: Path) -> None:
    look(trace, "--json")
    assert len(json.loads(look(trace, "--json", "--steps", "1")[0])["steps"]) == 1
    text = trace.read_text()
    trace.write_text(text.replace("ProfilerStep#3", "ProfilerStep#9"))
    assert 9 in {step["step"] for step in json.loads(look(trace, "--json")[0])["steps"]}


def test_a_report_that_rests_on_more_than_its_files_is_not_kept(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.report_key([str(trace)]) is None  # small
    monkeypatch.setattr(cache, "WORTH", 1)
    key = cache.report_key([str(trace)])
    assert key is not None
    assert key != cache.report_key([str(trace)], "other")
    assert cache.report_key([str(trace.parent)]) is None
    assert cache.report_key([str(trace), "s3://bucket/rank1.json"]) is None
    with monkeypatch.context() as patch:
        patch.setenv("GPUSCOPE_HARDWARE", "links.toml")
        assert cache.report_key([str(trace)]) is None


def test_a_report_on_files_of_a_run_folder_is_made_again(trace: Path) -> None:
    """It rests on the folder's manifest too."""
    trace.with_name(MANIFEST).write_text("{}")
    look(trace)
    assert "gpuscope.analyzers.run.runner" in look(trace)[1]
