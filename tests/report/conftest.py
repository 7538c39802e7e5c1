"""Reports written out by hand, for the renderers; the numbers of each rank and step add up."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import reports
from helpers.reports import parts

from gpuscope.report.view.report_rows import with_per_step
from gpuscope.schema.document import KernelEntry, Report, StragglerEntry

MS = 1_000_000
EPOCH = 1_694_128_201_000_000_000


def rank(
    number: int, breakdown: dict[str, int], steps: int, stalls: dict[str, dict[str, int]], **more: Any
) -> dict[str, Any]:
    exposed = breakdown["exposed_communication"]
    return (
        reports.rank_entry(number, sum(breakdown.values()), steps)
        | {
            "device": number % 8,
            "device_name": "NVIDIA A100-SXM4-80GB",
            "start_ns": EPOCH,
            "recorded_breakdown_ns": breakdown,
            "breakdown_ns": breakdown,
            "communication_ns": exposed,
            "overlap_frac": 0.0 if exposed else None,
            "stall_ns": {"cpu": {}, "communication": {}, "memory": {}, "unattributed": 0} | stalls,
        }
        | more
    )


def steps_of(ranks: list[dict[str, Any]], bound_by: str, cause: str | None) -> list[dict[str, Any]]:
    """Steps of equal length."""
    found = []
    for entry in ranks:
        number = entry["steps"]
        each = {name: ns // number for name, ns in entry["breakdown_ns"].items()}
        dur = sum(each.values())
        found += [
            {
                "step": i,
                "rank": entry["rank"],
                "device": entry["device"],
                "role": "steady",
                "start_ns": entry["start_ns"] + i * dur,
                "dur_ns": dur,
                "breakdown_ns": each,
                "bound_by": bound_by,
                "cause": cause,
            }
            for i in range(number)
        ]
    return found


def kernel(name: str, category: str, count: int, dur_ns: int, share: float, rate: float | None = None) -> KernelEntry:
    mean = dur_ns // count
    return KernelEntry(
        name=name,
        category=category,
        count=count,
        dur_ns=dur_ns,
        mean_ns=mean,
        operator=None,
        min_ns=mean,
        max_ns=mean,
        share_frac=share,
        flops_per_s=rate,
        precision=None,
        peak_frac=None,
    )


def straggler(rank: int, caused_ms: int, phase: str | None) -> StragglerEntry:
    """A rank that is consistently last, by its own delay."""
    ns = caused_ms * MS
    return StragglerEntry(
        rank=rank,
        caused_wait_ns=ns,
        caused_wait_ns_per_step=ns // 10,
        per_step_ns=ns // 10,
        root_wait_ns=ns,
        phase=phase,
        operation=None,
        recurrent=True,
        reason=None,
        reason_why="",
    )


def source(path: str, rank: int | None, events: int) -> dict[str, Any]:
    return {
        "path": path,
        "format": "kineto",
        "format_version": "1",
        "rank": rank,
        "ranks": [] if rank is None else [rank],
        "events": events,
    }


def report(ranks: list[dict[str, Any]], verdict: dict[str, Any], world_size: int | None = None, **more: Any) -> Report:
    made: Any = reports.report(ranks=len(ranks))
    made["trace"] |= {
        "sources": [source(f"run/rank{entry['rank']}.json.gz", entry["rank"], 1000) for entry in ranks],
        "world_size": world_size,
        "world_basis": None if world_size is None else "distributed_info",
        "program": None,
    }
    made["verdict"] |= {"bound_by": None, "share_frac": 0.0, "confidence": 0.0} | verdict
    first = [entry["dur_ns"] / MS for entry in more.get("steps", []) if entry["rank"] == 0]
    made |= {
        "ranks": ranks,
        "step_time": reports.step_time(first),
        "steps_basis": None,
        "steps_provenance": None,
        "rank_steps": [],
        "advice": {"why": "", "unpredicted": []},
    } | more
    step = made["step_time"]["median_ns"] if first else None
    made["findings"] = [with_per_step(one, step) for one in made["findings"]]
    return made  # type: ignore[no-any-return]


@pytest.fixture
def healthy() -> Report:
    """One GPU, five steps of 100 ms, 95 % compute."""
    stalls = {"cpu": {"launch": 20 * MS}, "memory": {"copy": 5 * MS}}
    ranks = [rank(0, parts(475 * MS, 0, 5 * MS, 20 * MS), 5, stalls)]
    gemm = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
    return report(
        ranks,
        {"bound_by": "compute", "share_frac": 0.95, "confidence": 0.9, "why": "No other class takes 10 %."},
        world_size=1,
        steps=steps_of(ranks, "compute", None),
        steps_basis="ProfilerStep",
        kernels=[
            kernel(gemm, "gemm", 500, 300 * MS, 0.625, 2.1e14),
            kernel("Memcpy HtoD (Pinned -> Device)", "memcpy", 5, 5 * MS, 0.0104),
        ],
        analyzers=[{"name": "breakdown", "status": "ok", "why": ""}],
    )


def _waiting_rank(number: int) -> dict[str, Any]:
    exposed, idle = (80 - 10 * number) * MS, (340 + 10 * number) * MS
    stalls = {
        "cpu": {"input": 310 * MS, "launch": (30 + 10 * number) * MS},
        "communication": {"bandwidth": exposed},
    }
    return rank(
        number,
        parts(580 * MS, exposed, 0, idle),
        10,
        stalls,
        communication_ns=200 * MS,
        overlapped_communication_ns=200 * MS - exposed,
        overlap_frac=1 - exposed / (200 * MS),
    )


@pytest.fixture
def input_bound() -> Report:
    """Two ranks, ten steps of 100 ms, 31 % of the time waiting for the data loader."""
    ranks = [_waiting_rank(number) for number in (0, 1)]
    wait = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    fill = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
        "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
    )
    evidence = [
        {
            "rank": number,
            "start_ns": EPOCH + at * MS + 250,
            "dur_ns": 31 * MS,
            "name": wait,
            "note": f"step {at // 100}",
        }
        for number in (0, 1)
        for at in (160, 260, 360)
    ]
    made = report(
        ranks,
        {
            "bound_by": "cpu",
            "cause": "input",
            "share_frac": 0.345,
            "confidence": 0.8,
            "why": "The GPUs are idle for 34.5 % of the window, mostly while a batch is made.",
        },
        world_size=2,
        steps=steps_of(ranks, "cpu", "input"),
        steps_basis="ProfilerStep",
        collectives=[
            {
                "op": "all_reduce",
                "group": "0 (default_pg)",
                "count": 40,
                "bytes": 1_048_576_000,
                "dur_ns": 400 * MS,
                "wait_ns": 20 * MS,
                "transfer_ns": 190 * MS,
                "algbw_gbps": 5.519,
                "busbw_gbps": 5.519,
            }
        ],
        stragglers=[straggler(1, 20, "forward")],
        rank_steps=[
            {"rank": rank, "step": 0, "step_ns": 100 * MS, "wait_caused_ns": made * MS, "wait_suffered_ns": lost * MS}
            for rank, made, lost in ((0, 0, 20), (1, 20, 0))
        ],
        kernels=[
            kernel(nccl, "communication", 80, 400 * MS, 0.256),
            kernel(fill, "elementwise", 12000, 100 * MS, 0.064),
        ],
        findings=[
            {
                "code": "input",
                "severity": "high",
                "ranks": [0, 1],
                "cost_ns_per_step": 31 * MS,
                "message": "In every step the GPU has nothing to do while a batch is made.",
                "cost_ns": 620 * MS,  # 10 steps on 2 ranks
                "share_frac": 0.31,
                "evidence": evidence,
            }
        ],
        suggestions=[
            {
                "code": "more_workers",
                "finding": "input",
                "action": "Load batches in worker processes.",
                "why": "Batches are made on the training thread, one after the other.",
                "setting": {"kind": "python", "name": "DataLoader(num_workers)", "value": "4"},
                "predicted": {
                    "step_ns_before": 100 * MS,
                    "step_ns_after": 69 * MS,
                    "low_ns": 69 * MS,
                    "high_ns": 80 * MS,
                    "basis": "the step without waits for input",
                },
                "risk": "Four more processes per rank need memory.",
                "verify": "Record again: input should fall below 3 % of the step.",
            }
        ],
        problems=[
            {
                "severity": "data_loss",
                "code": "unpaired",
                "count": 12,
                "message": "kernels without a launch in run/rank1.json.gz",
            }
        ],
        analyzers=[
            {"name": "breakdown", "status": "ok", "why": ""},
            {"name": "flops", "status": "skipped", "why": "no shapes recorded: use record_shapes=True"},
        ],
    )
    made["trace"]["clock_error_ns"] = 12_400
    return made


@pytest.fixture
def abstained() -> Report:
    """No device event at all."""
    why = (
        "The trace holds no device events, so nothing can be said about the GPU. "
        "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
    )
    none = {"severity": "error", "code": "no_device_events", "count": 1, "message": "no device events in a.json"}
    made: Any = report(
        [],
        {"abstained": True, "why": why},
        problems=[none],
        analyzers=[{"name": "breakdown", "status": "skipped", "why": "no device events"}],
    )
    made["trace"]["sources"] = [source("a.json", None, 12)]
    return made  # type: ignore[no-any-return]


@pytest.fixture
def many_ranks() -> Report:
    """Synthetic: 64 ranks, rank r computes 400 + r ms of 1 s and waits for the rest."""
    ranks = [
        rank(
            number,
            parts((400 + number) * MS, (600 - number) * MS),
            4,
            {"communication": {"straggler": (400 - number) * MS, "bandwidth": 200 * MS}},
        )
        for number in range(64)
    ]
    made = report(
        ranks,
        {
            "bound_by": "communication",
            "cause": "straggler",
            "share_frac": 0.5685,
            "confidence": 0.7,
            "why": "Synthetic: ranks wait for rank 63.",
        },
        world_size=64,
        steps=steps_of(ranks, "communication", "straggler"),
        steps_basis="ProfilerStep",
        stragglers=[straggler(63, 9000, None)],
    )
    made["trace"]["clock_error_ns"] = 3_000
    return made


HOSTILE = "<script>alert(1)</script>\x1b[2J\x1b]0;owned\x07[bold red]x[/bold red]\r\n\x9b31m\u202e\udc80:smile: 漢字"


@pytest.fixture
def hostile(input_bound: Report) -> Report:
    """Every string that a trace can choose holds escapes, markup, HTML and characters of width 0 and 2."""
    input_bound["findings"][0]["message"] = HOSTILE
    input_bound["findings"][0]["evidence"][0]["name"] = HOSTILE * 5
    input_bound["findings"][0]["evidence"][0]["note"] = HOSTILE
    input_bound["kernels"][0]["name"] = HOSTILE * 5
    input_bound["collectives"][0]["op"] = HOSTILE
    input_bound["collectives"][0]["group"] = HOSTILE
    input_bound["stragglers"][0]["phase"] = HOSTILE
    input_bound["problems"][0]["message"] = HOSTILE
    input_bound["verdict"]["why"] = HOSTILE
    input_bound["ranks"][0]["device_name"] = HOSTILE
    input_bound["trace"]["sources"][0]["path"] = HOSTILE
    input_bound["steps_basis"] = HOSTILE
    return input_bound
