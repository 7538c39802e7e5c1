"""Each change on a job small enough to replay by hand: program, change, step time in ns."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.jobs import Host, Issue, Launch, Program, Step, Wait, job, steps

from gpuscope.analyzers.replay.graph import Gradient, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import CoreUse, Setting
from gpuscope.analyzers.replay.rewrites.loader_workers import as_they_came
from gpuscope.analyzers.replay.rewrites.rewrite_table import rewrite
from gpuscope.analyzers.replay.rewrites.transfer_cost import waited_for
from gpuscope.analyzers.what_if_changes import (
    BucketSize,
    CapturedGraphs,
    Change,
    CopyStream,
    EvenStages,
    GroupModules,
    KeepParameters,
    LinkSpeed,
    LoaderWorkers,
    MoreLoaderWorkers,
    MoreRanks,
    NoAllocatorStalls,
    NoCollector,
    NoHostWork,
    OtherLink,
    Overlap,
    PinnedCopies,
    Prefetch,
    RemovedSyncs,
    ReplacedRank,
    SharedWork,
    WireBytes,
)
from gpuscope.collective_costs.message_cost import assume
from gpuscope.trace.schema import Kind

ALL_RANKS = Setting(backend="gloo", gpu="", complete=True, cores_known=True)
ON_GPU = Setting(backend="nccl", gpu="NVIDIA A100", complete=True)


def after(graph: Graph, change: Change, setting: Setting = ALL_RANKS, bias: int = 0) -> int:
    (step,) = steps(rewrite(graph, change, replace(setting, bias=bias)).graph)
    return step


@pytest.mark.parametrize(
    ("change", "part"), [(NoCollector(), "gc"), (NoAllocatorStalls(), "allocator"), (NoHostWork(), "host_other")]
)
def test_a_part_of_the_hosts_time_gone(change: Change, part: str) -> None:
    """100 of the host, 30 of it the part, then a kernel of 20: 120 becomes 90."""
    told: dict[str, Any] = {part: 30}
    graph = job([Step(), Host(100, **told), Launch(20), Wait(stream=7), Step()])
    assert (steps(graph), after(graph, change)) == ([120], 90)
    with pytest.raises(UnreplayableError, match="hold no"):
        after(job([Step(), Host(100), Step()]), change)


def test_a_sync_gone_lets_the_host_run_ahead() -> None:
    """10, kernel to 110, wait, 50, kernel 160–180. Without the first wait: host at 60, kernel 110–130."""
    graph = job(
        [
            Step(),
            Host(10),
            Launch(100),
            Wait(stream=7, label="aten::item/cudaStreamSynchronize"),
            Host(50),
            Launch(20),
            Wait(stream=7, label="cudaDeviceSynchronize"),
            Step(),
        ]
    )
    assert (steps(graph), after(graph, RemovedSyncs("aten::item"), ON_GPU)) == ([180], 130)
    # The host needs the value: of the 50 behind the wait, 20 more than usual, it reads it behind the last launch.
    needed = RemovedSyncs("aten::item", needed=True)
    assert [after(graph, needed, ON_GPU, bias=bias) for bias in (-1, 0)] == [130, 150]
    with pytest.raises(UnreplayableError, match="no blocking call of aten::nonzero"):
        after(graph, RemovedSyncs("aten::nonzero"), ON_GPU)


def test_captured_graphs_launch_without_the_host() -> None:
    """Two kernels of 10 that the host takes 40 each to launch: 90. Captured, both are launched by one call of 30 µs."""
    graph = job([Step(), Host(40), Launch(10), Host(40), Launch(10), Wait(stream=7), Step()])
    assert (steps(graph), after(graph, CapturedGraphs(), ON_GPU)) == ([90], 30_020)
    with pytest.raises(UnreplayableError, match="without a device"):
        after(job([Step(), Host(40), Step()]), CapturedGraphs())


@pytest.mark.parametrize(
    ("told", "bias", "step"),
    [
        ({"unlaunching": 30}, 0, 30_040),
        ({"optimizing": 35}, 0, 30_020),
        ({"optimizing": 35}, 1, 90),
    ],
)
def test_no_graph_holds_what_launches_nothing(told: dict[str, int], bias: int, step: int) -> None:
    """Of the 40 before the second kernel 30 launch nothing; an optimizer is at worst not captured."""
    graph = job([Step(), Host(40), Launch(10), Host(40, **told), Launch(10), Wait(stream=7), Step()])
    assert after(graph, CapturedGraphs(), ON_GPU, bias=bias) == step


@pytest.mark.parametrize(("bias", "step"), [(-1, 30), (0, 60_040)])
def test_another_thread_launches_a_graph_of_its_own(bias: int, step: int) -> None:
    """Of the 70 before the third kernel 30 are the change of threads, and launching takes 30 µs; at best one graph
    holds the whole step."""
    graph = job(
        [
            Step(),
            Host(40),
            Launch(10),
            Host(40),
            Launch(10),
            Host(70, thread=1),
            Launch(10),
            Wait(stream=7),
            Step(),
        ]
    )
    assert after(graph, CapturedGraphs(), ON_GPU, bias=bias) == step


def test_a_slow_host_launches_graphs_as_slowly() -> None:
    """Rank 2 takes twice as long for a launch, so 60 µs for a graph."""
    ranks = [
        [Step(), Host(ns), Launch(10), Host(ns), Launch(10), Host(ns, thread=1), Launch(10), Wait(stream=7), Step()]
        for ns in (40, 40, 80)
    ]
    graph = rewrite(job(*ranks), CapturedGraphs(), ON_GPU).graph
    assert [steps(graph, rank) for rank in range(3)] == [[60_010], [60_010], [120_010]]


@pytest.mark.parametrize(("call", "step"), [("cudaDeviceSynchronize", 100), ("cudaStreamSynchronize", 10)])
def test_a_wait_for_the_device_is_for_collectives_issued_before_it(call: str, step: int) -> None:
    graph = job([Step(), Launch(10), Issue("all_reduce", 8, 100), Wait(stream=7, label=call), Step()])
    assert (steps(graph), steps(waited_for(graph))) == ([10], [step])


def test_a_pinned_copy_goes_beside_compute() -> None:
    """Kernel 0–100, a copy behind it to 140 that blocks the host, then 10 of host and a kernel of 20: 170.
    Pinned, the copy runs 0–40, the host is at 10, the kernel runs 100–120."""
    graph = job(
        [
            Step(),
            Launch(100),
            Launch(40, copy="HtoD pageable"),
            Wait(stream=7, label="aten::to/cudaMemcpyAsync"),
            Host(10),
            Launch(20),
            Wait(stream=7, label="cudaDeviceSynchronize"),
            Step(),
        ]
    )
    assert (steps(graph), after(graph, PinnedCopies(), ON_GPU)) == ([170], 120)


def test_loader_workers_load_beside_the_step() -> None:
    """A batch takes 90 ms, the rest 30: 120. Two workers bring one every 45, four one every 23: 45 and 30, and the
    hand-over of up to 1 ms, 0.1 expected."""
    ms = 1_000_000
    graph = job([Step(), Host(90 * ms, input=90 * ms), Host(30 * ms), Step()])
    assert after(graph, LoaderWorkers(2)) == 45.1 * ms
    with pytest.raises(UnreplayableError, match="num_workers=0"):
        after(graph, LoaderWorkers(2), replace(ALL_RANKS, loader_processes=True))
    assert [after(graph, LoaderWorkers(4), bias=bias) for bias in (-1, 0, 1)] == [30 * ms, 30.1 * ms, 31 * ms]


@pytest.mark.parametrize(
    ("threads", "asleep", "steps_ms"),
    [
        (2, 0, [75, 120.1, 211]),  # no core free, all computing: half of it, all of it, twice
        (2, 90, [45, 45, 45]),  # all sleeping: no core is needed
        (2, None, [45, 45, 211]),  # not recorded: at worst all computing
        (1, 0, [45, 90, 90]),  # the one free core makes a batch in 90
    ],
)
def test_what_workers_compute_takes_cores_from_training(
    threads: int, asleep: float | None, steps_ms: list[float]
) -> None:
    """A batch takes 90 ms, the rest 30, on two cores with two workers."""
    ms = 1_000_000
    graph = job([Step(), *(Host(90 * ms, input=90 * ms), Host(30 * ms), Step()) * 6])
    use = CoreUse(2, threads, None if asleep is None else asleep * ms)
    found = [
        steps(rewrite(graph, LoaderWorkers(2), replace(ALL_RANKS, core_use={0: use}, bias=bias)).graph)
        for bias in (-1, 0, 1)
    ]
    assert [sum(own[-4:]) / 4 / ms for own in found] == pytest.approx(steps_ms, abs=0.5)
    more = LoaderWorkers(2, cores=1), replace(ALL_RANKS, core_use={0: use})
    with pytest.raises(UnreplayableError, match="no more workers than cores") if asleep is None else nullcontext():
        rewrite(graph, *more)


def test_workers_that_keep_up_stay_as_they_are() -> None:
    """Two per cent of the time between batches is what taking one costs; on as many cores as there are threads, twice
    the workers of others may at worst deliver no sooner."""
    ms = 1_000_000
    workers = replace(ALL_RANKS, loader_processes=True)
    ready = job([Step(), *(Host(ms, input=ms), Host(49 * ms), Step()) * 4])
    assert steps(rewrite(ready, MoreLoaderWorkers(2.0), workers).graph) == steps(ready)
    late = (Step(), *(Host(40 * ms, input=40 * ms), Host(10 * ms), Step()) * 4)
    in_time = (Step(), *(Host(ms, input=ms), Host(49 * ms), Step()) * 4)
    both = rewrite(job(in_time, late), MoreLoaderWorkers(2.0), workers).graph
    assert (steps(both, 0), steps(both, 1)[-1]) == ([50 * ms] * 4, 25 * ms)
    behind = job(late)
    held = replace(workers, core_use={0: CoreUse(2, 2, None)}, bias=1)
    assert steps(rewrite(behind, MoreLoaderWorkers(2.0), held).graph)[-1] >= 50 * ms


def test_batches_of_busy_workers_come_no_sooner_for_a_host_that_asks_sooner() -> None:
    """A batch every 50 ms, 30 of them waited for. Without the 10 of the collector the thread waits 40; without
    that of a rank whose loader is replaced, the step is that much shorter. One that was there at once binds nobody."""
    ms = 1_000_000
    waited = job([Step(), *(Host(30 * ms, input=30 * ms), Host(20 * ms, gc=10 * ms), Step()) * 4])
    ready = job([Step(), *(Host(50_000, input=50_000), Host(20 * ms, gc=10 * ms), Step()) * 4])
    assert steps(as_they_came(waited, ()).graph) == [50 * ms] * 4
    for graph, but, last in ((waited, (), 50 * ms), (waited, (0,), 40 * ms), (ready, (), 10 * ms + 50_000)):
        assert steps(rewrite(as_they_came(graph, but).graph, NoCollector(), ALL_RANKS).graph)[-1] == last


def test_workers_waited_for_once_may_be_no_faster_than_asked() -> None:
    """A batch every 20 ms, one in four waited for, 2 ms: without the 10 of the collector in each step they may come
    sooner, or not, and the lack is told. Where none was waited for, it is how many a second were seen to come."""
    ms = 1_000_000
    ready, late = (
        (Host(50_000, input=50_000), Host(20 * ms, gc=10 * ms)),
        (Host(2 * ms, input=2 * ms), Host(18 * ms, gc=10 * ms)),
    )
    once = job([Step(), *(*ready, Step()) * 3, *late, Step()])
    free, held = (
        steps(rewrite((found := as_they_came(once, (), bias)).graph, NoCollector(), ALL_RANKS).graph) for bias in (0, 1)
    )
    assert (sum(free), sum(held)) == (40 * ms + 150_000, 70 * ms + 150_000)
    assert "faster than they were asked" in found.lacking
    never = as_they_came(job([Step(), *(*ready, Step()) * 4]), (), 1)
    assert (never.lacking, "49.9 batches/s" in never.basis) == ("", True)


def test_twice_the_workers_deliver_twice_as_often() -> None:
    """A batch every 50 ms, 40 of them waited for: one every 25 then, with four times as many one every 12.5, and
    never sooner than the 10 that the rest takes, with 0.1 to take a batch."""
    ms = 1_000_000
    batch = (Host(40 * ms, input=40 * ms), Host(10 * ms), Step())
    graph, workers = job([Step(), *batch * 4]), replace(ALL_RANKS, loader_processes=True)
    for times, last in ((2.0, 25.0), (4.0, 12.5), (8.0, 10.1)):
        assert steps(rewrite(graph, MoreLoaderWorkers(times), workers).graph)[-1] == last * ms
    with pytest.raises(UnreplayableError, match="no workers yet"):
        after(graph, MoreLoaderWorkers(2.0))


def test_how_long_batches_take_is_known_as_well_as_their_mean() -> None:
    """Batches of 80 and 100 ms for one worker: 90 expected, and by Student's t for one degree of freedom, of two such
    means, anything from none to more than the step has now. Each takes as long: nothing else is possible."""
    ms = 1_000_000

    def mean(first: int, second: int, bias: int) -> float:
        batches = [part for load in (first, second, first) for part in (Host(load, input=load), Host(10 * ms), Step())]
        found = steps(rewrite(job([Step(), *batches]), LoaderWorkers(1), replace(ALL_RANKS, bias=bias)).graph)
        return sum(found) / len(found)

    even = [mean(90 * ms, 90 * ms, bias) for bias in (-1, 0, 1)]
    uneven = [mean(80 * ms, 100 * ms, bias) for bias in (-1, 0, 1)]
    assert even[2] - even[0] <= 1 * ms
    assert uneven[0] < even[0] - 10 * ms
    assert uneven[2] > even[2] + 10 * ms


def test_a_copy_on_a_stream_of_its_own_runs_beside_kernels() -> None:
    """Two steps launched at 1 and 2: copy 30, kernel 100, then the same: 261 in a row. With the second copy beside the
    first kernel 231."""
    batch = [Step(), Host(1), Launch(30, copy="HtoD"), Launch(100)]
    graph = job([*batch, *batch, Wait(stream=7), Step()])
    assert sum(steps(graph)) == 261
    changed = rewrite(graph, CopyStream(), ON_GPU).graph
    assert sum(steps(changed)) == 231
    with pytest.raises(UnreplayableError, match="no copy"):
        after(job([Step(), Host(1), Launch(100), Wait(stream=7), Step()]), CopyStream(), ON_GPU)


def test_more_data_of_one_rank_shared_by_all() -> None:
    """Rank 1 computes 90 where its two peers compute 30: each of the three takes 20 of the 60 more."""
    program = [
        [Step(), Host(1), Launch(ns), Issue("all_reduce", 8, 5), Wait(calls=(0,)), Wait(stream=7), Step()]
        for ns in (30, 90, 30)
    ]
    graph = job(*program)
    changed = rewrite(graph, SharedWork(1), ON_GPU).graph
    kernels = changed.nodes["dur"][changed.nodes["work"] == Kind.COMPUTE]
    assert kernels.tolist() == [50, 50, 50]


def test_blocking_calls_are_removed_place_by_place() -> None:
    """Two places wait for a kernel of 50 each; the host works 10 before each launch."""
    wait = Wait(stream=7, label="cudaStreamSynchronize")
    graph = job([Step(), Host(10), Launch(50), wait, Host(10), Launch(50), wait, Host(10), Step()])
    places = np.flatnonzero(graph.of(Node.WAIT))
    site = graph.nodes["site"].copy()
    site[places] = range(len(graph.labels), len(graph.labels) + 2)
    graph = replace(graph.with_nodes(site=site), labels=(*graph.labels, "first", "second"))
    assert after(graph, RemovedSyncs(sites=("first",)), ON_GPU) == 120  # 10 + 50, 50, the host's 10
    assert after(graph, RemovedSyncs(sites=("first", "second")), ON_GPU) == after(graph, RemovedSyncs(), ON_GPU)


def test_a_rank_as_fast_as_its_peers() -> None:
    """Rank 1 takes 60 more before the collective than ranks 0 and 2; all wait for it: 85 becomes 25."""
    graph = job(*([Step(), Host(busy), Issue("all_reduce", 8, 5), Wait(calls=(0,)), Step()] for busy in (20, 80, 20)))
    assert (steps(graph), after(graph, ReplacedRank(1)), after(graph, ReplacedRank(0))) == ([85], 25, 85)
    with pytest.raises(UnreplayableError, match="rank 7"):
        after(graph, ReplacedRank(7))


def test_ranks_that_are_late_together_are_no_peers_of_each_other() -> None:
    """Two of three ranks compute 60 more: alone the median of rank 1's peers would be half as late."""
    graph = job(*([Step(), Host(busy), Issue("all_reduce", 8, 5), Wait(calls=(0,)), Step()] for busy in (20, 80, 80)))
    together = replace(ALL_RANKS, replaced=frozenset((1, 2)))
    for rank in (1, 2):
        graph = rewrite(graph, ReplacedRank(rank), together).graph
    assert steps(graph) == [25]


