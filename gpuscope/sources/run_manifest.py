"""What the manifest of a run folder says of how the run ended.

`gpuscope record` and `gpuscope train` leave a `manifest.json` beside the traces; its form stands in
docs/recording.md. Only what shows that something went wrong is read here.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

from gpuscope import when_used
from gpuscope.recorded_environment import kept, redacted
from gpuscope.when_used import dataclass

# Files of a folder that others write into, such as a run folder, read so that none of them can do harm.
#
# A link may lead out of the folder, a device or a sparse file may have no end, a pipe keeps its reader waiting: what is
# no plain file of the folder, or larger than such a file ever is, is refused, and its reader says so.

LARGEST_TEXT = 64 << 20
"""Bytes of a file that is read at once: manifests of thousands of ranks have a few."""

Reason = Literal["leads_out", "no_plain_file", "too_large", "newer"]
_WORDS: dict[Reason, str] = {
    "leads_out": "leads out of the folder",
    "no_plain_file": "is no plain file",
    "too_large": "is larger than any such file",
    "newer": "was written by another version of gpuscope",
}


@dataclass(frozen=True, order=True)
class Refused:
    """A file that is not read: its path within the folder, and why."""

    name: str
    reason: Reason

    @property
    def why(self) -> str:
        """In a sentence."""
        return f"{self.name} {_WORDS[self.reason]}: it is not read"


class RefusedError(OSError):
    """The file must not be read. An `OSError`, as that of a file that can't be."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.why)
        self.refused = refused


def opened(folder: Path, path: Path, largest: int) -> IO[bytes]:
    """Opens `path`, below `folder`, to read at most `largest` bytes. Raises `RefusedError`, else `OSError`."""
    real = _inside(folder, path)
    if not stat.S_ISREG(real.stat().st_mode):
        raise RefusedError(Refused(_name(folder, path), "no_plain_file"))
    # Not to wait for the writer of a pipe that has taken the file's place since.
    descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError(Refused(_name(folder, path), "no_plain_file"))
        if status.st_size > largest:
            raise RefusedError(Refused(_name(folder, path), "too_large"))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_text(folder: Path, path: Path) -> str:
    """The text of a small file below `folder`. Raises `RefusedError`, else `OSError` or `ValueError`."""
    with opened(folder, path, LARGEST_TEXT) as file:
        return file.read(LARGEST_TEXT).decode()


def listed(folder: Path, inner: str, suffix: str) -> list[Path]:
    """What `folder/inner` holds with that suffix, by name; nothing where it is missing. Raises `RefusedError`."""
    try:
        own = _inside(folder, folder / inner)
    except FileNotFoundError:
        return []
    if not own.is_dir():
        raise RefusedError(Refused(inner, "no_plain_file"))
    return sorted(path for path in (folder / inner).iterdir() if path.name.endswith(suffix))


def refused(folder: Path, path: Path) -> Refused | None:
    """Why a file or folder below `folder` is not to be read; None where it may be, or is not there."""
    try:
        mode = _inside(folder, path).stat().st_mode
    except RefusedError as error:
        return error.refused
    except OSError:
        return None
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else Refused(_name(folder, path), "no_plain_file")


def _inside(folder: Path, path: Path) -> Path:
    """Where `path` really lies. Raises `RefusedError` where that is not below `folder`, `OSError` where it is not."""
    try:
        real = path.resolve(strict=True)
    except (RuntimeError, ValueError) as error:  # links in a circle, before Python 3.13; a name that no file has
        raise OSError(f"{path}: {error}") from error
    if not real.is_relative_to(folder.resolve()):
        raise RefusedError(Refused(_name(folder, path), "leads_out"))
    return real


