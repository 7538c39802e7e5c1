"""What a change does to a job: the job as it is, and the job with the change, both simulated.

`changes` names the changes as `gpuscope.analyzers.what_if_changes` does, with their arguments; none are imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from simulator.catalogue import COMPUTE, MS, NARROW, READ_LOSS, SMALL, TALKATIVE, TINY
from simulator.job import MIB, Job
from simulator.judged import Case
from simulator.variation import varied_job, varied_values

FULL = Job(layers=6, gemms=6, smalls=9, gemm_ns=80_000, small_ns=15_000, steps=8)
"""About 220 operations of 15 to 80 us a step: the queue is full from the fifth step on."""
SHARDED = replace(COMPUTE, parallel="fsdp")
APART = replace(SHARDED, scatter_apart=True, rate=45.0, crowd_cost=0.85)
"""Parameters are gathered while gradients are scattered, over one link."""
TWO_GROUPS = replace(
    COMPUTE, parallel="tensor", ranks=4, tensor_bytes=10 * MIB, rate=55.0, one_link=True, crowd_cost=1.15
)
"""Gradients are reduced beside what tensor parallelism reduces, over one link."""
ANEW = 1_000_003
"""Between the seeds of a run and of the one after it."""
Changes = tuple[tuple[str, dict[str, Any]], ...]


@dataclass(frozen=True)
class Counterfactual:
    """`family` groups the kinds of changes."""

    name: str
    family: str
    changes: Changes
    """Empty where gpuscope has no such change."""
    job: Job
    changed: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def before(self) -> Case:
        return Case(replace(self.job, name=self.name), self.family)

    @cached_property
    def after(self) -> Case:
        return Case(replace(self.job, name=f"{self.name} changed", **self.changed), self.family)


def varied(one: Counterfactual, seed: int) -> Counterfactual:
    """The same change of a job with other kernel, host and link times, each within a third of what it was.

    The changed job is another run: its kernels and its host vary by chance anew.
    """
    key = f"{seed}.{one.name}"
    return replace(
        one,
        name=f"{one.name}_{seed}",
        job=varied_job(one.job, seed, key),
        changed={"seed": seed + ANEW, **varied_values(one.changed, key)},
    )


def _one(change: str, **arguments: Any) -> Changes:
    return ((change, arguments),)


FASTER = _one("LinkSpeed", bandwidth=2.0)
HALF = _one("WireBytes", factor=0.5)
NO_SYNCS = _one("RemovedSyncs")
GRAPHS = _one("CapturedGraphs")


def _communication() -> list[Counterfactual]:
    wire = {"wire": 0.5}
    contended = replace(COMPUTE, compute_slow=1.25, transfer_slow=1.3)
    gradient_each = replace(SMALL, bucket_bytes=MIB, layer_bytes=9 * MIB, alpha_ns=120_000, rate=60.0)
    return [
        Counterfactual("half_bytes_full_queue", "bytes", HALF, replace(FULL, rate=8.0), wire),
        Counterfactual("half_bytes_full_queue_mild", "bytes", HALF, replace(FULL, rate=14.0), wire),
        Counterfactual("half_bytes_ahead", "bytes", HALF, replace(COMPUTE, rate=15.0), wire),
        Counterfactual("half_bytes_drained", "bytes", HALF, replace(COMPUTE, rate=15.0, items=1), wire),
        Counterfactual("half_bytes_hidden", "bytes", HALF, COMPUTE, wire),
        Counterfactual("half_bytes_contended", "contention", HALF, replace(contended, rate=18.0), wire),
        Counterfactual("half_bytes_hidden_contended", "contention", HALF, replace(contended, rate=60.0), wire),
        Counterfactual("half_bytes_sharded", "bytes", HALF, replace(SHARDED, rate=25.0), wire),
        Counterfactual("faster_link", "link", FASTER, replace(COMPUTE, rate=18.0), {"rate": 36.0}),
        Counterfactual("faster_link_contended", "contention", FASTER, replace(contended, rate=20.0), {"rate": 40.0}),
        # Twice as many ranks around a tree have a level more.
        Counterfactual(
            "more_ranks",
            "scaling",
            _one("MoreRanks", factor=2),
            replace(COMPUTE, rate=20.0),
            {"ranks": 4, "alpha_ns": 30_000},
        ),
        Counterfactual(
            "more_ranks_hidden", "scaling", _one("MoreRanks", factor=4), COMPUTE, {"ranks": 8, "alpha_ns": 45_000}
        ),
        Counterfactual(
            "more_ranks_sharded",
            "scaling",
            _one("MoreRanks", factor=2),
            replace(SHARDED, rate=25.0),
            {"ranks": 4, "alpha_ns": 30_000},
        ),
        Counterfactual(
            "more_ranks_small_messages",
            "scaling",
            _one("MoreRanks", factor=2),
            gradient_each,
            {"ranks": 4, "alpha_ns": 240_000},
        ),
        Counterfactual(
            "lower_latency",
            "link",
            _one("LinkSpeed", latency=0.5),
            replace(gradient_each, alpha_ns=160_000),
            {"alpha_ns": 80_000},
        ),
        Counterfactual(
            "buckets_1_to_25", "buckets", _one("BucketSize", size=25 * MIB), gradient_each, {"bucket_bytes": 25 * MIB}
        ),
        Counterfactual(
            "buckets_1_to_25_full_queue",
            "buckets",
            _one("BucketSize", size=25 * MIB),
            replace(FULL, bucket_bytes=MIB, layer_bytes=12 * MIB, alpha_ns=400_000),
            {"bucket_bytes": 25 * MIB},
        ),
        Counterfactual(
            "buckets_200_to_25",
            "buckets",
            _one("BucketSize", size=25 * MIB),
            replace(COMPUTE, bucket_bytes=200 * MIB, rate=25.0),
            {"bucket_bytes": 25 * MIB},
        ),
        Counterfactual(
            "overlapped",
            "overlap",
            _one("Overlap", on=True),
            replace(COMPUTE, overlap=False, rate=40.0),
            {"overlap": True},
        ),
        Counterfactual(
            "overlapped_contended",
            "contention",
            _one("Overlap", on=True),
            replace(contended, overlap=False, rate=40.0),
            {"overlap": True},
        ),
        Counterfactual(
            "not_overlapped", "overlap", _one("Overlap", on=False), replace(COMPUTE, rate=40.0), {"overlap": False}
        ),
        Counterfactual(
            "prefetch_on",
            "prefetch",
            _one("Prefetch", depth=1),
            replace(SHARDED, prefetch=0, rate=60.0),
            {"prefetch": 1},
        ),
        Counterfactual(
            "prefetch_deeper", "prefetch", _one("Prefetch", depth=2), replace(SHARDED, prefetch=0), {"prefetch": 2}
        ),
        Counterfactual(
            "parameters_kept",
            "prefetch",
            _one("KeepParameters"),
            replace(SHARDED, prefetch=0, rate=60.0),
            {"keep_parameters": True},
        ),
        Counterfactual(
            "more_micro_batches",
            "pipeline",
            _one("MicroBatches", count=8),
            replace(COMPUTE, parallel="pipeline", layers=2, steps=6),
            {"micro_batches": 8},
        ),
        Counterfactual(
            "micro_batches_of_slow_links",
            "pipeline",
            _one("MicroBatches", count=8),
            replace(
                COMPUTE, parallel="pipeline", ranks=4, layers=2, steps=6, micro_batches=4, rate=30.0, alpha_ns=25_000
            ),
            {"micro_batches": 8},
        ),
        Counterfactual(
            "fewer_micro_batches",
            "pipeline",
            _one("MicroBatches", count=4),
            replace(COMPUTE, parallel="pipeline", layers=2, steps=6, micro_batches=16, alpha_ns=30_000),
            {"micro_batches": 4},
        ),
        Counterfactual(
            "micro_batches_and_collector",
            "combined",
            _one("MicroBatches", count=8) + _one("NoCollector"),
            replace(COMPUTE, parallel="pipeline", layers=2, steps=6, gc_ns=4 * MS),
            {"micro_batches": 8, "gc_ns": 0},
        ),
        Counterfactual(
            "even_stages_and_collector",
            "combined",
            _one("EvenStages") + _one("NoCollector"),
            replace(COMPUTE, parallel="pipeline", layers=2, stage_slow={1: 1.6}, steps=6, items=0, gc_ns=5 * MS),
            {"stage_slow": {0: 1.3, 1: 1.3}, "gc_ns": 0},
        ),
        Counterfactual(
            "even_stages_of_more_micro_batches",
            "combined",
            _one("MicroBatches", count=8) + _one("EvenStages"),
            replace(COMPUTE, parallel="pipeline", layers=2, stage_slow={1: 1.6}, steps=6),
            {"micro_batches": 8, "stage_slow": {0: 1.3, 1: 1.3}},
        ),
        Counterfactual(
            "even_stages",
            "pipeline",
            _one("EvenStages"),
            replace(COMPUTE, parallel="pipeline", layers=2, stage_slow={1: 1.5}, steps=6),
            {"stage_slow": {0: 1.25, 1: 1.25}},
        ),
    ]


def _pipelines() -> list[Counterfactual]:
    """Without a range around their computations, as `Schedule1F1B` and most jobs of one's own record them."""
    job = replace(COMPUTE, parallel="pipeline", layers=2, steps=6, pipeline_ranges=False)
    four = replace(job, ranks=4, layers=1, one_by_one=True)
    more, evened = {"micro_batches": 8}, {"stage_slow": {0: 1.25, 1: 1.25}}
    uneven = replace(job, stage_slow={1: 1.5})
    three = replace(job, ranks=3, layers=1, gemms=2, rate=60.0)
    one_by_one = _one("Schedule", name="1f1b")
    return [
        Counterfactual("one_by_one", "pipeline", one_by_one, three, {"one_by_one": True}),
        Counterfactual("one_by_one_on_two", "pipeline", one_by_one, replace(job, rate=40.0), {"one_by_one": True}),
        Counterfactual(
            "one_by_one_contended",
            "pipeline",
            one_by_one,
            replace(three, ranks=4, compute_slow=1.2, transfer_slow=1.3),
            {"one_by_one": True},
        ),
        Counterfactual(
            "all_forwards_first",
            "pipeline",
            _one("Schedule", name="gpipe"),
            replace(four, rate=60.0),
            {"one_by_one": False},
        ),
        Counterfactual("unnamed_micro_batches", "pipeline", _one("MicroBatches", count=8), job, more),
        Counterfactual("unnamed_micro_batches_1f1b", "pipeline", _one("MicroBatches", count=8), four, more),
        Counterfactual("unnamed_even_stages", "pipeline", _one("EvenStages"), uneven, evened),
        Counterfactual(
            "unnamed_even_stages_1f1b",
            "pipeline",
            _one("EvenStages"),
            replace(four, micro_batches=8, stage_slow={2: 1.6}),
            {"stage_slow": dict.fromkeys(range(4), 1.15)},
        ),
    ]


