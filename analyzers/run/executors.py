"""Who reads the files of a run: this process, several, or a Dask cluster. The parts are the same, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from gpuscope.analyzers.run.file_part import Options, Part, analyze_file
from gpuscope.errors import GpuscopeError, InputError, MissingExtraError, UsageError
from gpuscope.sources.opening import Input, or_skip, total_size
from gpuscope.when_used import dataclass

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

RETRIES = 2
"""Times that a file is given to another worker after one died with it."""


@dataclass(frozen=True)
class LeftOut:
    """A file that could not be read."""

    item: Input
    why: str

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.item.name


Read = tuple[list[Part], list[LeftOut]]


class Executor(Protocol):
    """Reads files. `begun` is called with the name of each as its result is awaited."""

    def __call__(self, items: Sequence[Input], options: Options, begun: Callable[[str], None]) -> Read:
        """The parts in the order of the items, and what is left out."""
        ...


def in_turn(items: Sequence[Input], options: Options, begun: Callable[[str], None]) -> Read:
    """One after the other, here."""
    return _collected(items, options, begun, lambda item: analyze_file(item, options))


def side_by_side(items: Sequence[Input], options: Options, begun: Callable[[str], None]) -> Read:
    """In `options.workers` processes. A file whose process dies is tried once more, alone, and then left out."""
    from concurrent.futures.process import BrokenProcessPool

    quiet = _quiet(options)
    with _pool(min(len(items), options.workers)) as pool:
        futures = dict(zip(map(id, items), [pool.submit(analyze_file, item, quiet) for item in items], strict=True))

        def result(item: Input) -> Part:
            future: Future[Part] = futures[id(item)]
            try:
                part = future.result()
            except BrokenProcessPool:
                part = _alone(item, quiet)
            if options.read.advance:
                options.read.advance(total_size([item]))
            return part

        return _collected(items, options, begun, result)


def _alone(item: Input, options: Options) -> Part:
    with _pool(1) as pool:
        return pool.submit(analyze_file, item, options).result()


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    from concurrent.futures import ProcessPoolExecutor  # most runs are read in this process
    from multiprocessing import get_context

    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)  # a pool that is let go before it has heard of this reads on
            raise


@dataclass(frozen=True)
class OnDask:
    """On a Dask cluster: `scheduler` is its address; empty for the one in Dask's configuration, else a local one."""

    scheduler: str = ""

    def __call__(self, items: Sequence[Input], options: Options, begun: Callable[[str], None]) -> Read:
        """See `Executor`. A file whose worker dies goes to another, `RETRIES` times, and is then left out."""
        with self._client(options.workers) as client:
            quiet = _quiet(options)
            futures = {
                id(item): client.submit(analyze_file, item, quiet, retries=RETRIES, pure=False) for item in items
            }

            def result(item: Input) -> Part:
                part: Part = futures.pop(id(item)).result()
                if options.read.advance:
                    options.read.advance(total_size([item]))
                return part

            return _collected(items, options, begun, result)

    def _client(self, workers: int) -> Any:
        try:
            from dask import config
            from distributed import Client
        except ImportError:
            raise MissingExtraError("distributed") from None
        address = self.scheduler or config.get("scheduler-address", None)
        try:
            # Without an address Dask starts a cluster of its own, on this machine.
            settings = {"address": address, "timeout": "10s"} if address else {"n_workers": workers}
            return Client(**settings, **({} if address else {"threads_per_worker": 1}))  # type: ignore[no-untyped-call]
        except (OSError, TimeoutError, ValueError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {address}: {error}", hint="start one with `dask scheduler`"
            ) from None


def executor_named(name: str | None) -> Executor | None:
    """The executor of `--executor`: `dask` or `dask=ADDRESS`; None for the default. Raises `UsageError` otherwise."""
    if name is None:
        return None
    kind, _, address = name.partition("=")
    if kind != "dask":
        raise UsageError(f"--executor {name}: unknown", hint="dask, or dask=tcp://scheduler:8786")
    return OnDask(address)


def _quiet(options: Options) -> Options:
    # The progress bar lives in this process: there it advances file by file.
    return replace(options, read=replace(options.read, advance=None, status=None))


def _collected(
    items: Sequence[Input], options: Options, begun: Callable[[str], None], result: Callable[[Input], Part]
) -> Read:
    parts: list[Part] = []
    without: list[LeftOut] = []
    for item in items:
        begun(item.name)
        try:
            parts.append(result(item))
        except InputError as error:
            if len(items) == 1:
                raise
            if not options.skip_unreadable:
                raise or_skip(error) from error
            without.append(LeftOut(item, error.message))
        except GpuscopeError:
            raise
        except Exception as error:
            if not _worker_died(error) or len(items) == 1:
                raise
            without.append(LeftOut(item, f"the process that read it died ({type(error).__name__})"))
    if not parts:
        raise InputError(f"none of {len(items)} files could be read: {without[0].name}: {without[0].why}")
    return parts, without


def _worker_died(error: Exception) -> bool:
    # By name: most runs need neither Dask nor further processes.
    return isinstance(error, MemoryError) or type(error).__name__ in (
        "BrokenProcessPool",
        "KilledWorker",
        "CommClosedError",
    )
