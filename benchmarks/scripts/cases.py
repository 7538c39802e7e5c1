"""The scripts: where they come from, how they are called, and what is known of them without gpuscope."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.scripts.environments import Place


@dataclass(frozen=True)
class Case:
    """A script that ships in a package, with paths and sizes as arguments. Words may hold {bin}, {site}, {data},
    {sources} and {out}."""

    name: str
    environment: str
    distribution: str
    """Package whose version the table shows."""
    command: tuple[str, ...]
    steps: int
    """True number of training steps of a rank, by the arguments and by `log`."""
    ranks: int = 1
    updates: int = 1
    """Calls of an optimizer's `step` per training step."""
    log: str = ""
    """Where the script's own output tells its steps: the largest number that this pattern finds."""
    links: tuple[str, ...] = ()
    """What of the data lies in the folder it runs in."""
    on_path: tuple[str, ...] = ()
    environment_variables: tuple[tuple[str, str], ...] = ()
    exit_code: int = 0

    def words(self, place: Place, out: Path) -> list[str]:
        """The command."""
        return [_filled(word, place, out) for word in self.command]

    def path(self, place: Place) -> list[str]:
        """What is to be on PYTHONPATH."""
        return [_filled(word, place) for word in self.on_path]

    def variables(self, place: Place) -> dict[str, str]:
        """Variables that the script needs."""
        return {name: _filled(value, place) for name, value in self.environment_variables}


def _filled(word: str, place: Place, out: Path | None = None) -> str:
    return word.format(bin=place.bin, site=place.site, data=place.data, sources=place.sources, out=out)


TORCHRUN = ("{bin}/torchrun", "--nproc-per-node", "2")
TRAINER = (
    "--max_steps", "16", "--per_device_train_batch_size", "4", "--output_dir", "{out}/model", "--use_cpu",
    "--report_to", "none", "--save_strategy", "no", "--logging_steps", "4", "--bf16", "False",
)  # fmt: skip
TRAINED = r"\b(\d+)/16 \["
"""The Trainer's bar: its callback counts `global_step`."""
IGNITE = "{sources}/pytorch_ignite-0.5.5/examples/"
FAIRSCALE = "{sources}/fairscale-0.4.13"


def trl(script: str, model: str, data: str, *more: str) -> tuple[str, ...]:
    """A script of trl on two ranks."""
    paths = ("--model_name_or_path", f"{{data}}/{model}", "--dataset_name", f"{{data}}/{data}")
    return (*TORCHRUN, f"{{site}}/trl/scripts/{script}", *paths, *TRAINER, *more)


def oss(kind: str) -> tuple[str, ...]:
    """fairscale's benchmark of ZeRO: it spawns its two ranks."""
    return (
        "{bin}/python", FAIRSCALE + "/benchmarks/oss.py", "--cpu", "--optim_type", kind, "--epochs", "1",
        "--batch_size", "25", "--model", "resnet18",
    )  # fmt: skip


CASES = (
    Case("trl sft.py", "hf", "trl", trl("sft.py", "causal", "text"), 16, 2, log=TRAINED),
    Case("trl reward.py", "hf", "trl", trl("reward.py", "reward", "preference"), 16, 2, log=TRAINED),
    Case("trl dpo.py", "hf", "trl", trl("dpo.py", "causal", "preference"), 16, 2, log=TRAINED),
    Case(
        "trl sft.py under DeepSpeed ZeRO-2", "hf", "deepspeed",
        trl("sft.py", "causal", "text", "--deepspeed", "{data}/zero2.json"), 16, 2, updates=2, log=TRAINED,
    ),
    Case(
        "accelerate test_script.py", "hf", "accelerate",
        (*TORCHRUN, "{site}/accelerate/test_utils/scripts/test_script.py"), 120, 2,
        environment_variables=(("ACCELERATE_USE_CPU", "true"),),
    ),
    Case(
        "ignite mnist.py", "vision", "pytorch-ignite",
        ("{bin}/python", IGNITE + "mnist/mnist.py", "--epochs", "2", "--val_batch_size", "100"), 26, links=("MNIST",),
    ),
    Case(
        "ignite dcgan.py", "vision", "pytorch-ignite",
        ("{bin}/python", IGNITE + "gan/dcgan.py", "--dataset", "fake", "--dataroot", "{out}",
         "--output-dir", "{out}/gan", "--batch-size", "2", "--epochs", "1", "--workers", "1",
         "--g-filters", "16", "--d-filters", "16"),
        128, updates=2, log=r"Iteration: \[\d+/(\d+)\]",
    ),
    Case(
        "ignite super_resolution", "vision", "pytorch-ignite",
        ("{bin}/python", IGNITE + "super_resolution/main.py", "--upscale_factor", "3", "--crop_size", "120",
         "--batch_size", "8", "--n_epochs", "1", "--threads", "1"),
        16, links=("data",),
    ),
    Case(
        "ignite actor_critic.py", "vision", "pytorch-ignite",
        ("{bin}/python", IGNITE + "reinforcement_learning/actor_critic.py", "--max-episodes", "20"),
        20, log=r"Episode (\d+)",
    ),
    Case(
        "fairscale oss.py, OSS with DDP", "vision", "fairscale", oss("oss_ddp"), 16, 2, updates=2,
        on_path=(FAIRSCALE,), environment_variables=(("TMPDIR", "{data}"),),
    ),
    Case(
        "fairscale oss.py, ShardedDDP", "vision", "fairscale", oss("oss_sharded_ddp"), 16, 2, updates=2,
        on_path=(FAIRSCALE,), environment_variables=(("TMPDIR", "{data}"),),
    ),
    Case(
        "open_clip main", "vision", "open-clip-torch",
        ("{bin}/python", "-m", "open_clip_train.main", "--dataset-type", "synthetic", "--train-num-samples", "32",
         "--model", "ViT-S-32", "--batch-size", "2", "--epochs", "1", "--workers", "1", "--device", "cpu",
         "--precision", "fp32", "--warmup", "2", "--log-every-n-steps", "1"),
        16,
    ),
    Case(
        "litgpt pretrain", "lightning", "litgpt",
        ("{bin}/litgpt", "pretrain", "pythia-14m", "--tokenizer_dir", "{data}/tokenizer", "--data", "TextFiles",
         "--data.train_data_path", "{data}/texts", "--data.num_workers", "1", "--train.max_tokens", "4096",
         "--train.global_batch_size", "4", "--train.micro_batch_size", "2", "--train.max_seq_length", "64",
         "--train.log_interval", "1", "--out_dir", "{out}/model", "--devices", "1", "--logger_name", "csv",
         "--eval.final_validation", "False"),
        16, log=r" step (\d+) \|",
    ),
    Case(
        "rl-baselines3-zoo train, PPO", "vision", "rl-zoo3",
        ("{bin}/python", "-m", "rl_zoo3.train", "--algo", "ppo", "--env", "CartPole-v1", "--n-timesteps", "512",
         "--log-folder", "{out}", "--eval-freq", "-1"),
        40,
    ),
    Case(
        "pykeen train", "vision", "pykeen",
        ("{bin}/pykeen", "train", "transe", "--dataset", "nations", "--number-epochs", "4"),
        28,
    ),
)  # fmt: skip