def backward(*buckets: tuple[int, int, int]) -> list[Program]:
    """Two ranks; (host ns before, bytes, transfer ns) of each gradient bucket, then the wait for all of them."""
    issued: list[Host | Issue] = []
    for busy, size, transfer in buckets:
        issued += [Host(busy), Issue("all_reduce", size, transfer)]
    return [[Step(), *issued, Wait(calls=tuple(range(len(buckets)))), Step()]] * 2


# Over two ranks an all-reduce's bytes cross the bus once: transfers of 1000 + bytes fit exactly.
THREE = backward((5000, 1000, 2000), (1000, 2000, 3000), (1000, 4000, 5000))


def test_one_bucket_for_three() -> None:
    """Issued at 5000, 6000, 7000; transfers 5000–7000, 7000–10000, 10000–15000. In one: issued at 7000, 7000 bytes
    take 8000: 15000. In two of 3000 and 4000: 6000–10000 (4000), 10000–15000."""
    graph = job(*THREE)
    assert steps(graph) == [15000]
    assert after(graph, BucketSize(size=10_000)) == 15000
    assert after(graph, BucketSize(size=3000)) == 15000


def test_buckets_that_cost_mostly_their_fixed_part() -> None:
    """Three sizes with 1000 + bytes each, ready at once: 1000+10, 1000+20, 1000+40 in a row is 3070; in one 1070."""
    graph = job(*backward((500, 10, 1010), (0, 20, 1020), (0, 40, 1040)))
    assert (steps(graph), after(graph, BucketSize(size=1000))) == ([3570], 1570)


