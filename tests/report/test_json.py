"""The JSON document."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.report.read_report import dumps
from gpuscope.schema.document import Report


def test_round_trip_keeps_values(input_bound: Report) -> None:
    assert json.loads(dumps(input_bound)) == input_bound


def test_no_nan_no_numpy_no_broken_text(input_bound: Report) -> None:
    input_bound["collectives"][0]["busbw_gbps"] = float("nan")
    input_bound["collectives"][0]["bytes"] = np.int64(7)  # type: ignore[typeddict-item]
    input_bound["kernels"][0]["name"] = "\udc80"
    document = dumps(input_bound)
    assert document.encode("ascii")
    back = json.loads(document, parse_constant=lambda word: word)
    assert back["collectives"][0]["busbw_gbps"] is None
    assert back["collectives"][0]["bytes"] == 7
    assert back["kernels"][0]["name"] == "\udc80"


def test_keys_stand_as_declared_however_they_were_built(healthy: Report) -> None:
    shuffled = dict(reversed(healthy.items()))
    declared = [key for key in Report.__annotations__ if key in healthy]
    assert list(json.loads(dumps(shuffled))) == declared  # type: ignore[arg-type]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_indented_as_python_does_it(value: Any) -> None:
    document: Any = {"schema_version": value}
    assert dumps(document) == json.dumps(document, indent=2)
