"""Other frameworks' loops, with the real libraries; each test is skipped where its library is missing."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpuscope.instrumented_runtime.record.manifest import Manifest
from gpuscope.instrumented_runtime.record.run_folder import read_manifest

Run = Callable[..., SimpleNamespace]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuscope.instrumented_runtime.record.session.signal.signal", lambda *_: None)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def ranges_and_steps(folder: Path) -> tuple[set[str], set[str]]:
    """Names of our ranges, without the garbage collector's (it runs when it likes), and steps."""
    events = json.loads(gzip.decompress((folder / "rank0.json.gz").read_bytes()))["traceEvents"]
    names = {event["name"] for event in events}
    steps = {name for name in names if name.startswith("ProfilerStep#")}
    ours = {name for name in names if name.startswith("gpuscope::")}
    return {name for name in ours if not name.startswith("gpuscope::gc.")}, steps


def test_under_gpuscope_record_a_callback_drives_the_launchers_session(
    record: Run, python: str, tmp_path: Path
) -> None:
    pytest.importorskip("lightning", reason="pip install gpuscope[integrations]")
    script = tmp_path / "fit.py"
    script.write_text(
        """
import lightning, torch
from gpuscope.instrumented_runtime.integrations.lightning import GpuscopeCallback

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def training_step(self, batch):
        return self.linear(batch).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters())

lightning.Trainer(max_steps=4, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, callbacks=[GpuscopeCallback("mine")]).fit(
    Module(), torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=2))
"""
    )
    done = record("--wait", "0", "--active", "2", "--", python, script, RANK="0", WORLD_SIZE="1")
    assert done.code == 0, done.err
    assert not (tmp_path / "mine").exists()
    assert done.manifest["framework"] == "lightning"
    assert len(ranges_and_steps(done.folder)[1]) == 2


def manifest_of(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    assert manifest.status == "completed"
    return manifest


def test_hugging_face_trainer(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="pip install gpuscope[integrations]")
    pytest.importorskip("accelerate", reason="pip install gpuscope[integrations]")
    from transformers import Trainer, TrainingArguments

    from gpuscope.instrumented_runtime.integrations.transformers import GpuscopeCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.linear(x).pow(2).mean()}

    arguments = TrainingArguments(
        output_dir=str(tmp_path / "hf"),
        max_steps=4,
        per_device_train_batch_size=2,
        report_to=[],
        gradient_accumulation_steps=2,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    recording = GpuscopeCallback(tmp_path / "run", wait=1, active=2)
    data = [{"x": torch.ones(4)} for _ in range(16)]
    Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[recording]).train()

    manifest = manifest_of(tmp_path / "run")
    assert manifest.framework == "transformers"
    assert manifest.config is not None
    assert manifest.config["accumulate"] == 2
    ranges, steps = ranges_and_steps(tmp_path / "run")
    # Whether the garbage collector runs meanwhile is chance.
    assert {name for name in ranges if ".generation" not in name} == {"gpuscope::step", "gpuscope::optimizer"}
    assert steps == {"ProfilerStep#2", "ProfilerStep#3"}  # of 4 optimizer steps, not of 8 micro-batches


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="pip install gpuscope[integrations]")

    from gpuscope.instrumented_runtime.integrations.lightning import GpuscopeCallback

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.linear(batch).pow(2).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters())

    def trainer(folder: str) -> object:
        return lightning.Trainer(
            max_steps=4,
            accelerator="cpu",
            devices=1,
            accumulate_grad_batches=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[GpuscopeCallback(tmp_path / folder, wait=1, active=2)],
        )

    loader = torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=2)
    trainer("run").fit(Module(), loader)  # type: ignore[attr-defined]
    assert manifest_of(tmp_path / "run").framework == "lightning"
    ranges, steps = ranges_and_steps(tmp_path / "run")
    assert ranges == {"gpuscope::backward"}
    assert steps == {"ProfilerStep#2", "ProfilerStep#3"}

    class Broken(Module):
        def training_step(self, _: torch.Tensor) -> torch.Tensor:
            raise ValueError("oops")

    with pytest.raises(ValueError, match="oops"):
        trainer("broken").fit(Broken(), loader)  # type: ignore[attr-defined]
    assert read_manifest(tmp_path / "broken").ranks[0].error == "ValueError: oops"


def test_accelerate(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="pip install gpuscope[integrations]")

    from gpuscope.instrumented_runtime.integrations.accelerate import recording

    os.environ.pop("ACCELERATE_USE_CPU", None)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(4, 4)
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters()),
        torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=2),
    )
    before = accelerator.backward
    with recording(accelerator, tmp_path / "run", wait=1, active=1) as session:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).pow(2).mean())
                optimizer.step()
                optimizer.zero_grad()
    assert accelerator.backward == before
    assert session.steps == 4  # of 8 micro-batches
    assert manifest_of(tmp_path / "run").framework == "accelerate"
    assert ranges_and_steps(tmp_path / "run") == ({"gpuscope::backward"}, {"ProfilerStep#2"})
