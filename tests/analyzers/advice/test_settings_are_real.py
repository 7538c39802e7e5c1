"""Every setting that a rule can propose is one that the real library takes."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from helpers.advice import finding, report, steady, suggestion

from gpuscope.analyzers.advice.rule import Case, Proposal, Rule, rules
from gpuscope.analyzers.advice.settings import nccl_settings
from gpuscope.analyzers.advice.settings.known import Known
from gpuscope.analyzers.advice.settings.settings import KNOWN, TABLES
from gpuscope.analyzers.advice.suggesting import advise
from gpuscope.analyzers.what_if_changes import Predicted, Refused
from gpuscope.catalogue.suggestion import NAMED
from gpuscope.schema.document import Setting

torch = pytest.importorskip("torch")


def proposed(*frameworks: str, cpu: bool = False) -> Iterator[Setting]:
    """All settings of all rules for a job of these frameworks."""
    asked = report(frameworks=frameworks)
    asked = steady(asked, 1, 2)
    asked["ranks"][0]["device"] = None if cpu else 0
    case = Case(asked, lambda _: Refused("a test"))
    for rule in rules():
        for code in rule.answers & {*NAMED, "out_of_memory"} if rule.name != "memory" else ():
            yield from (proposal.setting for proposal in rule.propose(case, finding(code)))


def values(name: str, frameworks: Sequence[str]) -> list[str]:
    return [setting["value"] for setting in proposed(*frameworks) if setting["name"] == name]


def test_ddp_takes_its_bucket_sizes() -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sizes = values("DistributedDataParallel.bucket_cap_mb", ["ddp"])
        assert len(set(sizes)) >= 4
        for size in sizes:
            DistributedDataParallel(torch.nn.Linear(2, 2), bucket_cap_mb=eval(size))
        for hook in {
            s["value"] for cpu in (True, False) for s in proposed("ddp", cpu=cpu) if s["name"].endswith("comm_hook")
        }:
            state, function = _hook(hook)
            if "bf16" in hook and not torch.cuda.is_available():
                continue  # DDP asks NCCL for it
            DistributedDataParallel(torch.nn.Linear(2, 2)).register_comm_hook(state, function)
    finally:
        dist.destroy_process_group()


def _hook(value: str) -> tuple[object, object]:
    import importlib

    if "PowerSGDState" in value:
        importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook")
        state, function = eval(value, {"torch": torch})
        return state, function
    path = value.removeprefix("(None, ").removesuffix(")")
    module, _, name = path.rpartition(".")
    return None, getattr(importlib.import_module(module), name)


def test_the_loader_takes_its_workers() -> None:
    from torch.utils.data import DataLoader

    numbers = values("DataLoader.num_workers", [])
    assert numbers
    for number in numbers:
        loader = DataLoader([1, 2], num_workers=int(number), persistent_workers=True, prefetch_factor=2)
        assert loader.num_workers == int(number)
    assert "True" in values("DataLoader.pin_memory", [])
    assert "pin_memory" in inspect.signature(DataLoader).parameters


def test_fsdp_has_what_is_proposed() -> None:
    from torch.distributed import fsdp

    names = {setting["name"] for setting in proposed("fsdp2")} | {setting["name"] for setting in proposed("fsdp")}
    ours = {name for name in names if name.startswith(("fully_shard", "FSDPModule", "FullyShardedDataParallel"))}
    assert len(ours) >= 6
    for name in ours:
        owner, _, member = name.partition(".")
        target = getattr(fsdp, owner)
        assert not member or hasattr(target, member) or member in inspect.signature(target).parameters
    assert fsdp.MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    assert fsdp.ShardingStrategy.SHARD_GRAD_OP
    assert fsdp.CPUOffloadPolicy()


def test_transformers_has_its_arguments() -> None:
    transformers = pytest.importorskip("transformers")
    fields = inspect.signature(transformers.TrainingArguments).parameters
    names = {s["name"] for s in proposed("transformers", "ddp") if s["name"].startswith("TrainingArguments.")}
    assert names
    assert all(name.partition(".")[2] in fields for name in names)


def test_pipeline_schedules_exist() -> None:
    from torch.distributed.pipelining import schedules

    names = values("torch.distributed.pipelining", [])
    assert len(names) == 3
    for name in names:
        assert "n_microbatches" in inspect.signature(getattr(schedules, name)).parameters
    for name in values("parallelism.pipeline_parallel_schedule", ["torchtitan"]):
        assert schedules.get_schedule_class(name)
    assert values("pipelining schedule.n_microbatches", [])


def test_compile_and_checkpoint_have_what_is_proposed() -> None:
    import torch.distributed.checkpoint as dcp

    assert [eval(mode) for mode in values("torch.compile.mode", [])] == ["reduce-overhead"]
    assert "mode" in inspect.signature(torch.compile).parameters
    assert values("torch.utils.checkpoint.checkpoint.use_reentrant", []) == ["False"]
    assert "use_reentrant" in inspect.signature(torch.utils.checkpoint.checkpoint).parameters
    assert callable(dcp.async_save)


FRAMEWORKS: tuple[tuple[str, ...], ...] = (
    (),
    ("ddp",),
    ("fsdp",),
    ("fsdp2",),
    ("deepspeed",),
    ("megatron",),
    ("torchtitan",),
    ("transformers",),
    ("accelerate", "ddp"),
    ("horovod",),
)
OF_A_FRAMEWORK = re.compile(
    r"--[a-z]|[A-Z]+_[A-Z_]+$|(DistributedDataParallel|FullyShardedDataParallel|DataLoader|FSDPModule|fully_shard|"
    r"TrainingArguments|Accelerator|zero_optimization|parallelism|torch\.(?!distributed collectives))\b"
)


@pytest.mark.parametrize("frameworks", FRAMEWORKS, ids="-".join)
def test_what_is_proposed_stands_in_the_tables(frameworks: tuple[str, ...]) -> None:
    names = {one["name"] for cpu in (True, False) for one in proposed(*frameworks, cpu=cpu)}
    unknown = {name for name in names if OF_A_FRAMEWORK.match(name)} - KNOWN.keys()
    assert not unknown


def test_names_are_written_once() -> None:
    """Rules take every name from the tables, and the tables hold no name that no rule takes; NCCL's variables are
    taken by the name that its log gives."""
    package = importlib.import_module("gpuscope.analyzers.advice.rules")
    of_advice = Path(next(iter(package.__path__))).parent
    nodes = [
        node
        for path in of_advice.rglob("*.py")
        if path.parent.name != "settings"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]
    spelled = {node.value for node in nodes if isinstance(node, ast.Constant) and node.value in KNOWN}
    taken = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    noted = {name for table in TABLES for name, one in vars(table).items() if isinstance(one, Known)}
    assert not spelled
    assert noted - taken <= {name for name, one in vars(nccl_settings).items() if isinstance(one, Known)} | {
        "CUDA_ALLOC_CONF"
    }


def torch_owner(name: str) -> object | None:
    from torch import distributed, nn, optim, profiler, utils

    owner = name.rpartition(".")[0]
    of = {
        "DistributedDataParallel": nn.parallel.DistributedDataParallel,
        "DataLoader": utils.data.DataLoader,
        "FullyShardedDataParallel": distributed.fsdp.FullyShardedDataParallel,
        "fully_shard": distributed.fsdp.fully_shard,
        "torch.compile": torch.compile,
        "torch.profiler.profile": profiler.profile,
        "init_device_mesh": distributed.init_device_mesh,
        "torch.utils.checkpoint.checkpoint": utils.checkpoint.checkpoint,
    }
    return getattr(optim, owner.rpartition(".")[2]) if owner.startswith("torch.optim.") else of.get(owner)


def test_defaults_are_torchs() -> None:
    """Where the default is an argument's, it is what the signature says: where it is None, what the source makes of
    that."""
    made_of_none = {"BackwardPrefetch.BACKWARD_PRE", "ShardingStrategy.FULL_SHARD"}
    checked = set()
    for name, known in KNOWN.items():
        owner = torch_owner(name)
        member = name.rpartition(".")[2]
        if owner is None or (inspect.isclass(owner) and callable(getattr(owner, member, None))):
            continue
        parameter = inspect.signature(owner).parameters[member]  # type: ignore[arg-type]
        default = parameter.default
        checked.add(name)
        if known.default is None or (default is None and known.default in made_of_none):
            continue
        shown = f"BackwardPrefetch.{default.name}" if name.endswith("backward_prefetch") else str(default)
        assert shown == known.default or (shown.startswith(known.default.removesuffix(")"))), name
    assert len(checked) >= 30


def fields(path: Path) -> dict[str, str]:
    """Defaults of a pydantic model's fields as written, by their alias where they have one."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            value, name = node.value, node.target.id
            if isinstance(value, ast.Call):
                alias = [one.value.value for one in value.keywords if one.arg == "alias"]  # type: ignore[attr-defined]
                name, value = (alias or [name])[0], (value.args or [value])[0]
                value = value.args[0] if isinstance(value, ast.Call) and value.args else value
            found[name] = ast.unparse(value)
    return found