def _one_link() -> list[Counterfactual]:
    """Collectives of two kinds at once; in the last three they do not share a link, or never met in the recording."""
    wire = {"wire": 0.5}
    apart = replace(TWO_GROUPS, one_link=False)
    return [
        Counterfactual("half_gradients_beside_gathers", "one link", HALF, APART, wire),
        Counterfactual(
            "gathers_beside_scatters_gone", "one link", _one("KeepParameters"), APART, {"keep_parameters": True}
        ),
        Counterfactual("half_gradients_beside_tensor", "one link", HALF, TWO_GROUPS, wire),
        Counterfactual(
            "smaller_buckets_beside_tensor",
            "one link",
            _one("BucketSize", size=10 * MIB),
            replace(TWO_GROUPS, bucket_bytes=40 * MIB),
            {"bucket_bytes": 10 * MIB},
        ),
        Counterfactual(
            "gradients_behind_tensor", "one link", _one("Overlap", on=False), TWO_GROUPS, {"overlap": False}
        ),
        Counterfactual(
            "gradients_beside_tensor",
            "one link",
            _one("Overlap", on=True),
            replace(TWO_GROUPS, overlap=False),
            {"overlap": True},
        ),
        Counterfactual("half_gradients_on_another_link", "one link", HALF, apart, wire),
        Counterfactual(
            "gradients_beside_on_another_link",
            "one link",
            _one("Overlap", on=True),
            replace(apart, overlap=False),
            {"overlap": True},
        ),
    ]


