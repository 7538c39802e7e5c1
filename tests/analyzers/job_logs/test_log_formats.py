"""Logs of many frameworks: every step time read, the shift found, and no step that is none."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import pytest
from helpers.job_logs import LINES, Mlperf, clock, text_of, written

import gpuscope
from gpuscope.errors import InputError
from gpuscope.report.view.first_lines import first_lines


def seconds(count: int = 120, base: float = 2.0, shift: int | None = 60, times: float = 1.3) -> list[float]:
    drawn = random.Random(7)
    return [
        base * (1 + 0.005 * drawn.gauss(0, 1)) * (times if shift and number >= shift else 1) for number in range(count)
    ]


def log_of(path: Path) -> Any:
    return gpuscope.analyze(path, advice=False).report["job_log"]


@pytest.mark.parametrize("name", LINES)
def test_steps_and_shift(name: str, tmp_path: Path) -> None:
    own = seconds()
    found = log_of(written(tmp_path / "job.log", text_of(LINES[name][1], own)))
    assert found["format"] == LINES[name][0]
    assert found["samples"] >= len(own) - (name == "time_stamps")
    expected = sorted(own[60:])[30] * 1e9
    assert found["step_ns"] == pytest.approx(expected, rel=0.02)  # bars round
    assert len(found["shifts"]) == 1
    assert abs(found["shifts"][0]["step"] - 61) <= 1
    assert found["shifts"][0]["to_ns"] / found["shifts"][0]["from_ns"] == pytest.approx(1.3, rel=0.02)


@pytest.mark.parametrize("name", LINES)
def test_healthy_steps_have_no_shift(name: str, tmp_path: Path) -> None:
    found = log_of(written(tmp_path / "job.log", text_of(LINES[name][1], seconds(shift=None))))
    assert (found["shifts"], found["growth"], found["restarts"]) == ([], None, 0)


NONE = {
    "download": [f"model-{i}.bin: {i}%|███ | {i / 20:.1f}G/4.9G [00:{i // 2:02d}<00:12, 230MB/s]\r" for i in range(99)],
    "shards": [f"Loading checkpoint shards: {i}%|█ | {i}/100 [00:{i // 2:02d}<00:12,  1.23it/s]\r" for i in range(99)],
    "map": [f"Map: {i}%|██| {i * 100}/10000 [00:{i // 2:02d}<00:12, 123.4 examples/s]\r" for i in range(99)],
    "nothing trains": [f" {i}%|██| {i}/100 [00:{i // 2:02d}<00:12,  1.23it/s]\r" for i in range(99)],
    "denoising": [f"denoise step {i}/50 1.2s/it\n" for i in range(50)],
    "pipeline of a build": [f"Processing step {i} of pipeline took 1.2s\n" for i in range(50)],
    "evaluation": [f"Eval step {i}/50 loss 2.1 0.5 s/it\n" for i in range(50)],
    "binary": ["step \x00\x01\x02 loss\n" for _ in range(50)],
}


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_step_is_no_log(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        gpuscope.analyze(written(tmp_path / "job.log", "".join(NONE[name])), advice=False)


@pytest.mark.parametrize("name", [name for name in NONE if name != "binary"])
def test_what_is_no_step_adds_none(name: str, tmp_path: Path) -> None:
    own = seconds(shift=None)
    text = "".join(NONE[name]) + "\n" + text_of(LINES["megatron"][1], own)
    found = log_of(written(tmp_path / "job.log", text))
    assert (found["samples"], found["shifts"]) == (len(own), [])


def test_packed_and_cut_logs(tmp_path: Path) -> None:
    own = seconds()
    text = text_of(LINES["plain"][1], own).encode() + b"step 121 loss 2.1 2."
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(text))
    found = log_of(tmp_path / "job.log.gz")
    assert (found["samples"], len(found["shifts"])) == (len(own), 1)


def test_ranks_in_one_file_count_once(tmp_path: Path) -> None:
    """Eight ranks print each step, with torchrun's label and without."""
    own = seconds(shift=None)
    labelled = "".join(f"[rank{r}]: step {n} loss 2.1 {s:.3f} s/it\n" for n, s in enumerate(own, 1) for r in range(8))
    bare = "".join(f"step {n} loss 2.1 {s:.3f} s/it\n" for n, s in enumerate(own, 1) for _ in range(8))
    for text in (labelled, bare):
        found = log_of(written(tmp_path / "job.log", text))
        assert (found["samples"], found["steps"], found["restarts"]) == (len(own), len(own), 0)


