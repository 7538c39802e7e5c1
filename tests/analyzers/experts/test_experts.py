"""What uneven routing costs and what another gives, on generated jobs; uneven all-to-alls, bytes by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from helpers.collectives import collective, run_of
from helpers.kineto import Event, call, kernel, note, op
from rich.console import Console

import gpuscope
from gpuscope.analyzers.experts.experts import first_layer, loads, placed
from gpuscope.report.terminal import report_text

RANKS, LAYERS, STEPS = 4, 2, 8
TOKENS = 4096
"""That each rank sends in a pass; one token is an element here."""
FIXED, EACH, SENDING = 20.0, 0.25, 0.05
"""µs: of a pass through the experts, of a token in it, of a token on its way."""
DENSE = 400.0
WIDTH = 16
"""Elements of a token where shapes tell its experts."""

Loads = list[list[list[int]]]
"""By step, layer and rank."""


def routed(seed: int) -> Loads:
    """Tokens of each rank by a random router: in each step others have the same numbers, so all steps are alike."""
    draw = random.Random(seed)
    layers = []
    for _ in range(LAYERS):
        parts = [draw.uniform(0.4, 2.2) for _ in range(RANKS)]
        own = [int(RANKS * TOKENS * part / sum(parts)) for part in parts]
        layers.append([*own[:-1], RANKS * TOKENS - sum(own[:-1])])
    return [[draw.sample(own, RANKS) for own in layers] for _ in range(STEPS)]


def job(
    loads: Loads, slow: dict[int, float] | None = None, experts: Sequence[Sequence[int]] = ()
) -> tuple[list[list[Event]], list[float]]:
    """Events of each rank, and µs of each step. Every rank waits for the others in each all-to-all; `slow` ranks
    take so many µs more in each pass; shapes tell the tokens of each rank's `experts`."""
    events: list[list[Event]] = [[] for _ in range(RANKS)]
    at = [0.0] * RANKS
    seq, launched, host = 0, [0] * RANKS, [0] * RANKS
    begun, lengths = 0.0, []

    def launch(rank: int) -> int:
        """A call that launches what comes next, long before it runs."""
        launched[rank] += 1
        events[rank].append(call(host[rank], 1, launched[rank]))
        host[rank] += 2
        return launched[rank]

    def exchange(elements: list[tuple[int, int]], most: int) -> None:
        nonlocal seq
        end = max(at) + 5 + SENDING * most
        for rank, (sent, received) in enumerate(elements):
            counts: dict[str, Any] = {"In msg nelems": sent, "Out msg nelems": received}
            events[rank].append(
                collective(
                    round(at[rank]), round(end) - round(at[rank]), 0, seq, RANKS, "alltoall", launch(rank), **counts
                )
            )
            at[rank] = round(end)
        seq += 1

    def compute(rank: int, took: float) -> None:
        events[rank].append(kernel(round(at[rank]), round(took), launch(rank), "gemm"))
        at[rank] = round(at[rank]) + round(took)

    for step, layers in enumerate(loads):
        begun = max(at)
        for rank in range(RANKS):
            at[rank], host[rank] = begun, round(begun) + 2
        for load in layers:
            for rank in range(RANKS):
                compute(rank, DENSE)
            exchange([(TOKENS, own) for own in load], max(*load, TOKENS))
            for rank, own in enumerate(load):
                for tokens in experts[rank] if experts else ():
                    events[rank].append(op(host[rank], 1, **{"Input Dims": [[tokens, WIDTH], [WIDTH, WIDTH]]}))
                    host[rank] += 2
                compute(rank, FIXED + EACH * own + (slow or {}).get(rank, 0.0))
            exchange([(own, TOKENS) for own in load], max(*load, TOKENS))
        end = max(at)
        for rank in range(RANKS):
            launched[rank] += 1
            events[rank].append(call(host[rank], round(end) - host[rank], launched[rank], "cudaDeviceSynchronize"))
            events[rank].append(note(round(begun), round(end - begun), f"ProfilerStep#{step}"))
        lengths.append(end - begun)
    return events, lengths


def analysed(folder: Path, loads: Loads, slow: dict[int, float] | None = None) -> dict[str, Any]:
    folder.mkdir()
    return gpuscope.analyze(run_of(folder, *job(loads, slow)[0], compute=False)).report


def mean_of(report: dict[str, Any], lengths: list[float]) -> float:
    """ns of the mean judged step."""
    judged = [one["step"] for one in report["steps"] if one["rank"] == 0 and one["role"] == "steady"]
    return 1000 * fmean(lengths[step] for step in judged)


def even(loads: Loads) -> Loads:
    return [[[TOKENS] * RANKS for _ in layers] for layers in loads]


def capped(factor: float) -> Callable[[Loads], Loads]:
    return lambda loads: [[[min(own, round(factor * TOKENS)) for own in load] for load in layers] for layers in loads]


