r"""Records with CUPTI's activity records into one file: it writes raw buffers, which the reader decodes.

It does not subscribe to CUPTI (``cuptiSubscribe``): a process has one subscription, which the framework's own profiler
may need. A process also has only one pair of buffer callbacks, and the last one that registers gets all buffers: this
recorder must not run while another user of the activity records does (Kineto registers whenever it starts). The
callbacks are C (``native/cupti.c``); a thread of this module fetches full buffers twice a second, adds the names that
their records point to, and writes both.

The file has blocks as :mod:`stepscope.trace.blocks` describes, with the magic ``SSC1\n``. The first byte of a block
is its type:

* ``F``: facts, packed JSON: ``process, host, cuda, version`` (of CUPTI) · ``calls`` {runtime|driver: [[number, name],
  …]} · ``devices`` · ``names`` [[pointer, name, C++ name], …], before the records that point there · ``anchors``
  [[CUPTI's clock, epoch ns, ± ns], …] · ``losses`` {name: count} · ``closed`` in the last one;
* ``R``: the valid bytes of one buffer, compressed with zlib's fastest level.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepscope.collect.cuda import cupti_library
from stepscope.collect.cuda.cupti_driver import Driver
from stepscope.collect.cuda.cupti_library import CuptiError, CuptiLibrary
from stepscope.collect.cuda.cupti_names import KernelNames
from stepscope.collect.journal.values import text
from stepscope.collect.own_thread import OwnThread
from stepscope.native.cupti import CuptiBuffers
from stepscope.trace.blocks import FrameWriter, pack, write_failure
from stepscope.trace.cupti_layout import BUFFER, FACTS, FETCH_INTERVAL, MAGIC, RECORDS, Kind

#: Kinds recorded by default.
KINDS = (
    Kind.CONCURRENT_KERNEL,
    Kind.MEMCPY,
    Kind.MEMCPY2,
    Kind.MEMSET,
    Kind.RUNTIME,
    Kind.DRIVER,
    Kind.DEVICE,
    Kind.CONTEXT,
    Kind.SYNCHRONIZATION,
    Kind.OVERHEAD,
)
_KERNELS = (Kind.CONCURRENT_KERNEL, Kind.KERNEL)

#: Seconds that ``stop`` waits for the GPU, CUPTI and the disk together.
PATIENCE = 8.0
#: ``CUpti_ActivityFlag`` of ``cuptiActivityFlushAll``: also buffers whose last records are still open.
_FORCED = 1

_LOG = logging.getLogger("stepscope")

_claim = threading.Lock()
_recording: CuptiRecorder | None = None


class CuptiRecorder:
    """One recording; used once.

    Args:
        path: File to create.
        library: The CUPTI of this process.
        kinds: What to record.
        loss: Called with the name of a loss that the file can no longer hold.

    Raises:
        RuntimeError: The C library of stepscope is missing.
    """

    def __init__(
        self, path: Path, library: CuptiLibrary, kinds: Sequence[Kind] = KINDS, loss: Callable[[str], object] = str
    ) -> None:
        self.path = path
        self.missing: dict[str, str] = {}
        self.buffers = self.bytes = 0
        self._library = library
        self._kinds = [kind for kind in kinds if kind in library.layout.sizes]
        self._loss = loss
        layout = library.layout
        names = {int(kind): layout.fields(kind)["name"][0] for kind in _KERNELS}
        self._buffers = CuptiBuffers({int(kind): size for kind, size in layout.sizes.items()}, names)
        self._names = KernelNames()
        self._frames: FrameWriter | None = None
        self._threads: int | None = None
        self._thread = OwnThread("stepscope-cupti", self._fetch)

    def start(self) -> None:
        """Begin to record.

        Raises:
            CuptiError: CUPTI cannot record kernels, or is already recording.
            OSError: The file exists or cannot be written.
        """
        self._take_claim()
        try:
            self._frames = FrameWriter(self.path, MAGIC)
            self._write_facts(self._describe_process())
            self._buffers.open(BUFFER)
            requested, completed = self._buffers.callbacks()
            call = self._library.call
            call("cuptiActivityRegisterCallbacks", ctypes.c_void_p(requested), ctypes.c_void_p(completed))
            self._threads = self._library.use_system_threads()
            self._enable()
            self._thread.start(FETCH_INTERVAL)
        except BaseException:
            self._undo()
            self.path.unlink(missing_ok=True)
            raise

    def stop(self) -> None:
        """Wait for the GPUs, fetch CUPTI's remaining buffers, and close the file; idempotent.

        Raises:
            TimeoutError: A GPU, CUPTI or the disk hangs. The file stays as it is.
        """
        if not self._thread.stop(PATIENCE):
            message = f"The GPU's last records did not arrive within {PATIENCE:.0f} s."
            raise TimeoutError(message)

    def _take_claim(self) -> None:
        global _recording
        with _claim:
            if _recording is not None:
                message = "CUPTI is already recording in this process"
                raise CuptiError(message)
            _recording = self

    def _describe_process(self) -> dict[str, Any]:
        handle = cupti_library.driver()
        return {
            "process": os.getpid(),
            "host": text(socket.gethostname()),
            "cuda": self._library.layout.cuda,
            "version": self._library.version,
            "calls": {domain: self._library.calls(domain) for domain in ("runtime", "driver")},
            "devices": Driver(handle).devices() if handle is not None else [],
            "anchors": self._anchors(),
        }

    def _anchors(self) -> list[tuple[int, int, int]]:
        anchor = self._library.anchor()
        return [(anchor.monotonic, anchor.epoch, anchor.uncertainty)]

    def _enable(self) -> None:
        for kind in self._kinds:
            try:
                self._library.call("cuptiActivityEnable", int(kind))
            except CuptiError as error:  # a kind that this GPU lacks
                if kind in _KERNELS:
                    raise
                self.missing[kind.name.lower()] = str(error)

    def _fetch(self, last: bool) -> float:  # noqa: FBT001 - an OwnThread calls it
        try:
            if last:
                self._finish()
            else:
                self._library.call("cuptiActivityFlushAll", ctypes.c_uint32(0))
                self._write_full()
        except Exception as error:  # noqa: BLE001 - law 1: counted and logged; the training goes on
            loss, reason = write_failure(error)
            self._loss(loss)
            _LOG.warning("stepscope: cannot write %s (%s): the file ends here, training goes on.", self.path, reason)
            last = True
        if last:
            self._undo()
        return 0 if last else FETCH_INTERVAL

    def _finish(self) -> None:
        handle = cupti_library.driver()
        if handle is not None:
            Driver(handle).wait()
        self._disable()
        self._library.call("cuptiActivityFlushAll", ctypes.c_uint32(_FORCED))
        self._write_full()
        # CUPTI returned a missing buffer to a profiler that registered its callbacks after us.
        losses = {"device_records_dropped": self._library.dropped(), "device_buffers_lost": self._buffers.lent}
        self._write_facts({"anchors": self._anchors(), "losses": losses, "closed": True})

    def _write_full(self) -> None:
        while (taken := self._buffers.take()) is not None:
            address, valid = taken
            try:
                self._write(address, valid)
            finally:
                self._buffers.give_back(address)

    def _write(self, address: int, valid: int) -> None:
        names = self._names.new(self._buffers.names(address, valid))
        self._write_facts({"anchors": self._anchors(), **({"names": names} if names else {})})
        content = zlib.compress((ctypes.c_char * valid).from_address(address), 1)
        self._append(RECORDS + content)
        self.buffers += 1
        self.bytes += len(content)

    def _write_facts(self, facts: dict[str, Any]) -> None:
        self._append(FACTS + pack(facts))

    def _append(self, payload: bytes) -> None:
        if self._frames is not None:
            self._frames.append(payload)

    def _disable(self) -> None:
        for kind in self._kinds:
            if kind.name.lower() not in self.missing:
                self._library.call("cuptiActivityDisable", int(kind))

    def _undo(self) -> None:
        """Restore CUPTI's state and close the file; skips what was never set up."""
        global _recording
        for action in (self._disable, lambda: self._library.restore_threads(self._threads)):
            try:
                action()
            except (CuptiError, AttributeError) as error:  # the other action must still run
                _LOG.debug("stepscope: %s", error)
        self._buffers.close()
        self._names.close()
        frames, self._frames = self._frames, None
        if frames is not None:
            frames.close()
        with _claim:
            _recording = None
