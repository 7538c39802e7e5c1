"""The replay of real recordings: unchanged, against faults of known size, and the critical path through them."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers import analysed

import gpuscope
from gpuscope.analyzers.base.lanes import views
from gpuscope.analyzers.replay.recording import MAX_ERROR, record
from gpuscope.analyzers.replay.replayer import Replayer
from gpuscope.analyzers.run.analysis import Analysis
from gpuscope.analyzers.run.runner import Options, run
from gpuscope.analyzers.what_if_changes import (
    LinkSpeed,
    LoaderWorkers,
    MicroBatches,
    NoHostWork,
    Predicted,
    Refused,
    ReplacedRank,
    Schedule,
)
from gpuscope.sources.opening import inputs

MS = 1_000_000


def analysis(path: Path) -> tuple[Analysis, Replayer]:
    found = analysed.analysis(path)
    assert isinstance(found.replayer, Replayer)
    return found, found.replayer


def predicted(outcome: Predicted | Refused) -> Predicted:
    assert isinstance(outcome, Predicted), outcome
    assert outcome.low <= outcome.after <= outcome.high
    return outcome


def test_a_slow_rank_replaced(samples: Path) -> None:
    """Rank 1 computed 60 ms more in each step (sample_traces/MANIFEST.md)."""
    found, replayer = analysis(samples / "ddp_slow_rank")
    assert replayer.error_frac is not None
    assert replayer.error_frac < 0.033
    assert found.report["replay"] == replayer.section()
    outcome = predicted(replayer.predict(ReplacedRank(1)))
    assert outcome.before - outcome.after == pytest.approx(60 * MS, rel=0.1)
    other = predicted(replayer.predict(ReplacedRank(0)))
    assert other.after == pytest.approx(other.before, rel=0.02)


@pytest.mark.parametrize("sample", ["ddp_slow_rank", "ddp_uneven_sequences"])
def test_what_a_late_rank_costs_is_what_its_replacement_gains(samples: Path, sample: str) -> None:
    """The waiting that it causes, per step and waiting rank, lies in the range of the gain."""
    found, replayer = analysis(samples / sample)
    (late,) = found.report["stragglers"]
    outcome = predicted(replayer.predict(ReplacedRank(late["rank"])))
    cost = late["caused_wait_ns_per_step"]
    assert cost is not None
    assert outcome.before - outcome.high <= cost <= outcome.before - outcome.low


@pytest.mark.parametrize("rank", ["rank0_ascend_pt", "rank1_ascend_pt"])
def test_kernels_wait_for_collectives_that_no_recorded_call_launched(shared_traces: Path, rank: str) -> None:
    """HCCL's; without these waits the step is 3 ms of 120 shorter."""
    _, replayer = analysis(shared_traces / "ascend" / "level0" / rank)
    assert replayer.error_frac is not None
    assert replayer.error_frac < 0.01


def test_a_slow_loader_with_workers(samples: Path) -> None:
    """80 ms per batch, all of it in every steady step. The same job with a fast loader took 57 ms per step
    (`ddp_healthy`)."""
    _, replayer = analysis(samples / "ddp_slow_loader")
    outcome = predicted(replayer.predict(LoaderWorkers(4)))
    assert outcome.before - outcome.after == pytest.approx(80 * MS, rel=0.05)
    assert outcome.after == pytest.approx(57 * MS, rel=0.05)


def test_checkpoints_moved_away(samples: Path) -> None:
    """Both ranks write checkpoints for 80 ms in each step."""
    _, replayer = analysis(samples / "ddp_host_stall")
    outcome = predicted(replayer.predict([NoHostWork()]))
    assert outcome.before - outcome.after >= 80 * MS


def test_several_changes_one_after_the_other(samples: Path) -> None:
    _, replayer = analysis(samples / "ddp_slow_rank")
    both = predicted(replayer.predict([ReplacedRank(1), LinkSpeed(bandwidth=2)]))
    assert both.after <= predicted(replayer.predict(ReplacedRank(1))).after
    assert isinstance(replayer.predict([ReplacedRank(1), MicroBatches(8)]), Refused)


def test_a_pipeline_unchanged_saves_nothing(samples: Path) -> None:
    """As many micro-batches, in the order that it was."""
    _, replayer = analysis(samples / "pp_few_micro_batches")
    same = predicted(replayer.predict(MicroBatches(2)))
    assert (same.before, predicted(replayer.predict(Schedule("1f1b"))).after) == (same.after, same.after)
    assert isinstance(replayer.predict(Schedule("zbv")), Refused)


