"""Logs, tracker exports and events of trainers for reinforcement learning; what is damaged in them is told."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import gpuscope
from gpuscope.errors import InputError, UsageError
from gpuscope.report.view.first_lines import first_lines
from gpuscope.sources.opening import open_trace
from gpuscope.words.vocabulary import role_of

RAY = "\x1b[36m(TaskRunner pid=4711)\x1b[0m "
VERL = (
    "step:{n} - global_seqlen/min:484 - training/global_step:{n} - response_length/mean:2000.0 - response_length/max:"
    "8000.0 - timing_s/start_profile:8.4e-05 - timing_s/agent_loop/generate_sequences/max:np.float64(19.5) - "
    "timing_s/gen:20.0 - timing_s/reward:1.5 - timing_s/old_log_prob:3.0 - timing_s/ref:2.5 - timing_s/adv:0.25 - "
    "timing_s/update_actor:np.float64(8.0) - timing_s/update_weights:1.0 - timing_s/step:36.5 - "
    "timing_per_token_ms/gen:0.01"
)
ONE_STEP_OFF = (
    "step:{n} - timing_s/gen:4.0 - timing_s/sync_rollout_weights:1.0 - timing_s/old_log_prob:5.0 - "
    "timing_s/update_actor:10.0 - timing_s/step:20.5 - timing_s/generate_async:19.0"
)
NEMO = """========================= Step {n}/10 =========================
⏱️  Timing:
  • Total step time: 36.50s
  • policy_training: 8.00s (30.7%)
  • generation: 20.00s (13.9%)
  • policy_and_reference_logprobs: 5.50s (8.8%)
  • policy_logprobs: 3.00s (8.2%)
  • prepare_for_generation/total: 1.00s (6.2%)
  • prepare_for_generation/transfer_and_update_weights: 0.60s (1.7%)
  • reward_calculation: 1.50s (4.1%)"""
SLIME = """(RolloutManager pid=2) perf {n}: {{'rollout/response_len/mean': 20.5, 'perf/rollout_time': np.float64(20.0)}}
(TrainRayActor pid=1) utils.py:50 - perf {n}: {{'perf/train_wait_time': 22.5, 'perf/update_weights_time': 1.0,\
 'perf/log_probs_time': 3.0, 'perf/ref_log_probs_time': 2.5, 'perf/actor_train_time': 8.0, 'perf/train_time': 14.0,\
 'perf/step_time': 36.5, 'perf/wait_time_ratio': 0.6}}
