"""A small loop of reinforcement learning on two processes with gloo: a tiny model answers, answers are scored, the
model is updated, its new weights go back. It prints the lines that verl prints, for `gpuscope analyze`.

    python -m benchmarks.roles.loop job.log --kind separate --fault long_tail
    gpuscope analyze job.log

What a GPU would compute is slept beside the tiny model's own work: so two processes on two hyperthreads of one core
run as two GPUs would, and a fault is more of that time.

`colocated`: both processes roll out and train in turns. `separate`: one trains, the other rolls out; with `--overlap`
at once, one step off-policy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import click
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

WORDS, MICRO_BATCH, PROMPT = 64, 8, 8
FAULTS = ("none", "slow_rollout", "long_tail", "slow_reward", "slow_sync", "slow_update", "few_rollout_gpus")


@dataclass(frozen=True)
class Job:
    """What a run does; the faults are more of one thing."""

    kind: str
    steps: int = 12
    samples: int = 48
    width: int = 192
    mean: float = 24.0
    spread: float = 0.4
    limit: int = 400
    decode: float = 0.002
    decode_each: float = 3e-5
    """s of a decoding step, and more for each answer that still runs."""
    scoring: float = 5e-4
    """s per answer."""
    forward: float = 5e-5
    update: float = 2e-4
    """s per token."""
    sync: float = 0.02
    overlap: bool = False
    reward_beside: bool = False

    def with_fault(self, fault: str) -> Job:
        """The same job with one of the faults."""
        changes: dict[str, dict[str, float]] = {
            "none": {},
            "slow_rollout": {"decode": 0.01, "decode_each": 2e-4},
            "long_tail": {"spread": 1.4},
            "slow_reward": {"scoring": 0.02},
            "slow_sync": {"sync": 0.8},
            "slow_update": {"update": 1e-3},
            "few_rollout_gpus": {"samples": 160, "decode_each": 3e-4, "update": 5e-5},
        }
        return replace(self, **changes[fault])  # type: ignore[arg-type]


class Tiny(nn.Module):
    """A recurrent language model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(WORDS, width), nn.GRU(width, width), nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits of [time, batch], and the state."""
        out, state = self.cell(self.words(tokens), state)
        return self.head(out), state


@dataclass
class Batch:
    """Answers and what is known of them."""

    tokens: Tensor
    lengths: list[int]
    advantages: Tensor = field(default_factory=lambda: torch.empty(0))


@dataclass
class Clock:
    """Time by timer in one step, as verl's `marked_timer` takes it."""

    spent: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str, together: bool = False) -> Iterator[None]:
        """Time a block; `together` waits for all processes first, as a driver does."""
        began = time.perf_counter()
        yield
        if together:
            dist.barrier()
        self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - began


@torch.no_grad()
def roll_out(model: Tiny, lengths: Sequence[int], job: Job) -> Tensor:
    """Answers of these lengths, the longest first: each token asks the model once, of the answers that still run."""
    tokens = torch.zeros(max(lengths) + 1, len(lengths), dtype=torch.long)
    state: Tensor | None = None
    for at in range(max(lengths)):
        running = sum(length > at for length in lengths)
        before = None if state is None else state[:, :running].contiguous()
        logits, state = model(tokens[at : at + 1, :running], before)
        time.sleep(job.decode + job.decode_each * running)
        tokens[at + 1, :running] = torch.multinomial(torch.softmax(logits[0], -1), 1)[:, 0]
    return tokens


def score(tokens: Tensor, lengths: Sequence[int], job: Job) -> Tensor:
    """How often an answer says an even word."""
    marks = []
    for place, length in enumerate(lengths):
        words = tokens[1 : length + 1, place].tolist()
        marks.append(sum(word % 2 == 0 for word in words) / length)
        time.sleep(job.scoring * job.samples / len(lengths))  # one process scores for all
    return torch.tensor(marks)


def log_probs(model: Tiny, tokens: Tensor, lengths: Sequence[int], per_token: float) -> Iterator[tuple[slice, Tensor]]:
    """By micro-batch of answers of like length, the log-probability of each answer."""
    for first in range(0, len(lengths), MICRO_BATCH):
        part = slice(first, first + MICRO_BATCH)
        longest = lengths[first]
        own = tokens[: longest + 1, part]
        logits, _ = model(own[:-1])
        each = torch.log_softmax(logits, -1).gather(-1, own[1:, :, None])[..., 0]
        time.sleep(per_token * sum(lengths[part]))
        mask = torch.arange(longest)[:, None] < torch.tensor(lengths[part])
        yield part, (each * mask).sum(0)


def train(model: Tiny, optimizer: torch.optim.Optimizer, batch: Batch, per_token: float, everyone: bool) -> None:
    """REINFORCE over the batch."""
    for part, own in log_probs(model, batch.tokens, batch.lengths, per_token):
        loss = -(own * batch.advantages[part]).mean() / len(batch.lengths)
        loss.backward()  # type: ignore[no-untyped-call]
    if everyone:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()


def drawn(job: Job, number: int, samples: int, salt: int) -> list[int]:
    """Lengths of a step's answers, the longest first."""
    random = Random(1000 * number + salt)
    middle = job.mean * random.gauss(1, 0.1)
    found = (round(middle * random.lognormvariate(-(job.spread**2) / 2, job.spread)) for _ in range(samples))
    return sorted((max(2, min(length, job.limit)) for length in found), reverse=True)


