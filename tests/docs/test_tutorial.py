"""docs/tutorial.md, run as it stands: a slow script is recorded, changed as advised, recorded again, compared."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers.warm_python import executable


@pytest.mark.slow
def test_the_page_leads_from_slow_to_proven_faster(
    tmp_path: Path, walkthrough: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "executable", executable())
    text = walkthrough.PAGE.read_text(encoding="utf-8")
    walked = _until_decided(walkthrough, text, tmp_path)
    assert walked.advised > 1
    _record, analyze, _again, diff, check = walked.printed
    assert "data loader" in walked.printed[analyze]
    assert "CPU-bound: " in walked.printed[analyze]
    assert walked.printed[diff].startswith("Improvement: step ")
    assert "applied: loader_workers" in walked.printed[diff]
    assert "passed" in walked.printed[check]


def _until_decided(walkthrough: ModuleType, text: str, folder: Path) -> Any:
    """The first of three walks whose recordings a busy machine left alike enough for a verdict, or the last."""
    for attempt in range(3):
        (tried := folder / str(attempt)).mkdir()
        walked = walkthrough.walk(text, tried)
        if walked.advised > 1 and any(printed.startswith("Improvement: ") for printed in walked.printed.values()):
            break
    return walked


def test_what_the_page_shows_was_printed(walkthrough: ModuleType) -> None:
    """Its blocks are whole outputs of its own commands, with the number of processes that the first of them names."""
    text = walkthrough.PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"```sh\n(.*?)\n```", text, re.DOTALL)
    blocks = re.findall(r"<!-- recorded: (.+?) -->\n```console\n\$ (.+?)\n(.*?)```\n<!-- end -->", text, re.DOTALL)
    assert [marked.partition(" | ")[0] for marked, _, _ in blocks] == [commands[1], commands[3]]
    assert all(marked.partition(" | ")[0] == typed for marked, typed, _ in blocks)
    (analyzed, compared) = (printed for _, _, printed in blocks)
    [advised] = set(re.findall(r"num_workers=(?:\d+ → )?(\d+)", analyzed))
    assert commands[2].endswith(f"train.py {advised}")
    [(before, after)] = re.findall(r": ([\d.]+)(?: \w+)? → (\S+ \w+)", " ".join(analyzed.split()))
    assert f"predicted {after} (" in compared
    assert before in compared.partition("→")[0]
