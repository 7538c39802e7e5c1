"""Each fault in one process: its options, its ground truth, and that the ledger counts what was done."""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.train.faults import StepContext, available, parse_faults
from gpuscope.instrumented_runtime.train.faults.communication import SlowRank, UnevenSequences
from gpuscope.instrumented_runtime.train.mesh import World
from gpuscope.instrumented_runtime.train.model import GPT
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallel_spec import validate
from gpuscope.instrumented_runtime.train.settings.parallelisms.built_in import PipelineConfig
from gpuscope.instrumented_runtime.train.settings.sections import from_dict
from gpuscope.instrumented_runtime.train.trainer import Trainer
from gpuscope.trace import kinds

STEPS = 4
LAYERS = 2
BATCH = 2
CONFIG: dict[str, dict[str, object]] = {
    "model": {"layers": LAYERS, "width": 16, "heads": 2, "vocabulary": 32},
    "data": {"batch": BATCH, "sequence": 8},
    "train": {"steps": STEPS, "device": "cpu"},
}


def config(**sections: dict[str, object]) -> TrainConfig:
    return from_dict({**CONFIG, **sections})


def train(text: str) -> list[dict[str, object]]:
    """Train alone with one fault; what it entered into the ledger."""
    (fault,) = parse_faults([text])
    configured = fault.configure(config(), 1)
    trainer = Trainer(configured, World(0, 1, 0, torch.device("cpu"), None), validate(configured, 1), (fault,))
    trainer.run()
    return trainer.context.ledger.rows()


def test_all_are_found() -> None:
    assert sorted(available()) == [
        "allocator_churn",
        "few_micro_batches",
        "hang",
        "host_stall",
        "launch_bound",
        "mismatched",
        "never_joins",
        "pageable_copies",
        "slow_link",
        "slow_loader",
        "slow_rank",
        "sync_in_loop",
        "tiny_buckets",
        "unbalanced_stage",
        "uneven_experts",
        "uneven_sequences",
    ]


