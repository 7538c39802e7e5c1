"""Jobs for reinforcement learning as their schedulers and engines run them, and the lines that trainers log of them.

Engines decode token by token: a step costs `per_step` and `per_request` for each request that runs. The training's time
goes with its tokens, divided by its GPUs but for a fixed part. Nothing here is gpuscope's: what it says is the truth.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from typing import Any, Literal

Kind = Literal["colocated", "separate", "one_step_off"]
FAULTS = ("slow_rollout", "long_tail", "slow_reward", "slow_sync", "slow_update", "few_rollout_gpus")
ROLES = ("rollout", "reward", "log_probs", "reference", "advantages", "update_actor", "weight_sync", "other")
TIMERS = {
    "rollout": "gen",
    "reward": "reward",
    "log_probs": "old_log_prob",
    "reference": "ref",
    "advantages": "adv",
    "update_actor": "update_actor",
    "weight_sync": "update_weights",
}
Step = dict[str, float]


@dataclass(frozen=True)
class Job:
    """What decides a job's times, in s."""

    kind: Kind
    fault: str
    seed: int
    steps: int
    rollout_gpus: int
    trainer_gpus: int
    samples: int
    slots: int
    mean: float
    spread: float
    limit: int
    per_step: float
    per_request: float
    log_probs: float
    update: float
    fixed: float
    reward: float
    sync: float
    drift: float
    prompt: int = 300
    beside: bool = False
    reward_beside: bool = False


