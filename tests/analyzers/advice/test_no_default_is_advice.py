"""A setting that is the library's default is no advice, unless the run is known to differ from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from helpers.advice import finding, report, steady, suggestion
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, rules
from gpuscope.analyzers.advice.settings import torch_settings
from gpuscope.analyzers.advice.settings.known import Known
from gpuscope.analyzers.advice.settings.settings import KNOWN
from gpuscope.analyzers.advice.suggesting import advise
from gpuscope.analyzers.what_if_changes import BucketSize, Predicted, Refused
from gpuscope.catalogue.suggestion import NAMED
from gpuscope.schema.document import Report, Setting

FRAMEWORKS = (
    "ddp",
    "fsdp",
    "fsdp2",
    "deepspeed",
    "megatron",
    "torchtitan",
    "transformers",
    "accelerate",
    "lightning",
    "horovod",
    "vllm",
    "sglang",
)
NOTHING_KNOWN: Callable[[object], Refused] = lambda _: Refused("a test")  # noqa: E731


def job(frameworks: Sequence[str], *codes: str) -> Report:
    return steady(report(*map(finding, codes), frameworks=frameworks), 1, 2)


def advised(asked: Report, among: Sequence[Rule] | None = None) -> list[Setting]:
    suggestions, advice = advise(asked, NOTHING_KNOWN, among)
    return [one["setting"] for one in (*suggestions, *advice["unpredicted"])]


@given(st.lists(st.sampled_from(FRAMEWORKS), unique=True, max_size=3), st.sampled_from(sorted(NAMED)))
def test_no_rule_advises_a_default_that_nobody_has_seen_changed(frameworks: list[str], code: str) -> None:
    answering = [rule for rule in rules() if code in rule.answers and rule.name != "memory"]
    for setting in advised(job(frameworks, code), answering):
        known = KNOWN.get(setting["name"])
        assert known is None or known.restores or not known.is_default(setting["value"]), setting


WRITTEN = st.sampled_from(("{}", "{}  # the default", "{}; or another", " {} "))


@given(st.sampled_from([one for one in KNOWN.values() if one.default is not None and not one.restores]), WRITTEN)
def test_a_default_is_known_however_it_is_written(known: Known, written: str) -> None:
    record = suggestion("try_it", "launch")
    for value in (known.default or "", *known.same):
        asked = known.to(written.format(value))
        rule = Rule("a", (type(record),), lambda _, found, asked=asked: [Proposal(found, record, asked)])  # type: ignore[misc]
        assert advised(job([], "launch"), [rule]) == []


def test_a_default_is_advice_where_the_replay_shows_other_buckets() -> None:
    record = suggestion("try_it", "bandwidth")
    setting = torch_settings.BUCKET_CAP_MB.to("None  # the default: 25 MiB")
    rule = Rule("a", (type(record),), lambda _, found: [Proposal(found, record, setting, (BucketSize(25, 1),))])
    asked = report(finding("bandwidth"), frameworks=["ddp"], bound_by="communication", cause="bandwidth")
    gains = Predicted(100_000_000, 60_000_000, 55_000_000, 65_000_000, "a test")
    suggestions, _ = advise(asked, lambda _: gains, [rule])
    assert [one["setting"] for one in suggestions] == [setting]


@pytest.mark.parametrize(
    ("name", "value", "version", "default"),
    [
        ("DistributedDataParallel.bucket_cap_mb", "25", (), True),
        ("DistributedDataParallel.bucket_cap_mb", "50", (), False),
        ("zero_optimization.reduce_bucket_size", "5e8", (), True),
        ("TrainingArguments.optim", '"adamw_torch_fused"', (5, 1), True),
        ("TrainingArguments.optim", '"adamw_torch_fused"', (4, 40), False),
        ("NCCL_ALGO", "Ring", (), False),
    ],
)
def test_what_is_a_default(name: str, value: str, version: tuple[int, ...], default: bool) -> None:
    assert KNOWN[name].is_default(value, version) is default


def test_a_default_is_advice_where_messages_are_far_smaller_than_it_makes_them() -> None:
    asked = reduced(["ddp"], 9)
    told = []
    for size in (100_000, 30 << 20, None):
        asked["collectives"][0]["bytes"] = None if size is None else 18 * size
        told += [one["value"] for one in advised(asked) if one["name"] == "DistributedDataParallel.bucket_cap_mb"]
    assert told == ["None  # the default: 25 MiB", "50", "50"]


def reduced(frameworks: Sequence[str], times: int) -> Report:
    """Two steps with so many all-reduces each, of unknown size."""
    asked = job(frameworks, "bandwidth")
    asked["collectives"] = [{"op": "all_reduce", "count": 2 * times, "bytes": None, "dur_ns": 10, "transfer_ns": None}]  # type: ignore[typeddict-item]
    return asked


@pytest.mark.parametrize(
    ("frameworks", "name"),
    [
        (["ddp"], "DistributedDataParallel.bucket_cap_mb"),
        (["lightning", "ddp"], "DDPStrategy.bucket_cap_mb"),
        (["transformers", "ddp"], "TrainingArguments.ddp_bucket_cap_mb"),
    ],
)
def test_buckets_are_no_advice_where_one_may_hold_all_gradients(frameworks: list[str], name: str) -> None:
    few, many = ({one["name"]: one["value"] for one in advised(reduced(frameworks, times))} for times in (2, 9))
    assert name not in few
    assert many[name] == "50"


def test_lightning_takes_the_arguments_of_ddp_in_its_strategy() -> None:
    names = [one for one in advised(reduced(["lightning", "ddp"], 9)) if "DDPStrategy" in one["name"]]
    hook = next(one["value"] for one in names if one["name"] == "DDPStrategy.ddp_comm_hook")
    assert hook == "torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook"
    assert not any("DistributedDataParallel" in one["name"] for one in advised(reduced(["lightning", "ddp"], 9)))


def test_lightnings_strategy_has_these_arguments() -> None:
    pl = pytest.importorskip("pytorch_lightning")
    from gpuscope.analyzers.advice.settings.other_settings import OF_LIGHTNING

    strategy = pl.strategies.DDPStrategy(ddp_comm_hook=None, bucket_cap_mb=50, broadcast_buffers=False)
    assert strategy._ddp_kwargs == {"bucket_cap_mb": 50, "broadcast_buffers": False}
    assert sum(one.name.startswith("DDPStrategy.") for one in OF_LIGHTNING.values()) == 5


def test_the_rules_see_a_job_whose_replay_knows_nothing() -> None:
    """The property above would hold of rules that propose nothing."""
    proposed = {one["name"] for code in NAMED for one in advised(job(["ddp"], code))}
    assert len(proposed) > 8
    assert Case(job([]), NOTHING_KNOWN).frameworks == []
