"""`gpuscope tune` and `gpuscope again` on small scripts of their own."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.warm_python import executable

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.applied.change import Change
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions
from gpuscope.instrumented_runtime.record.manifest import Manifest
from gpuscope.instrumented_runtime.record.run_folder import read_manifest
from gpuscope.instrumented_runtime.tune import rerun

pytest.importorskip("torch", reason="tuning needs torch")

SLOW_LOADER = """
import sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Decoded(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.015)
        return torch.full((8,), float(index % 5))

dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{sys.argv[1]}/{time.time_ns()}")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Decoded(), batch_size=4):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
"""


def gpuscope(folder: Path, *words: str | Path, **variables: str) -> SimpleNamespace:
    done = subprocess.run(
        [sys.executable, "-c", "from gpuscope.cli import main; main()", *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **variables},
    )
    return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)


@pytest.mark.slow
def test_a_slow_loader_gets_workers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW_LOADER)
    scratch = tmp_path / "rendezvous"
    scratch.mkdir()
    command = [executable(), "train.py", scratch]
    words = ["--budget", "9", "--steps", "16", "--html", "page.html", "--take", "mine.txt", "--json"]
    done = gpuscope(tmp_path, "tune", "-o", "tuned", *words, "--", *command)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    first = found["changes"][0]
    assert (first["code"], first["outcome"], first["kept"]) == ("loader_workers", "faster", True), first
    assert max(found["best_step_ns"], first["measured_ns"]) < 0.9 * found["baseline_step_ns"]
    assert first["low_ns"] <= first["predicted_ns"] <= first["high_ns"] < found["baseline_step_ns"]
    assert found["runs"] <= 9
    assert found["losses"] in ("equal", "seen_once")  # once where one run settles each change
    assert json.loads((tmp_path / "tuned/result.json").read_text()) == found
    assert "+for batch in DataLoader(Decoded(), batch_size=4, num_workers=" in (tmp_path / "mine.txt").read_text()
    assert "\n+for batch in DataLoader(Decoded(), batch_size=4, num_workers=" in (tmp_path / "page.html").read_text()
    assert (tmp_path / "train.py").read_text() == SLOW_LOADER
    again = gpuscope(tmp_path, "tune", "-o", "tuned", "--", *command)
    assert (again.code, "exists already" in again.err) == (2, True)


@pytest.mark.slow
def test_a_run_again_with_the_advice_followed(tmp_path: Path) -> None:
    """In the folder where it ran, whatever the one is from where that is asked."""
    there, here, scratch = (tmp_path / name for name in ("there", "here", "rendezvous"))
    for folder in (there, here, scratch):
        folder.mkdir()
    (there / "train.py").write_text(SLOW_LOADER)
    command = [executable(), "train.py", scratch]
    store = {"GPUSCOPE_STORE": str(tmp_path / "runs.db"), "GPUSCOPE_NO_STORE": ""}
    variables = {"OMP_NUM_THREADS": "1", "PATH_OF_MINE": "secret"}
    made = gpuscope(there, "record", "-o", "run", "--active", "6", "--stop-after", "10", "--", *command, **variables)
    assert made.code == 0, made.err
    launch = json.loads((there / "run/manifest.json").read_text())["launch"]
    assert (launch["folder"], launch["options"]) == (str(there), {"active": 6, "stop_after": 10})
    assert launch["variables"]["OMP_NUM_THREADS"] == "1"
    assert "PATH_OF_MINE" not in launch["variables"]
    report = json.loads(gpuscope(there, "analyze", "run", "--json", "--no-store").out)
    advised = next(one for one in report["suggestions"] if one["code"] == "loader_workers")
    settings = [f"dataloader.num_workers={advised['facts']['workers']}", "dataloader.persistent_workers=true"]
    words = [word for one in settings for word in ("--set", one)]
    done = gpuscope(here, "again", there / "run", "-o", "second", *words, "--suggestion", "auto", "--json", **store)
    assert done.code == 0, done.err
    proof = json.loads(done.out)["suggestions"][0]
    assert (proof["code"], proof["applied"]) == ("loader_workers", True)
    assert (here / "second/rank0.json.gz").is_file()
    links = sqlite3.connect(tmp_path / "runs.db").execute("SELECT run, by, suggestion FROM followed_by").fetchall()
    assert links == [(1, 2, "loader_workers")]
    auto = gpuscope(here, "diff", there / "run", "second", "--suggestion", "auto", "--json")
    assert json.loads(auto.out)["suggestions"][0]["applied"], auto.err
    unclear = gpuscope(here, "diff", "second", there / "run", "--suggestion", "auto")
    assert (unclear.code, "do not show which suggestion" in unclear.err) == (2, True)


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("import sys; print('one'); sys.exit('no data here')", 4, "no data here"),
        ("print('nothing is trained')", 4, "the command has no steps to time"),
    ],
)
def test_what_can_not_be_tuned(tmp_path: Path, script: str, code: int, said: str) -> None:
    (tmp_path / "mine.py").write_text(script)
    done = gpuscope(tmp_path, "tune", "-o", "t", "--", executable(), "mine.py")
    assert (done.code, said in done.err, "Traceback" in done.err) == (code, True, False), done.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["tune", "--", "no-such-program"], 3, "no such command"),
        (["tune", "--budget", "much", "--", "python"], 2, "no budget"),
        (["tune", "--allow", "magic", "--", "python"], 2, "no group 'magic'"),
        (["again", "no/such/run"], 3, "not a run folder"),
        (["again", "run", "--set", "nothing=1"], 2, "no setting"),
    ],
)
def test_wrong_use(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    done = gpuscope(tmp_path, *words)
    assert (done.code, said in done.err, "Traceback" in done.err) == (code, True, False), done.err
    assert not list(tmp_path.iterdir())


def test_a_recorded_sample_is_run_again(tmp_path: Path, samples: Path) -> None:
    """`gpuscope train` records itself: only where it writes is another place."""
    asked = rerun.Asked(samples / "ddp_slow_loader", tmp_path / "new", keep=False)
    words, _, _ = rerun._launch(read_manifest(asked.run), asked)
    assert words[len(rerun.GPUSCOPE) :][:1] == ["train"]
    assert words[words.index("--out") + 1] == str(tmp_path / "new")
    changed = rerun.Asked(asked.run, asked.out, [Change("dataloader.num_workers", "4")], keep=False)
    with pytest.raises(UsageError, match="has its own --set"):
        rerun._launch(read_manifest(asked.run), changed)


def test_a_command_with_a_secret_is_not_run_again(tmp_path: Path) -> None:
    asked = rerun.Asked(tmp_path, tmp_path / "new")
    with pytest.raises(UsageError, match="held secrets"):
        rerun._launch(Manifest(command=["python", "train.py", "--api-key", "…"]), asked)


def test_recording_options_become_words_again() -> None:
    options = RecordOptions(active=3, collectives=False, with_stack=True, nvml_interval_ms=5).chosen()
    assert rerun.as_words(options) == ["--active", "3", "--stacks", "--no-collectives", "--nvml-interval", "5"]
