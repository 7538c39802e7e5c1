"""The command line in this process: as a user's call, without a new interpreter for each."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from gpuscope.cli import main


@dataclass(frozen=True)
class Done:
    """What a call left: its exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def call(capsys: pytest.CaptureFixture[str], *args: object) -> Done:
    """Run `gpuscope ARGS`."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return Done(int(ended.value.code or 0), out, err)


def gpuscope(*args: object) -> Done:
    """The same without pytest's capturing."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(arg) for arg in args])
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())
