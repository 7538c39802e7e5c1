"""Which recordings are ranks of one job, and which are not (times in µs)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.kineto import Event, call, kernel, note, op, span, write

import gpuscope
from gpuscope.errors import InputError, UsageError
from gpuscope.trace.schema import Kind


def accelerator(device_pid: int, host_pid: int = 865, label: str = "MTIA 17") -> list[Event]:
    """Host rows under one process, device rows and the runtime's own under another, as Kineto draws MTIA."""
    name = {"ph": "M", "name": "process_name", "pid": device_pid, "tid": 0, "ts": 0, "args": {"name": label}}
    events: list[Event] = [name]
    for place in range(6):
        at = 20_000 * place
        events += [
            span("cpu_op", "aten::linear", at + 100, 300, pid=host_pid, **{"External id": place + 1}),
            span("mtia_runtime", "launchKernel", at + 150, 20, pid=host_pid, correlation=place),
            span("mtia_runtime", "synchronize", at + 160, 20, pid=device_pid, tid=3, correlation=place),
        ]
        for tid, (unit, begin, lasts) in enumerate(
            (("pe_exe", 400, 3000), ("event_wait", 4000, 9000), ("dma_in", 14000, 500))
        ):
            events.append(
                span(
                    "mtia_ccp_events",
                    unit,
                    at + begin,
                    lasts,
                    pid=device_pid,
                    tid=tid,
                    device=17,
                    stream=tid,
                    correlation=place,
                )
            )
    return events


@pytest.mark.parametrize(("device_pid", "label"), [(17, "MTIA 17"), (3, "MTIA 3"), (40, "XPU 40")])
def test_an_accelerator_s_process_is_no_rank(tmp_path: Path, device_pid: int, label: str) -> None:
    """`event_wait` waits and computes nothing, a DMA engine's rows are memory, the launch is the host's."""
    trace = gpuscope.open_trace(write(tmp_path / "rank0.json", *accelerator(device_pid, label=label), rank=None))
    assert trace.ranks == [0]
    part = trace.rows("device_events")
    assert {row["name"] for row in part} == {"pe_exe", "dma_in"}
    assert {row["name"] for row in trace.rows("syncs")} == {"event_wait"}
    host = trace["host_events"]
    launched = {trace.names[int(host["name"][row["launch"]])] for row in part if row["launch"] is not None}
    assert launched == {"launchKernel"}
    breakdown = gpuscope.analyze(tmp_path / "rank0.json", advice=False).report["ranks"][0]["recorded_breakdown_ns"]
    assert (breakdown["compute"], breakdown["exposed_memory"]) == (6 * 3_000_000, 6 * 500_000)


def test_kernels_whose_names_only_hold_such_words(tmp_path: Path) -> None:
    names = ("void event_wait_kernel<float>(float*)", "dmatrix_multiply", "cdma::gemm(int)")
    events = [kernel(100 * place, 50, place, name=name) for place, name in enumerate(names)]
    trace = gpuscope.open_trace(write(tmp_path / "rank0.json", *events))
    assert {row["kind"] for row in trace.rows("device_events")} == {Kind.COMPUTE}


def steps_of(
    numbers: range, name: str, lasts: float, at: float = 0, train: bool = False, pid: int = 1
) -> Iterator[Event]:
    for place, number in enumerate(numbers):
        base = at + place * lasts
        events = [
            note(base, lasts - 10, f"ProfilerStep#{number}"),
            op(base + 5, 20),
            call(base + 10, 5, number),
            kernel(base + 30, 0.6 * lasts, number, name=name),
        ]
        if train:
            events.append(note(base + 0.8 * lasts, 0.1 * lasts, "Optimizer.step#SGD.step"))
        for event in events:
            if event["cat"] != "kernel":
                event["pid"] = pid
        yield from events