(RolloutManager pid=2) eval {n}: {{'perf/rollout_time': 999.0}}"""
OPENRLHF = (
    "✨ Global step {n}: {{'policy_loss': 0.1, 'response_length': 512.0, 'timing/make_experience': 7.0, "
    "'timing/ppo_train': 8.0, 'timing/broadcast': 1.0, 'timing/generation': 20.0, 'timing/step_total': 36.0}}"
)
TRL = "\n".join(
    json.dumps(row).replace("{", "{{").replace("}", "}}")
    for row in (
        {"profiling/Time taken: GRPOTrainer.vLLM.generate": 20.0},
        {"profiling/Time taken: GRPOTrainer._calculate_rewards": 1.5},
        {"profiling/Time taken: GRPOTrainer._prepare_inputs": 22.0},
        {"profiling/Time taken: GRPOTrainer.compute_loss": 4.0},
        {"profiling/Time taken: GRPOTrainer.compute_loss": 4.0},
        {"step_time": 36.5, "completions/mean_length": 300.0},
    )
)
JSON = '{{"step": {n}, "data": {{"timing_s/gen": 20.0, "timing_s/update_actor": 8, "timing_s/step": 36.5}}}}'
CSV = "Step,run-1 - timing_s/gen,run-1 - timing_s/gen__MIN,run-1 - timing_s/update_actor,run-1 - timing_s/step\n"
FORMATS = {
    "verl.log": (
        RAY + VERL,
        "verl",
        {
            "rollout": 20.0,
            "reward": 1.5,
            "log_probs": 3.0,
            "reference": 2.5,
            "advantages": 0.25,
            "update_actor": 8.0,
            "weight_sync": 1.0,
            "other": 0.25,
        },
    ),
    "off.log": (
        ONE_STEP_OFF,
        "verl",
        {"waiting": 4.0, "weight_sync": 1.0, "log_probs": 5.0, "update_actor": 10.0, "other": 0.5},
    ),
    "nemo.log": (
        NEMO,
        "nemo-rl",
        {"rollout": 20.0, "log_probs": 5.5, "weight_sync": 1.0, "reward": 1.5, "update_actor": 8.0, "other": 0.5},
    ),
    "slime.out": (
        SLIME,
        "slime",
        {"rollout": 20.0, "weight_sync": 1.0, "log_probs": 3.0, "reference": 2.5, "update_actor": 8.0, "other": 2.0},
    ),
    "rlhf.log": (OPENRLHF, "openrlhf", {"experience": 7.0, "update_actor": 8.0, "weight_sync": 1.0, "rollout": 20.0}),
    "trl.jsonl": (TRL, "trl", {"rollout": 20.0, "reward": 1.5, "update_actor": 8.0, "other": 7.0}),
    "verl.jsonl": (JSON, "verl", {"rollout": 20.0, "update_actor": 8.0, "other": 8.5}),
    "wandb.csv": ("{n},20.0,19.0,8.0,36.5", "verl", {"rollout": 20.0, "update_actor": 8.0, "other": 8.5}),
}


def written(folder: Path, name: str, line: str, numbers: range = range(1, 5)) -> Path:
    text = (CSV if name.endswith(".csv") else "") + "\n".join(line.format(n=number) for number in numbers) + "\n"
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize("name", FORMATS)
def test_each_framework_has_its_step_by_role(tmp_path: Path, name: str) -> None:
    line, framework, seconds = FORMATS[name]
    roles = gpuscope.analyze(written(tmp_path, name, line)).report["roles"]
    assert roles["framework"] == framework
    assert len(roles["steps"]) == 4
    for step in roles["steps"]:
        assert {role: ns / 1e9 for role, ns in step["by_role_ns"].items()} == pytest.approx(seconds)
        assert sum(step["by_role_ns"].values()) == step["dur_ns"]


@pytest.mark.parametrize("new_style", [False, True])
def test_tensorboards_event_files_are_read(tmp_path: Path, new_style: bool) -> None:
    pytest.importorskip("tensorboard")
    writers = pytest.importorskip("torch.utils.tensorboard")
    with writers.SummaryWriter(str(tmp_path)) as writer:
        for step in range(1, 5):
            for name, seconds in {"gen": 20.0, "reward": 1.5, "update_actor": 8.0, "step": 36.5}.items():
                writer.add_scalar(f"timing_s/{name}", seconds, step, new_style=new_style)
            writer.add_text("notes", "no number", step)
    [path] = tmp_path.iterdir()
    roles = gpuscope.analyze(path).report["roles"]
    assert roles["framework"] == "verl"
    assert [(step["step"], step["dur_ns"]) for step in roles["steps"]] == [(n, 36_500_000_000) for n in range(1, 5)]
    assert roles["steps"][0]["by_role_ns"]["rollout"] == 20_000_000_000
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert problems(path)["record_unreadable"] == 1
    path.write_bytes(whole[:200] + bytes([255] * 16) + whole[200:])
    with pytest.raises(InputError, match="damaged"):
        open_trace(path)


def problems(path: Path, *, partial: bool = False) -> dict[str, int]:
    return {one.code: one.count for one in open_trace(path, partial=partial).problems}


def test_what_is_damaged_is_counted(tmp_path: Path) -> None:
    whole = written(tmp_path, "a.log", RAY + VERL)
    text = whole.read_text()
    cases = {
        "cut in the last step": (text[: text.rindex("timing_s/adv")], {"record_unreadable": 1}),
        "not a number": (text.replace("timing_s/ref:2.5", "timing_s/ref:nan", 1), {"record_unreadable": 1}),
        "negative": (text.replace("timing_s/ref:2.5", "timing_s/ref:-2.5", 1), {"record_unreadable": 1}),
        "another version's timer": (text.replace("timing_s/ref", "timing_s/teacher"), {"role_timers_unknown": 1}),
        "resumed": (text + text.splitlines()[-1], {"role_steps_repeated": 1}),
        "no step": (text.replace("timing_s/step", "other/step"), {"role_step_assumed": 1}),
    }
    for what, (damaged, expected) in cases.items():
        whole.write_text(damaged)
        assert problems(whole) == expected, what


def test_what_cannot_be_used_says_how_to_mend_it(tmp_path: Path) -> None:
    bare = tmp_path / "a.log"
    bare.write_text("python3 -m verl.trainer.main_ppo\nstep:1 - actor/loss:0.5 - training/global_step:1\n")
    events = tmp_path / "events.json"
    events.write_text('[{"role": "actor_update", "start_time_ms": 1.0, "end_time_ms": 2.0, "rank_id": 0}')
    packed = tmp_path / "b.log.gz"
    packed.write_bytes(gzip.compress((VERL.format(n=1) + "\n").encode() * 50)[:-20])
    for path, words in ((bare, "timers of its roles"), (events, "not a whole list"), (packed, "cut off")):
        with pytest.raises(InputError, match=words) as error:
            open_trace(path)
        assert error.value.hint


def test_a_step_that_contradicts_itself_is_left_out_and_most_of_them_are_asynchronous(tmp_path: Path) -> None:
    log = written(tmp_path, "a.log", VERL)
    log.write_text(log.read_text().replace("timing_s/gen:20.0", "timing_s/gen:30.0", 1))
    report = gpuscope.analyze(log).report
    assert [step["step"] for step in report["roles"]["steps"]] == [2, 3, 4]
    assert "role_steps_contradict" in {one["code"] for one in report["problems"]}
    log = written(tmp_path, "b.log", OPENRLHF.replace("'timing/step_total': 36.0", "'timing/step_total': 21.0"))
    roles = gpuscope.analyze(log).report["roles"]
    assert roles["asynchronous"]
    assert roles["steps"][0]["by_role_ns"]["waiting"] == 5_000_000_000
    assert roles["steps"][0]["beside_ns"] == {"rollout": 20_000_000_000}


PROFILED = "profiling/Time taken: GRPOTrainer."


def trl_rows(steps_per_row: int, *, rows: int = 4, calls: int = 1, first: int = 0) -> list[dict[str, float]]:
    """Of each training step a row per timed call, and of every few steps one with the mean of theirs: 234 ms, of them
    rollout 118, reward 56, loss 18 with 12 of log-probs in it."""
    found: list[dict[str, float]] = []
    for row in range(rows):
        for _ in range(steps_per_row):
            found += [
                {PROFILED + "transformers.generate": 0.118},
                {PROFILED + "length_reward": 0.05},
                {PROFILED + "_calculate_rewards": 0.056},
                {PROFILED + "_prepare_inputs": 0.18},
            ]
            for _ in range(calls):
                found += [
                    {PROFILED + "_get_per_token_logps_and_entropies": 0.012 / calls},
                    {PROFILED + "compute_loss": 0.018 / calls},
                ]
        number = first + (row + 1) * steps_per_row
        found.append({"train/step_time": 0.234, "train/completions/mean_length": 300.0, "train/global_step": number})
    return found


def as_csv(rows: list[dict[str, float]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(["_step", *names])]
    lines += [",".join([str(i), *(str(row.get(name, "")) for name in names)]) for i, row in enumerate(rows)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("steps_per_row", "calls", "first"), [(1, 1, 0), (5, 1, 0), (10, 4, 0), (5, 2, 100)])
def test_timers_of_several_steps_are_divided_by_their_number(
    tmp_path: Path, steps_per_row: int, calls: int, first: int
) -> None:
    path = tmp_path / "history.csv"
    path.write_text(as_csv(trl_rows(steps_per_row, calls=calls, first=first)))
    report = gpuscope.analyze(path).report
    roles = report["roles"]
    assert roles["averaged"] == steps_per_row
    expected = {"rollout": 0.118, "reward": 0.056, "update_actor": 0.018, "other": 0.042}
    for step in roles["steps"]:
        assert {role: ns / 1e9 for role, ns in step["by_role_ns"].items()} == pytest.approx(expected, rel=1e-6)
    assert "role_timers_unknown" not in {one["code"] for one in report["problems"]}  # the reward's own function
    assert first_lines(report).what.startswith("Rollout bounds the step: 50 %")


def test_rows_without_step_numbers_are_divided_by_the_fewest_steps_that_fit(tmp_path: Path) -> None:
    rows = [
        {key.removeprefix("train/"): value for key, value in row.items() if key != "train/global_step"}
        for row in trl_rows(4)
    ]
    path = tmp_path / "history.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    roles = gpuscope.analyze(path).report["roles"]
    assert roles["averaged"] == 4
    assert roles["steps"][0]["by_role_ns"]["rollout"] == 118_000_000


def test_log_probs_before_the_loss_are_their_own(tmp_path: Path) -> None:
    rows = [
        {PROFILED + "generate": 0.1},
        {PROFILED + "_get_per_token_logps": 0.03},
        {PROFILED + "_prepare_inputs": 0.2},
        {PROFILED + "_get_per_token_logps": 0.02},
        {PROFILED + "compute_loss": 0.05},
        {"step_time": 0.25, "reward": 1.0},
    ]
    path = tmp_path / "history.jsonl"
    path.write_text("\n".join(json.dumps(row) for _ in range(4) for row in rows))
    parts = gpuscope.analyze(path).report["roles"]["steps"][0]["by_role_ns"]
    assert {role: ns / 1e6 for role, ns in parts.items()} == pytest.approx(
        {"rollout": 100, "log_probs": 30, "update_actor": 50, "other": 70}
    )


def test_steps_that_all_contradict_themselves_are_told_first(tmp_path: Path) -> None:
    rows = [{PROFILED + "generate": 0.5}, {PROFILED + "compute_loss": 0.2}, {"step_time": 0.15, "reward": 1.0}]
    path = tmp_path / "history.jsonl"
    path.write_text("\n".join(json.dumps(row) for _ in range(4) for row in rows))
    lines = first_lines(gpuscope.analyze(path).report)
    assert lines.what == "No verdict: in all 4 steps the timers add up to more than the step"
    assert "logging_steps=1" in lines.fix


@pytest.mark.parametrize(
    "line",
    [
        "{{'loss': '-0.2', 'completions/mean_length': '14', 'completions/max_length': '16', 'step_time': '0.1{n}'}}",
        "{{'loss': -0.2, 'completions/mean_length': 14.0, 'completions/max_length': 16.0, 'step_time': 0.1{n}}}",
        '{{"reward": "2.5", "step_time": "0.1{n}", "completions/mean_length": "14", "completions/max_length": "16"}}',
        " 33%|███▎ | 2/6 [00:01<00:02]\r{{'reward': 1.5, 'completions/mean_length': 14, 'completions/max_length': 16,"
        " 'step_time': 0.1{n}}}",
    ],
)
def test_trls_console_log_is_known_by_its_step_time(tmp_path: Path, line: str) -> None:
    report = gpuscope.analyze(written(tmp_path, "train.log", line, range(10, 16))).report
    roles = report["roles"]
    assert (roles["framework"], roles["roles"], roles["bound_by"]) == ("trl", [], "")
    assert [step["dur_ns"] for step in roles["steps"]] == [110_000_000 + n * 1_000_000 for n in range(6)]
    assert roles["tail"] is not None
    assert roles["tail"]["longest"] == 16
    lines = first_lines(report)
    assert lines.what == "No verdict: the log times its steps, but no role in them"
    assert 'report_to="wandb"' in lines.fix


def test_trls_event_file_is_known_by_its_step_time(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    writers = pytest.importorskip("torch.utils.tensorboard")
    with writers.SummaryWriter(str(tmp_path)) as writer:
        for step in range(1, 7):
            writer.add_scalar("train/step_time", 0.2, step)
            writer.add_scalar("train/completions/mean_length", 100.0, step)
    [path] = tmp_path.iterdir()
    assert len(gpuscope.analyze(path).report["roles"]["steps"]) == 6


@pytest.mark.parametrize(
    "text",
    [
        "{'loss': 0.1, 'step_time': 0.2}\n",
        "step_time: 0.2, reward: 1\n",
        "{'reward': 1.5, 'epoch': 0.1}\n",
    ],
)
def test_another_trainers_log_is_not_taken_for_trls(tmp_path: Path, text: str) -> None:
    """Step times beside a loss are read as those of any job's log; never as roles."""
    (tmp_path / "train.log").write_text(text * 5)
    if "loss" in text:
        report = gpuscope.analyze(tmp_path / "train.log").report
        assert ("roles" in report, report["trace"]["sources"][0]["format"]) == (False, "step-log")
        return
    with pytest.raises(InputError):
        gpuscope.analyze(tmp_path / "train.log")


