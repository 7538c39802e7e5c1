"""Closing a session when the script ends without doing so: at exit, by an exception, by SIGTERM."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.util import Finalize
from types import TracebackType
from typing import NoReturn

from gpuscope.instrumented_runtime.record.session import Session, status_of


def _watch_exit(session: Session) -> None:
    """Have `sys.exit(n)` count as a failure: it bypasses excepthook, and atexit does not get n.

    Undone if the script catches it and goes on to another step.
    """
    leave = sys.exit

    def exit_noted(code: str | int | None = None, /) -> NoReturn:
        status, error = status_of(SystemExit(code))
        session.at_exit = None if status == "completed" else (status, error)
        leave(code)

    sys.exit = exit_noted


def _watch_immediate_exit(session: Session) -> None:
    """`os._exit` bypasses everything: close before it, unless another thread than the main one calls it."""
    leave = os._exit

    def exit_closed(status: int) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            with suppress(Exception):
                session.close(*status_of(SystemExit(status)))
        leave(status)

    os._exit = exit_closed


def close_at_the_end(session: Session) -> None:
    """Close `session` however this process ends, short of SIGKILL, without changing how it ends."""
    atexit.register(session.close_at_exit)
    # Processes forked by multiprocessing run this instead of atexit.
    Finalize(None, session.close_at_exit, exitpriority=100)
    excepthook = sys.excepthook

    def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        excepthook(kind, error, trace)
        session.close(*status_of(error))

    sys.excepthook = on_exception
    _watch_exit(session)
    _watch_immediate_exit(session)

    def on_terminate(number: int, frame: object) -> None:
        del frame
        if session.closing:  # torchrun terminates the other ranks when one fails: let this one finish writing
            return
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's raises as a loader's workers are terminated too
        session.close("interrupted", "terminated by SIGTERM")
        # As it would have ended without us. An exception would be lost in a callback of the garbage collector's.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, on_terminate)
