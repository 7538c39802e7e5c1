"""What follows from a name is asked once per name and predicate, also one written down where it is used."""

from __future__ import annotations

from gpuscope.trace.name_pool import NamePool, PerName


def test_asked_once_per_name_that_occurs() -> None:
    pool = NamePool()
    asked: list[str] = []

    def length(name: str) -> int:
        asked.append(name)
        return len(name)

    lengths = PerName(pool, length)
    first = pool.codes(["gemm", "copy_it", "gemm"])
    pool.code("never asked")
    assert lengths(first).tolist() == [4, 7, 4]
    assert lengths(pool.codes(["new", "gemm"])).tolist() == [3, 4]
    assert asked == ["gemm", "copy_it", "new"]


def test_a_lambda_is_asked_once_per_name() -> None:
    pool, asked = NamePool(), []
    pool.codes(["a", "b"])

    def matching() -> list[bool]:
        return pool.matching(lambda name: _noted(name) == "b").tolist()

    def _noted(name: str) -> str:
        asked.append(name)
        return name

    # It looks at a variable around it, which may change: asked anew.
    assert matching() == matching() == [False, True]
    assert asked == ["a", "b"] * 2

    masks = [pool.matching(lambda name: name == "b") for _ in range(2)]
    assert masks[0] is masks[1]
    pool.code("c")
    assert pool.matching(lambda name: name == "b").tolist() == [False, True, False]


def test_two_predicates_of_one_function_are_told_apart() -> None:
    pool = NamePool()
    pool.codes(["a", "b"])
    masks = [pool.matching(lambda name, wanted=wanted: name == wanted).tolist() for wanted in ("a", "b")]
    assert masks == [[True, False], [False, True]]
