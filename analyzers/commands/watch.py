"""`gpuscope watch`: a run that is still being recorded, as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpuscope.analyzers.watching.alerts import Alert
    from gpuscope.analyzers.watching.measures import Follower, Seen
    from gpuscope.sources.run_manifest import Refused


@click.command(short_help="Follow a run that is still being recorded.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="RUN")
@click.option(
    "--every",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look.",
)
@click.option(
    "--to",
    "targets",
    multiple=True,
    metavar="TARGET",
    help="Also send measures, verdicts and alerts there; may be repeated.",
)
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a run that has not begun.",
)
@click.option(
    "--record-on-alert",
    "record",
    is_flag=True,
    help="Have the job record a window of a slow rank or link, and of a rank beside it.",
)
@click.option("--once", is_flag=True, help="Say how it stands, and end; exit with 1 if there is an alert.")
def command(folder: Path, every: float, targets: tuple[str, ...], wait: float, record: bool, once: bool) -> int:
    """Print the steps of a running job, who is late in them, and alerts, until it ends.

    RUN is the folder that `gpuscope train` or `gpuscope record` writes. Steps come from its measures, the verdict
    from the windows that are finished. TARGET is tensorboard=DIR, wandb[=PROJECT], mlflow[=EXPERIMENT],
    prometheus=[HOST]:PORT, prometheus=FILE.prom or opentelemetry.

    \b
    gpuscope watch runs/today
    gpuscope watch runs/today --wait 60 --to tensorboard=logs --to prometheus=:9400
    gpuscope watch runs/today --record-on-alert
    gpuscope watch runs/today --once || notify
    """
    from gpuscope.analyzers.watching.measures import Follower, failure
    from gpuscope.callbacks.named_callbacks import callback_named

    _await(folder, wait)
    follower = Follower(
        folder,
        [callback_named(target) for target in targets],
        lambda callback, error: click.echo(f"nothing more is sent: {failure(callback, error)}", err=True),
    )
    try:
        return _follow(follower, every, once, record)
    finally:
        follower.close()


def _await(folder: Path, seconds: float) -> None:
    """Return when a run has begun in `folder`, or after so many seconds."""
    import time

    from gpuscope.sources.run_manifest import MANIFEST, PARTS

    until = time.monotonic() + seconds
    while time.monotonic() < until and not any((folder / name).exists() for name in (MANIFEST, PARTS)):
        time.sleep(min(0.2, seconds))


def _follow(follower: Follower, every: float, once: bool, record: bool) -> int:
    import time

    from gpuscope.analyzers.watching.alerts import alerts, unmeasured
    from gpuscope.words import units

    shown, raised, said, untold, told = -1, dict[str, "Alert"](), "", False, set["Refused"]()
    while True:
        seen = follower.look()
        for refused in sorted(set(seen.refused) - told):
            click.echo(f"problem  {units.clean(refused.why)}")
        told |= set(seen.refused)
        shown = _steps(seen, shown, once)
        sentence, recorded = follower.verdict.look(seen.windows)
        now = alerts(seen, time.time_ns(), recorded)
        raised = _raise(follower, seen, raised, {f"{alert.code} {alert.ranks}": alert for alert in now}, record)
        if sentence and sentence != said:
            said = sentence
            click.echo(f"finished windows ({len(seen.windows)} files): {sentence}")
        if not untold and (words := unmeasured(seen)):
            untold = True
            click.echo(f"note   {words}")
        if once or seen.status not in ("running", ""):
            _end(seen, follower.watcher.folder)
            return int(once and bool(now))
        try:
            time.sleep(every)
        except KeyboardInterrupt:
            return 0


def _raise(
    follower: Follower, seen: Seen, before: dict[str, Alert], now: dict[str, Alert], record: bool
) -> dict[str, Alert]:
    """Say which alerts have begun and which are over, here and to the targets; `now`."""
    import time

    from gpuscope.callbacks.callback import AlertChange

    newest = max((max(own) for own in seen.steps.values() if own), default=0)
    for key in [*(now.keys() - before.keys()), *(before.keys() - now.keys())]:
        over = key not in now
        alert = before[key] if over else now[key]
        click.echo(f"over   {alert.code.replace('_', ' ')}" if over else f"ALERT  {alert.message}")
        follower.tell(AlertChange(alert.code, alert.ranks, alert.message, newest, time.time_ns(), over))
        if record and not over and alert.slow:
            _ask_for_window(follower.watcher.folder, seen, alert)
    return now


def _ask_for_window(folder: Path, seen: Seen, alert: Alert) -> None:
    """Of the alert's ranks, and of one that is in none: without one that waits nothing shows what it costs."""
    from gpuscope.sources.run_manifest import REQUEST, WindowRequest

    beside = next((rank for rank in seen.steps if rank not in alert.ranks), None)
    ranks = (*alert.ranks, *([] if beside is None else [beside]))
    try:
        (folder / REQUEST).write_text(WindowRequest(None, ranks).text, encoding="utf-8")
        click.echo(f"asked  for a window of ranks {', '.join(map(str, ranks))}")
    except OSError as error:
        click.echo(f"problem  no window can be asked for: {error.strerror}")


def _steps(seen: Seen, shown: int, once: bool) -> int:
    """Print the newest step that all ranks have ended, if it is new; its number."""
    from gpuscope.analyzers.watching.alerts import common_steps, exposed_frac, late_ranks, step_ns
    from gpuscope.words import units

    steps = common_steps(seen)
    if not steps or steps[-1] == shown:
        if once and not steps and (seen.steps or seen.status in ("running", "")):
            click.echo("no step has ended on every rank yet" if seen.steps else "no measures yet")
        return shown
    step = steps[-1]
    exposed = exposed_frac(seen, step)
    pieces = [f"step {step}", units.duration(step_ns(seen, step))]
    if exposed is not None:
        pieces.append(f"exposed communication {units.whole_share(exposed)}")
    late = late_ranks(seen, [step])
    pieces += [f"last: rank {one.rank} (+{units.duration(one.late_ns)})" for one in late]
    click.echo("  ".join(pieces))
    return step


def _end(seen: Seen, folder: Path) -> None:
    from gpuscope.sources.run_manifest import ended
    from gpuscope.words import units

    ranks, lost = len(seen.steps), seen.lost
    steps = max((max(own) + 1 for own in seen.steps.values()), default=0)
    tail = f"; {units.plural(lost, 'line')} could not be read" if lost else ""
    told = f"{units.plural(ranks, 'rank')}, {units.plural(steps, 'step')}" if ranks else "no step was measured"
    if not ranks and seen.windows and seen.status != "running":
        told = f"it has no measures or digests; `gpuscope analyze {folder}` reads its traces"
    end = ended(folder)
    said = (*end.wrong[:1], *end.failures[:2]) if end is not None and end.badly else ()
    why = "".join(f"{one}; " for one in said)
    click.echo(f"{seen.status or 'no manifest yet'}: {why}{told}{tail}")
