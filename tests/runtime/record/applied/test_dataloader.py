"""DataLoader's arguments, where they are legal."""

from __future__ import annotations

import pytest
from runtime.record.applied.conftest import Job, refusals, times, values

SCRIPT = """
import pickle, inspect
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

class Squares(Dataset):
    def __len__(self): return 24
    def __getitem__(self, at): return torch.tensor([float(at * at)])

class Stream(IterableDataset):
    def __iter__(self): return iter([torch.tensor([float(at)]) for at in range(8)])

class Mine(DataLoader):
    pass

def main():
    torch.manual_seed(0)
    arguments = eval(os.environ.get("ARGUMENTS", "{}"))
    loader = Mine(Squares(), batch_size=4, shuffle=True, **arguments)
    stream = DataLoader(Stream(), 2)
    validation = DataLoader(Squares(), batch_sampler=[[3, 1], [0, 2]])
    pickled = pickle.loads(pickle.dumps(validation)).num_workers
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    seen = []
    for epoch in range(2):
        for batch in loader:
            seen.append(batch.flatten().tolist())
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
    tell(order=seen, workers=[one.num_workers for one in (loader, stream, validation)],
         persistent=loader.persistent_workers, prefetch=loader.prefetch_factor, pin=loader.pin_memory,
         stream=[batch.flatten().tolist() for batch in stream],
         validation=[batch.flatten().tolist() for batch in validation],
         kinds=[type(loader).__name__, isinstance(loader, DataLoader), str(inspect.signature(DataLoader))[1:8]],
         pickled=pickled)

if __name__ == "__main__":
    main()
"""


def test_workers_where_there_were_none_load_the_same_batches_in_the_same_order(job: Job) -> None:
    before, changed = job(SCRIPT), job(SCRIPT, "dataloader.num_workers=2")
    own = job(SCRIPT, ARGUMENTS="dict(num_workers=2)")
    told = changed.told[0]
    assert told["workers"] == [2, 0, 2]
    assert told["pickled"] == 2
    assert told["kinds"] == ["Mine", True, "dataset"]
    assert told["order"] == before.told[0]["order"] == own.told[0]["order"]
    assert (told["stream"], told["validation"]) == (before.told[0]["stream"], before.told[0]["validation"])
    assert changed.facts[0]["losses"] == before.facts[0]["losses"]
    assert times(changed, "dataloader.num_workers") == 2
    assert refusals(changed, "dataloader.num_workers") == [
        "an iterable dataset: another number of workers would repeat, leave out or reorder its samples"
    ]
    assert "not applied everywhere: at train.py:" in changed.err
    assert values(changed, "dataloader.num_workers") == ["2", "0", "2"]
    assert values(before, "dataloader.batch_size") == ["4", "2", "none"]


def test_workers_are_multiplied_or_taken_away(job: Job) -> None:
    arguments = "dict(num_workers=1, prefetch_factor=3, persistent_workers=True, timeout=30)"
    twice = job(SCRIPT, "dataloader.num_workers=x2", ARGUMENTS=arguments)
    assert twice.told[0]["workers"] == [2, 0, 0]
    assert refusals(twice, "dataloader.num_workers") == ["it has no workers to multiply"] * 2
    none = job(SCRIPT, "dataloader.num_workers=0", ARGUMENTS=arguments)
    assert (none.told[0]["workers"][0], none.told[0]["persistent"], none.told[0]["prefetch"]) == (0, False, None)


def test_what_only_workers_take_is_given_to_loaders_with_workers(job: Job) -> None:
    changes = ("dataloader.prefetch_factor=5", "dataloader.persistent_workers=true")
    without = job(SCRIPT, *changes)
    assert refusals(without, "dataloader.prefetch_factor") == ["it has no workers"] * 3
    assert "dataloader.prefetch_factor=5 was not applied: at train.py:" in without.err
    changed = job(SCRIPT, "dataloader.num_workers=1", *changes)
    assert (changed.told[0]["prefetch"], changed.told[0]["persistent"]) == (5, True)
    assert times(changed, "dataloader.persistent_workers") == 2


def test_persistent_workers_leave_the_order_of_a_second_epoch(job: Job) -> None:
    """Set in the script, they change it: torch then draws the workers' seed once, not once per epoch."""
    workers = "num_workers=1"
    before = job(SCRIPT, ARGUMENTS=f"dict({workers})")
    own = job(SCRIPT, ARGUMENTS=f"dict({workers}, persistent_workers=True)")
    changed = job(SCRIPT, "dataloader.persistent_workers=true", ARGUMENTS=f"dict({workers})")
    assert (changed.told[0]["persistent"], own.told[0]["persistent"]) == (True, True)
    assert changed.told[0]["order"] == before.told[0]["order"] != own.told[0]["order"]


def test_a_loader_keeps_its_workers_where_processes_are_started_anew(job: Job) -> None:
    script = SCRIPT.replace(
        "def main():", "def main():\n    torch.multiprocessing.set_start_method('spawn', force=True)"
    )
    changed = job(script, "dataloader.num_workers=2")
    assert changed.told[0]["workers"] == [0, 0, 0]
    assert "processes are started anew, which the script may not be written for: set it there" in refusals(
        changed, "dataloader.num_workers"
    )


def test_pinned_memory_is_for_accelerators(job: Job) -> None:
    torch = pytest.importorskip("torch")
    changed = job(SCRIPT, "dataloader.pin_memory=true")
    assert changed.told[0]["pin"] == torch.accelerator.is_available()
    if not torch.accelerator.is_available():
        assert refusals(changed, "dataloader.pin_memory")[0] == "there is no accelerator"
    off = job(SCRIPT, "dataloader.pin_memory=false", ARGUMENTS="dict(pin_memory=True)")
    assert off.told[0]["pin"] is False


def test_a_loader_that_refuses_a_change_is_made_as_the_script_asks(job: Job) -> None:
    script = SCRIPT.replace(
        "class Mine(DataLoader):\n    pass",
        """
class Mine(DataLoader):
    def __setattr__(self, name, value):
        if name == "num_workers" and value: raise ValueError("no workers here")
        super().__setattr__(name, value)
""",
    )
    changed = job(script, "dataloader.num_workers=2")
    assert changed.told[0]["workers"] == [0, 0, 2]
    assert "ValueError: no workers here" in refusals(changed, "dataloader.num_workers")


def test_a_loader_that_accelerate_makes_again_is_changed_once(job: Job) -> None:
    pytest.importorskip("accelerate")
    prepared = "__import__('accelerate').Accelerator(cpu=True).prepare(loader)"
    script = SCRIPT.replace("    model = ", f"    loader = {prepared}\n    model = ", 1)
    changed = job(script, "dataloader.num_workers=x2", ARGUMENTS="dict(num_workers=1)")
    assert changed.told[0]["workers"][0] == 2
    assert changed.told[0]["kinds"][0] == "DataLoaderShard"