def _name(folder: Path, path: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


MANIFEST = "manifest.json"
PARTS = "manifest.d"
"""Its parts, one per writer."""
REQUEST = "record"
"""A file of this name in the folder of a running job asks for a window; see `window_request`."""
_TRACES = ("torch_profiler", "nsys")
_STOPPED = ("hang", "mismatched_calls")
_CONNECTION_LOST = ("connection", "reset by peer", "timed out", "broken pipe")
_LOST = 2
"""Place in the order of failures of a connection that another rank's end cut."""


@dataclass(frozen=True)
class WindowRequest:
    """How many steps (None: as the job was started with) on which ranks (none: all)."""

    steps: int | None
    ranks: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """As `window_request` reads it."""
        words = [*([str(self.steps)] if self.steps else []), *(["ranks", *map(str, self.ranks)] if self.ranks else [])]
        return " ".join(words)


def window_request(text: str) -> WindowRequest:
    """What asks for a window says: `20`, `ranks 3 0`, `20 ranks 3 0`, or nothing; all else is ignored."""
    before, _, after = text.replace(",", " ").partition("ranks")
    steps = int(before) if before.strip().isdigit() and int(before) > 0 else None
    return WindowRequest(steps, tuple(int(word) for word in after.split() if word.isdigit()))


@dataclass(frozen=True)
class Ended:
    """How a run ended: its status, a sentence per way in which ranks failed (the likeliest culprit first), those that
    were killed, what the recorder itself found wrong, could not record, and saw as a pause. `hung`: ranks waited for
    each other for good, or died of calling different things."""

    status: str
    failures: tuple[str, ...]
    killed: tuple[int, ...]
    wrong: tuple[str, ...]
    lost: tuple[str, ...]
    paused: tuple[str, ...]
    hung: bool
    broken_step: int | None = None
    """Of a run that failed: the step in which the first rank ended, which is no step of training any more."""

    @property
    def badly(self) -> bool:
        """Whether the run did not come to its own end."""
        return self.status not in ("completed", "running", "")

    @property
    def words(self) -> str:
        """How it ended, after «the run»."""
        return self.status if self.status == "failed" else f"was {self.status}"

    @property
    def going_on(self) -> bool:
        """Whether nobody has said that it ended."""
        return self.status == "running"

    @property
    def first_failure(self) -> str:
        """What the recorder found wrong, or else the likeliest culprit, or what was lost first, to be put after a
        sentence; empty where nobody says anything."""
        told = (*self.wrong, *self.failures, *self.lost)
        return f": {told[0]}" if told else ""


def ended(folder: Path) -> Ended | None:
    """What the manifest in `folder` says; None where there is none that can be read."""
    manifest = _read(folder)
    if manifest is None:
        return None
    all_problems = _dicts(manifest.get("problems"))
    problems = [entry for entry in all_problems if entry.get("severity") == "error"]
    lost = [entry for entry in all_problems if entry.get("severity") == "data_loss"]
    ranks = sorted(_dicts(manifest.get("ranks")), key=_order_of_failure)
    return Ended(
        status=str(manifest["status"]),
        failures=tuple(_failures(ranks)),
        killed=tuple(
            int(rank["rank"]) for rank in ranks if rank.get("status") == "killed" and isinstance(rank.get("rank"), int)
        ),
        wrong=tuple(redacted(str(entry.get("message", ""))) for entry in problems),
        lost=tuple(_of_rank(entry) + redacted(str(entry.get("message", ""))) for entry in lost),
        paused=tuple(redacted(str(one.get("message", ""))) for one in all_problems if one.get("code") == "pause"),
        hung=any(entry.get("code") in _STOPPED for entry in problems),
        broken_step=_first_unended(folder) if manifest["status"] == "failed" else None,
    )


def _first_unended(folder: Path) -> int | None:
    """The fewest steps that a rank has ended: the number of the one that it was in. None where no rank says."""
    ended_steps = []
    for path in _parts(folder):
        with suppress(OSError, ValueError, RecursionError):
            part = json.loads(read_text(folder, path))
            facts = part.get("facts") if isinstance(part, dict) else None
            steps = facts.get("steps") if isinstance(facts, dict) else None
            if isinstance(steps, int) and not isinstance(steps, bool) and not part.get("restart"):
                ended_steps.append(steps)
    return min(ended_steps, default=None)


def recorded_traces(folder: Path) -> list[str]:
    """The traces that a manifest lists, as paths within its folder."""
    return _traces(_read(folder))


def finished_traces(folder: Path) -> list[str]:
    """The traces that the parts of the manifest list and that exist: while a job runs, its ranks write parts alone."""
    return sorted(name for name in _named(folder) if (folder / name).exists() and not refused(folder, folder / name))


def refused_files(folder: Path) -> list[Refused]:
    """What of the manifest, its parts and the traces that they list is not read, and why."""
    found = [refused(folder, folder / name) for name in (PARTS, *_named(folder))]
    for path in (folder / MANIFEST, *_parts(folder)):
        try:
            opened(folder, path, LARGEST_TEXT).close()
        except RefusedError as error:
            found.append(error.refused)
        except OSError:
            continue
    return sorted({one for one in found if one is not None})


def _named(folder: Path) -> set[str]:
    """The traces that the manifest or one of its parts lists."""
    found = set(recorded_traces(folder))
    for path in _parts(folder):
        with suppress(OSError, ValueError, RecursionError):
            found |= set(_traces(json.loads(read_text(folder, path))))
    return found


def _parts(folder: Path) -> list[Path]:
    try:
        return listed(folder, PARTS, ".json")
    except OSError:
        return []


def reported_hangs(folder: Path) -> list[str]:
    """What the hang watch of any rank says of a hang, also while the job stands; a pause that is over is none."""
    found: dict[str, None] = {}
    for path in (*_parts(folder), folder / MANIFEST):
        with suppress(OSError, ValueError, RecursionError):
            part = json.loads(read_text(folder, path))
            for problem in _dicts(part.get("problems") if isinstance(part, dict) else None):
                if problem.get("code") == "hang":
                    found[redacted(str(problem.get("message", "")))] = None
    return list(found)


def settings_in_effect(folder: Path) -> dict[str, list[str]]:
    """By setting, as the recorder calls it (`ddp.bucket_cap_mb`), the values that it saw on any rank, in order."""
    found: dict[str, dict[str, None]] = {}
    for path in _parts(folder):
        with suppress(OSError, ValueError, RecursionError):
            part = json.loads(read_text(folder, path))
            facts = part.get("facts") if isinstance(part, dict) else None
            settings = facts.get("settings") if isinstance(facts, dict) else None
            for name, rows in settings.items() if isinstance(settings, dict) else ():
                for row in _dicts(rows):
                    found.setdefault(str(name), {})[str(row.get("value", ""))] = None
    return {name: list(values) for name, values in found.items()}


def _traces(manifest: Any) -> list[str]:
    files = _dicts(manifest.get("files") if isinstance(manifest, dict) else None)
    return [str(entry["path"]) for entry in files if entry.get("kind") in _TRACES and "path" in entry]


def mesh(folder: Path) -> dict[str, int]:
    """Ranks per kind of parallelism as `gpuscope train` noted them, those of one rank left out."""
    parallelism = (_read(folder) or {}).get("parallelism")
    sizes = parallelism.get("mesh") if isinstance(parallelism, dict) else None
    if not isinstance(sizes, dict):
        return {}
    known = {kind: size for kind, size in sizes.items() if isinstance(size, int) and not isinstance(size, bool)}
    dp = known.pop("replicate", 1) * known.pop("shard", 1)
    return {kind: size for kind, size in {**known, "dp": dp}.items() if size > 1}


def training_of(folder: Path) -> dict[str, Any] | None:
    """`config` (with `model`, `data` and `parallel`) and `mesh` of a run of `gpuscope train`; None of another run."""
    manifest = _read(folder) or {}
    config, parallelism = manifest.get("config"), manifest.get("parallelism")
    sizes = parallelism.get("mesh") if isinstance(parallelism, dict) else None
    if not isinstance(config, dict) or not isinstance(sizes, dict):
        return None
    needed = {"model": ("layers", "width", "heads", "vocabulary"), "data": ("batch", "sequence"), "parallel": ()}
    for section, keys in needed.items():
        values = config.get(section)
        if not isinstance(values, dict) or not all(_positive(values.get(key)) for key in keys):
            return None
    if not all(_positive(size) for size in sizes.values()):
        return None
    return {"config": config, "mesh": sizes}


def machine_of(folder: Path) -> tuple[int, int]:
    """Processors and bytes of memory of the host that ran rank 0; 0 where the run does not say."""
    for environment in environments(folder).values():
        found = [environment["platform"].get(key) for key in ("cpus", "memory_bytes")]
        cpus, memory = (value if isinstance(value, int) and _positive(value) else 0 for value in found)
        return cpus, memory
    return 0, 0


def environments(folder: Path) -> dict[int, dict[str, dict[str, Any]]]:
    """By rank: `versions`, `variables` (those that may be kept) and `platform` of its process, `pcie` of its GPU, each
    {} where it is not recorded."""
    try:
        paths = [path for path in listed(folder, "environment", ".json") if _OF_RANK.fullmatch(path.name)]
    except OSError:
        return {}
    found: dict[int, dict[str, dict[str, Any]]] = {}
    for path in paths:
        with suppress(OSError, ValueError, RecursionError):
            told = json.loads(read_text(folder, path))
            if isinstance(told, dict):
                parts = {key: told.get(key) for key in ("versions", "variables", "platform", "pcie")}
                own = {key: part if isinstance(part, dict) else {} for key, part in parts.items()}
                texts = {name: value for name, value in own["variables"].items() if isinstance(value, str)}
                found[int(path.stem[4:])] = {**own, "variables": kept(texts)}
    return dict(sorted(found.items()))


def pcie_lanes(folder: Path) -> dict[int, tuple[int, int]]:
    """By rank: the PCIe lanes that its GPU runs on, and the most that the card can use; where they are recorded."""
    found: dict[int, tuple[int, int]] = {}
    for rank, own in environments(folder).items():
        lanes, most = own["pcie"].get("lanes"), own["pcie"].get("most_lanes")
        if _positive(lanes) and _positive(most):
            found[rank] = (int(lanes or 0), int(most or 0))
    return found


_OF_RANK = when_used.pattern(r"rank\d{1,9}\.json")


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def world_size(path: Path) -> int | None:
    """Ranks of the job that recorded the file `path`, as the manifest of its run folder says."""
    for folder in run_folders([path]):
        size = (_read(folder) or {}).get("world_size")
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            return size
    return None


def recorded_command(paths: Iterable[Path]) -> list[str]:
    """The command that recorded these files, as the manifest of their run folder says; empty where none does."""
    for folder in run_folders(paths):
        words = (_read(folder) or {}).get("command")
        if isinstance(words, list):
            return [str(word) for word in words]
    return []


def run_folders(paths: Iterable[Path]) -> list[Path]:
    """The folders, next above these files, that hold a manifest."""
    near = dict.fromkeys(folder for path in paths for folder in path.absolute().parents[:2])
    return [folder for folder in near if os.path.lexists(folder / MANIFEST)]


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads(read_text(folder, folder / MANIFEST))
    except (OSError, ValueError, RecursionError):
        return None
    return manifest if isinstance(manifest, dict) and {"run_id", "status"} <= set(manifest) else None


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _order_of_failure(rank: dict[str, Any]) -> tuple[int, int]:
    """Killed before failed, an error of its own before a connection that another rank's end cut."""
    error = str(rank.get("error") or "").lower()
    lost = any(words in error for words in _CONNECTION_LOST)
    order = 0 if rank.get("status") == "killed" else _LOST if lost else 1
    when = rank.get("ended_ns")
    return order, when if isinstance(when, int) else 0


def _failures(ranks: Sequence[dict[str, Any]]) -> Iterator[str]:
    """One sentence for all ranks that failed alike, and for those that lost their connection to one that did."""
    yield from _left_early(ranks)
    failed = [
        (rank.get("rank"), _order_of_failure(rank)[0] == _LOST, words) for rank in ranks if (words := _failure(rank))
    ]
    known = not all(lost for _, lost, _ in failed)
    alike: dict[str, list[Any]] = {}
    for rank, lost, words in failed:
        alike.setdefault("then lost the connection" if known and lost else words, []).append(rank)
    for words, own in alike.items():
        from gpuscope.words import units  # a second look, which asks for run folders, needs none

        yield f"{units.rank_words(own) if all(isinstance(one, int) for one in own) else 'a rank'} {words}"


def _left_early(ranks: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Ranks that ended well before others lost their connections, where these are the only failures."""
    failed = [_order_of_failure(rank) for rank in ranks if _failure(rank)]
    if failed and all(order == _LOST for order, _ in failed):
        first = min(when for _, when in failed)
        for rank in ranks:
            if rank.get("status") == "completed" and _order_of_failure(rank)[1] < first:
                yield f"rank {rank.get('rank')} ended before the others, without an error"


def _of_rank(problem: dict[str, Any]) -> str:
    return f"rank {problem['rank']}: " if isinstance(problem.get("rank"), int) else ""


def _failure(rank: dict[str, Any]) -> str:
    """How a rank failed, to be put after its name; empty where it did not."""
    status, error = str(rank.get("status", "")), str(rank.get("error") or "")
    if status in ("completed", "") and not error:
        return ""
    import textwrap

    first = textwrap.shorten(error.strip().splitlines()[0], 200, placeholder=" …") if error.strip() else ""
    return status + (f": {redacted(first)}" if first else "")
