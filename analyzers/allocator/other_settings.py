"""What another setting of the allocator would have needed, by replaying the recorded history under it."""

from __future__ import annotations

from gpuscope.analyzers.allocator.allocator_replay import Outcome, replay
from gpuscope.analyzers.allocator.allocator_settings import changed
from gpuscope.analyzers.allocator.history import History
from gpuscope.analyzers.allocator.releases import capacity, releases
from gpuscope.trace.schema import AllocatorAction
from gpuscope.when_used import dataclass
from gpuscope.words import units

MAX_ERROR_FRAC = 0.05
"""A replay of the history as it was must come within this of the recorded peak of reserved memory. It is exact
where the recording began with the process; where it did not, what was in use then is placed anew, and a larger
error means that the requests before the recording shaped the cache."""

CANDIDATES: tuple[tuple[str, str], ...] = (
    ("expandable_segments", "True"),
    ("max_split_size_mb", "512"),
    ("max_split_size_mb", "256"),
    ("max_split_size_mb", "128"),
    ("max_split_size_mb", "64"),
    ("roundup_power2_divisions", "8"),
    ("roundup_power2_divisions", "4"),
    ("garbage_collection_threshold", "0.8"),
    ("garbage_collection_threshold", "0.6"),
)
"""The settings tried, the least intrusive first; the values are those of PyTorch's notes on CUDA memory management and
their neighbours by powers of two."""

MANY_EVENTS = 500_000
"""A replay takes some seconds per million events: beyond this only the first candidate is tried."""


@dataclass(frozen=True)
class Baseline:
    """The replay of a history as it was, from an empty cache, and whether it can be trusted."""

    outcome: Outcome
    warm: Outcome
    """The same from the recorded state: shows whether blocks are placed as they were."""
    recorded_peak: int
    limit: int | None
    """Bytes that could be reserved, where a failed request or a retry shows them."""
    why_not: str
    """Why no other setting can be predicted; empty where it can."""

    @property
    def error(self) -> float:
        """Error of the replayed peak, as a share of the recorded one."""
        return (self.outcome.peak_reserved - self.recorded_peak) / max(self.recorded_peak, 1)


@dataclass(frozen=True)
class Change:
    """One option set to one value, and what the replay needed."""

    option: str
    value: str
    outcome: Outcome


def baseline(history: History) -> Baseline:
    """Replay a history as it was."""
    recorded = int(history.totals()[2].max())
    limit = capacity(history)
    if limit is None and any(release.kind == "retry" for release in releases(history)):
        limit = recorded  # cudaMalloc refused more; how much less than that it would have refused is unknown
    warm = replay(history, history.settings, limit)
    outcome = warm if history.from_start else replay(history, history.settings, limit, empty=True)
    found = Baseline(outcome, warm, recorded, limit, "")
    return Baseline(outcome, warm, recorded, limit, _doubt(history, found))


def _doubt(history: History, found: Baseline) -> str:
    failed = sum(event.action == AllocatorAction.OOM for event in history.events)
    if failed and found.limit is not None and not found.outcome.failed:
        return "the request that failed when recorded succeeds in the replay"
    if abs(found.error) > MAX_ERROR_FRAC:
        began = "" if history.from_start else "; record from the start of the process"
        return f"a replay of the history as it was reserves {units.signed(found.error)} of what was recorded{began}"
    return ""


def changes(history: History, found: Baseline) -> list[Change]:
    """The candidates that differ from what is set, each replayed from an empty cache."""
    if found.why_not:
        return []
    tried: list[Change] = []
    for option, value in CANDIDATES if len(history.events) <= MANY_EVENTS else CANDIDATES[:1]:
        settings = changed(history.settings, option, value)
        # Garbage is collected only under a limit (a fraction of the device's memory set for the process).
        if settings == history.settings or (settings.gc_threshold and found.limit is None):
            continue
        tried.append(Change(option, value, replay(history, settings, found.limit, empty=not history.from_start)))
    return tried


def best(tried: list[Change], found: Baseline) -> Change | None:
    """The change worth making: fewer failed requests, fewer waits for the device, or less reserved by more than the
    replay's own error and one percent. Of those that come as close, the first."""
    now = found.outcome
    margin = max(abs(now.peak_reserved - found.recorded_peak), found.recorded_peak // 100)
    worth = [
        change
        for change in tried
        if _trouble(change.outcome) < _trouble(now)
        or (_trouble(change.outcome) == _trouble(now) and change.outcome.peak_reserved < now.peak_reserved - margin)
    ]
    least = min((_trouble(change.outcome) for change in worth), default=None)
    worth = [change for change in worth if _trouble(change.outcome) == least]
    peak = min((change.outcome.peak_reserved for change in worth), default=0)
    return next((change for change in worth if change.outcome.peak_reserved <= peak + margin), None)


def _trouble(outcome: Outcome) -> tuple[int, int]:
    """Failed requests, and how often cudaFree waited for the whole device: garbage is given back by it too."""
    return outcome.failed, outcome.retries + outcome.collections