def flat(model: Tiny) -> Tensor:
    """All weights in one row."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def load(model: Tiny, row: Tensor) -> None:
    """Take weights from one row."""
    at = 0
    for parameter in model.parameters():
        parameter.data.copy_(row[at : at + parameter.numel()].view_as(parameter))
        at += parameter.numel()


def colocated(job: Job, rank: int) -> None:
    """Both processes roll out their half, then train on it."""
    model, answering = Tiny(job.width), Tiny(job.width)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(1, job.steps + 1):
        clock = Clock()
        lengths = drawn(job, number, job.samples // 2, rank)
        with clock("step"):
            with clock("gen", together=True):
                batch = Batch(roll_out(answering, lengths, job), lengths)
            with clock("reward", together=True):
                marks = score(batch.tokens, lengths, job)
            with clock("old_log_prob", together=True), torch.no_grad():
                list(log_probs(model, batch.tokens, lengths, job.forward))
            with clock("adv"):
                batch.advantages = marks - marks.mean()
            with clock("update_actor", together=True):
                train(model, optimizer, batch, job.update, everyone=True)
            with clock("update_weights", together=True):
                time.sleep(job.sync)
                load(answering, flat(model))
        if rank == 0:
            told(number, lengths + drawn(job, number, job.samples // 2, 1), clock)


def trainer(job: Job) -> None:
    """The process that trains; answers come from the other one."""
    model = Tiny(job.width)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(1, job.steps + 1):
        clock, header = Clock(), torch.empty(job.samples + 1)

        with clock("step"):
            with clock("gen"):
                dist.recv(header, 1)
                lengths = [int(length) for length in header[1:].tolist()]
                tokens = torch.empty(max(lengths) + 1, job.samples, dtype=torch.long)
                dist.recv(tokens, 1)
            if job.overlap:
                sync(job, model, clock)
            batch, marks = Batch(tokens, lengths), torch.empty(job.samples)
            if not job.reward_beside:
                with clock("reward"):
                    marks = score(tokens, lengths, job)
            with clock("old_log_prob"), torch.no_grad():
                list(log_probs(model, tokens, lengths, job.forward))
            if job.reward_beside:
                with clock("reward"):
                    dist.recv(marks, 1)
            with clock("adv"):
                batch.advantages = marks - marks.mean()
            with clock("update_actor"):
                train(model, optimizer, batch, job.update, everyone=False)
            if not job.overlap:
                sync(job, model, clock)
        if job.overlap:
            clock.spent["generate_async"] = float(header[0])
        told(number, lengths, clock)


def sync(job: Job, model: Tiny, clock: Clock) -> None:
    """Send the weights to the process that rolls out."""
    with clock("sync_rollout_weights" if job.overlap else "update_weights"):
        time.sleep(job.sync)
        dist.send(flat(model), 1)


def answerer(job: Job) -> None:
    """The process that rolls out."""
    model = Tiny(job.width)
    row = flat(model)
    for number in range(1, job.steps + 1):
        began = time.perf_counter()
        lengths = drawn(job, number, job.samples, 0)
        tokens = roll_out(model, lengths, job)
        dist.send(torch.tensor([time.perf_counter() - began, *lengths]), 0)
        dist.send(tokens, 0)
        if job.reward_beside:
            dist.send(score(tokens, lengths, job), 0)
        dist.recv(row, 0)
        load(model, row)


def told(number: int, lengths: Sequence[int], clock: Clock) -> None:
    """A line as verl's console logger writes it."""
    tokens = sum(lengths) + PROMPT * len(lengths)
    metrics = {
        "training/global_step": number,
        "response_length/mean": sum(lengths) / len(lengths),
        "response_length/max": max(lengths),
        "response_length/clip_ratio": 0.0,
        "prompt_length/mean": PROMPT,
        "perf/total_num_tokens": tokens,
        "perf/throughput": tokens / clock.spent["step"] / 2,
        **{f"timing_s/{name}": spent for name, spent in clock.spent.items()},
    }
    print(f"step:{number} - " + " - ".join(f"{name}:{value}" for name, value in metrics.items()), flush=True)


def _process(rank: int, job: Job, meeting: str, log: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    with open(log, "a", encoding="utf-8") as out, redirect_stdout(out):
        if job.kind == "colocated":
            colocated(job, rank)
        elif rank == 0:
            trainer(job)
        else:
            answerer(job)
    dist.barrier()
    dist.destroy_process_group()


def run(job: Job, log: Path) -> None:
    """Run the loop; its log begins with the command that verl would have."""
    module = "experimental.one_step_off_policy.main_ppo" if job.overlap else "trainer.main_ppo"
    own = " rollout.n_gpus_per_node=1 actor_rollout_ref.hybrid_engine=False" if job.kind == "separate" else ""
    gpus = 1 if job.kind == "separate" else 2
    log.write_text(f"+ python3 -m verl.{module} trainer.n_gpus_per_node={gpus}{own}\n", encoding="utf-8")
    with TemporaryDirectory() as folder:
        mp.start_processes(  # type: ignore[attr-defined, no-untyped-call]
            _process, (job, f"{folder}/meeting", str(log)), nprocs=2, start_method="fork"
        )


@click.command()
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice(["colocated", "separate"]), default="colocated", show_default=True)
@click.option("--fault", type=click.Choice(FAULTS), default="none", show_default=True)
@click.option("--steps", default=12, show_default=True)
@click.option("--limit", default=400, show_default=True, help="Tokens of the longest answer.")
@click.option("--overlap", is_flag=True, help="Roll out while the last batch is trained on (separate).")
@click.option("--reward-beside", is_flag=True, help="Score while log-probs are computed (separate).")
def main(log: Path, kind: str, fault: str, steps: int, limit: int, overlap: bool, reward_beside: bool) -> None:
    """Run the loop and write its log."""
    job = replace(Job(kind, steps=steps, limit=limit).with_fault(fault), overlap=overlap, reward_beside=reward_beside)
    run(job, log)


if __name__ == "__main__":
    main()
