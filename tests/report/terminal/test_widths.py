"""Tables at any width: numbers keep their units, names give way."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import flight_recorder
from helpers.analysed import report as analysed
from helpers.cli import gpuscope
from helpers.widths import NARROWER, WIDE, parted, too_long
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gpuscope.hardware.link_rates import link_named
from gpuscope.instrumented_runtime.bench import bench_tables
from gpuscope.report.terminal import first_screen, report_text
from gpuscope.report.terminal.screen import Writer
from gpuscope.schema.document import Report
from gpuscope.words.units import crop_path


def drawn(draw: Callable[[Console], object], width: int) -> str:
    file = io.StringIO()
    draw(Console(file=file, width=width, _environ={}, force_terminal=False))
    return file.getvalue()


NUMBER = st.builds("{:.2f} {}".format, st.floats(0, 99_999), st.sampled_from(["ns", "ms", "s", "%", "GB/s", "MiB"]))
NAME = st.text("abcdefgh_:<>/ ", min_size=1, max_size=60)
WORDS = st.lists(st.sampled_from(["waiting", "for", "a", "late", "rank"]), min_size=1, max_size=6).map(" ".join)
CELLS = {">": NUMBER, "~": NAME, "<": WORDS}


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, list[list[str]]]:
    kinds = "".join(draw(st.lists(st.sampled_from(">>~<"), min_size=1, max_size=9)))
    return kinds, draw(st.lists(st.tuples(*(CELLS[kind] for kind in kinds)).map(list), min_size=1, max_size=4))


@given(tables(), st.integers(40, 160))
def test_no_number_of_any_table_is_cropped_wrapped_or_parted(table: tuple[str, list[list[str]]], width: int) -> None:
    kinds, rows = table

    def draw(console: Console) -> None:
        writer = Writer(console)
        made = writer.table(*(f"{kind}column {i}" for i, kind in enumerate(kinds)))
        for row in rows:
            made.add_row(
                *(
                    writer.cell(cell) if kind == "~" else writer.text(cell)
                    for kind, cell in zip(kinds, row, strict=True)
                )
            )
        writer.show(made)

    shown = drawn(draw, width)
    assert not too_long(shown, width)
    for row in rows:
        for kind, cell in zip(kinds, row, strict=True):
            assert kind != ">" or cell in shown


@pytest.mark.parametrize("example", ["healthy", "input_bound", "many_ranks", "hostile"])
def test_a_report_by_hand(example: str, request: pytest.FixtureRequest) -> None:
    held_whole(request.getfixturevalue(example))


@pytest.mark.parametrize("sample", ["ddp_slow_rank", "ddp_slow_link", "pp_unbalanced_stage", "3d_healthy"])
def test_a_recorded_run(sample: str, samples: Path) -> None:
    held_whole(analysed(samples / sample))


@pytest.mark.parametrize(
    "path",
    [
        "kineto/hta_nccl_args",
        "nccl/panlichen/full_nccl_mpi_scripts_result_with_algo_topo_info.txt",
        "nccl/timezzx/nccl.log",
        "memory/wedsonlin_medium_1024_training.pickle",
    ],
)
def test_a_public_trace(path: str, shared_traces: Path) -> None:
    held_whole(analysed(shared_traces / path))


def held_whole(report: Report) -> None:
    """The first screen and the whole report at every width."""
    for draw in (
        lambda console: first_screen.render(report, Writer(console)),
        lambda console: report_text.render(report, console),
    ):
        wide = drawn(draw, WIDE)
        for width in NARROWER:
            shown = drawn(draw, width)
            assert parted(wide, shown) == []
            assert not too_long(shown, width)


@pytest.mark.parametrize("command", ["runs", "diff", "check", "info", "hang", "advise"])
def test_every_command_that_prints_a_table(
    command: str, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = analysed(samples / "ddp_slow_rank"), analysed(samples / "ddp_slow_link")
    asked = {
        "runs": ["runs"],
        "diff": ["diff", "1", "2"],
        "check": ["check", "1", "--baseline", "2"],
        "info": ["info", samples / "ddp_slow_rank"],
        "hang": ["hang", tmp_path / "dumps"],
        "advise": ["advise", "--model", "llama-3-8b", "--cluster", "8xH100"],
    }
    if command in ("runs", "diff", "check"):
        stored(tmp_path / "runs.db", one, other)
    if command == "hang":
        (tmp_path / "dumps").mkdir()
        group = ("0", "default_pg", [0, 1])
        for rank in (0, 1):
            flight_recorder.dump(tmp_path / "dumps", rank, [group], [flight_recorder.entry(group, 1 + rank)])
    monkeypatch.setenv("GPUSCOPE_STORE", str(tmp_path / "runs.db"))

    def at(width: int) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        done = gpuscope(*asked[command])
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    wide = at(WIDE)
    assert wide
    for width in NARROWER:
        shown = at(width)
        assert parted(wide, shown) == []
        assert not too_long(shown, width)


def stored(store: Path, *reports: Report) -> None:
    from gpuscope.store.store import opened

    with opened(store, write=True) as open_store:
        for number, report in enumerate(reports):
            where = f"/a/rather/long/folder/of/the/cluster/where/runs/are/kept/{number}/traces.json"
            open_store.add(report, str(number), [where], {})


def test_a_run_s_class_and_cause_have_shares_of_their_own_and_its_file_keeps_its_name(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = analysed(samples / "ddp_slow_rank")
    [finding] = [one for one in report["findings"] if one["code"] == report["verdict"]["cause"]]
    stored(tmp_path / "runs.db", report)
    monkeypatch.setenv("GPUSCOPE_STORE", str(tmp_path / "runs.db"))
    monkeypatch.setenv("COLUMNS", "80")
    shown = gpuscope("runs").stdout
    shares = {f"{100 * share:.1f} %" for share in (report["verdict"]["share_frac"], finding["share_frac"])}
    assert len(shares) == 2
    assert set(re.findall(r"[\d.]+ %", shown)) == shares
    assert "/traces.json" in shown


def test_a_path_gives_up_its_folders_before_its_name() -> None:
    assert crop_path("/a/long/way/down/rank0.json", 14) == "…/rank0.json"


def bench_reports() -> dict[str, tuple[Callable[..., object], Any]]:
    """What `gpuscope bench` prints, each with numbers of several lengths."""
    base = {"backend": "nccl", "torch_version": "2.13.0", "device": "cuda", "note": "", "rounds": 3, "iterations": 20}
    row = {
        "op": "reduce_scatter",
        "nbytes": 1 << 26,
        "count": 16_777_216,
        "time_ns": 1_234_567_890,
        "wrong": 0,
        "algbw_gbps": 123.456,
        "busbw_gbps": 216.048,
        "ranks": 64,
        "rounds_ns": (1_000_000, 2_000_000),
    }
    copy = {
        "kind": "host_to_device",
        "source": "cpu",
        "target": "cuda:0",
        "nbytes": 1 << 28,
        "time_ns": 5_000_000,
        "bandwidth_gbps": 53.68,
        "traffic_gbps": 107.4,
        "peak_gbps": 64.0,
        "note": "pinned, 2 threads",
    }
    step = {
        "processes": 128,
        "tokens_per_step": 1_048_576,
        "step_ns": 1_234_500_000,
        "tokens_per_s": 849_393.0,
        "speedup": 101.25,
        "efficiency": 0.79,
        "mesh": "dp=32 tp=4",
    }
    link = link_named("nvlink4")
    return {
        "collectives": (
            lambda report, console: bench_tables.print_collectives(report, console, link),
            SimpleNamespace(**base, world_size=64, rows=[SimpleNamespace(**row)]),
        ),
        "transfers": (
            bench_tables.print_transfers,
            SimpleNamespace(**base, devices=["NVIDIA H100"], rows=[SimpleNamespace(**copy)]),
        ),
        "scaling": (
            bench_tables.print_scaling,
            SimpleNamespace(
                **base,
                parallel="ddp",
                preset="tiny",
                scaling="weak",
                threads_per_process=1,
                rows=[SimpleNamespace(**step)],
            ),
        ),
    }


@pytest.mark.parametrize("name", ["collectives", "transfers", "scaling"])
def test_benches_print_every_number_at_any_width(name: str) -> None:
    show, report = bench_reports()[name]

    def numbers(width: int) -> list[str]:
        shown = drawn(lambda console: show(report, console), width)
        assert not too_long(shown, width)
        return sorted(set(re.findall(r"\d+(?:\.\d+)?", shown)))

    wide = numbers(WIDE)
    assert all(numbers(width) == wide for width in NARROWER)


def test_a_bandwidth_of_small_messages_is_readable(shared_traces: Path) -> None:
    log = shared_traces / "nccl" / "panlichen" / "full_nccl_mpi_scripts_result_with_algo_topo_info.txt"
    shown = drawn(lambda console: report_text.render(analysed(log), console), WIDE)
    [line] = [line for line in shown.splitlines() if "average bus bandwidth" in line]
    figures = re.findall(r"[\d.]+(?= [kMG]B/s)", line)
    assert figures
    assert all(len(figure.replace(".", "").lstrip("0")) <= 4 for figure in figures)
