"""A Python that has imported torch already: processes of training tests start in milliseconds, not in seconds.

`executable()` is the path of a program that takes the arguments of `python`. It asks a server, one per test process,
that imported torch and gpuscope once, to fork; the fork takes over standard input, output and error, the working
directory, the environment and the arguments, and ends the program with its own exit status. `sys.executable` and
torchrun's PYTHON_EXEC lead to the same program in the fork, so launchers and ranks are forks too.

Under `gpuscope record`, which puts a folder before the server's PYTHONPATH, a fork runs the `sitecustomize` of that
folder as Python would at its start, and its script's first `import torch` is seen by whoever waits for it. Not for what
is tested with the start of Python itself; any other PYTHONPATH makes the program start a real Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import types
from typing import NoReturn

PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.elastic.multiprocessing",
    "torch.distributed.launcher.api",
    "torch.profiler",
    "gpuscope.analyzers.commands.analyze",
    "gpuscope.analyzers.run.reporting",
    "gpuscope.instrumented_runtime.commands.train",
    "gpuscope.instrumented_runtime.record.gloo_trace",
    "gpuscope.instrumented_runtime.train.train_run",
    "gpuscope.instrumented_runtime.train.train_launch",
)
MESSAGE_BYTES = 1 << 22
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def executable() -> str:
    """The path of the program; starts the server at the first call of a process, which ends with the process."""
    global _path
    if sys.platform != "linux":
        return sys.executable  # slower, and the same otherwise
    if _path is None:
        import subprocess
        import tempfile

        folder = tempfile.mkdtemp(prefix="gpuscope-warm-")
        address, path = f"{folder}/socket", f"{folder}/python"
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec "{sys.executable}" -IS "{__file__}" ask "{address}" "$@"\n')
        os.chmod(path, 0o755)
        # Threads that libraries start while they are imported would not be there after the fork.
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        server = subprocess.Popen(
            [sys.executable, __file__, "serve", address, path],
            stdin=subprocess.PIPE,  # its end is the server's end, however this process ends
            stdout=subprocess.PIPE,
            env={**os.environ, **one, "KINETO_LOG_LEVEL": "6"},
            start_new_session=True,
        )
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        _keep.append(server)
        _path = path
    return _path


_path: str | None = None
_keep: list[object] = []


# ---- the program: asks the server for a process, waits for its end ----


def ask(address: str, words: list[str]) -> int:
    """What `python WORDS…` would do; its exit status."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(address)
    job = json.dumps({"words": words, "cwd": os.getcwd(), "environment": dict(os.environ)}).encode()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
    socket.send_fds(server, [job], [0, 1, 2])
    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: server.send(bytes([number])))
    answer = server.recv(64).decode()
    if answer == "start a real one":
        os.execv(sys.executable, [sys.executable, *words])
    if not answer:
        return 1  # the server is gone
    status = int(answer)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    return status


# ---- the server: forks ----


def serve(address: str, path: str) -> dict[str, object]:
    """Fork for whoever asks; returns in a fork, with its job. The server itself ends with its standard input."""
    import gc
    import importlib

    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # forks share what is there, as long as nobody looks through it
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    wake, wakened = os.pipe()
    os.set_blocking(wakened, False)
    signal.set_wakeup_fd(wakened)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting = selectors.DefaultSelector()
    for what in (listener, wake, 0):
        waiting.register(what, selectors.EVENT_READ)
    asked: dict[int, socket.socket] = {}
    print("ready", flush=True)
    while True:
        for key, _ in waiting.select():
            if key.fileobj == 0:
                _end(asked, os.path.dirname(address))
            elif key.fileobj == wake:
                os.read(wake, 1 << 12)
                _answer(asked, waiting)
            elif key.fileobj is listener:
                client = listener.accept()[0]
                job = _fork(client, path)
                if job is not None:
                    _leave(listener, waiting, wake, wakened, asked)
                    return job
                if _forked:
                    asked[_forked.pop()] = client
                    waiting.register(client, selectors.EVENT_READ)
            elif isinstance(key.fileobj, socket.socket):
                _pass_on(key.fileobj, asked)


_forked: list[int] = []