@pytest.mark.parametrize("name", sorted(available()))
def test_every_fault_and_option_is_in_the_documentation(name: str) -> None:
    lines = (Path(__file__).parents[4] / "docs/runtime.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith(f"| `{name}` |")]
    options = parse_faults([name])[0].options().keys() - {"first", "every"}
    assert [option for option in options if f"`{option}`" not in row] == []


@pytest.mark.parametrize("name", sorted(available()))
def test_ground_truth_has_the_same_keys_for_all(name: str) -> None:
    (fault,) = parse_faults([name])
    truth = fault.truth(config(parallel={"pp": 2}), 4)
    extra = {"ideal_bubble_frac"} if name == "few_micro_batches" else set()
    assert set(truth) - extra == {
        "fault",
        "options",
        "what",
        "unit",
        "ranks",
        "steps",
        "ns_per_step",
        "bound_by",
        "cause",
        "finding",
        "shows_on",
    }
    assert set(truth["steps"]) == {"first", "last", "every"}
    # Whoever checks a report against it needs something to look for.
    assert (truth["cause"] is None) != (truth["finding"] is None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slow_loder", "no fault 'slow_loder'"),
        ("slow_loader:seconds=3", "no option 'seconds'"),
        ("slow_loader:ms=long", "slow_loader:ms=long"),
        ("host_stall:kind=coffee", "kind=coffee"),
        ("slow_loader:every=0", "every must be at least 1"),
    ],
)
def test_words_that_can_not_be_meant(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_faults([text])


@pytest.mark.parametrize(
    ("text", "world_size", "message"),
    [
        ("slow_rank:rank=2", 2, "rank 2 is not below the 2 processes"),
        ("tiny_buckets", 2, "needs DDP"),
        ("few_micro_batches", 2, "needs a pipeline"),
        ("unbalanced_stage", 2, "needs a pipeline"),
        ("never_joins:rank=0", 1, "two processes or more"),
        ("slow_link", 1, "two processes or more"),
        ("uneven_sequences:short=1.5", 2, "between 0 and 1"),
    ],
)
def test_faults_that_do_not_fit_the_run(text: str, world_size: int, message: str) -> None:
    (fault,) = parse_faults([text])
    with pytest.raises(UsageError, match=message):
        fault.configure(config(), world_size)


@pytest.mark.parametrize(
    ("text", "steps", "count"),
    [
        ("slow_loader:ms=1,first=1", [1, 2, 3], BATCH),  # every item of the batch sleeps
        ("slow_loader:ms=1,rank=1", None, 0),  # we are rank 0
        ("slow_rank:ms=1,rank=0,every=3", [0, 3], 1),
        ("host_stall:kind=checkpoint,ms=0,every=2", [0, 2], 1),  # ms=0: exactly one
        ("host_stall:kind=gc,ms=0", [0, 1, 2, 3], 1),
        ("host_stall:kind=logging,ms=0,first=3", [3], 1),
        ("sync_in_loop:times=3", [0, 1, 2, 3], 3 * LAYERS),
        ("launch_bound:ops=5", [0, 1, 2, 3], 5),
        ("pageable_copies:mb=0.5", [0, 1, 2, 3], 2 * 512 * 1024),  # half a MiB there and back
        ("allocator_churn:mb=1,times=3", [0, 1, 2, 3], 3),
        ("uneven_sequences:rank=0", [0, 1, 2, 3], 8),  # we are the rank that keeps its sequences whole
        ("hang:rank=0,step=1,seconds=0.001", [1], 1),
    ],
)
def test_ledger_of_a_single_process(text: str, steps: list[int] | None, count: int) -> None:
    rows = train(text)
    if steps is None:
        assert rows == []
        return
    (row,) = rows
    assert (row["fault"], row["rank"]) == (text.partition(":")[0], 0)
    assert (row["steps"], row["counts"]) == (steps, [count] * len(steps))


@pytest.mark.parametrize(
    ("text", "operator", "per_step"),
    [
        ("sync_in_loop:times=3", "aten::item", 3 * LAYERS),
        ("allocator_churn:mb=0.1,times=3", "aten::zeros", 3),
        ("pageable_copies:mb=0.1", "aten::copy_", 2),
        ("launch_bound:ops=7", "aten::add_", 7),
    ],
)
def test_profiler_sees_what_the_ledger_says(text: str, operator: str, per_step: int) -> None:
    # `slow_loader` of another rank does nothing: the same run without the fault.
    assert operators(text)[operator] - operators("slow_loader:rank=9")[operator] == per_step * STEPS


@cache
def operators(text: str) -> Counter[str]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        train(text)
    return Counter(event.name for event in profiler.events() or [])


def test_slow_rank_rotates() -> None:
    fault = SlowRank(rank=1, rotate=2, first=1)
    assert [fault.slow_rank(step, 3) for step in range(1, 9)] == [1, 1, 2, 2, 0, 0, 1, 1]
    assert fault.ranks(config(), 3) is None


def test_lengths_are_drawn_anew_per_step_and_rank() -> None:
    fault = UnevenSequences(rank=-1, short=0.5)
    lengths = [fault.length(step, rank, 1000) for step in range(3) for rank in range(2)]
    assert len(set(lengths)) == 6
    assert all(500 <= length <= 1000 for length in lengths)
    assert lengths == [fault.length(step, rank, 1000) for step in range(3) for rank in range(2)]
    assert [UnevenSequences(rank=1).length(0, rank, 100) for rank in range(3)] == [25, 100, 25]


def test_few_micro_batches_as_the_schedule_allows() -> None:
    (fault,) = parse_faults(["few_micro_batches"])
    for schedule, count, bubble in (("gpipe", 1, 1 / 2), ("1f1b", 2, 1 / 3)):  # (p-1)/(m+p-1), p = 2
        configured = fault.configure(config(parallel={"pp": 2}, pipeline={"schedule": schedule}), 2)
        assert configured[PipelineConfig].micro_batches == count
        assert fault.truth(configured, 2)["ideal_bubble_frac"] == pytest.approx(bubble)


def test_ranks_of_a_pipeline_stage() -> None:
    configured = config(parallel={"pp": 2})
    ranks = {stage: parse_faults([f"unbalanced_stage:stage={stage}"])[0].ranks(configured, 6) for stage in (0, 1, -1)}
    assert ranks == {0: [0, 1, 2], 1: [3, 4, 5], -1: [3, 4, 5]}


@pytest.mark.parametrize(("rank", "extra"), [(0, 0), (1, 3 * LAYERS)])
def test_unbalanced_stage_repeats_its_blocks_only(rank: int, extra: int) -> None:
    configured = config(parallel={"pp": 2})
    (fault,) = parse_faults(["unbalanced_stage:times=3"])
    model = GPT(configured.model, configured.data.sequence)
    context = StepContext(rank, 2, torch.device("cpu"), configured, parts=[model])
    fault.on_model(context)
    model(torch.zeros(1, 8, dtype=torch.int64))
    assert sum(sum(row["counts"]) for row in context.ledger.rows()) == extra


def test_analyses_know_the_ranges_that_stalls_are_in() -> None:
    assert kinds.is_garbage_collection("gpuscope::gc")
    assert kinds.is_garbage_collection("gpuscope::gc.generation2")
    assert kinds.is_host_other("gpuscope::checkpoint")
    assert kinds.is_host_other("gpuscope::logging")
    assert not kinds.is_garbage_collection("gpuscope::backward")
