"""Power, clocks, utilisation and memory of a rank's GPU, sampled in a thread, as JSON lines.

Needs the package `nvidia-ml-py` (module `pynvml`) and a driver; without them nothing is written.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from gpuscope.instrumented_runtime.record.run_folder import RankFolder

COLUMNS = {
    "time_ns": "when, ns since the epoch",
    "power_mw": "board power, mW",
    "energy_mj": "energy since the driver was loaded, mJ",
    "sm_mhz": "clock of the multiprocessors, MHz",
    "memory_mhz": "clock of the memory, MHz",
    "gpu_percent": "share of the last period in which a kernel ran, %",
    "memory_percent": "share of the last period in which memory was accessed, %",
    "used_bytes": "memory in use by every process, bytes",
    "celsius": "temperature, °C",
    "throttle_reasons": "NVML's bit mask of clock throttling reasons",
}


class Nvml:
    """Samples every `interval_ms` into `nvml/rank{r}.jsonl`, from the end of the first step on: by then the training
    thread has chosen its device."""

    name = "nvml"

    def __init__(self, interval_ms: int, device: Callable[[], Any] | None = None) -> None:
        self._interval_s = interval_ms / 1000
        self._device = device or current_device
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, folder: RankFolder) -> None:
        """Nothing yet: the device is not known."""
        self._folder = folder

    def step(self, step: int) -> None:
        """Start sampling after the first step, if it used a GPU."""
        if step == 0:
            self._begin()

    def _begin(self) -> None:
        found = self._device()
        if found is None:
            return
        self._nvml, self._handle = found
        self._path = self._folder.file(f"nvml/rank{self._folder.part.rank}.jsonl")
        self._thread = threading.Thread(target=self._sample, name="gpuscope-nvml", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after one last sample."""
        if self._thread is not None:
            self._stopped.set()
            self._thread.join(timeout=5)
            self._folder.add_file(self._path, self.name)

    def _sample(self) -> None:
        with self._path.open("w", encoding="utf-8") as file:
            while True:
                file.write(json.dumps(sample(self._nvml, self._handle)) + "\n")
                file.flush()
                if self._stopped.wait(self._interval_s):
                    file.write(json.dumps(sample(self._nvml, self._handle)) + "\n")
                    return


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


def sample(nvml: Any, handle: Any) -> dict[str, int | None]:
    """One row of `COLUMNS`; None for what this GPU does not report."""

    def ask(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except nvml.NVMLError:
            return None

    utilisation = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    return {
        "time_ns": time.time_ns(),
        "power_mw": ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle)),
        "energy_mj": ask(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
        "sm_mhz": ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "memory_mhz": ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "gpu_percent": utilisation.gpu if utilisation is not None else None,
        "memory_percent": utilisation.memory if utilisation is not None else None,
        "used_bytes": memory.used if memory is not None else None,
        "celsius": ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "throttle_reasons": ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
    }
