"""`gpuscope train`'s own launcher: the run folder before, torchrun or this process, the manifest after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gpuscope.errors import AnalysisError
from gpuscope.instrumented_runtime.record.capture_options import options_from
from gpuscope.instrumented_runtime.record.launch import kill_tree, note_mismatch, rank_environment
from gpuscope.instrumented_runtime.record.run_folder import RunFolder
from gpuscope.instrumented_runtime.train.faults import Fault
from gpuscope.instrumented_runtime.train.run_options import describe, record_options
from gpuscope.instrumented_runtime.train.settings.config import Degrees, TrainConfig
from gpuscope.sources.run_manifest import ended


class Terminated(SystemExit):
    """SIGTERM, as an exception: so that faults undo what they set up, and no process stays behind."""


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    def terminate(number: int, frame: object) -> None:
        del frame
        raise Terminated(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def launch(
    config: TrainConfig,
    degrees: Degrees,
    faults: tuple[Fault, ...],
    out: Path,
    arguments: Sequence[str],
    *,
    nproc: int,
    max_restarts: int = 0,
) -> None:
    """Run the job that `arguments` describe in `nproc` processes and close its run folder.

    Raises `AnalysisError` naming the first failure if it fails; what was recorded stays.
    """
    folder = RunFolder.create(
        out,
        command=["gpuscope", "train", "--nproc", str(nproc), *arguments],
        **describe(config, degrees, faults, nproc),
    )
    status, code = "failed", 1
    try:
        with ExitStack() as stack:
            stack.enter_context(_sigterm_unwinds())
            for fault in faults:
                stack.enter_context(fault.launching(nproc))
            if nproc == 1 and degrees.describe() == "single" and config.parallel.data == "none":
                from gpuscope.instrumented_runtime.train.train_run import run_rank

                os.environ.update(folder.environment())
                run_rank(config, faults, out)
                code = 0
            else:
                code = _torchrun(config, folder, arguments, nproc, max_restarts)
        status = "completed" if code == 0 else "failed"
    except (KeyboardInterrupt, Terminated) as stop:
        status, code = "interrupted", 130 if isinstance(stop, KeyboardInterrupt) else 143
        raise
    finally:
        note_mismatch(folder, failed=status != "completed")
        folder.finish(status, exit_code=code)
    if code:
        manifest = ended(out)
        first = f": {manifest.failures[0]}" if manifest is not None and manifest.failures else ""
        raise AnalysisError(f"the training failed{first}", hint=f"what was recorded until then is in {out}")


def _torchrun(config: TrainConfig, folder: RunFolder, arguments: Sequence[str], nproc: int, max_restarts: int) -> int:
    """torchrun's exit status."""
    environment = rank_environment(folder, options_from(**record_options(config)), os.environ)
    # The workers open their own session: the shim that opens one in any script is not needed.
    environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    if max_restarts:
        # Otherwise the store survives the restart with gloo's addresses of dead processes (torch 2.13).
        environment.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    agent = ["torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
    agent += [f"--max-restarts={max_restarts}", "-m"]
    worker = ["gpuscope.instrumented_runtime.commands.train", "train", "--launched", *arguments]
    process = subprocess.Popen([sys.executable, "-m", *agent, *worker], env=environment)
    try:
        return process.wait()
    except (KeyboardInterrupt, Terminated) as stop:
        grace_s = config.capture.grace_s
        print(f"gpuscope: the ranks have {grace_s:g} s to end (capture.grace_s)", file=sys.stderr)
        if isinstance(stop, Terminated):  # a terminal signals the workers, too
            process.terminate()  # torchrun passes it on to the ranks, which write what they have
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        kill_tree(process.pid)
        process.wait()
        raise
