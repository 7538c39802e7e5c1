"""Jobs whose settings are changed from outside: what they see of it themselves, and what the recorder notes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuscope.instrumented_runtime.record.run_folder import rank_parts

Job = Callable[..., SimpleNamespace]

TELL = """
import json, os
def tell(**seen):
    with open(f"told{os.environ.get('RANK', 0)}.json", "w") as file:
        json.dump(seen, file)
"""


@pytest.fixture
def job(record: Callable[..., SimpleNamespace], python: str, torchrun: tuple[str, ...], tmp_path: Path) -> Job:
    """`job(script, "ddp.bucket_cap_mb=50"…, ranks=2)`: `told` by the script and `facts` of the recorder, per rank."""
    count = 0

    def run(
        script: str,
        *changes: str,
        ranks: int = 1,
        options: tuple[str, ...] = (),
        arguments: tuple[str, ...] = (),
        interpreter: str = python,
        **variables: str,
    ) -> SimpleNamespace:
        nonlocal count
        count += 1
        unchanged = (script, ranks, *variables.items()) if not changes else None
        if unchanged in _unchanged:
            return _unchanged[unchanged]
        path = tmp_path / "train.py"
        path.write_text(TELL + script)
        for old in tmp_path.glob("told*.json"):
            old.unlink()
        sets = [word for change in changes for word in ("--set", change)]
        words = ("--profiler", "none", "-o", f"run{count}", *sets, *options)
        done = record(
            *words, "--", *(torchrun if ranks == 2 else (interpreter,)), path, *arguments, timeout=300, **variables
        )
        done.folder = tmp_path / f"run{count}"
        assert done.code == 0, done.err  # no change stops a job
        done.told = [json.loads((tmp_path / f"told{rank}.json").read_text()) for rank in range(ranks)]
        done.manifest = json.loads((done.folder / "manifest.json").read_text())
        done.facts = [part.facts for part in rank_parts(done.folder)]
        if unchanged is not None:
            _unchanged[unchanged] = done
        return done

    return run


_unchanged: dict[object, SimpleNamespace] = {}
"""Jobs without changes, which several tests compare with."""


def values(done: SimpleNamespace, name: str, rank: int = 0) -> list[str]:
    """The values of a setting that a rank noted, in the order of their appearance."""
    return [row["value"] for row in done.facts[rank]["settings"][name]]


def times(done: SimpleNamespace, name: str, rank: int = 0) -> int:
    """How often a rank made a change."""
    return int(done.facts[rank]["applied"][name]["times"])


def refusals(done: SimpleNamespace, name: str, rank: int = 0) -> list[str]:
    """Why a rank did not make it."""
    return [row["why"] for row in done.facts[rank]["applied"][name]["not"]]