def test_a_bucket_cut_is_ready_earlier() -> None:
    """1000 bytes at 1000, 2000 at 2000, 8000 ready evenly from 2000 to 22000 and then sent in 9000: 31000. In buckets
    of at least 2000: 3000 at 2000, then quarters of 8000 at 7000, 12000, 17000, 22000, the last one in 3000: 25000."""
    graph = job(*backward((1000, 1000, 2000), (1000, 2000, 3000), (20000, 8000, 9000)))
    assert (steps(graph), after(graph, BucketSize(size=2000))) == ([31000], 25000)


def test_a_bucket_is_cut_between_its_gradients() -> None:
    """8000 bytes at 22000 of which 6000 were there at 7000: buckets of 2000 hold 3000 at 2000, these 6000 from 7000 to
    14000, and the last 2000, in 3000 from 22000 on."""
    graph = job(*backward((1000, 1000, 2000), (1000, 2000, 3000), (20000, 8000, 9000)))
    held = {1000: (Gradient(1000, 0),), 2000: (Gradient(2000, 0),), 8000: (Gradient(6000, 15000), Gradient(2000, 0))}
    told = replace(graph, calls=tuple(replace(call, gradients=held[call.bytes or 0]) for call in graph.calls))
    found = rewrite(told, BucketSize(size=2000), ALL_RANKS)
    assert steps(found.graph) == [25000]
    assert sorted(call.bytes or 0 for call in found.graph.calls[len(graph.calls) :]) == [
        2000,
        2000,
        3000,
        3000,
        6000,
        6000,
    ]
    assert found.basis.endswith("gradients as they became ready")


