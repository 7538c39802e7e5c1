"""Power and clocks of a rank's GPU, sampled in a thread; their means by step go into its trace.

Needs the package `nvidia-ml-py` (module `pynvml`) and a driver; without them nothing is recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from gpuscope.averages import whole_mean
from gpuscope.instrumented_runtime.record.run_folder import RankFolder

KEY = "gpuscope_gpu"
"""Key in the trace's metadata."""
HELD = {
    "power_cap": 0x04,  # SwPowerCap
    "thermal": 0x20 | 0x40,  # SwThermalSlowdown, HwThermalSlowdown
    "power_brake": 0x80,  # HwPowerBrakeSlowdown: the power supply asks for it
    "set_clocks": 0x02,  # ApplicationsClocksSetting: somebody has set them
}
"""What holds clocks down, with its bits of nvml.h's nvmlClocksEventReasons."""
COLUMNS = ("step", "samples", "sm_mhz", "power_mw", *HELD)
"""Of a step's samples: how many, the mean clock of the multiprocessors (MHz) and board power (mW), null where not
reported, and in how many each reason held the clocks down."""
Sample = tuple[int | None, int | None, int]
"""Clock in MHz, power in mW, NVML's bit mask."""


class Nvml:
    """Samples every `interval_ms` from the end of the first step on: by then the training thread has chosen its
    device. The profiler asks for the steps that it records."""

    name = "nvml"

    def __init__(self, interval_ms: int, device: Callable[[], Any] | None = None) -> None:
        self._interval_s = interval_ms / 1000
        self._device = device or current_device
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._taken: list[Sample] = []
        self._row: list[int | None] | None = None

    def start(self, folder: RankFolder) -> None:
        """Nothing yet: the device is not known."""
        del folder

    def step(self, step: int) -> None:
        """Start sampling after the first step, if it used a GPU; after every other sum up what was sampled."""
        if step == 0:
            self._begin()
            return
        taken, self._taken = self._taken, []
        self._row = summed(step, taken) if taken else None

    def row(self) -> list[int | None] | None:
        """`COLUMNS` of the step that ended last; None where nothing was sampled in it."""
        return self._row

    def _begin(self) -> None:
        found = self._device()
        if found is not None:
            self._nvml, self._handle = found
            self._thread = threading.Thread(target=self._sample, name="gpuscope-nvml", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        if self._thread is not None:
            self._stopped.set()
            self._thread.join(timeout=5)

    def _sample(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._taken.append(sample(self._nvml, self._handle))


def summed(step: int, taken: Sequence[Sample]) -> list[int | None]:
    """One row of `COLUMNS`."""
    held = [sum(bool(mask & bits) for *_, mask in taken) for bits in HELD.values()]
    clocks, powers = [clock for clock, *_ in taken], [power for _, power, _ in taken]
    return [step, len(taken), whole_mean(clocks), whole_mean(powers), *held]


def current_device() -> tuple[Any, Any] | None:
    """NVML and its handle of the calling thread's CUDA device; None if either is missing, or CUDA is not in use.

    The device is found by its UUID: CUDA_VISIBLE_DEVICES renumbers.
    """
    try:
        import pynvml
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    try:
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(name)
    except pynvml.NVMLError:
        return None


def sample(nvml: Any, handle: Any) -> Sample:
    """One sample; None (reasons: none) for what this GPU does not report."""

    def ask(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except nvml.NVMLError:
            return None

    return (
        ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle)),
        ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0,
    )