def test_a_replay_that_misses_predicts_nothing(samples: Path) -> None:
    replayer = gpuscope.analyze(samples / "ddp_slow_rank").replayer  # its own: it is changed
    assert isinstance(replayer, Replayer)
    replayer.why = f"the unchanged replay misses the measured step by more than {MAX_ERROR:.0%}"
    assert replayer.predict(ReplacedRank(1)) == Refused(replayer.why)


def test_graphs_travel_between_processes(samples: Path) -> None:
    trace = gpuscope.open_trace(samples / "ddp_slow_rank" / "rank0.json.gz")
    (entry,) = record(trace, views(trace))
    again = pickle.loads(pickle.dumps(entry))
    assert entry.graph is not None
    assert (len(again.graph), again.numbers, again.steps_ns) == (len(entry.graph), entry.numbers, entry.steps_ns)


@pytest.mark.parametrize(
    "name", ["kineto/hta_2_of_128", "kineto/hta_nccl_args", "nsys/zx3xyy/result.sqlite", "cpu_gloo/fsdp"]
)
def test_unchanged_replay_of_other_peoples_traces(shared_traces: Path, name: str) -> None:
    _, replayer = analysis(shared_traces / name)
    assert replayer.error_frac is not None
    assert replayer.error_frac < 0.033


@pytest.mark.parametrize("name", ["3d_healthy", "cp_healthy", "fsdp_healthy", "pp_1f1b", "tp_healthy", "zero1_healthy"])
def test_unchanged_replay_of_every_parallelism(samples: Path, name: str) -> None:
    _, replayer = analysis(samples / name)
    assert replayer.error_frac is not None
    assert replayer.error_frac < 0.033


def test_workers_for_somebody_elses_loader(shared_traces: Path) -> None:
    """One job recorded with 0 and with 4 loader workers: the first predicts the second's step."""
    _, without = analysis(shared_traces / "kineto" / "resnet50_num_workers_0")
    found, with_4 = analysis(shared_traces / "kineto" / "resnet50_num_workers_4")
    outcome = predicted(without.predict(LoaderWorkers(4)))
    assert found.report["step_time"] is not None
    assert outcome.after == pytest.approx(found.report["step_time"]["median_ns"], rel=0.05)
    assert isinstance(with_4.predict(LoaderWorkers(8)), Refused)


def test_a_run_of_many_ranks_keeps_less_of_each(samples: Path) -> None:
    """All ranks together keep at most `RUN_KEPT` events: of a million ranks not even one step each."""
    trace = gpuscope.open_trace(samples / "ddp_healthy" / "rank0.json.gz")
    (alone,) = record(trace, views(trace))
    (one_of_many,) = record(trace, views(trace), files=1_000_000)
    assert alone.graph is not None
    assert one_of_many.graph is None
    assert "--ranks" in one_of_many.why


def test_a_gather_that_is_gone_is_not_prepared_either(samples: Path) -> None:
    """What `FSDP::all_gather` does before the operator counts as issuing, whatever it then waits for."""
    trace = gpuscope.open_trace(samples / "fsdp_healthy")
    (view, *_), host = views(trace), trace["host_events"]
    graph = record(trace, [view])[0].graph
    assert graph is not None
    costs = [call.issue for call in graph.calls if call.op == "all_gather"]
    of_rank = host["rank"] == view.lane.rank
    operators = [trace.names[code] == "c10d::_allgather_base_" for code in host["name"].tolist()]
    calls = host["end"][of_rank & operators] - host["start"][of_rank & operators]
    assert costs
    assert min(costs) > max(np.median(calls), 100_000)


@pytest.mark.parametrize(
    ("name", "ranks", "mostly"), [("ddp_slow_rank", {1}, 1), ("pp_unbalanced_stage", {0, 1}, 1)]
)  # rank 1 is the slow one, and the stage that takes longer
def test_the_chain_goes_through_the_slow_rank(name: str, ranks: set[int], mostly: int, samples: Path) -> None:
    replayer = run(inputs([str(samples / name)], None), Options()).replayer
    assert replayer is not None
    path = replayer.critical_path
    assert {one.rank for one in path} == ranks
    spent = {rank: sum(one.end - one.start for one in path if one.rank == rank) for rank in ranks}
    assert max(spent, key=lambda rank: spent[rank]) == mostly
    assert all(before.end <= after.start for before, after in pairwise(path))  # one clock
    steps, measured = replayer.steps, replayer.measured_step_ns
    assert measured is not None
    assert 0.9 * steps * measured < sum(spent.values()) <= path[-1].end - path[0].start
