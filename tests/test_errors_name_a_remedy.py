"""Every error that a user meets says how to mend it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuscope
from gpuscope.errors import AnalysisError, GpuscopeError, InputError, UsageError

DAMAGED = {
    "empty.json": b"",
    "cut.json": b'{"traceEvents": [{"ph": "X", "na',
    "none.json": b"{}",
    "text.log": b"hello\n",
    "snapshot.pickle": b"\x80\x04K\x01.",
    "cut.sqlite": b"SQLite format 3\0" + bytes(20),
    "x.parquet": b"PAR1",
    "cut.json.gz": b"\x1f\x8b\x08",
    "topology.xml": b"<system version='1'>",
    "py-spy.txt": b"Process 1: python",
}


def below(kind: type[GpuscopeError]) -> Iterator[type[GpuscopeError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from below(one)


@given(st.sampled_from((UsageError, InputError, AnalysisError, GpuscopeError)), st.text(), st.none() | st.text())
def test_an_error_has_a_hint_whoever_raises_it(kind: type[GpuscopeError], message: str, hint: str | None) -> None:
    error = kind(message, hint=hint)
    assert error.hint
    assert str(error).endswith(f"Hint: {hint or kind.remedy}")


def test_each_kind_has_a_remedy() -> None:
    assert all(kind.remedy for kind in below(GpuscopeError))


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(DAMAGED[name])
    with pytest.raises(GpuscopeError) as error:
        gpuscope.analyze(tmp_path / name)
    assert name in error.value.message
    assert len(error.value.hint.split()) > 3
