"""Options of frameworks, on their command lines and in copies of their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runtime.record.applied.conftest import Job

from gpuscope.errors import InputError
from gpuscope.instrumented_runtime.record.applied import Change, framework_arguments

TITAN = "torchrun --nproc-per-node 8 -m torchtitan.train --job.config_file llama.toml"
MEGATRON = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 12 --num-workers=2 --manual-gc --bf16"
ACCELERATE = "accelerate launch --num_processes 8 train.py --mixed_precision fp16"


@pytest.mark.parametrize(
    ("command", "change", "changed"),
    [
        (
            TITAN,
            "torchtitan.parallelism.fsdp_reshard_after_forward=never",
            f"{TITAN} --parallelism.fsdp_reshard_after_forward never",
        ),
        (f"{TITAN} --training.gc_freq=10", "torchtitan.training.gc_freq=50", f"{TITAN} --training.gc_freq 50"),
        (f"{TITAN} --compile.enable", "torchtitan.compile.enable=false", f"{TITAN} --compile.no-enable"),
        (TITAN, "torchtitan.compile.enable=true", f"{TITAN} --compile.enable"),
        (MEGATRON, "megatron.overlap-grad-reduce=true", f"{MEGATRON} --overlap-grad-reduce"),
        (MEGATRON, "megatron.num-workers=8", MEGATRON.replace("--num-workers=2", "--num-workers 8")),
        (MEGATRON, "megatron.manual-gc=false", MEGATRON.replace(" --manual-gc", "")),
        (MEGATRON, "megatron.manual-gc=true", MEGATRON),
        (MEGATRON, "megatron.ddp-bucket-size=1000", f"{MEGATRON} --ddp-bucket-size 1000"),
        (
            ACCELERATE,
            "accelerate.mixed_precision=bf16",
            "accelerate launch --mixed_precision bf16 --num_processes 8 train.py --mixed_precision fp16",
        ),
        (
            ACCELERATE.replace("accelerate launch", "python -m accelerate.commands.launch"),
            "accelerate.num_cpu_threads_per_process=4",
            "python -m accelerate.commands.launch --num_cpu_threads_per_process 4 --num_processes 8 train.py "
            "--mixed_precision fp16",
        ),
        (MEGATRON, "megatron.overlap-param-gather=true", f"{MEGATRON} --overlap-param-gather"),
        (MEGATRON, "megatron.manual-gc-interval=50", f"{MEGATRON} --manual-gc-interval 50"),
        (MEGATRON, "megatron.grad-reduce-in-bf16=true", f"{MEGATRON} --grad-reduce-in-bf16"),
        (
            TITAN,
            "torchtitan.parallelism.pipeline_parallel_schedule=1F1B",
            f"{TITAN} --parallelism.pipeline_parallel_schedule 1F1B",
        ),
        (
            "accelerate launch train.py",
            "accelerate.dynamo_backend=inductor",
            "accelerate launch --dynamo_backend inductor train.py",
        ),
        (
            "accelerate launch --fsdp-forward-prefetch false train.py",
            "accelerate.fsdp_forward_prefetch=true",
            "accelerate launch --fsdp_forward_prefetch true train.py",
        ),
        (
            "accelerate launch train.py",
            "accelerate.fsdp_backward_prefetch=BACKWARD_PRE",
            "accelerate launch --fsdp_backward_prefetch BACKWARD_PRE train.py",
        ),
        (
            "torchrun --nproc-per-node 8 train.py",
            "cpu.numa_bind=node",
            "torchrun --numa-binding node --nproc-per-node 8 train.py",
        ),
        (
            "python -m torch.distributed.run --numa-binding socket train.py",
            "cpu.numa_bind=node",
            "python -m torch.distributed.run --numa-binding node train.py",
        ),
        ("torchrun train.py", "torchtitan.training.gc_freq=50", None),
        ("torchrun pretrain_vision.py --epochs 3", "megatron.manual-gc=true", None),
        ("accelerate config", "accelerate.mixed_precision=bf16", None),
        ("python train.py", "cpu.numa_bind=node", None),
        ("torchrun train.py", "cpu.threads=4", None),
        ("torchrun train.py", "ddp.bucket_cap_mb=50", None),
    ],
)
def test_options_of_known_commands(command: str, change: str, changed: str | None) -> None:
    found = framework_arguments(command.split(), Change.parse(change))
    assert found == (changed.split() if changed is not None else None)


@pytest.mark.parametrize("option", ["--deepspeed_config", "--deepspeed"])
def test_deepspeeds_file_is_changed_in_a_copy(tmp_path: Path, option: str) -> None:
    own, folder = tmp_path / "ds.json", tmp_path / "run"
    text = json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 2}})
    own.write_text(text)
    command = ["deepspeed", "train.py", option, str(own)]
    change = Change("deepspeed.zero_optimization.overlap_comm", "true")
    changed = framework_arguments(command, change, folder)
    assert changed == ["deepspeed", "train.py", option, str(folder / "ds.json")]
    again = framework_arguments(changed, Change("deepspeed.communication_data_type", "bf16"), folder)
    assert again == changed
    assert json.loads((folder / "ds.json").read_text()) == {
        "train_batch_size": 8,
        "zero_optimization": {"stage": 2, "overlap_comm": True},
        "communication_data_type": "bf16",
    }
    assert own.read_text() == text
    assert framework_arguments(command, change) == command  # it takes the change; where a copy goes is not said
    assert framework_arguments(["deepspeed", "train.py"], change, folder) is None


@pytest.mark.parametrize("text", ["{", '{"zero_optimization": 2}', None])
def test_a_file_that_is_none_of_deepspeeds(tmp_path: Path, text: str | None) -> None:
    own = tmp_path / "ds.json"
    if text is not None:
        own.write_text(text)
    with pytest.raises(InputError, match=r"ds\.json"):
        framework_arguments(
            ["deepspeed", "train.py", "--deepspeed", str(own)],
            Change("deepspeed.zero_optimization.overlap_comm", "true"),
            tmp_path / "run",
        )


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ("deepspeed.zero_optimization.contiguous_gradients=false", "contiguous_gradients", False),
        ("deepspeed.zero_optimization.allgather_bucket_size=1000", "allgather_bucket_size", 1000),
        ("deepspeed.zero_optimization.stage3_prefetch_bucket_size=1000", "stage3_prefetch_bucket_size", 1000),
        ("deepspeed.zero_optimization.stage=3", "stage", 3),
    ],
)
def test_other_keys_of_deepspeed(tmp_path: Path, change: str, key: str, value: object) -> None:
    (tmp_path / "ds.json").write_text("{}")
    words = ["deepspeed", "train.py", f"--deepspeed={tmp_path / 'ds.json'}"]
    assert framework_arguments(words, Change.parse(change), tmp_path / "run") is not None
    assert json.loads((tmp_path / "run" / "ds.json").read_text()) == {"zero_optimization": {key: value}}


SCRIPT = """
import sys
import torch

optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)])
for step in range(2):
    optimizer.step()
file = sys.argv[sys.argv.index("--deepspeed") + 1] if "--deepspeed" in sys.argv else None
tell(settings=json.load(open(file)) if file else None)
"""


def test_the_command_runs_with_the_copy(job: Job, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text("{}")
    change = "deepspeed.zero_optimization.reduce_bucket_size=1000"
    changed = job(SCRIPT, change, arguments=("--deepspeed", "ds.json"))
    assert changed.told[0]["settings"] == {"zero_optimization": {"reduce_bucket_size": 1000}}
    assert (tmp_path / "ds.json").read_text() == "{}"
    assert changed.manifest["changes"] == dict([change.split("=")])
    assert changed.manifest["command"][-1] == "ds.json"
    assert not changed.manifest["problems"]


def test_a_command_that_does_not_take_an_option_runs_as_it_is(job: Job) -> None:
    changed = job(SCRIPT, "cpu.numa_bind=node")
    told = "cpu.numa_bind=node was not applied: the command is none that takes it"
    assert told in changed.err
    assert [one["message"] for one in changed.manifest["problems"]] == [told]