@pytest.mark.parametrize(
    ("train", "other", "others_numbers"),
    [
        (
            "fit-prof-{rank}-[Strategy]DDPStrategy.training_step.17.pt.trace.json",
            "fit-prof-{rank}-[Strategy]DDPStrategy.validation_step.18.pt.trace.json",
            range(3, 6),
        ),
        ("rank{rank}_train.json", "rank{rank}_eval.json", range(1, 4)),
        ("rank{rank}.0.json", "rank{rank}.1.json", range(20, 23)),
    ],
)
def test_training_beside_validation(tmp_path: Path, train: str, other: str, others_numbers: range) -> None:
    """Both count from small numbers: the one that holds the optimizer is judged, the other is named."""
    for rank in range(2):
        told = {"rank": rank, "world_size": 2}
        write(
            tmp_path / train.format(rank=rank), *steps_of(range(1, 6), "gemm", 1000, train=True, pid=70 + rank), **told
        )
        write(tmp_path / other.format(rank=rank), *steps_of(others_numbers, "gemm", 300, 9000, pid=70 + rank), **told)
    report = gpuscope.analyze(tmp_path, advice=False).report
    assert report["trace"]["ranks_present"] == [0, 1]
    assert report["step_time"] is not None
    assert report["step_time"]["median_ns"] == 1_000_000
    message = next(one["message"] for one in report["problems"] if one["code"] == "other_loops")
    assert (".validation_step." in other) == ("Left out: validation_step;" in message)


def test_two_trainings_of_one_rank_are_still_refused(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path / name, *steps_of(range(1, 6), "gemm", 1000, train=True))
    with pytest.raises(UsageError, match="both hold rank 0"):
        gpuscope.analyze(tmp_path, advice=False)


def test_brackets_of_a_name_in_a_glob(tmp_path: Path) -> None:
    path = write(tmp_path / "fit-0-[Strategy]DDPStrategy.training_step.1.json", *steps_of(range(1, 6), "gemm", 1000))
    assert gpuscope.open_trace(f"{tmp_path}/fit-*-[Strategy]DDP*.json").sources[0].path == path
    assert gpuscope.open_trace(f"{tmp_path}/f[hi]t-*.json").sources[0].path == path
    with pytest.raises(InputError, match="matches no file"):
        gpuscope.open_trace(f"{tmp_path}/fit-*-[strategy]*.json")


@pytest.mark.parametrize(
    ("other_kernel", "other_step", "refused"),
    [("conv", 4300, True), ("gemm", 4300, False), ("conv", 1200, False)],
)
def test_two_jobs_in_one_folder(tmp_path: Path, other_kernel: str, other_step: float, refused: bool) -> None:
    """Ranks of one job share a kernel, or take steps of a length, or exchange something."""
    write(tmp_path / "rank0.json", *steps_of(range(1, 7), "gemm", 1000), world_size=2)
    write(tmp_path / "rank1.json", *steps_of(range(1, 7), other_kernel, other_step), rank=1, world_size=2)
    if not refused:
        assert gpuscope.analyze(tmp_path, advice=False).report["trace"]["ranks_present"] == [0, 1]
        return
    with pytest.raises(UsageError, match="of different jobs") as error:
        gpuscope.analyze(tmp_path, advice=False)
    assert "gpuscope diff" in (error.value.hint or "")


def test_two_recordings_of_one_process_in_a_file(tmp_path: Path) -> None:
    first, second = list(steps_of(range(1, 5), "gemm", 1000)), list(steps_of(range(1, 5), "gemm", 1000, at=137))
    with pytest.raises(InputError, match="holds two recordings of process 1") as error:
        gpuscope.open_trace(write(tmp_path / "merged.json", *first, *second, rank=None))
    assert "merged from" in (error.value.hint or "")
    assert gpuscope.open_trace(write(tmp_path / "one.json", *first)).ranks == [0]


def test_a_step_number_twice_is_no_second_recording(tmp_path: Path) -> None:
    """A schedule that repeats may mark a step in two threads: correlation ids stand in the file once."""
    events = list(steps_of(range(1, 5), "gemm", 1000))
    marks = [{**event, "tid": 2} for event in events if event["name"].startswith("ProfilerStep")]
    assert gpuscope.open_trace(write(tmp_path / "one.json", *events, *marks)).ranks == [0]