def test_fewer_buckets_are_issued_in_less_time() -> None:
    """Of each bucket's time before its issue 300 are the issue: one bucket for three saves 600."""
    graph = job(*backward((500, 10, 1010), (500, 20, 1020), (500, 40, 1040)))
    costly = replace(graph, calls=tuple(replace(call, issue=300) for call in graph.calls))
    one = BucketSize(size=1000)
    assert (after(graph, one), after(costly, one)) == (1500 + 1070, 1500 - 600 + 1070)


def test_gradients_sent_behind_the_backward() -> None:
    """All issued with the last at 7000: 2000 + 3000 + 5000 in a row."""
    assert after(job(*THREE), Overlap(on=False)) == 17000


def test_gradients_sent_as_they_become_ready() -> None:
    """Sent behind 5000 of backward in 2000 and 3000: 10000. Ready at 1000 and 4000: 1000–3000 and 4000–7000."""
    program = [
        Step(),
        Host(5000),
        Issue("all_reduce", 1000, 2000, backward=False),
        Issue("all_reduce", 2000, 3000, backward=False),
        Wait(calls=(0, 1)),
        Step(),
    ]
    graph = job(program, program)
    early = {1000: (Gradient(600, 4500), Gradient(400, 4000)), 2000: (Gradient(2000, 1000),)}
    told = replace(graph, calls=tuple(replace(call, gradients=early[call.bytes or 0]) for call in graph.calls))
    assert (steps(told), after(told, Overlap(), ON_GPU)) == ([10_000], 7000)
    for change in (Overlap(), BucketSize(10_000)):
        with pytest.raises(UnreplayableError, match=r"take cores|gradient communication can"):
            after(told, change, replace(ALL_RANKS, cores_known=False))