def test_deepspeed_has_these_keys_and_defaults() -> None:
    spec = importlib.util.find_spec("deepspeed")
    if spec is None or spec.origin is None:
        pytest.skip("deepspeed is not installed")
    runtime = Path(spec.origin).parent / "runtime"
    own = fields(runtime / "zero/config.py")
    texts = "".join((runtime / name).read_text(encoding="utf-8") for name in ("constants.py", "precision_config.py"))
    for name, known in KNOWN.items():
        if known.package != "deepspeed":
            continue
        section, _, key = name.partition(".")
        if section == "zero_optimization" and "." not in key:
            default = own[key]
            assert known.default is None or float(known.default) == float(default), name
        elif section != "zero_optimization":
            assert f'"{section}"' in texts, name


@pytest.mark.parametrize(
    ("name", "value", "version", "fits"),
    [
        ("--num-workers", "2", "", False),  # its default
        ("--num-workers", "4", "", True),
        ("--cuda-graph-impl", "local", "0.14.0", False),  # not there yet
        ("--cuda-graph-impl", "local", "0.15.0", True),
        ("--cuda-graph-impl", "local", "", True),  # which version it is is not known
        ("--attention-backend", "auto", "0.15.0", False),
        ("torchrun --numa-binding", "node", "2.8.0", False),
        ("torchrun --numa-binding", "node", "2.9.1", True),
        ("zero_optimization.reduce_bucket_size", "500000000", "", False),
        ("FullyShardedDataParallel.backward_prefetch", "BackwardPrefetch.BACKWARD_PRE", "", True),  # back to it
    ],
)
def test_no_default_and_nothing_that_the_version_lacks(name: str, value: str, version: str, fits: bool) -> None:
    record = suggestion("try_it", "launch")
    rule = Rule(
        "a",
        (type(record),),
        lambda _, found: [
            Proposal(
                found, record, {"kind": "config", "name": name, "value": value}, outcome=Predicted(100, 50, 50, 50, "")
            )
        ],
    )
    asked = report(finding("launch"), cause="launch")
    versions = {KNOWN[name].package: version} if version else {}
    asked["trace"]["setup"] = {"versions": versions, "variables": {}, "cores_per_rank": None, "stacks": False}
    suggestions, _ = advise(asked, lambda _: Refused("a test"), [rule])
    assert [one["setting"]["value"] for one in suggestions] == ([value] if fits else [])