def drawn(seed: int) -> Job:
    """A job with one of the faults."""
    random = Random(seed)
    fault, kind = random.choice(FAULTS), random.choice(("colocated", "separate", "one_step_off"))
    gpus = random.choice((4, 8, 16, 32))
    job = Job(
        kind=kind,
        fault=fault,
        seed=seed,
        steps=random.randint(12, 50),
        rollout_gpus=gpus,
        trainer_gpus=gpus,
        samples=random.choice((128, 256, 512, 1024)),
        slots=random.choice((64, 128, 256)),
        mean=random.uniform(400, 3000),
        spread=random.uniform(0.3, 0.8),
        limit=random.choice((4096, 8192, 16384)),
        per_step=random.uniform(0.006, 0.02),
        per_request=random.uniform(5e-5, 4e-4),
        log_probs=random.uniform(1e-5, 4e-5),
        update=random.uniform(4e-5, 1.5e-4),
        fixed=random.uniform(0.0, 2.0),
        reward=random.uniform(0.2, 5.0),
        sync=random.uniform(0.5, 5.0),
        drift=random.uniform(0.0, 0.4),
    )
    if kind != "colocated":
        own = random.choice((gpus // 4, gpus // 2, 3 * gpus // 4))
        job = replace(job, rollout_gpus=own, trainer_gpus=gpus - own, beside=kind == "one_step_off")
    usual = median(took for took, _ in scheduled(job, alone(job)))
    changes: dict[str, dict[str, Any]] = {
        "slow_rollout": {"per_step": 3 * job.per_step, "per_request": 3 * job.per_request},
        "long_tail": {"spread": 1.3},
        "slow_reward": {"reward": random.uniform(0.8, 2) * usual},
        "slow_sync": {"sync": random.uniform(0.8, 2) * usual},
        "slow_update": {"update": random.uniform(2.5, 6) * job.update},
        "few_rollout_gpus": {"rollout_gpus": 1, "trainer_gpus": gpus - 1} if kind != "colocated" else {},
    }
    return replace(job, **changes[fault])


def alone(job: Job, seed: int | None = None) -> list[Step]:
    """What each role takes by itself in each step."""
    random = Random(job.seed * 7919 + 1 if seed is None else seed)
    found = []
    for number in range(job.steps):
        lengths = _lengths(job, random, number)
        tokens = sum(lengths) + job.prompt * len(lengths)
        work = tokens / job.trainer_gpus
        step = {
            "rollout": _decoded(job, lengths, random),
            "reward": job.reward,
            "log_probs": job.log_probs * work,
            "reference": job.log_probs * work,
            "advantages": 0.05,
            "update_actor": job.update * work + job.fixed,
            "weight_sync": job.sync,
            "other": 0.2,
        }
        if job.kind == "separate":  # slime scores each sample as part of the rollout
            step |= {"rollout": step["rollout"] + step["reward"], "reward": 0.0}
        step["rollout"] *= 1.5 if not number else 1.0  # engines warm up
        found.append({role: took * random.gauss(1, 0.01) for role, took in step.items()})
        found[-1] |= {
            "_mean": sum(lengths) / len(lengths),
            "_max": max(lengths),
            "_tokens": tokens,
            "_clipped": sum(one >= job.limit for one in lengths) / len(lengths),
        }
    return found


def _lengths(job: Job, random: Random, number: int) -> list[int]:
    """Log-normal, longer towards the end of the run as models learn to reason, cut at the limit."""
    middle = job.mean * (1 + job.drift * number / job.steps) * random.gauss(1, 0.05)
    scale = [random.lognormvariate(-(job.spread**2) / 2, job.spread) for _ in range(job.samples)]
    return [max(1, min(round(middle * one), job.limit)) for one in scale]


def _decoded(job: Job, lengths: list[int], random: Random) -> float:
    """The slowest engine's time; each takes its requests in turn, at most `slots` at once."""
    shuffled = random.sample(lengths, len(lengths))
    return max(_engine(job, shuffled[place :: job.rollout_gpus]) for place in range(job.rollout_gpus)) + 0.5


def _engine(job: Job, lengths: list[int]) -> float:
    waiting, running, made, now = list(lengths), list[int](), 0, 0.0
    while waiting or running:
        while waiting and len(running) < job.slots:
            heapq.heappush(running, made + waiting.pop())
        until = running[0]
        now += (until - made) * (job.per_step + job.per_request * len(running))
        made = until
        while running and running[0] <= made:
            heapq.heappop(running)
    return now


def scheduled(job: Job, steps: list[Step]) -> list[tuple[float, float]]:
    """(duration, wait for the rollout) of each step."""
    found, rolled, now = [], 0.0, 0.0
    for number, step in enumerate(steps):
        begin = now
        if job.beside:
            rolled = rolled or step["rollout"]
            waited = max(rolled - now, 0.0)
            now += waited + step["weight_sync"]
            rolled = now + steps[min(number + 1, len(steps) - 1)]["rollout"]
        else:
            waited = 0.0
            now += step["rollout"] + step["weight_sync"]
        scored = step["reward"]
        forward = step["log_probs"] + step["reference"]
        now += max(scored, forward) if job.reward_beside else scored + forward
        now += step["advantages"] + step["update_actor"] + step["other"]
        found.append((now - begin, waited))
    return found[1:] if job.beside else found


def step_s(job: Job, seed: int | None = None) -> float:
    """The median step."""
    return median(took for took, _ in scheduled(job, alone(job, seed)))


def bounding(job: Job) -> dict[str, float]:
    """By role, what the step loses where it takes half as long, the most first."""
    steps = alone(job)
    before = median(took for took, _ in scheduled(job, steps))
    gains = {}
    for role in ROLES:
        halved = [{**step, role: step[role] / 2} for step in steps]
        gains[role] = before - median(took for took, _ in scheduled(job, halved))
    return dict(sorted(gains.items(), key=lambda one: -one[1]))


def logged(job: Job) -> str:
    """The console log of the job's trainer."""
    if job.kind == "separate":
        return _slime(job)
    steps, total = alone(job), job.rollout_gpus if job.kind == "colocated" else job.rollout_gpus + job.trainer_gpus
    module = "trainer.main_ppo" if job.kind == "colocated" else "experimental.one_step_off_policy.main_ppo"
    own = "" if job.kind == "colocated" else f" rollout.n_gpus_per_node={job.rollout_gpus} rollout.nnodes=1"
    lines = [f"+ python3 -m verl.{module} trainer.n_gpus_per_node={job.trainer_gpus} trainer.nnodes=1{own}"]
    times = scheduled(job, steps)
    for number, (step, (took, waited)) in enumerate(zip(steps[len(steps) - len(times) :], times, strict=True), 1):
        timers = {TIMERS[role]: step[role] for role in TIMERS}
        if job.kind == "one_step_off":
            timers |= {
                "gen": waited,
                "sync_rollout_weights": timers.pop("update_weights"),
                "generate_async": step["rollout"],
            }
        told = {
            "training/global_step": number,
            "response_length/mean": step["_mean"],
            "response_length/max": step["_max"],
            "response_length/clip_ratio": step["_clipped"],
            "prompt_length/mean": job.prompt,
            "perf/total_num_tokens": step["_tokens"],
            "perf/throughput": step["_tokens"] / took / total,
            **{f"timing_s/{name}": value for name, value in timers.items()},
            "timing_s/step": took,
        }
        lines.append(f"(TaskRunner pid=7) step:{number} - " + " - ".join(f"{key}:{told[key]}" for key in told))
    return "\n".join(lines) + "\n"


def _slime(job: Job) -> str:
    lines = [
        f"python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node {job.trainer_gpus} --rollout-num-gpus "
        f"{job.rollout_gpus}"
    ]
    steps = alone(job)
    for number, (step, (took, _)) in enumerate(zip(steps, scheduled(job, steps), strict=True)):
        rolled = {
            "rollout/response_len/mean": step["_mean"],
            "rollout/response_len/max": step["_max"],
            "rollout/truncated_ratio": step["_clipped"],
            "perf/rollout_time": step["rollout"],
        }
        trained = step["log_probs"] + step["reference"] + step["update_actor"]
        timers = {
            "update_weights": step["weight_sync"],
            "log_probs": step["log_probs"],
            "ref_log_probs": step["reference"],
            "actor_train": step["update_actor"],
            "train": trained,
            "train_wait": took - trained,
            "step": took,
        }
        lines.append(f"(RolloutManager pid=2) perf {number}: {rolled}")
        lines.append(f"(TrainRayActor pid=3) perf {number}: { {f'perf/{key}_time': timers[key] for key in timers} }")
    return "\n".join(lines) + "\n"
