"""What follows from a name is asked once per name."""

from __future__ import annotations

from gpuscope.trace.columns.name_pool import NamePool, PerName


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