def test_buckets_that_are_there_already_change_nothing() -> None:
    """1000 and 1500 bytes are buckets of 1000, whatever cores are waited for."""
    graph = job(*backward((500, 1000, 2000), (500, 1500, 2500)))
    found = rewrite(graph, BucketSize(size=1000), replace(ALL_RANKS, cores_known=False))
    assert found.graph is graph
    assert found.basis == "gradients come in such buckets already"


def test_a_faster_link() -> None:
    """Twice the bandwidth: 1500, 2000, 3000 from 5000 on: 5000–6500–8500–11500. Half the fixed cost: 1500 + 2500 +
    4500 from 5000 on: 13500."""
    graph = job(*THREE)
    assert (after(graph, LinkSpeed(bandwidth=2)), after(graph, LinkSpeed(latency=0.5))) == (11500, 13500)
    assert after(graph, WireBytes(0.5)) == 11500  # half the bytes are twice the bandwidth, where all are gradients


def test_a_slow_link_is_told_from_its_transfers() -> None:
    """One size, so nothing is fitted: of 101 ms gloo's assumed 1 ms is fixed, and the rest the bytes'. On a link ten
    times as fast 1 + 10 ms."""
    ms = 1_000_000
    graph = job(*backward((0, 1_000_000, 101 * ms)))
    assert after(graph, LinkSpeed(bandwidth=10)) == 11 * ms