def test_a_late_rank(tmp_path: Path) -> None:
    own = seconds(shift=None)
    text = "".join(
        f"[rank{r}]: step {n} loss 2.1 {s * (1.2 if r == 3 else 1):.3f} s/it\n"
        for n, s in enumerate(own, 1)
        for r in range(8)
    )
    report = gpuscope.analyze(written(tmp_path / "job.log", text), advice=False).report
    assert [one["rank"] for one in report["job_log"]["late_ranks"]] == [3]
    assert first_lines(report).what.startswith("Rank 3 takes 2.4")


def test_a_restart_counts_its_steps_once(tmp_path: Path) -> None:
    """100 steps of 2 s, 300 s until the job goes on from step 81."""
    line = LINES["megatron"][1]
    text = text_of(line, [2.0] * 100) + text_of(line, [2.0] * 70, begin=500.0, first=81)
    found = log_of(written(tmp_path / "job.log", text))
    assert (found["restarts"], found["attempts"][0]["repeated_steps"], found["steps"]) == (1, 20, 150)
    assert found["attempts"][0]["lost_ns"] == 300 * 10**9
    assert found["mttr_ns"] == 300 * 10**9
    # From the first line, which the first step ends with.
    assert found["goodput_frac"] == pytest.approx(300 / 638, rel=0.01)


def test_torchruns_folders_are_attempts(tmp_path: Path) -> None:
    line = LINES["megatron"][1]
    for attempt, (begin, first) in enumerate(((0.0, 1), (500.0, 81))):
        for rank in range(2):
            folder = tmp_path / f"attempt_{attempt}" / str(rank)
            folder.mkdir(parents=True)
            text = text_of(line, [2.0] * 100, begin=begin, first=first)
            written(folder / "stdout.log", text.replace("[default0]: ", ""))
    found = log_of(tmp_path)
    assert (found["restarts"], found["samples"], found["steps"]) == (1, 200, 180)


def mlperf(*, samples: bool, label: str = "", ranks: int = 1) -> str:
    """Two blocks of 50 steps of 2 s with a batch of 16, an evaluation of 30 s after each; steps may count samples."""
    log = Mlperf(label)
    for _ in range(ranks):
        log.add("init_start")
    log.add("global_batch_size", 16).add("tracked_stats", {"warmup_time": 55.5}, 60.0, step=0)
    log.add("init_stop").add("run_start")
    for block in range(2):
        log.add("block_start", samples_count=block * 800)
        for step in range(1, 51):
            at = (block * 50 + step) * (16 if samples else 1)
            log.add("tracked_stats", {"train_step_time": 2.0 + 0.001 * step, "reduced_train_loss": 3.0}, 2.0, step=at)
        log.add("block_stop", samples_count=(block + 1) * 800).add("eval_start", samples_count=(block + 1) * 800)
        log.add("eval_accuracy", 3.0, 30.0, samples_count=(block + 1) * 800)
        log.add("eval_stop", samples_count=(block + 1) * 800)
    log.add("run_stop", samples_count=1600, status="success")
    return log.text