def _host() -> list[Counterfactual]:
    two_causes = replace(NARROW, items=4, item_own_ns=120_000, gc_ns=MS)
    read = replace(NARROW, items=4, item_own_ns=150_000, device_syncs=4)
    none = {"blocking": False}
    by_hand = replace(TALKATIVE, alpha_ns=90_000, wrapped=False)
    quiet = {"copy": "beside"}
    return [
        Counterfactual("syncs_removed", "syncs", NO_SYNCS, read, none),
        Counterfactual("few_syncs_removed", "syncs", NO_SYNCS, replace(NARROW, items=4, item_own_ns=40_000), none),
        Counterfactual("syncs_removed_slow_host", "syncs", NO_SYNCS, replace(read, op_ns=16_000), none),
        Counterfactual("loss_not_read", "syncs", NO_SYNCS, replace(COMPUTE, items=1), none),
        Counterfactual("tiny_graphs", "graphs", GRAPHS, TINY, {"graphs": True}),
        Counterfactual(
            "small_graphs", "graphs", GRAPHS, replace(TINY, gemm_ns=16_000, small_ns=10_000), {"graphs": True}
        ),
        Counterfactual(
            "graphs_for_nothing", "graphs", GRAPHS, replace(COMPUTE, parallel="single", ranks=1), {"graphs": True}
        ),
        Counterfactual(
            "graphs_between_buckets",
            "graphs",
            GRAPHS,
            replace(SMALL, gemm_ns=9_000, small_ns=5_000, layer_bytes=MIB),
            {"graphs": True},
        ),
        Counterfactual("host_twice_as_fast", "host speed", (), TINY, {"op_ns": 5_000, "call_ns": 1_750}),
        Counterfactual("host_twice_as_fast_for_nothing", "host speed", (), COMPUTE, {"op_ns": 5_000, "call_ns": 1_750}),
        Counterfactual("collector_off", "host work", _one("NoCollector"), replace(NARROW, gc_ns=2 * MS), {"gc_ns": 0}),
        Counterfactual(
            "hidden_collector_off", "host work", _one("NoCollector"), replace(READ_LOSS, gc_ns=4 * MS), {"gc_ns": 0}
        ),
        Counterfactual(
            "checkpoint_moved",
            "host work",
            _one("NoHostWork"),
            replace(COMPUTE, items=1, host_work_ns=9 * MS),
            {"host_work_ns": 0},
        ),
        Counterfactual(
            "allocations_gone",
            "host work",
            _one("NoAllocatorStalls"),
            replace(SMALL, allocations=4, allocation_ns=300_000),
            {"allocations": 0},
        ),
        Counterfactual(
            "more_workers",
            "loader",
            _one("MoreLoaderWorkers", times=2.0),
            replace(COMPUTE, loader_ns=44 * MS, workers=2),
            {"workers": 4},
        ),
        Counterfactual(
            "first_workers",
            "loader",
            _one("LoaderWorkers", workers=2),
            replace(COMPUTE, items=1, loader_ns=9 * MS, workers=0),
            {"workers": 2},
        ),
        Counterfactual(
            "too_few_workers",
            "loader",
            _one("LoaderWorkers", workers=1),
            replace(COMPUTE, items=1, loader_ns=14 * MS, workers=0),
            {"workers": 1},
        ),
        Counterfactual(
            "copies_pinned",
            "copies",
            _one("PinnedCopies"),
            replace(SMALL, items=1, copy="pageable", copy_bytes=6 * MIB),
            quiet,
        ),
        Counterfactual(
            "tiny_copies_pinned",
            "copies",
            _one("PinnedCopies"),
            replace(NARROW, copy="pageable", copy_bytes=8, copies=12),
            quiet,
        ),
        Counterfactual(
            "copies_beside_a_host_that_waits",
            "copies",
            _one("CopyStream"),
            replace(SMALL, items=1, copy_bytes=40 * MIB),
            quiet,
        ),
        Counterfactual(
            "small_messages_joined_behind",
            "buckets",
            _one("BucketSize", size=25 * MIB),
            replace(TALKATIVE, alpha_ns=60_000),
            {"bucket_bytes": 25 * MIB},
        ),
        Counterfactual(
            "joined_by_hand", "buckets", _one("BucketSize", size=25 * MIB), by_hand, {"bucket_bytes": 25 * MIB}
        ),
        Counterfactual(
            "reduced_by_hand",
            "buckets",
            _one("BucketSize", size=25 * MIB) + _one("Overlap", on=True),
            by_hand,
            {"bucket_bytes": 25 * MIB, "overlap": True},
        ),
        Counterfactual(
            "two_of_four_replaced",
            "ranks",
            _one("ReplacedRank", rank=1) + _one("ReplacedRank", rank=3),
            replace(COMPUTE, ranks=4, layers=3, device_slow={1: 1.3, 3: 1.3}),
            {"device_slow": {}},
        ),
        Counterfactual(
            "late_for_two_reasons",
            "ranks",
            _one("ReplacedRank", rank=1) + _one("ReplacedRank", rank=2),
            replace(COMPUTE, items=1, ranks=4, layers=3, device_slow={1: 1.3}, gc_ns=6 * MS, gc_ranks=(2,)),
            {"device_slow": {}, "gc_ns": 0},
        ),
        Counterfactual(
            "slow_device_replaced",
            "ranks",
            _one("ReplacedRank", rank=1),
            replace(COMPUTE, device_slow={1: 1.5}),
            {"device_slow": {}},
        ),
        Counterfactual(
            "one_of_four_replaced",
            "ranks",
            _one("ReplacedRank", rank=2),
            replace(COMPUTE, ranks=4, device_slow={2: 1.35}),
            {"device_slow": {}},
        ),
        Counterfactual(
            "late_host_replaced",
            "ranks",
            _one("ReplacedRank", rank=1),
            replace(COMPUTE, items=1, gc_ns=12 * MS, gc_ranks=(1,)),
            {"gc_ns": 0},
        ),
        Counterfactual(
            "syncs_and_collector",
            "combined",
            NO_SYNCS + _one("NoCollector"),
            two_causes,
            {"blocking": False, "gc_ns": 0},
        ),
        Counterfactual(
            "bytes_and_syncs",
            "combined",
            HALF + NO_SYNCS,
            replace(read, rate=20.0, layer_bytes=8 * MIB),
            {"wire": 0.5, **none},
        ),
    ]


COUNTERFACTUALS = [*_communication(), *_pipelines(), *_one_link(), *_host()]