def test_within_a_host_there_is_no_link() -> None:
    """One size, 10 times gloo's assumed 1 ms and bytes: cores are busy with both, so half the bytes save half of what
    is assumed of them."""
    graph = job(*backward((0, 1_000_000, 10_000_000)))
    alone = after(graph, WireBytes(0.5), replace(ALL_RANKS, one_host=True))
    model = assume("gloo", "", 2)
    assert alone == pytest.approx(10_000_000 * model.expected(500_000) / model.expected(1_000_000), rel=1e-3)
    assert after(graph, WireBytes(0.5)) == 1_000_000 + 4_500_000


def test_a_barrier_gone_lets_ranks_drift() -> None:
    """Rank 0 takes 10 and 30 around the barrier, rank 1 30 and 10: 60 with it, 40 without."""
    barrier = (Issue("barrier", 0, 0, backward=False), Wait(calls=(0,), label="c10d::barrier"))
    graph = job(
        *(
            [Step(), Host(first), *barrier, Host(60 - 20 - first), Issue("all_reduce", 8, 5), Wait(calls=(1,)), Step()]
            for first in (10, 30)
        )
    )
    assert (steps(graph), after(graph, RemovedSyncs("c10d::barrier"))) == ([65], 45)
    unnamed = replace(graph, labels=("",) * len(graph.labels))
    assert after(unnamed, RemovedSyncs("c10d::barrier")) == 45  # a wait behind the call itself