def test_names_of_folders_and_ranges_say_their_role() -> None:
    names = {
        "actor_compute_log_prob": "log_probs",
        "ref_compute_log_prob": "reference",
        "actor_update": "update_actor",
        "agent_loop_rollout_replica_0": "rollout",
        "compute_values": "values",
        "update_critic": "update_critic",
        "update_weights": "weight_sync",
        "compute_rm_score": "reward",
        "generate_sequences": "rollout",
        "critic_compute_values": "values",
        "prefetch": None,
        "buffer": None,
        "refine": None,
    }
    assert {name: role_of(name) for name in names} == names


def test_events_and_captures_have_clocks_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        '[{"role": "rollout", "start_time_ms": 1773285888698.7, "end_time_ms": 1773285889698.7, "rank_id": 0}]'
    )
    (tmp_path / "b.jsonl").write_text('{"table":"NVTX_EVENTS","eventType":59,"start":1,"end":9,"text":"rollout"}\n')
    with pytest.raises(UsageError, match=r"b\.jsonl \(nsys\) and .*a\.json \(rl-insight\).*different moments"):
        gpuscope.analyze(tmp_path)


def test_a_folder_of_logs_without_timers_is_no_run(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text("python3 -m verl.trainer.main_ppo\nstep:1 - actor/loss:0.5 - training/epoch:0\n")
    for opened in (gpuscope.analyze, open_trace):
        with pytest.raises(InputError, match=r"2 files of no use.*timers of its roles"):
            opened(tmp_path)


def test_public_examples(shared_traces: Path) -> None:
    folder = shared_traces / "rl" / "rl_insight"
    events = gpuscope.analyze(folder / "summary_event_data").report
    [step] = events["roles"]["steps"]
    spent = {role: round(ns / 1e6) for role, ns in step["by_role_ns"].items()}
    assert spent == {"rollout": 2397, "log_probs": 3942, "other": 7950}
    assert any("no interval of ranks 0,2" in one["message"] for one in events["problems"])
    nsys = gpuscope.analyze(folder / "nvtx_data").report["roles"]
    assert {one["role"]: one["ranks"] for one in nsys["roles"] if one["ranks"]} == {
        "log_probs": [0, 1],
        "values": [0, 1],
        "update_critic": [0, 1],
    }
    with pytest.raises(InputError, match="timers of its roles"):
        gpuscope.analyze(folder / "verl_data" / "good_minimal_verl.log")
