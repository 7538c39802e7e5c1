"""What is going on while `gpuscope tune` works, on stderr: on a terminal a table that grows, else a line per run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpuscope.instrumented_runtime.tune.measured import step_ns
from gpuscope.instrumented_runtime.tune.tuning import Session
from gpuscope.progress import watched
from gpuscope.words import units

Told = Callable[[Session, str], None]


@contextmanager
def shown() -> Iterator[Told]:
    """What to call with the session and with what begins."""
    if not watched():
        yield _line
        return
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.text import Text

    from gpuscope.report.terminal import tune_text
    from gpuscope.report.terminal.screen import Writer

    console = Console(stderr=True, highlight=False, emoji=False)
    writer = Writer(console)
    with Live(console=console, transient=True, refresh_per_second=4) as live:

        def told(session: Session, doing: str) -> None:
            parts: list[RenderableType] = [Text(_so_far(session))]
            if session.tried:
                parts.append(tune_text.tried(session.tried, writer))
            if doing:
                parts.append(Text(f"… {_doing(session, doing)}", style="dim"))
            live.update(Group(*parts))

        yield told


def _line(session: Session, doing: str) -> None:
    if doing:
        words = f"{_so_far(session)}; {_doing(session, doing)}"
    elif session.tried:
        from gpuscope.report.terminal.tune_text import mark  # it takes a while to import

        last = session.tried[-1]
        words = f"{last['code']}: {mark(last)}, {last['why']}"
    else:
        return
    print("gpuscope:", words, file=sys.stderr, flush=True)


def _so_far(session: Session) -> str:
    if not session.baseline:
        return "no step yet"
    best = f", best {units.duration(step_ns(session.best))}" if session.kept else ""
    return f"step {units.duration(step_ns(session.baseline))}{best}"


def _doing(session: Session, doing: str) -> str:
    if session.trying is None or doing != session.trying.code:
        return doing
    changes = ", ".join(str(change) for change in session.trying.changes)
    return f"{doing} ({changes})"
