"""`python -m benchmarks.constants`: on how many traces a verdict hangs on each constant, within a factor of two of it.

Every constant in the path of a verdict is halved and doubled, one at a time, in a process of its own, and every trace
at hand (samples, public, simulated) is judged anew. Prints a table and, with `--save`, writes it for docs/trust.md.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from benchmarks.judged import SHARED, readings
from benchmarks.outcome import outcome
from benchmarks.outputs.rendered import traces

Said = tuple[Any, ...]
PATH = {
    "gpuscope.words.vocabulary": ["VERDICT_SHARE"],
    "gpuscope.analyzers.verdict.verdict": ["LOST_WORK", "LITTLE_WORK", "SLOWED"],
    "gpuscope.analyzers.base.evidence": [
        "LONG_SIGMAS",
        "LONG_FRACTION",
        "FEW_STEPS",
        "LONG_OF_FEW",
        "OUTLIERS_AT_MOST",
        "COMPILING",
        "MIN_STEADY",
    ],
    "gpuscope.trace.steps": ["MIN_PERIODS", "AS_EXACT"],
    "gpuscope.trace.kernel_repetition": ["MOST_WORK"],
    "gpuscope.analyzers.device_time.launching_threads": [
        "IDS_AT_LEAST",
        "ID_DENSITY",
        "UNLINKED",
        "QUEUED_BEFORE",
        "LATE_AFTER",
        "READY_AT_LEAST",
        "AT_ONCE",
        "QUEUE_AT_LEAST",
        "BLOCKED_LAUNCH",
    ],
    "gpuscope.analyzers.device_time.idle": ["LAUNCH_LATENCY"],
    "gpuscope.analyzers.device_time.gaps": ["LONG_STRETCH"],
    "gpuscope.analyzers.device_time.own_work": ["LONG_STRETCHES_OF_INTERVALS", "USUAL_INTERVAL_AT_MOST", "SLOW_LAUNCH"],
    "gpuscope.analyzers.collectives.recurrence": [
        "MIN_STEPS",
        "MIN_LATE",
        "MAX_CHANCE",
        "CLEAR",
        "MOST_STEPS",
        "MANY_RANKS",
        "MAX_REPEATED",
        "MOST",
    ],
    "gpuscope.analyzers.collectives.stragglers": ["ALIKE"],
    "gpuscope.analyzers.facts.matching": ["VARY_WIDELY", "LEAST_ALIKE", "TELLING"],
    "gpuscope.analyzers.facts.run_facts": ["ENDS_AGREE_NS"],
    "gpuscope.analyzers.facts.process_groups": ["END_TOGETHER_NS"],
    "gpuscope.collective_costs.message_cost": [
        "MIN_SIZES",
        "MIN_RANGE",
        "MAX_ERROR",
        "PLAUSIBLE",
        "SURELY_NOT_FIXED_NS",
        "NODE_LATENCY_NS",
        "_GLOO_LATENCY_NS",
    ],
    "gpuscope.trace.launch_links": ["BLOCKED_NS", "WAKE_NS", "EARLY_NS"],
}
"""Constants that decide a class, a cause, a role or a late rank; those that only weigh confidence are not in it."""


@dataclass(frozen=True)
class Constant:
    """A number of a module, as it is written there."""

    module: str
    name: str

    @property
    def value(self) -> float:
        return float(getattr(importlib.import_module(self.module), self.name))

    @property
    def about(self) -> str:
        """What its module says of it."""
        source = Path(str(importlib.import_module(self.module).__file__)).read_text(encoding="utf-8")
        body = ast.parse(source).body
        for number, node in enumerate(body[:-1]):
            named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id
            if named == self.name:
                following = [one for one in body[number + 1 :] if not isinstance(one, ast.Assign)][:1]
                for one in following:
                    if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
                        return " ".join(str(one.value.value).split())
        return ""

    def set(self, value: float) -> None:
        """Put another number in its place, wherever it was imported to."""
        old = getattr(importlib.import_module(self.module), self.name)
        new = type(old)(value)
        for name, module in list(sys.modules.items()):
            if name.startswith("gpuscope") and getattr(module, self.name, None) == old:
                setattr(module, self.name, new)


def verdicts(paths: dict[str, Path], constant: Constant | None = None, factor: float = 1.0) -> dict[str, Said]:
    """Of each trace what is said of it: class, cause, roles of its steps, late ranks."""
    from gpuscope.analyzers.run.runner import analyze
    from gpuscope.errors import GpuscopeError

    os.environ.update(GPUSCOPE_NO_STORE="1", GPUSCOPE_NO_CACHE="1")
    found: dict[str, Said] = {}
    if constant is not None:
        analyze(next(iter(paths.values())), advice=False)  # so that all modules are there
        constant.set(constant.value * factor)
    for name, path in paths.items():
        try:
            report = analyze(path, advice=False).report
        except GpuscopeError:
            continue
        verdict = report["verdict"]
        late = tuple(one["rank"] for one in report.get("stragglers", []) if one["recurrent"])
        roles = tuple(step["role"] for step in report["steps"])
        found[name] = verdict["bound_by"], verdict["cause"], roles, late
    return found


def _constants() -> Iterator[Constant]:
    return (Constant(module, name) for module, names in PATH.items() for name in names)


def changed(base: dict[str, Said], found: dict[str, Said]) -> list[str]:
    """The traces of which something else is said."""
    return [name for name in base if found.get(name) != base[name]]


def _paths(made: Path) -> Iterator[tuple[str, Path]]:
    """The public traces that were read by hand, the samples, and simulated jobs, written into `made`."""
    yield from ((one["trace"], SHARED / one["trace"]) for one in readings() if (SHARED / one["trace"]).exists())
    yield from ((name, path.absolute()) for name, path in traces(made, ("samples/", "simulated/")))


@click.command()
@click.option("--workers", default=2, show_default=True)
@click.option("--only", multiple=True, help="Only constants of these names.")
@click.option("--save", type=click.Path(path_type=Path), help="A TOML file for docs/trust.md.")
def main(workers: int, only: tuple[str, ...], save: Path | None) -> None:
    """Judge every trace with each constant halved and doubled."""
    constants = [one for one in _constants() if not only or one.name in only]
    with (
        TemporaryDirectory() as made,
        ProcessPoolExecutor(workers, get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        paths = dict(_paths(Path(made)))
        base = pool.submit(verdicts, paths)
        tried = [[pool.submit(verdicts, paths, one, factor) for factor in (0.5, 2.0)] for one in constants]
        table = Table("constant", "value", "×½", "×2", "what changes")
        rows = []
        for one, runs in zip(constants, tried, strict=True):
            less, more = (changed(base.result(), run.result()) for run in runs)
            shown = ", ".join(dict.fromkeys([*less, *more][:6]))
            table.add_row(one.name, f"{one.value:g}", str(len(less)), str(len(more)), shown)
            print(one.name, f"{one.value:g}", len(less), len(more), shown, flush=True)
            rows.append([f"`{one.name.lstrip('_')}`", f"{one.value:g}", one.about, str(len(less)), str(len(more))])
    Console(width=200).print(table, f"of {len(base.result())} traces")
    if save:
        head = f"# python -m benchmarks.constants --save FILE; {len(base.result())} traces"
        columns = ["constant", "value", "what it is", "changed at half", "changed at double"]
        save.write_text(outcome(head, columns, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
