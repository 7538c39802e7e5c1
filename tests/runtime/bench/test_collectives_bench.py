"""The collectives benchmark on two gloo processes, the copies benchmark, and their command line."""

import sys

import pytest
import torch
from helpers import needs

from gpuscope.cli import main
from gpuscope.collective_costs.bus_bandwidth import busbw_factor
from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.bench.collectives_bench import OPERATIONS, copies_bench_measure, run
from gpuscope.instrumented_runtime.bench.topology_links import OPERATIONS as NAMES
from gpuscope.instrumented_runtime.bench.topology_links import CollectiveOptions, format_size, parse_size, sweep


def test_every_operation_at_every_size_is_right(capfd: pytest.CaptureFixture[str]) -> None:
    options = CollectiveOptions(ops=tuple(OPERATIONS), sizes=(1001, 64 * 1024), iterations=3, warmup=1)
    report = run(options, nprocs=2, backend="gloo")
    assert report is not None
    assert [(row.op, row.nbytes) for row in report.rows] == [
        # 1001 bytes are 250 float32, 125 per rank.
        (op, nbytes)
        for op in OPERATIONS
        for nbytes in (1000, 64 * 1024)
    ]
    assert {row.wrong for row in report.rows} == {0}
    assert tuple(OPERATIONS) == NAMES
    for row in report.rows:
        # Over two ranks the factors are 1 or a half.
        factor = {"all_gather": 0.5, "reduce_scatter": 0.5, "all_to_all": 0.5}.get(row.op, 1.0)
        assert busbw_factor(row.op, 2) == factor
        assert row.algbw_gbps == pytest.approx(row.nbytes / row.time_ns, rel=1e-3)
        assert row.busbw_gbps == pytest.approx(row.algbw_gbps * factor)
        assert row.fastest_rank_ns <= row.time_ns <= row.slowest_rank_ns
    # How long it will take is said first.
    assert f"gpuscope: {len(NAMES)} operations × 2 sizes: about" in capfd.readouterr().err


def test_one_rank_is_refused() -> None:
    with pytest.raises(UsageError, match="at least two ranks"):
        run(CollectiveOptions(), nprocs=1, backend="gloo")


@pytest.mark.parametrize("bad", [{"ops": ("reduce_all",)}, {"dtype": "float3"}, {"iterations": 0}])
def test_options_check_themselves(bad: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        CollectiveOptions(**bad)  # type: ignore[arg-type]


def test_sizes() -> None:
    assert [parse_size(text) for text in ("8", "64K", "16M", "1GiB")] == [8, 65536, 16 * 1024**2, 1024**3]
    assert sweep(1024, 20000, 4) == (1024, 4096, 16384)
    assert [format_size(n) for n in (1000, 65536, 1024**3)] == ["1000", "64K", "1G"]
    for wrong in ("", "12X", "-4"):
        with pytest.raises(UsageError):
            parse_size(wrong)


def test_host_copies_are_labelled_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    report = copies_bench_measure(nbytes=1024**2, iterations=3)
    (row,) = report.rows
    assert row.kind == "host_memcpy"
    assert row.traffic_gbps == 2 * row.bandwidth_gbps  # every byte is read and written
    assert "no GPU" in report.note


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason=needs.GPU)
def test_device_copies() -> None:
    kinds = [row.kind for row in copies_bench_measure(nbytes=1024**2, iterations=3).rows]
    assert kinds[:5] == ["host_to_device", "device_to_host"] * 2 + ["device_memcpy"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("collectives --op reduce_all", "--op takes"),
        ("collectives --dtype float3", "--dtype"),
        ("collectives --minbytes 12X", "is not a size"),
        ("collectives --nproc 1", "at least two ranks"),
        ("transfers --size 12X", "is not a size"),
        ("scaling --nproc 2,1", "rising"),
        ("scaling --parallel dpp", "no parallelism"),
    ],
)
def test_what_can_not_be_meant_is_refused_without_torch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    for name in ("collectives_bench", "copies_bench", "scaling_bench"):
        monkeypatch.setitem(sys.modules, f"gpuscope.instrumented_runtime.bench.{name}", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit) as end:
        main(["bench", *words.split()])
    assert (end.value.code, said in capsys.readouterr().err) == (2, True)


def test_unknown_link_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "collectives", "--link", "nvlink9"])
    assert end.value.code == 2
    assert "nvlink4" in capsys.readouterr().err
