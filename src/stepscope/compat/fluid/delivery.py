"""Deliver a block: print its report on standard output, and write its profile file.

Both come from the tables of the runs, which are read after the window has closed. :func:`deliver` does not raise: it
logs errors, and keeps the recorded runs.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.collect.session.window import one_line
from stepscope.compat.fluid.recorder import Block, FluidRecorder
from stepscope.errors import OutputError, StepscopeError

if TYPE_CHECKING:
    import polars as pl

    from stepscope.compat.fluid.events import Recorded
    from stepscope.read.paddle.fluid_profile import Profile
    from stepscope.run import RankRun
    from stepscope.trace.manifest import Manifest

_LOG = logging.getLogger("stepscope")

_REMEDY = "Pass another profile_path."
#: From this level on Paddle 1.8 prints the memory report.
_VERBOSE = 5


def check_writable(path: Path) -> None:
    """Check that a file can be written at ``path``, without creating it.

    Raises:
        OutputError: It is a directory, or its first existing parent is not a writable directory.
    """
    there = next(parent for parent in path.parents if parent.exists())
    if path.is_dir() or not there.is_dir() or not os.access(path if path.exists() else there, os.W_OK):
        message = f"{path} cannot be written."
        raise OutputError(message, _REMEDY)


def deliver(recorder: FluidRecorder, block: Block, sorted_key: str | None, path: Path) -> None:
    """Print the report of a block and write its profile file.

    Args:
        recorder: The recorder of the block.
        block: A block whose windows have closed.
        sorted_key: A key of :data:`.report.ORDERS`, or None.
        path: The profile file.
    """
    if not block.windows:
        _LOG.warning("stepscope: nothing was recorded; no report is printed and no profile file is written.")
        return
    try:
        recorded = _read(block)
        text = _text(recorded, block, sorted_key)
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the program may have closed its output
            sys.stdout.write(text)
            sys.stdout.flush()
        _write(recorded.profile, path)
    except Exception as error:  # noqa: BLE001 - law 1: the program goes on
        recorder.keep()
        why = str(error) if isinstance(error, StepscopeError) else one_line(error)
        kept = ", ".join(str(window.rank_path) for window in block.windows)
        _LOG.error(
            "stepscope: the report failed (%s). The recorded runs are in %s: read them with stepscope report.",
            why,
            kept,
        )


def _read(block: Block) -> Recorded:
    """Return the events of a block; log its losses."""
    from stepscope.compat.fluid import events
    from stepscope.run import Run
    from stepscope.trace import tables

    runs, found = [], []
    for window in block.windows:
        window.wait()
        run = Run(window.rank_path).ranks[0]
        frames = run.read()
        _say_losses(run.manifest, frames["losses"])
        runs.append(run)
        found.append(tables.with_short_names(tables.lazy(frames)))
    recorded = events.recorded(found)
    if block.state == "GPU" and not recorded.events["gpu"].sum():
        _LOG.warning("stepscope: state is 'GPU', but no GPU work was recorded%s: all times are 0.", _why(runs[-1]))
    return recorded


def _say_losses(manifest: Manifest, losses: pl.DataFrame) -> None:
    """Log losses, and the frameworks of the program that could not be recorded."""
    for name, state in manifest["collectors"].items():
        if state.get("unavailable") and name in sys.modules:
            _LOG.warning("stepscope: %s was not recorded: %s.", name, state["unavailable"])
    for loss in losses.iter_rows(named=True):
        if loss["severity"] != "info":
            _LOG.warning("stepscope: %s × %s (%s): %s", loss["what"], loss["count"], loss["source"], loss["advice"])


def _why(run: RankRun) -> str:
    state = run.manifest["collectors"].get("cupti", {})
    reason = state.get("unavailable") or state.get("unused")
    return f" ({reason})" if reason else ""


def _text(recorded: Recorded, block: Block, sorted_key: str | None) -> str:
    report = importlib.import_module("stepscope.compat.fluid.report")
    text: str = report.render(recorded.events, report.FluidReportOptions(block.state, sorted_key, block.tracer_option))
    level = os.environ.get("GLOG_v", "")  # noqa: SIM112 - so it is called
    verbose = level.isdigit() and int(level) >= _VERBOSE
    return text + report.render_memory(recorded.memory) if verbose else text


def _write(profile: Profile, path: Path) -> None:
    """Write the profile file; if ``path`` fails, write it to a temporary directory and log that path."""
    profile_file = importlib.import_module("stepscope.compat.fluid.profile_file")
    try:
        profile_file.write(profile, path)
    except OutputError as error:
        there = Path(tempfile.mkdtemp(prefix="stepscope-fluid-")) / path.name
        profile_file.write(profile, there)
        _LOG.error("stepscope: %s %s It is in %s instead.", error.message, _REMEDY, there)
