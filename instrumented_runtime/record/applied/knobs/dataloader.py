"""torch.utils.data.DataLoader: workers, pinned memory, prefetching."""

from __future__ import annotations

import functools
import multiprocessing
import weakref
from collections.abc import Iterator
from typing import Any

from gpuscope.instrumented_runtime.record.applied.ledger import Family, Knob, Ledger, Wrapping, at_least, boolean

NAMES = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
_NEEDS_WORKERS = ("persistent_workers", "prefetch_factor")


def workers(value: str) -> tuple[int, bool]:
    """A number of workers, or `xN`, a multiple of the script's own; and whether it is a multiple."""
    times = value.startswith("x")
    return at_least(1 if times else 0)(value.removeprefix("x")), times


class _Loaders:
    """Edits the arguments of each DataLoader that a change is legal for."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._wanted = ledger.wanted(*(f"dataloader.{name}" for name in NAMES))
        self._changed: dict[int, int] = {}
        """Numbers of workers that were given, by the dataset: frameworks make a loader again from the script's."""
        self._persist: set[int] = set()
        """Datasets whose loaders keep their workers only by a change."""
        self._persistent: weakref.WeakSet[Any] = weakref.WeakSet()

    def edit(self, arguments: dict[str, Any], where: str) -> Iterator[str]:
        """Workers first: what else is legal depends on them."""
        wanted = dict(self._wanted)
        if (count := wanted.pop("dataloader.num_workers", None)) is not None:
            number, times = count
            own, dataset = arguments.get("num_workers", 0), id(arguments.get("dataset"))
            number = number * own if times else number
            if own and self._changed.get(dataset) == own:
                pass
            elif why := _keeps_workers(arguments, own, number, times):
                self._ledger.refused("dataloader.num_workers", why, where)
            else:
                arguments["num_workers"] = self._changed[dataset] = number
                if not number:  # what only workers take
                    for name in (*_NEEDS_WORKERS, "multiprocessing_context", "timeout"):
                        arguments.pop(name, None)
                yield "dataloader.num_workers"
        for name, value in wanted.items():
            argument = name.removeprefix("dataloader.")
            if argument in _NEEDS_WORKERS and not arguments.get("num_workers", 0):
                self._ledger.refused(name, "it has no workers", where)
            elif argument == "pin_memory" and value and (why := _unpinned(arguments.get("dataset"))):
                self._ledger.refused(name, why, where)
            else:
                if argument == "persistent_workers" and not arguments.get(argument):
                    self._persist.add(id(arguments.get("dataset")))
                arguments[argument] = value
                yield name

    def look(self, loader: Any, where: str) -> None:
        """What is in effect."""
        for name in (*NAMES, "batch_size"):
            self._ledger.seen(f"dataloader.{name}", getattr(loader, name), where)
        if loader.persistent_workers and id(loader.dataset) in self._persist:
            self._persistent.add(loader)

    def begins(self, loader: Any) -> None:
        """A pass over a loader begins. With workers that stay, torch does not draw their seed again; it is drawn here,
        so that the generator, and with it the order of a shuffled dataset, goes on as in the script."""
        import torch

        if loader in self._persistent and loader._iterator is not None:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)


def _keeps_workers(arguments: dict[str, Any], own: int, number: int, times: bool) -> str:
    """Why a loader must keep its number of workers; empty where another is legal."""
    import torch
    from torch.utils.data import IterableDataset

    dataset = arguments.get("dataset")
    if times and not own:
        return "it has no workers to multiply"
    if number == own:
        return f"it has {own} already"
    if isinstance(dataset, IterableDataset):
        return "an iterable dataset: another number of workers would repeat, leave out or reorder its samples"
    if own or not number:
        return ""
    if multiprocessing.current_process().daemon:
        return "it is made in a worker process, which may start no others"
    if multiprocessing.get_start_method() != "fork":
        return "processes are started anew, which the script may not be written for: set it there"
    if torch.get_default_device().type != "cpu" or _on_device(dataset):
        return "its data lie on a device, which forked workers can't use"
    return ""


def _unpinned(dataset: object) -> str:
    """Why batches can't be pinned; empty where they can."""
    import torch

    if not torch.accelerator.is_available():
        return "there is no accelerator"
    return "its data lie on a device" if _on_device(dataset) else ""


def _on_device(dataset: object, depth: int = 3) -> bool:
    """Whether a dataset, or one that it wraps, visibly holds tensors of a device."""
    import torch

    if isinstance(dataset, torch.Tensor):
        return dataset.device.type != "cpu"
    if depth and isinstance(dataset, list | tuple):
        return any(_on_device(one, depth - 1) for one in dataset[:64])
    held = getattr(dataset, "__dict__", {}) if not isinstance(dataset, dict) else dataset
    return bool(depth) and any(_on_device(one, depth - 1) for one in list(held.values())[:64])


def _install(ledger: Ledger) -> None:
    from torch.utils.data import DataLoader

    loaders = _Loaders(ledger)
    Wrapping(ledger, loaders.edit, loaders.look, retry=True).around_init(DataLoader)
    if ledger.wanted("dataloader.persistent_workers"):
        iterate = DataLoader.__iter__

        @functools.wraps(iterate)
        def begin(loader: Any) -> Any:
            loaders.begins(loader)
            return iterate(loader)

        DataLoader.__iter__ = begin  # type: ignore[method-assign]


_ORDER = "The order of samples stays"

FAMILY = Family(
    "dataloader",
    (
        Knob(
            name="dataloader.num_workers",
            takes="a number from 0, or x2 for twice the script's own",
            read=workers,
            alters=f"{_ORDER}; random augmentation draws from the workers' generators, so losses may differ.",
            redraws=True,
            shown_by="test_dataloader.py",
        ),
        Knob(
            name="dataloader.pin_memory",
            takes="true or false",
            read=boolean,
            alters="Nothing computed; pinned host memory is taken from the machine.",
            shown_by="test_dataloader.py",
        ),
        Knob(
            name="dataloader.persistent_workers",
            takes="true or false",
            read=boolean,
            alters=f"{_ORDER}; workers are not seeded anew each epoch, and keep their copy of a dataset that the "
            "script changes between epochs.",
            redraws=True,
            shown_by="test_dataloader.py",
        ),
        Knob(
            name="dataloader.prefetch_factor",
            takes="a number from 1",
            read=at_least(1),
            alters="Nothing computed; each worker holds so many batches in memory.",
            shown_by="test_dataloader.py",
        ),
    ),
    _install,
)
