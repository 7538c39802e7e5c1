"""What is known of other people's real traces (../shared/traces/MANIFEST.md); skipped where they are absent."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from helpers.analysed import report

import gpuscope
from gpuscope.schema.document import RankEntry


def share(rank: RankEntry, part: str) -> float:
    parts: dict[str, Any] = dict(rank["breakdown_ns"])
    return float(parts[part] / rank["window_ns"])


def test_resnet50_waits_for_its_loader_only_without_workers(shared_traces: Path) -> None:
    """Its publisher's word: «20.3 % of the step time is in DataLoader» with 0 workers, none with 4. He counts all six
    steps that were recorded, also the first one, which is warm-up: so they are asked for. Ours end with the
    device, his with the host."""
    folders = {n: shared_traces / "kineto" / f"resnet50_num_workers_{n}" for n in (0, 4)}
    without, with_4 = gpuscope.analyze(folders[0], steps=(5, 10)).report, report(folders[4])
    assert (without["verdict"]["bound_by"], without["verdict"]["cause"]) == ("cpu", "input")
    (rank,) = without["ranks"]
    assert rank["stall_ns"]["cpu"]["input"] / rank["window_ns"] == pytest.approx(0.203, abs=0.01)
    assert with_4["verdict"]["cause"] != "input"
    (rank,) = with_4["ranks"]
    assert rank["stall_ns"]["cpu"].get("input", 0) / rank["window_ns"] < 0.005


def test_exposed_communication_of_hta_2_of_128(shared_traces: Path) -> None:
    """28 and 25 % of the devices' own windows, as computed by others; the two annotated steps last 0.6 % longer."""
    ranks = report(shared_traces / "kineto" / "hta_2_of_128")["ranks"]
    assert [share(rank, "exposed_communication") for rank in ranks] == pytest.approx([0.274, 0.245], abs=0.002)
    for rank in ranks:
        assert 1 - share(rank, "idle") == pytest.approx(0.46, abs=0.02)  # busy 45–47 %


def test_exposed_communication_of_hta_diff_control(shared_traces: Path) -> None:
    """Rank 3 of 8: 19 % exposed, and no telling whom it waited for: the class is certain, its cause is not."""
    found = report(shared_traces / "kineto" / "hta_diff_control")
    (rank,) = found["ranks"]
    exposed = rank["recorded_breakdown_ns"]["exposed_communication"]
    assert exposed / rank["recorded_ns"] == pytest.approx(0.19, abs=0.005)
    verdict = found["verdict"]
    assert (verdict["bound_by"], verdict["cause"]) == ("communication", None)
    assert (verdict["abstained"], verdict["cause_abstained"]) == (False, True)
    assert "add the traces of ranks 0-2,4-7" in verdict["why"]


def test_hta_nccl_args_is_host_bound(shared_traces: Path) -> None:
    found = report(shared_traces / "kineto" / "hta_nccl_args")
    (rank,) = found["ranks"]
    parts = rank["recorded_breakdown_ns"]
    assert (parts["compute"] + parts["exposed_communication"]) / rank["recorded_ns"] == pytest.approx(0.235, abs=0.001)
    assert (found["verdict"]["bound_by"], found["verdict"]["abstained"]) == ("cpu", False)


@pytest.mark.parametrize("rank", [0, 1])
def test_ascend_agrees_with_its_vendor(shared_traces: Path, rank: int) -> None:
    """Our parts, from hardware and HCCL rows, against the vendor's own step_trace_time.csv.

    The vendor's window begins with the first compute or communication and counts copies as free; so the
    parts are compared over that window.
    """
    folder = shared_traces / "ascend" / "level0" / f"rank{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    with (folder / "step_trace_time.csv").open() as file:
        (told,) = csv.DictReader(file)
    trace = gpuscope.open_trace(folder / "trace_view.json")
    (lane,) = trace.lanes()
    device = trace.tables["device_events"]
    work = device[device["kind"] != "memory"]
    ours = trace.breakdown(lane.rows, (int(work["start"].min()), int(work["end"].max())))
    expected = {
        "Computing": ours.compute,
        "Communication(Not Overlapped)": ours.exposed_communication,
        "Overlapped": ours.overlapped_communication,
        "Communication": ours.communication,
        "Free": ours.idle + ours.exposed_memory,
    }
    for column, ns in expected.items():
        assert ns / 1000 == pytest.approx(float(told[column]), rel=0.01), column


def test_every_trace_opens_or_says_why_not(shared_traces: Path) -> None:
    """Parts sum to the window in each, and causes to what is not compute."""
    files = [*(shared_traces / "kineto").rglob("*.json*"), *(shared_traces / "cpu_gloo").iterdir()]
    assert len(files) > 15
    for path in files:
        assert_all_adds_up(path)


def test_everything_adds_up_in_our_own_recordings(samples: Path) -> None:
    runs = [path for path in samples.iterdir() if path.is_dir()]
    assert len(runs) > 15
    for path in runs:
        assert report(path)["ranks"], path
        assert_all_adds_up(path)


def assert_all_adds_up(path: Path) -> None:
    found = report(path)
    for rank in found["ranks"]:
        parts: dict[str, Any] = dict(rank["breakdown_ns"])
        assert sum(parts.values()) == rank["window_ns"], path
        assert sum(dict[str, Any](rank["recorded_breakdown_ns"]).values()) == rank["recorded_ns"], path
        told = rank["stall_ns"]
        causes = [
            *told["cpu"].values(),
            *told["communication"].values(),
            *told["memory"].values(),
            told["unattributed"],
        ]
        assert sum(causes) == rank["window_ns"] - parts["compute"], path
        own = [step for step in found["steps"] if (step["rank"], step["device"]) == (rank["rank"], rank["device"])]
        assert not own or sum(step["dur_ns"] for step in own) == rank["recorded_ns"], path
        steady = [step["dur_ns"] for step in own if step["role"] == "steady"]
        assert len(steady) < 2 or (len(steady), sum(steady)) == (rank["steps"], rank["window_ns"]), path
    assert not [entry for entry in found["analyzers"] if entry["status"] == "failed"], path


def test_cpu_training_with_gloo(shared_traces: Path) -> None:
    """Ranks of one host; pipeline stages wait for each other, others for the collective's last rank."""
    causes = {mode: report(shared_traces / "cpu_gloo" / mode)["verdict"]["cause"] for mode in ("pp", "ddp")}
    assert causes["pp"] == "pipeline_bubble"
    assert causes["ddp"] in ("straggler", "latency")


def test_samples_have_the_fault_that_was_injected(samples: Path) -> None:
    """sample_traces/MANIFEST.md: what was injected into each recording."""
    verdicts = {name: report(samples / name)["verdict"] for name in ("ddp_healthy", "ddp_slow_loader", "ddp_slow_rank")}
    assert verdicts["ddp_slow_loader"]["cause"] == "input"
    assert verdicts["ddp_slow_rank"]["cause"] == "straggler"
    assert verdicts["ddp_healthy"]["bound_by"] == "compute"
    assert [entry["rank"] for entry in report(samples / "ddp_slow_rank")["stragglers"]] == [1]
