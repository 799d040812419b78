"""What the XLA profiler writes (``jax.profiler``, TensorBoard: ``*.xplane.pb``) → tables.

The file is read plane by plane: a plane's bytes, and what is gathered from those before, are in memory at once.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from stepscope.errors import DamagedTraceError
from stepscope.read.common.source import Progress, read_blocks
from stepscope.read.xplane import xplane_files, xplane_tables
from stepscope.read.xplane.compiled_programs import Operations, Programs
from stepscope.read.xplane.device_planes import Streams, device_of
from stepscope.read.xplane.gathered_rows import Rows
from stepscope.read.xplane.host_planes import Host
from stepscope.read.xplane.planes import Plane
from stepscope.read.xplane.xplane_facts import Facts
from stepscope.read.xplane.xplane_tables import Gathered
from stepscope.trace.losses import LossLedger


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read one file.

    Operators are the instructions of compiled programs that run on threads, or as kernels on streams. Steps are those
    of ``StepTraceAnnotation``, else the runs of the program that takes most of the time.

    Raises:
        InputError: It cannot be read, or is no such file.
        DamagedTraceError: It ends before its first event.
    """
    gathered = Gathered(Rows(), Programs(ledger), Operations(), Facts())
    for part in xplane_files.parts(read_blocks(path, ledger, progress), path, ledger):
        if part.number == xplane_files.PLANES:
            _read_plane(Plane.of(part, ledger), gathered)
        elif part.number == xplane_files.HOSTS:
            gathered.facts.host = bytes(part.content[: part.length]).decode("utf-8", "replace")
    if not gathered.rows.count and (ledger.rows() or not gathered.facts.start):
        message = f"{path} is damaged: it ends before its first event."
        raise DamagedTraceError(message, "Record it again, or copy it again from where it was recorded.")
    return xplane_tables.build(gathered, ledger)


def _read_plane(plane: Plane, gathered: Gathered) -> None:
    device = device_of(plane)
    gathered.facts.read(plane, device)
    gathered.programs.read(plane)
    if device is not None:
        Streams(plane, device, gathered.rows, gathered.operations).read()
    else:
        Host(plane, gathered.rows, gathered.operations).read()
    plane.ledger.add("event_damaged", int(plane.fields.broken[0]))