@pytest.mark.parametrize("seed", range(4))
def test_even_routing_and_capacities_are_predicted(tmp_path: Path, seed: int) -> None:
    loads = routed(seed)
    report = analysed(tmp_path / "uneven", loads)
    before = fmean(job(loads)[1])
    for gain in report["experts"]["gains"]:
        other = even(loads) if gain["capacity_factor"] is None else capped(gain["capacity_factor"])(loads)
        after = fmean(job(other)[1])
        predicted = gain["predicted"]["step_ns_after"] / gain["predicted"]["step_ns_before"]
        assert predicted == pytest.approx(after / before, rel=0.02)


@pytest.mark.parametrize("seed", range(4))
def test_the_cost_of_imbalance_is_apart_from_a_slow_rank(tmp_path: Path, seed: int) -> None:
    """The truth: the step less that with even routing; a slow rank's time is none of it."""
    loads = routed(seed)
    recorded, balanced, slow = (job(*given)[1] for given in ((loads,), (even(loads),), (loads, {2: 3000.0})))
    alone = analysed(tmp_path / "alone", loads)
    truth = mean_of(alone, recorded) - mean_of(alone, balanced)
    assert alone["experts"]["cost"]["imbalance_ns"] == pytest.approx(truth, rel=0.05)
    assert alone["experts"]["cost"]["straggler_ns"] < 0.02 * truth
    beside = analysed(tmp_path / "beside", loads, {2: 3000.0})
    own = mean_of(beside, slow) - mean_of(beside, recorded)
    assert beside["experts"]["cost"]["straggler_ns"] == pytest.approx(own, rel=0.05)
    assert beside["experts"]["cost"]["imbalance_ns"] == pytest.approx(truth, rel=0.05)


def test_the_finding_costs_what_even_routing_saves(tmp_path: Path) -> None:
    loads = [[[8192, 4096, 2048, 2048]] * LAYERS] * STEPS
    report = analysed(tmp_path / "run", loads)
    (finding,) = (one for one in report["findings"] if one["code"] == "expert_imbalance")
    assert finding["ranks"] == [0]
    assert finding["cost_ns_per_step"] == report["experts"]["cost"]["imbalance_ns"]
    rank = report["experts"]["ranks"][0]
    assert (rank["load"], rank["bytes_per_step"]) == (2.0, 8192 * 4 * LAYERS)
    assert [one["busiest"] for one in report["experts"]["passes"]] == [0, 0]


def test_even_routing_costs_nothing(tmp_path: Path) -> None:
    report = analysed(tmp_path / "run", even(routed(0)))
    assert report["experts"]["cost"]["imbalance_ns"] == 0
    assert report["experts"]["gains"] == []
    assert not {"even_routing", "capacity_factor"} & {one["code"] for one in report["suggestions"]}


def test_other_placements_are_predicted(tmp_path: Path) -> None:
    """Three experts on each of four ranks, in the order of their tokens: by hand they would stand apart."""
    experts = [[200, 180, 160], [120, 100, 84], [60, 40, 30], [20, 16, 14]]
    apart = [[200, 40, 20], [180, 60, 16], [160, 84, 14], [120, 100, 30]]

    def routed_to(held: Sequence[Sequence[int]]) -> Loads:
        return [[[WIDTH * sum(own) for own in held]] * LAYERS] * STEPS

    (tmp_path / "run").mkdir()
    events, lengths = job(routed_to(experts), experts=experts)
    section = gpuscope.analyze(run_of(tmp_path / "run", *events, compute=False)).report["experts"]
    assert [one["tokens"] for one in section["passes"]] == [experts] * LAYERS
    gains = {one["kind"]: one["predicted"] for one in section["gains"]}
    placement = gains["placement"]["step_ns_after"] / gains["placement"]["step_ns_before"]
    assert placement == pytest.approx(fmean(job(routed_to(apart))[1]) / fmean(lengths), rel=0.02)
    assert gains["even"]["step_ns_after"] <= gains["redundant"]["step_ns_after"] <= gains["placement"]["step_ns_after"]


def test_copies_of_busy_experts_even_loads_out() -> None:
    """One expert with half of all tokens can't stand anywhere; with a copy on each rank it can."""
    tokens = np.array([700, 100, 100, 100, 100, 100, 100, 100])
    alone, copied = (loads(tokens.reshape(4, 2), placed(tokens, 4, copies)) for copies in (0, 4))
    assert alone.max() == pytest.approx(800 / 1400)
    assert copied.max() < 0.3
    assert copied.sum() == pytest.approx(1.0)


