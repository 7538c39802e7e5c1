"""Files without correlation ids: calls and kernels are linked by arrows, else by an External id of one launch."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from helpers import kineto
from helpers.kineto import Event
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope import open_trace
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace


def launch(ts: float, name: str = "hipLaunchKernel", tid: int = 1, **args: object) -> Event:
    return kineto.span("cuda_runtime", name, ts, 3, tid=tid, **args)


def work(ts: float, name: str = "Cijk", cat: str = "kernel", stream: int = 0, **args: object) -> Event:
    return kineto.span(cat, name, ts, 5, tid=stream, pid=0, **args)


def arrow(number: int, source: Event, target: Event, cat: str = "ac2g") -> list[Event]:
    ends = (("s", source), ("f", target))
    return [
        {"ph": p, "id": number, "cat": cat, "name": cat, **{k: e[k] for k in ("pid", "tid", "ts")}} for p, e in ends
    ]


def linked(trace: Trace) -> list[float | None]:
    """Of each device event in order of time, when its call began (µs)."""
    rows = trace["device_events"]["launch"].tolist()
    return [None if row == NA else int(trace["host_events"]["start"][row]) / 1_000 for row in rows]


@pytest.mark.parametrize("key", ["External id", "external id"])
def test_by_external_id(tmp_path: Path, key: str) -> None:
    events = [event for i in range(9) for event in (launch(100 * i, **{key: i}), work(100 * i + 450, **{key: i}))]
    random.Random(1).shuffle(events)
    assert linked(open_trace(kineto.write(tmp_path / "a.json", *events))) == [100.0 * i for i in range(9)]


def test_an_id_of_two_launches_tells_nothing(tmp_path: Path) -> None:
    """An operator's id stands on all its calls; its copies, memsets and other calls are no launches of a kernel."""
    op = {"External id": 7}
    events = [
        launch(0, **op),
        launch(10, **op),
        work(50, **op),
        work(60, **op),
        launch(100, **{"External id": 8}),
        launch(104, "hipMemcpyAsync", **{"External id": 8}),
        launch(108, "hipMemsetAsync", **{"External id": 8}),
        launch(112, "hipStreamSynchronize", **{"External id": 8}),
        work(150, **{"External id": 8}),
        work(160, "Copy", "gpu_memcpy", **{"External id": 8}),
        work(170, "Set", "gpu_memset", **{"External id": 8}),
        work(190, **{"External id": 9}),
    ]
    assert linked(open_trace(kineto.write(tmp_path / "a.json", *events))) == [None, None, 100, 104, 108, None]


def test_a_launch_after_its_kernel_is_none(tmp_path: Path) -> None:
    events = [launch(100, **{"External id": 1}), work(50, **{"External id": 1})]
    assert linked(open_trace(kineto.write(tmp_path / "a.json", *events))) == [None]


@pytest.mark.parametrize("cat", ["ac2g", "async_cpu_to_gpu"])
def test_arrows_before_ids(tmp_path: Path, cat: str) -> None:
    """Arrows tell kernels of one operator apart, whatever thread launched; several may follow one launch (a graph)."""
    op = {"External id": 7}
    calls = [launch(10 * i, tid=1 + i % 2, **op) for i in range(6)]
    kernels = [work(100 + 10 * i, stream=i % 3, **op) for i in range(6)]
    order = [3, 1, 0, 5, 4, 2]
    arrows = [end for i, k in enumerate(order) for end in arrow(40 + i, calls[i], kernels[k], cat)]
    graph, nodes = launch(300, "hipGraphLaunch"), [work(400, stream=1), work(420, stream=2)]
    arrows += [end for node in nodes for end in arrow(99, graph, node, cat)]
    path = kineto.write(tmp_path / "a.json", *calls, *kernels, graph, *nodes, *arrows)
    assert linked(open_trace(path)) == [10.0 * order.index(k) for k in range(6)] + [300, 300]


def test_correlation_stands(tmp_path: Path) -> None:
    """Where ids of both kinds are there, the correlation is believed, also beside events that lack it."""
    events = [
        launch(0, correlation=1, **{"External id": 5}),
        launch(10, correlation=2, **{"External id": 6}),
        work(50, correlation=2, **{"External id": 5}),
        work(60, correlation=1, **{"External id": 6}),
        launch(100, **{"External id": 9}),
        work(150, **{"External id": 9}),
        launch(200, correlation=3, **{"External id": 10}),
        work(250, **{"External id": 10}),
    ]
    assert linked(open_trace(kineto.write(tmp_path / "a.json", *events))) == [10, 0, 100, 200]


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(12)), st.integers(0, 3), st.booleans())
def test_as_with_correlation(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], pad: int, arrows: bool
) -> None:
    """Whatever order the kernels run in, the links are those of the same file with correlation ids."""
    folder = tmp_path_factory.mktemp("pair")
    key = "External id"
    traces = []
    for keys in (("correlation",), () if arrows else (key,)):
        calls = [launch(10 * i, **dict.fromkeys(keys, 70 + i)) for i in range(12)]
        kernels = [work(500 + 10 * place, **dict.fromkeys(keys, 70 + i)) for place, i in enumerate(order)]
        flows = [end for place, i in enumerate(order) for end in arrow(i + 1, calls[i], kernels[place])]
        rest = [kineto.op(1_000 + i, 1) for i in range(pad)]
        path = kineto.write(folder / f"{len(keys)}{keys[:1]}.json", *calls, *kernels, *rest, *(flows if arrows else []))
        traces.append(open_trace(path))
    first, second = (trace["device_events"]["launch"] for trace in traces)
    assert np.array_equal(first, second)
    assert (second != NA).all()
