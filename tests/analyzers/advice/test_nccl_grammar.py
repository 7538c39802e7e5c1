"""NCCL's grammar for its variables, after its own examples and tests."""

from __future__ import annotations

import pytest

from gpuscope.analyzers.nccl.nccl_grammar import (
    ALGORITHMS,
    OPERATIONS,
    PROTOCOLS,
    algorithm_name,
    for_operation,
    parse_list,
    wrong,
)


def test_the_examples_of_nccls_source() -> None:
    """Ring and CollNetDirect for all, then Tree and CollNetDirect for all-reduce, Ring for broadcast."""
    found = parse_list("ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring", ALGORITHMS)
    assert not isinstance(found, str)
    assert set(found) == set(OPERATIONS)
    assert (found["AllReduce"], found["Broadcast"]) == ({"Tree", "CollNetDirect"}, {"Ring"})
    assert found["Reduce"] == {"Ring", "CollNetDirect"}
    assert parse_list("LL,Simple;allreduce:^LL", PROTOCOLS) == {op: {"LL", "Simple"} for op in OPERATIONS} | {
        "AllReduce": {"LL128", "Simple"}
    }
    assert parse_list("allreduce:^tree", ALGORITHMS) == {"AllReduce": set(ALGORITHMS) - {"Tree"}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_ALGO", "Ring"),
        ("NCCL_ALGO", "allreduce:Tree"),
        ("NCCL_ALGO", "allreduce:tree,collnetdirect;broadcast:ring"),
        ("NCCL_PROTO", "allreduce:LL"),
        ("NCCL_PROTO", "^LL128"),
        ("NCCL_MIN_CTAS", "64"),
        ("NCCL_MIN_CTAS", "0x20"),
    ],
)
def test_accepted(name: str, value: str) -> None:
    assert wrong(name, value) == ""


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("NCCL_ALGO", "rnig", "unrecognized name 'rnig'"),
        ("NCCL_ALGO", "allgather:ring,reducescatter:ring", "unrecognized name"),  # a comma where `;` belongs
        ("NCCL_ALGO", "allreduce:ring;tree", "need an operation"),
        ("NCCL_ALGO", "all_reduce:ring", "unrecognized operation"),
        ("NCCL_ALGO", "Tree", "leaves Broadcast, Reduce, AllGather, ReduceScatter without"),  # no fallback since 2.24
        ("NCCL_ALGO", "CollNet", "unrecognized name"),
        ("NCCL_PROTO", "LL128", "corrupts"),
        ("NCCL_PROTO", "^LL", "corrupts"),  # all but LL: LL128 too, unasked
        ("NCCL_PROTO", "allreduce:^LL,Simple,LL128", "without a protocol"),
        ("NCCL_MIN_CTAS", "65", "not within 1 to 64"),
        ("NCCL_MIN_CTAS", "many", "no integer"),
        ("NCCL_FANCY", "1", "no variable"),
    ],
)
def test_refused(name: str, value: str, why: str) -> None:
    assert why in wrong(name, value)


def test_values_for_one_operation() -> None:
    assert for_operation("reduce_scatter", algorithm_name("nvls_tree")) == "reducescatter:NVLSTree"