def test_two_weights_of_one_shape_count_once() -> None:
    """Gate and up projections are alike: expert by expert, or all gates first."""
    for rows in ([5, 5, 7, 7], [5, 7, 5, 7]):
        products = np.array([[tokens, 16, 32] for tokens in rows] + [[5, 32, 16], [7, 32, 16]])
        assert first_layer(products, 12 * 16 * 4, 4).tolist() == [5, 7]
    assert first_layer(np.array([[5, 16, 32]]), 12 * 16 * 4, 4) is None


def exchanged(*own: list[tuple[int, int]]) -> list[list[Event]]:
    """All-to-alls of each rank, one after the other: elements sent and received."""
    return [
        [
            note(0, 100 * len(of_rank), "ProfilerStep#0"),
            *(
                collective(100 * seq, 50, 0, seq, op="alltoall", **{"In msg nelems": sent, "Out msg nelems": received})
                for seq, (sent, received) in enumerate(of_rank)
            ),
        ]
        for of_rank in own
    ]


def test_overlapping_micro_batches_are_told(tmp_path: Path) -> None:
    """Two dispatches, then their combines: by what each brings back; another routing is not replayed."""
    ranks = exchanged(
        [(1000, 500), (1000, 1700), (500, 1000), (1700, 1000)], [(1000, 1500), (1000, 300), (1500, 1000), (300, 1000)]
    )
    section = gpuscope.analyze(run_of(tmp_path, *ranks)).report["experts"]
    assert (section["overlapping"], section["left_out"]) == (2, 0)
    assert [one["loads"] for one in section["passes"]] == [[0.5, 1.5], [1.7, 0.3]]
    assert [one["predicted"] for one in section["gains"]] == [None] * len(section["gains"])


def test_routing_weights_beside_tokens_are_left_out(tmp_path: Path) -> None:
    """Megatron sends the weights of tokens in an all-to-all of their own, forward, and their gradients back."""
    ranks = exchanged(
        [(1000, 500), (10, 5), (500, 1000), (1000, 500), (500, 1000), (5, 10)],
        [(1000, 1500), (10, 15), (1500, 1000), (1000, 1500), (1500, 1000), (15, 10)],
    )
    section = gpuscope.analyze(run_of(tmp_path, *ranks)).report["experts"]
    assert (len(section["passes"]), section["overlapping"], section["left_out"]) == (2, 0, 4)


def test_a_balanced_router_is_suggested_with_its_gain(tmp_path: Path) -> None:
    report = analysed(tmp_path / "run", [[[8192, 4096, 2048, 2048]] * LAYERS] * STEPS)
    (told,) = (one for one in report["suggestions"] if one["code"] == "even_routing")
    assert told["setting"]["name"] == "moe_aux_loss_coeff"
    assert told["predicted"] == report["experts"]["gains"][0]["predicted"]
    limits = [one for one in report["suggestions"] if one["code"] == "capacity_factor"]
    assert [one["setting"]["name"] for one in limits] == ["moe_expert_capacity_factor"]


def test_the_section_is_shown(tmp_path: Path) -> None:
    loads = [[[8192, 4096, 2048, 2048]] * LAYERS] * STEPS
    folder = tmp_path / "run"
    folder.mkdir()
    analysis = gpuscope.analyze(run_of(folder, *job(loads)[0], compute=False))
    file = StringIO()
    report_text.render(analysis.report, Console(file=file, width=120, _environ={}))
    text = file.getvalue()
    assert "load, times the mean: rank 0 2.00, rank 1 1.00, rank 2 0.50, rank 3 0.50" in text
    assert "even routing: step" in text
    assert "capacity factor 1.25, which drops 18.8 % of the tokens" in " ".join(text.split())


def findings(folder: Path) -> list[tuple[list[int], str]]:
    report = gpuscope.analyze(folder).report
    return [(one["ranks"], one["message"]) for one in report["findings"] if one["code"] == "expert_imbalance"]


def test_the_rank_with_more_tokens_is_named(tmp_path: Path) -> None:
    """Two all-to-alls; rank 1 receives 3 × 4 KiB each, rank 0 4 KiB: 1.5 times the mean."""
    ranks = [
        [
            collective(ts, 50, 8192, seq, op="alltoall", **{"Out msg nelems": elements})
            for seq, ts in enumerate((100, 300))
        ]
        for elements in (1024, 3072)
    ]
    ((named, message),) = findings(run_of(tmp_path, *ranks))
    assert named == [1]
    assert "1.5 times the mean" in message


@pytest.mark.parametrize("second", [1024, 1228])
def test_even_and_nearly_even_ones_are_not(tmp_path: Path, second: int) -> None:
    """1,228 of a mean of 1,126 elements is 1.09 times."""
    ranks = [
        [collective(100, 50, 8192, 0, op="alltoall", **{"Out msg nelems": elements})] for elements in (1024, second)
    ]
    assert findings(run_of(tmp_path, *ranks)) == []
