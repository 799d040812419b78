"""What NVIDIA's management library says of each GPU: PCIe traffic (``pcie``), memory in use and busy (``hbm_ddr``).

======== ============================ ======== ========================================================
pcie     PCIe received, PCIe sent     bytes/s  by the GPU, over 20 ms as the library samples it
hbm_ddr  memory used                  bytes    of the GPU, by all processes
..       memory busy                  %        of the time in which memory was read or written
======== ============================ ======== ========================================================

A reading of PCIe takes the library 20 ms, in a thread of its own; the Python package is ``nvidia-ml-py``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.collect.collectors.protocol import Context
    from stepscope.collect.journal import Journal

#: What NVIDIA's driver makes: on Linux, and in the Windows subsystem for it.
_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
#: The library answers in thousands of bytes.
_KB = 1000
#: Seconds that stop waits for the thread.
_PATIENCE = 5.0

_Reading = tuple[str, float, str]


class NvmlCollector:
    """Samples every GPU of this machine, ``Options.counters_hz`` times a second."""

    name = "nvml"

    def __init__(self) -> None:
        self._journal: Journal | None = None
        self._library: Any = None
        self._gpus: list[tuple[str, Any]] = []
        self._asked: tuple[str, ...] = ()
        self._period = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples = 0
        self._missing: dict[str, str] = {}

    def available(self) -> str | None:
        """Return why no GPU can be asked here, or None."""
        if sys.platform != "win32" and not any(path.exists() for path in _DEVICES):
            return "this machine has no NVIDIA GPU"
        return None if find_spec("pynvml") else "nvidia-ml-py is not installed: pip install nvidia-ml-py."

    def prepare(self, context: Context) -> None:
        """Load the library and find the GPUs.

        Raises:
            pynvml.NVMLError: The driver does not answer.
        """
        options = context.options
        self._asked = tuple(name for name in ("pcie", "hbm_ddr") if getattr(options, name))
        if not self._asked or options.counters_hz <= 0:
            return
        self._journal, self._period = context.journal, 1 / options.counters_hz
        library = import_module("pynvml")
        library.nvmlInit()
        self._library = library
        self._gpus = [(f"GPU {n}", library.nvmlDeviceGetHandleByIndex(n)) for n in range(library.nvmlDeviceGetCount())]

    def start(self) -> None:
        """Start the thread."""
        if self._gpus:
            self._thread = threading.Thread(target=self._run, name="stepscope-nvml", daemon=True)
            self._thread.start()

    def stop(self) -> list[Path]:
        """End the thread and close the library; everything is in the journal.

        Raises:
            TimeoutError: The driver hangs. The thread ends by itself, and records nothing any more.
        """
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_PATIENCE)
            if thread.is_alive():
                self._journal = None
                message = f"NVIDIA's driver takes longer than {_PATIENCE:.0f} s to answer."
                raise TimeoutError(message)
        library, self._library = self._library, None
        if library is not None:
            library.nvmlShutdown()
        return []

    def describe(self) -> dict[str, object]:
        """Return what was asked for, of how many GPUs, how often, and what a GPU refused."""
        described: dict[str, object] = {"asked": list(self._asked), "gpus": len(self._gpus), "samples": self._samples}
        return {**described, "missing": self._missing} if self._missing else described

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            self._sample()
        if not self._samples:  # even a window shorter than the period gets one
            self._sample()

    def _sample(self) -> None:
        journal, now = self._journal, perf_counter_ns()
        if journal is None:
            return
        for gpu, handle in self._gpus:
            for name, value, unit in self._read(gpu, handle):
                journal.counter(name, value, unit, gpu, at_ns=now)
        self._samples += 1

    def _read(self, gpu: str, handle: Any) -> Iterator[_Reading]:  # noqa: ANN401 - the library's own handle
        for what in self._asked:
            if f"{gpu} {what}" in self._missing:
                continue
            try:
                yield from (self._pcie if what == "pcie" else self._memory)(handle)
            except self._library.NVMLError as error:  # this GPU does not say: the others do
                self._missing[f"{gpu} {what}"] = str(error)

    def _pcie(self, handle: Any) -> list[_Reading]:  # noqa: ANN401
        library = self._library
        directions = ("received", library.NVML_PCIE_UTIL_RX_BYTES), ("sent", library.NVML_PCIE_UTIL_TX_BYTES)
        return [
            (f"PCIe {name}", _KB * library.nvmlDeviceGetPcieThroughput(handle, code), "bytes/s")
            for name, code in directions
        ]

    def _memory(self, handle: Any) -> list[_Reading]:  # noqa: ANN401
        return [
            ("memory used", self._library.nvmlDeviceGetMemoryInfo(handle).used, "bytes"),
            ("memory busy", self._library.nvmlDeviceGetUtilizationRates(handle).memory, "%"),
        ]
