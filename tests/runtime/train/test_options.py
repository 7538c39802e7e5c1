"""Options, presets and the checks that name what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.errors import InputError, UsageError
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallel_spec import (
    PRESETS,
    assemble,
    parse_parallel,
    refuse_unused,
    validate,
)
from gpuscope.instrumented_runtime.train.settings.parallelisms.built_in import DdpConfig, FsdpConfig
from gpuscope.instrumented_runtime.train.settings.sections import from_dict, options


def assembled(parallel: str = "single", world_size: int = 1, *settings: str, preset: str = "tiny") -> TrainConfig:
    return assemble(parallel=parallel, world_size=world_size, preset=preset, settings=settings)


@pytest.mark.parametrize(
    ("parallel", "world_size", "expected"),
    [
        ("single", 1, {}),
        ("ddp", 4, {"replicate": 4}),
        ("fsdp", 4, {"shard": 4}),
        ("hsdp", 4, {"replicate": 2, "shard": 2}),
        ("tp", 4, {"tp": 4}),
        ("pp=2+tp=2+fsdp", 8, {"pp": 2, "shard": 2, "tp": 2}),
        ("3d", 8, {"pp": 2, "shard": 2, "tp": 2}),
        ("cp=2+ddp=3", 6, {"replicate": 3, "cp": 2}),
    ],
)
def test_parallel_words_become_a_mesh(parallel: str, world_size: int, expected: dict[str, int]) -> None:
    sizes = validate(assembled(parallel, world_size), world_size).as_dict()
    assert list(sizes) == ["pp", "replicate", "shard", "cp", "ep", "tp"]
    assert {name: size for name, size in sizes.items() if size > 1} == expected


@pytest.mark.parametrize(
    ("parallel", "world_size", "settings", "named"),
    [
        ("tp", 3, [], "model.heads"),
        ("tp", 2, ["model.vocabulary=513"], "model.vocabulary"),
        ("tp=2+ddp", 4, [], "parallel.data"),
        ("tp=2+cp=2", 4, [], "parallel.data"),
        ("tp=2", 4, [], "parallel.data"),
        ("pp", 4, [], "model.layers"),
        ("pp", 2, ["pipeline.micro_batches=3"], "pipeline.micro_batches"),
        ("pp", 2, ["pipeline.schedule=zbv"], "model.layers"),
        ("pp=2+ddp", 4, ["pipeline.schedule=zbv", "model.layers=4"], "pipeline.schedule"),
        ("cp", 2, ["data.sequence=130"], "data.sequence"),
        ("ep", 2, [], "model.experts"),
        ("ep=2+tp=2", 4, [], "not together with tp"),  # nor a hint at what else would be refused
        ("pp=2+ep=2", 4, ["model.experts=4"], "not together with pp"),
        ("pp=2+cp", 2, [], "one for cp"),
        ("3d", 4, [], "multiple of 8"),
        ("hsdp", 2, [], "nothing to replicate"),
        ("fsdp", 2, ["fsdp.reshard_after_forward=3"], "fsdp.reshard_after_forward"),
        ("pp", 2, ["pipeline.layers_per_stage=4"], "pipeline.layers_per_stage"),
        ("hsdp", 3, [], "parallel.shard"),
        ("fsdp=2", 4, [], "parallel.dp"),
        ("fsdp", 2, ["train.cuda_graph=true"], "train.cuda_graph"),
    ],
)
def test_what_does_not_fit_is_named(parallel: str, world_size: int, settings: list[str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        validate(assembled(parallel, world_size, *settings), world_size)


@pytest.mark.parametrize("words", ["dpp", "ddp+fsdp", "tp+pp", "tp=0", "tp=two", "tp=2+tp=2", "tp+ddp", "3d+ddp", ""])
def test_words_that_mean_no_parallelism(words: str) -> None:
    with pytest.raises(UsageError, match="--parallel"):
        parse_parallel(words, 4)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("ddp.bucket_cap_mbs=1", "did you mean ddp.bucket_cap_mb"),
        ("ddp.bucket_cap_mb=-1", "ddp.bucket_cap_mb: must be positive"),
        ("data.batch=many", "data.batch"),
        ("ddp.comm_hook=int8", "ddp.comm_hook"),
        ("train.steps=0", "train.steps: must be at least 1"),
        ("batch=3", "section.option=value"),
    ],
)
def test_wrong_settings_are_named(setting: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        assembled("single", 1, setting)


def test_text_becomes_the_options_type() -> None:
    config = assembled("ddp", 2, "ddp.bucket_cap_mb=0.5", "ddp.static_graph=true", "ddp.comm_hook=none")
    ddp = config[DdpConfig]
    assert (ddp.bucket_cap_mb, ddp.static_graph, ddp.comm_hook) == (0.5, True, "none")
    assert assembled("fsdp", 2, "fsdp.reshard_after_forward=2")[FsdpConfig].reshard_after_forward == 2
    assert assembled("fsdp", 2, "fsdp.reshard_after_forward=none")[FsdpConfig].reshard_after_forward is None


def test_later_words_win(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[model]\nlayers = 3\nheads = 2\n[data]\nbatch = 5\n")
    config = assemble(
        parallel="single",
        world_size=1,
        preset="tiny",
        file=file,
        settings=["model.layers=6"],
        more={"data.batch": 7, "train.steps": None},
    )
    assert (config.model.layers, config.model.heads, config.data.batch) == (6, 2, 7)


def test_a_file_that_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        assemble(parallel="single", world_size=1, file=tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("layers =")
    with pytest.raises(InputError, match="not TOML"):
        assemble(parallel="single", world_size=1, file=tmp_path / "bad.toml")


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid_alone(preset: str) -> None:
    validate(assembled(preset=preset), 1)


def test_a_configuration_survives_the_manifest() -> None:
    config = assembled("pp=2+fsdp", 4, "pipeline.micro_batches=8")
    assert from_dict(config.as_dict()) == config


def test_every_option_has_a_line_of_help() -> None:
    assert all(text and len(text) < 110 for *_, text in options())


@pytest.mark.parametrize(
    ("parallel", "world", "setting", "needs"),
    [
        ("ddp", 2, "pipeline.micro_batches=8", "it needs --parallel pp"),
        ("fsdp", 2, "ddp.bucket_cap_mb=1", "it needs --parallel ddp or zero1"),
        ("single", 1, "ddp.bucket_cap_mb=1", "it needs more than one data-parallel rank"),
        ("ddp", 2, "ddp.powersgd_rank=4", "it needs ddp.comm_hook=powersgd"),
        ("ddp", 2, "checkpoint.keep=1", "it needs checkpoint.every"),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(parallel: str, world: int, setting: str, needs: str) -> None:
    config = assembled(parallel, world, setting)
    with pytest.raises(UsageError, match="changes nothing in this run") as refused:
        refuse_unused([setting], config, validate(config, world))
    assert refused.value.hint == needs


def test_a_setting_that_counts_is_not_refused() -> None:
    settings = ["pipeline.micro_batches=8", "fsdp.prefetch=1", "train.steps=3"]
    config = assembled("pp=2+fsdp", 4, *settings)
    refuse_unused(settings, config, validate(config, 4))
