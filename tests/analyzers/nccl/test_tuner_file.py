"""The file for NCCL's example tuner plugin, read back as the plugin reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.collectives import collective, run_of
from helpers.nccl_logs import chosen, communicator, nccl_tests, write

from gpuscope.analyzers.commands.export import command
from gpuscope.analyzers.nccl.predicted_cost import LARGEST, OPERATIONS, TunerRow, check, tuning
from gpuscope.collective_costs.bus_bandwidth import Choice
from gpuscope.errors import UsageError
from gpuscope.sources.opening import open_trace

SIZES = (1 << 12, 1 << 16, 1 << 27)


def run_with(folder: Path, *choices: str) -> Path:
    """Two H100: all-reduces of 4 KiB, 64 KiB and 128 MiB in 60 µs + their bytes at 100 GB/s; a log beside."""
    events = [
        collective(100 + 3000 * number, 60 + size // 100_000, size, number) for number, size in enumerate(SIZES * 2)
    ]
    run_of(folder, events, events)
    lines = [
        f"AllReduce: {size} Bytes -> Algo {choice} channel{{Lo..Hi}}={{0..15}}"
        for size, choice in zip(SIZES, choices, strict=False)
    ]
    comm = "comm 0xa rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0"
    (folder / "nccl.log").write_text("".join(f"n:7:7 [0] NCCL INFO {line}\n" for line in [comm, *lines]))
    return folder


def applied(lines: list[str], op: str, nbytes: int, nodes: int, ranks: int) -> tuple[str, str, int]:
    """What the plugin takes: the first row that matches; without one, a single channel."""
    for line in lines:
        name, low, high, algorithm, protocol, channels, own_nodes, own_ranks = line.split(",")
        fits = int(low) <= nbytes <= int(high) and int(own_nodes) in (-1, nodes) and int(own_ranks) in (-1, ranks)
        if name == op and fits:
            return algorithm, protocol, int(channels)
    return "", "", 1


def test_small_messages_get_ll_and_large_ones_stay(tmp_path: Path) -> None:
    """Fixed 60 µs · 7.8/15.2 = 31 µs by LL, at worst √2 of it: less than 60. 128 MiB by LL take twice as long.
    Between 64 KiB and 128 MiB the choice changes at their geometric mean, 2^21.5."""
    folder, out = run_with(tmp_path, *["RING proto SIMPLE"] * 3), tmp_path / "tuner.csv"
    done = CliRunner().invoke(command, [str(folder), "--nccl-tuner", str(out)], standalone_mode=False)
    assert done.exception is None
    text = out.read_text().splitlines()
    assert all(len(line) < 256 for line in text)  # the plugin's buffer
    lines = [line for line in text if line and not line.startswith("#")]
    change = round((2**16 * 2**27) ** 0.5)
    assert applied(lines, "allreduce", 0, 1, 2) == ("ring", "ll", 16)
    assert applied(lines, "allreduce", change - 1, 1, 2) == ("ring", "ll", 16)
    assert applied(lines, "allreduce", change, 1, 2) == ("ring", "simple", 16)
    for op in OPERATIONS.values():
        assert applied(lines, op, 1 << 40, 4, 32) == ("ring", "simple", 16)


def test_ll128_is_never_written(tmp_path: Path) -> None:
    found = tuning(open_trace(run_with(tmp_path, "RING proto LL128", "RING proto LL128", "RING proto SIMPLE")))
    assert found.without_ll128 == 2
    assert not [row for row in found.rows if row.choice.protocol == "ll128"]
    check(found.rows)


def test_without_a_gain_nothing_is_written(tmp_path: Path) -> None:
    out = tmp_path / "tuner.csv"
    folder = run_with(tmp_path, *["RING proto LL"] * 2, "RING proto SIMPLE")
    done = CliRunner().invoke(command, [str(folder), "--nccl-tuner", str(out)], standalone_mode=False)
    assert "No other choice is certain to gain" in done.output
    assert not out.exists()


def test_without_a_log_it_says_what_to_record(tmp_path: Path) -> None:
    run_of(tmp_path, [collective(100, 60, 4096, 0)], [collective(100, 60, 4096, 0)])
    with pytest.raises(UsageError, match="which algorithm"):
        tuning(open_trace(tmp_path))


def parsed(text: str) -> list[tuple[str, int, int, str, str, int, int, int]]:
    """As `loadConfig` of NVIDIA/nccl plugins/tuner/example/plugin.c reads a file: no line of 256 characters or more,
    comments and empty lines skipped, 8 to 10 fields; names that it does not know would silently become others."""
    rows = []
    for line in text.split("\n"):
        assert len(line) < 255
        if not line or line.startswith("#"):
            continue
        fields = [field.strip(" \t") for field in line.split(",")]
        assert 8 <= len(fields) <= 10
        assert fields[0] in ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
        assert fields[3] in ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
        assert fields[4] in ("ll", "simple")  # LL128 never
        low, high, channels, nodes, ranks = (int(fields[place]) for place in (1, 2, 5, 6, 7))
        assert 0 <= low <= high < 1 << 64
        assert channels >= 1
        rows.append((fields[0], low, high, fields[3], fields[4], channels, nodes, ranks))
    return rows


def test_what_was_measured_changes_exactly_the_size_that_gains(tmp_path: Path) -> None:
    """64 KiB by a tree take longer than 128 KiB by a ring; 32 KiB keep their tree."""
    kib = 1 << 10
    times = {32 * kib: 90.0, 64 * kib: 160.0, 128 * kib: 110.0, 256 * kib: 150.0}
    now = dict.fromkeys([32 * kib, 64 * kib], "TREE LL") | dict.fromkeys([128 * kib, 256 * kib], "RING LL")
    write(tmp_path, "nccl.log", communicator(2, channels=8), chosen(now), nccl_tests(times))
    found = tuning(open_trace(tmp_path))
    assert len(found.changes) == 1
    assert "measured 160000 -> at most 110000 ns" in found.changes[0]
    check(found.rows)
    assert parsed(found.text())
    lines = [line for line in found.text().splitlines() if line and not line.startswith("#")]
    told = {nbytes: applied(lines, "allreduce", nbytes, 1, 2)[0] for nbytes in times}
    assert told == {32 * kib: "tree", 64 * kib: "ring", 128 * kib: "ring", 256 * kib: "ring"}


def test_channels_that_no_log_has_must_be_given(shared_traces: Path) -> None:
    """32 ranks on 4 hosts: the log of choices has no channels, and one per row would be forced."""
    trace = open_trace(shared_traces / "nccl" / "panlichen")
    with pytest.raises(UsageError, match="how many channels"):
        tuning(trace)
    found = tuning(trace, channels=2)
    assert ["65536" in change for change in found.changes if "measured" in change] == [True]
    rows = [row for row in parsed(found.text()) if row[6:] == (4, 32)]
    (own,) = [row for row in rows if row[1] <= 65536 <= row[2]]
    assert own[3:6] == ("ring", "ll", 2)


def test_a_gap_would_leave_one_channel() -> None:
    whole = [TunerRow(op, 0, LARGEST, Choice("ring", "simple", 8)) for op in OPERATIONS]
    check(whole)
    for broken in (whole[1:], [*whole, TunerRow("reduce", 0, 9, Choice("ring", "simple", -1))]):
        with pytest.raises(ValueError, match=r"invalid row|without a row"):
            check(broken)