@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize("label", ["", "  0: "])
def test_mlperf(samples: bool, label: str, tmp_path: Path) -> None:
    path = written(tmp_path / "result_0.txt", "launching\n" + mlperf(samples=samples, label=label, ranks=3))
    report = gpuscope.analyze(path, advice=False).report
    found = report["job_log"]
    assert (found["format"], found["samples"], found["steps"]) == ("mlperf", 100, 100)
    assert found["step_ns"] == 2_025_500_000
    assert (found["startup_ns"], found["evaluation_ns"]) == (60 * 10**9, 60 * 10**9)
    assert found["goodput_frac"] == pytest.approx(200 / 320, rel=0.02)
    assert (found["checkpoint_ns"], found["restarts"], found["shifts"]) == (0, 0, [])
    assert [one["name"] for one in found["startup_parts"]] == ["warmup"]
    assert report["verdict"]["abstained"]


def test_mlperf_with_throughput_alone(tmp_path: Path) -> None:
    """AMD's: the step counts samples, a step is the global batch over the throughput."""
    log = Mlperf().add("init_start").add("global_batch_size", 32).add("run_start", passed=10.0)
    for block in range(1, 7):
        log.add("tracked_stats", {"throughput": 25.0}, 128.0, step=block * 3200)
        log.add("block_stop", samples_count=block * 3200).add("eval_start", samples_count=block * 3200)
        log.add("eval_stop", passed=12.0, samples_count=block * 3200)
    log.add("run_stop", samples_count=19200)
    found = log_of(written(tmp_path / "result_0.txt", log.text))
    assert (found["samples"], found["steps"], found["step_ns"]) == (6, 600, 1_280_000_000)
    assert found["goodput_frac"] == pytest.approx(768 / 850)


SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "logs" / "mlperf-5.1"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public logs lie beside the repository")
@pytest.mark.parametrize(
    ("name", "samples", "step_s", "startup_s", "evaluation_s"),
    [
        ("AMD_MI350X_EPYC_9575F_pytorch_llama31_8b", 14, 1.280388, 7.344, 172.509),
        ("Cisco_hpf_n8_llama31_8b", 3430, 0.71982, 151.280, 35.774),
        ("University-of-Florida_hpg-dgxb200x8-n1_dlrm_dcnv2", 1, 0.00327424, 124.748, 58.593),
        ("University-of-Florida_hpg-dgxb200x8-n2_flux1", 32, 0.619801, 216.913, 402.523),
        ("University-of-Florida_hpg-dgxb200x8-n32_llama31_405b", 503, 27.6409, 470.334, 286.888),
    ],
)
def test_public_logs(name: str, samples: int, step_s: float, startup_s: float, evaluation_s: float) -> None:
    found = log_of(SHARED / f"{name}.txt")
    assert found["samples"] == samples
    assert found["step_ns"] == pytest.approx(step_s * 1e9, rel=1e-3)
    assert (found["startup_ns"], found["evaluation_ns"]) == (startup_s * 1e9, evaluation_s * 1e9)
    assert found["shifts"] == []


def test_servers(tmp_path: Path) -> None:
    vllm = "".join(
        f"(EngineCore_0 pid=12) INFO 06-02 10:{k // 6:02d}:{k % 6 * 10:02d} [loggers.py:127] Engine 000: Avg prompt "
        f"throughput: {1000 + k:.1f} tokens/s, Avg generation throughput: {2000 + k:.1f} tokens/s, Running: 200 reqs, "
        f"Waiting: {k} reqs, GPU KV cache usage: {80 + k / 10:.1f}%, Prefix cache hit rate: 12.3%\n"
        for k in range(101)
    )
    sglang = "".join(
        f"[{clock(k)} TP0] Decode batch. #running-req: 100, #token: 123456, token usage: 0.5, cuda graph: True, gen "
        f"throughput (token/s): {3000 + k:.2f}, #queue-req: {k}, \n"
        for k in range(101)
    )
    for text, name, generated in ((vllm, "vllm", 2050.0), (sglang, "sglang", 3050.0)):
        report = gpuscope.analyze(written(tmp_path / "server.log", text), advice=False).report
        server = report["job_log"]["server"]
        assert report["job_log"]["format"] == name
        assert server is not None
        assert (server["generated_tokens_per_s"], server["waiting"], server["waiting_max"]) == (generated, 50.0, 100.0)
        assert [one["code"] for one in report["findings"]] == ["log_queue"]
