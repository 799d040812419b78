"""A file of blocks that a collector writes beside the journal, on a separate thread.

For collectors with too many records for the journal's queues: they keep records in their own form, and the file's
thread fetches them twice a second and writes them with :mod:`stepscope.trace.blocks`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.collect.journal.values import text
from stepscope.collect.own_thread import OwnThread
from stepscope.trace.blocks import FrameWriter, pack, write_failure
from stepscope.trace.clock import take_anchor

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal

#: Seconds between two fetches.
INTERVAL = 0.5
#: Seconds that ``close`` waits for a disk that hangs.
_PATIENCE = 8.0


class BlockFile:
    """Writes the blocks that ``take`` returns until it is closed.

    Every block gets the journal's keys ``process``, ``host``, ``anchors`` (the clocks before and after the block's
    records), and ``closed`` in the last one. An error of the disk is counted in the journal and logged once; training
    goes on.

    Args:
        path: File to create.
        take: Returns the columns of the next block; None if no records wait. Called by one thread at a time.
        journal: Counts losses.

    Raises:
        OSError: The file exists or cannot be written.
        RuntimeError: No thread can be started.
    """

    def __init__(self, path: Path, take: Callable[[], Mapping[str, Any] | None], journal: Journal) -> None:
        self.path = path
        self.bytes = 0
        self._take = take
        self._journal = journal
        self._frames: FrameWriter | None = FrameWriter(path)
        self._facts = {"process": os.getpid(), "host": text(socket.gethostname())}
        self._anchor = take_anchor()
        self._thread = OwnThread(f"stepscope-{path.stem}", self._write_what_waits)
        self._thread.start(INTERVAL)

    def close(self) -> None:
        """Write the remaining records and mark the file as complete; idempotent.

        Raises:
            TimeoutError: The disk hangs; the file stays incomplete.
        """
        if not self._thread.stop(_PATIENCE):
            message = f"Writing {self.path.name} takes longer than {_PATIENCE:.0f} s."
            raise TimeoutError(message)

    def _write_what_waits(self, last: bool) -> float:  # noqa: FBT001 - an OwnThread calls it
        try:
            before, self._anchor = self._anchor, take_anchor()
            anchors = [(anchor.monotonic, anchor.epoch, anchor.uncertainty) for anchor in (before, self._anchor)]
            for block in self._blocks():
                self._append({**self._facts, "anchors": anchors, **block})
            if last:
                self._append({**self._facts, "anchors": anchors, "closed": True})
        except Exception as error:  # noqa: BLE001 - law 1: counted and logged; training goes on
            loss, reason = write_failure(error)
            self._journal.loss(loss)
            self._journal.warn(self.path, reason)
            last = True
        if last:
            frames, self._frames = self._frames, None
            if frames is not None:
                frames.close()
        return 0 if last else INTERVAL

    def _blocks(self) -> Iterator[Mapping[str, Any]]:
        while block := self._take():
            yield block

    def _append(self, block: Mapping[str, Any]) -> None:
        payload = pack(block)
        if self._frames is not None:
            self._frames.append(payload)
            self.bytes += len(payload)
