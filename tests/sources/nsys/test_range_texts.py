"""Texts of ranges from Parquet and Arrow without a Python object for each: as they are one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.sources.nsys.link_counters import ArrowTables
from gpuscope.sources.nsys.recognition import range_texts
from tests.helpers.nsys import NVTX, Export

TEXTS = [
    "aten::mm, seq = 7, op_id = 3",
    "aten::mm, op_id = 4, sizes = [[2, 3]]",
    "aten::mm",
    "aten::add, sizes = [[1]]",
    "a, sizes = [1], op_id = 9",
    "x, input_op_ids = 3, seq",
    "a\nb, seq = 1\nc",
    "",
    ", seq = 3",
    "two, words",
    "ü",
]
RAW = [*(text.encode() for text in TEXTS), b"bad \xff\n, seq = \xff", b"bad \xff\n", None]


def test_what_is_cut_off() -> None:
    found = range_texts([TEXTS[0], None, TEXTS[2], TEXTS[1], "aten::add, sizes = [[1]]"])
    assert found.names == ["aten::mm", "aten::mm", "aten::add"]
    assert found.cut == [True, False, True]
    assert found.place.tolist() == [0, -1, 1, 0, 2]


@pytest.mark.parametrize("backend", ["parquetdir", "arrowdir"])
@settings(max_examples=25)
@given(texts=st.lists(st.sampled_from(RAW), min_size=1, max_size=30))
def test_as_one_by_one(backend: str, texts: list[bytes | None], tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("pyarrow")
    export = Export()
    for text in texts:
        export.add(NVTX, start=0, text=text)
    export.add(NVTX, start=1, text="last")
    path = export.write(Path(tmp_path_factory.mktemp("texts")), backend)
    own, plain = ArrowTables(path), ArrowTables(path)
    found, expected = own.range_texts(NVTX, "text"), range_texts(plain.texts(NVTX, "text"))
    assert (found.names, found.cut, found.place.tolist()) == (expected.names, expected.cut, expected.place.tolist())
    assert own.invalid_utf8 == plain.invalid_utf8


def test_without_the_column_there_are_no_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    export = Export()
    export.add(NVTX, start=0)
    assert not len(ArrowTables(export.write(tmp_path, "parquetdir")).range_texts(NVTX, "text").place)