def _fork(client: socket.socket, path: str) -> dict[str, object] | None:
    """The job, in the fork; None in the server."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MESSAGE_BYTES)
    message, descriptors, _, _ = socket.recv_fds(client, MESSAGE_BYTES, 3)
    job: dict[str, object] = json.loads(message)
    environment = job["environment"]
    assert isinstance(environment, dict)
    if _folders_before(environment) is None:
        client.send(b"start a real one")
        client.close()
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        _forked.append(pid)
        return None
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    client.close()
    job["folders"] = _folders_before(environment)
    os.environ.clear()
    os.environ.update(environment, PYTHON_EXEC=path)
    return job


def _folders_before(environment: dict[str, str]) -> list[str] | None:
    """The folder, if any, that an environment's PYTHONPATH has before the server's; None where it differs more."""
    given, own = ([*filter(None, one.get("PYTHONPATH", "").split(os.pathsep))] for one in (environment, os.environ))
    before = given[: len(given) - len(own)]
    return before if len(before) <= 1 and [*before, *own] == given else None


def _leave(
    listener: socket.socket,
    waiting: selectors.BaseSelector,
    wake: int,
    wakened: int,
    asked: dict[int, socket.socket],
) -> None:
    """What of the server a fork must not keep."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    waiting.close()
    for each in (listener, *asked.values()):
        each.close()
    os.close(wake)
    os.close(wakened)


def _answer(asked: dict[int, socket.socket], waiting: selectors.BaseSelector) -> None:
    """Tell how forks ended."""
    while asked:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        client = asked.pop(pid)
        waiting.unregister(client)
        with contextlib.suppress(BrokenPipeError):  # the program was killed
            client.send(str(os.waitstatus_to_exitcode(status)).encode())
        client.close()


def _pass_on(client: socket.socket, asked: dict[int, socket.socket]) -> None:
    """A signal for a fork; where its program was killed, the fork is killed too."""
    try:
        message = client.recv(1)
    except ConnectionResetError:
        message = b""
    for pid, other in asked.items():
        if other is client:
            os.kill(pid, message[0] if message else signal.SIGKILL)


def _end(asked: dict[int, socket.socket], folder: str) -> None:
    import shutil

    for pid in asked:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


# ---- the fork: becomes what was asked for ----


def become(job: dict[str, object], path: str) -> NoReturn:
    """Run as `python WORDS…` in this process, which ends as that would."""
    import atexit
    import multiprocessing
    import threading

    words = list(job["words"])  # type: ignore[call-overload]
    os.chdir(str(job["cwd"]))
    multiprocessing.set_executable(sys.executable)
    sys.executable = path
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the program passes it on only if it is not ignored
    unbuffered = words[0] == "-u"
    del words[: int(unbuffered)]
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", 1 if unbuffered else -1, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    sys.orig_argv[:] = [path, *words]
    folders = [str(folder) for folder in job["folders"]]  # type: ignore[attr-defined]
    sys.path[1:1] = folders
    try:
        if folders:
            _start_anew(folders)
        _run(words)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if ended.code is not None and not isinstance(ended.code, int):
            print(ended.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    # As Python ends, but for taking a million objects apart that only the server made.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _start_anew(folders: list[str]) -> None:
    """Run the `sitecustomize` of these folders, with torch still to be imported."""
    import importlib.abc
    import importlib.machinery
    import importlib.util

    torch = sys.modules.pop("torch")
    spec = torch.__spec__

    class Again(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        """Gives back the torch that is there."""

        def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
            return importlib.util.spec_from_loader(name, self) if name == "torch" else None

        def create_module(self, _: importlib.machinery.ModuleSpec) -> types.ModuleType:
            return torch

        def exec_module(self, module: types.ModuleType) -> None:
            sys.meta_path.remove(self)
            module.__spec__ = spec

    sys.meta_path.insert(0, Again())
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", folders)
    assert found is not None
    assert found.loader is not None
    found.loader.exec_module(importlib.util.module_from_spec(found))


def _run(words: list[str]) -> None:
    import runpy

    if words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    elif words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], os.getcwd()
        sys.modules.pop(words[1], None)
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, os.path.dirname(words[0])
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        sys.exit(ask(sys.argv[2], sys.argv[3:]))
    become(serve(sys.argv[2], sys.argv[3]), sys.argv[3])
