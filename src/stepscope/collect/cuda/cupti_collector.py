"""Kernels, copies, fills and calls of CUDA, with any framework or none, recorded with CUPTI's activity records.

The activity records serve one user per process. With PyTorch for CUDA that user is Kineto, which also records the
operators, so this collector is inactive unless the native recorder replaces Kineto. With JAX for CUDA it is XLA.
Operators of other frameworks come from their own collectors; device work is linked to them by the thread and time of
the call that launched it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.collect.cuda import cupti_library
from stepscope.collect.cuda.cupti_recorder import KINDS, PATIENCE, CuptiRecorder
from stepscope.collect.options import Activity
from stepscope.collect.own_thread import OwnThread
from stepscope.collect.protocol import NothingHere
from stepscope.trace.cupti_layout import Kind

if TYPE_CHECKING:
    from stepscope.collect.protocol import Context

#: Device files of NVIDIA's driver: on Linux, and in the Windows Subsystem for Linux.
DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
#: Prefix of JAX's plugins for CUDA; JAX imports one when it looks for devices.
_XLA_ON_CUDA = "jax_plugins.xla_cuda"
#: Seconds between two checks whether the program uses CUDA.
_INTERVAL = 0.05


class CuptiCollector:
    """Records one window into ``capture/cupti.ssc``, from the moment at which the program begins to use CUDA."""

    name = "cupti"

    def __init__(self) -> None:
        self._context: Context | None = None
        self._recorder: CuptiRecorder | None = None
        self._thread: OwnThread | None = None
        self._process = os.getpid()
        self._description: dict[str, object] = {}

    def available(self) -> str | None:
        """Return why CUPTI cannot be used, or None. It loads nothing."""
        if not sys.platform.startswith("linux"):
            return "CUPTI is used on Linux only"
        if cupti_library.driver() is None and not any(path.exists() for path in DEVICES):
            return NothingHere("this machine has no NVIDIA GPU")
        return other_user()

    def prepare(self, context: Context) -> None:
        """Load the library if the program already uses CUDA.

        Raises:
            RuntimeError: CUPTI is missing or of an unknown version, or the C part of stepscope is missing.
        """
        activities = context.options.activities
        if activities and Activity.CUDA not in activities:
            self._description["left_out"] = "CUDA is not among the activities"
            return
        self._context = context
        # If the activities name CUDA, CUPTI is loaded even before the program uses CUDA.
        if activities or cupti_library.driver() is not None:
            self._make()

    def start(self) -> None:
        """Begin to record, or to wait until the program uses CUDA."""
        if self._recorder is not None:
            self._recorder.start()
        elif self._context is not None:
            self._description["waited"] = "the program did not use CUDA"
            self._thread = OwnThread("stepscope-cuda", self._begin_when_used)
            self._thread.start(_INTERVAL)

    def stop(self) -> list[Path]:
        """Wait for the GPUs and close the file.

        Raises:
            TimeoutError: A GPU or the disk hangs; the file keeps what was written.
        """
        if os.getpid() != self._process:
            return []
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop(PATIENCE, last=False)
        recorder = self._recorder
        if recorder is None:
            return []
        try:
            recorder.stop()
        finally:
            self._description.update(buffers=recorder.buffers, bytes=recorder.bytes)
        return [recorder.path] if recorder.path.exists() else []

    def describe(self) -> dict[str, object]:
        """Return the library, its version and the recorded bytes, or why nothing was recorded."""
        missing = self._recorder.missing if self._recorder is not None else {}
        return {**self._description, **({"missing": missing} if missing else {})}

    def _make(self) -> None:
        context = self._context
        if context is None:
            return
        library = cupti_library.load()
        kinds = (*KINDS, Kind.MEMORY2) if context.options.profile_memory else KINDS
        path = context.capture / "cupti.ssc"
        self._recorder = CuptiRecorder(path, library, kinds, context.journal.loss)
        cuda = library.layout.cuda
        self._description.update(
            library=library.path, version=library.version, cuda=f"{cuda // 100}.{cuda % 100}", kinds=len(kinds)
        )

    def _begin_when_used(self, _last: bool) -> float:  # noqa: FBT001 - an OwnThread calls it
        """Record as soon as the program uses CUDA, unless another profiler then uses CUPTI."""
        if cupti_library.driver() is None:
            return _INTERVAL
        self._begin_late()
        return 0

    def _begin_late(self) -> None:
        reason = other_user()
        try:
            if reason is None:
                self._make()
            if self._recorder is not None:
                self._recorder.start()
                reason = "recording began when the program began to use CUDA"
        except (RuntimeError, OSError) as error:
            self._recorder = None
            reason = str(error)
        self._description["waited"] = reason


def other_user() -> str | None:
    """Return which other profiler uses or will use CUPTI's activity records; None if none does."""
    if any(name.startswith(_XLA_ON_CUDA) for name in tuple(sys.modules)):
        return "JAX's XLA records the GPU; CUPTI serves one profiler only"
    torch = sys.modules.get("torch")
    version = getattr(torch, "version", None)
    if torch is None or not (getattr(version, "cuda", None) or getattr(version, "hip", None)):
        return None
    native = sys.modules.get("stepscope.collect.torch.native_collector")
    if native is not None and native.serves():
        return None
    kineto = getattr(getattr(torch, "autograd", None), "kineto_available", bool)()
    return "PyTorch's Kineto records the GPU; CUPTI serves one profiler only" if kineto else None