def test_more_ranks() -> None:
    """Four ranks for two: 2·3/4 for 2·1/2 of the bytes is 1.5 times, the fixed part twice (log2), at best as it was, at
    worst three times (a ring of 3 steps for 1) and the bytes by a quarter slower: 5000 + 3·1000·f + 1.5·7000."""
    graph = job(*THREE)
    found = [after(graph, MoreRanks(2), bias=bias) for bias in (-1, 0, 1)]
    assert found == [5000 + 3000 * factor + part for factor, part in ((1, 10500), (2, 10500), (3, 13125))]


def test_more_ranks_over_another_link() -> None:
    """7000 bytes in three messages are 10500 on the bus of four ranks: 2000 each, and a quarter to one byte a ns. A
    ring that leaves its host still goes through it: a faster network changes nothing."""
    graph = job(*THREE)
    slow, fast = OtherLink("all_reduce", 2000, (1.0, 0.5, 0.25)), OtherLink("all_reduce", 0, (9.0, 9.0, 9.0))
    found = [after(graph, MoreRanks(2, (slow,)), bias=bias) for bias in (-1, 0, 1)]
    assert found == pytest.approx([5000 + 6000 + 10500 / rate for rate in (1.0, 0.5, 0.25)], abs=3)
    assert after(graph, MoreRanks(2, (fast,))) == after(graph, MoreRanks(2))


def modules(*gathers: tuple[int, int]) -> list[Program]:
    """Two ranks that gather each module (transfer, compute ns) before computing it, forward and then backward."""
    forward = [
        item
        for place, (transfer, compute) in enumerate(gathers)
        for item in (Issue("all_gather", 64, transfer, backward=False), Wait(calls=(place,)), Host(compute))
    ]
    count = len(gathers)
    back = [
        item
        for place, (transfer, compute) in enumerate(gathers)
        for item in (Issue("all_gather", 64, transfer), Wait(calls=(count + place,)), Host(compute))
    ]
    return [[Step(), *forward, *back, Step()]] * 2


def test_parameters_kept_are_not_gathered_again() -> None:
    """Two modules of 10 + 100 each way: 440; without the backward's gathers 420."""
    graph = job(*modules((10, 100), (10, 100)))
    assert (steps(graph), after(graph, KeepParameters())) == ([440], 420)


def test_prefetched_parameters_are_there() -> None:
    """Gathered one module ahead, only the first of each pass is waited for: 4·100 + 2·10."""
    graph = job(*modules((10, 100), (10, 100)))
    assert after(graph, Prefetch(1)) == 420
    with pytest.raises(UnreplayableError, match="more than 5"):
        after(graph, Prefetch(5))


def test_grouped_modules_pay_the_fixed_cost_once() -> None:
    """One size only, so the cost is gloo's assumed 1 ms + bytes/link, scaled to what was measured: about half."""
    graph = job(*modules((1000, 0), (1000, 0)))
    assert steps(graph) == [4000]
    assert after(graph, GroupModules(2)) == pytest.approx(2000, rel=0.01)


@pytest.mark.parametrize("change", [Overlap(on=True), EvenStages(), KeepParameters()])
def test_what_the_trace_can_not_tell_is_refused(change: Change) -> None:
    with pytest.raises(UnreplayableError):
        after(job(*THREE), change)


def test_ranks_that_are_missing_are_taken_to_send_when_these_do() -> None:
    incomplete = Setting("nccl", "A100", complete=False)
    assert after(job(*THREE), BucketSize(1000), incomplete) == after(job(*THREE), BucketSize(1000))
