"""``analyse``: results of earlier recordings by stepscope or by the profilers of MindSpore and Ascend."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.compat.mindspore import results
from stepscope.errors import NotATraceError, StepscopeError
from stepscope.trace import run_directory
from stepscope.trace.run_directory import RankDirectory

if TYPE_CHECKING:
    from stepscope.read import Capture

_LOG = logging.getLogger("stepscope")

_HALF = max((os.cpu_count() or 2) // 2, 1)
#: Folder that MindSpore's own profiler writes its raw files to.
_FRAMEWORK = "FRAMEWORK"
#: Folder for the run that is imported from them, beside MindSpore's own results.
_RUN = "STEPSCOPE_OUTPUT"


def analyse(
    profiler_path: str,
    max_process_number: int = _HALF,
    pretty: bool = False,  # noqa: FBT001, FBT002 - as documented
    step_list: list[int] | None = None,
    data_simplification: bool = True,  # noqa: FBT001, FBT002, ARG001
) -> None:
    """Compute the results of runs, and print their summaries on standard error.

    The results of a run are written to its ``results/``, those of a ``step_list`` beside it. A directory that
    MindSpore's own profiler wrote on a CPU (``…_ascend_ms``) is imported as a run in ``STEPSCOPE_OUTPUT`` below it; one
    that an Ascend device's profiler wrote, as a run in ``STEPSCOPE_OUTPUT`` beside it. Existing files are not changed.

    Args:
        profiler_path: A run, a directory that MindSpore's or torch_npu's own profiler wrote, or a directory of such.
        max_process_number: Number of runs that are analysed concurrently.
        pretty: Indent JSON files.
        step_list: Consecutive recorded steps to keep; the first is 1. None keeps all.
        data_simplification: Accepted and ignored; recorded data is never removed.
    """
    path = Path(os.path.realpath(Path(profiler_path).expanduser()))
    runs = list(_runs(path)) if path.is_dir() else []
    if not runs:
        _LOG.error(
            "Invalid path: %s. Expected a *_ascend_ms_* directory or a parent directory of multiple *_ascend_ms_*, "
            "or a run of stepscope or a directory of such",
            path,
        )
        return
    request = results.Request(
        "csv,json,trace", pretty=results.checked_pretty(pretty), step_list=results.checked_steps(step_list)
    )
    with ThreadPoolExecutor(min(_processes(max_process_number), len(runs))) as pool:
        for done in [pool.submit(_analyse, run, request) for run in runs]:
            done.result()


def _processes(number: object) -> int:
    if isinstance(number, int) and not isinstance(number, bool) and number > 0:
        return number
    kind = type(number).__name__
    _LOG.warning("Parameter 'max_process_number' should be of type int, but got %s. reset to int %d.", kind, _HALF)
    return _HALF


def _runs(path: Path) -> Iterator[Path | Capture]:
    """Yield runs, directories of MindSpore on a CPU, and captures of Ascend devices at ``path`` or directly below."""
    devices = {} if run_directory.ranks(path) else _devices(path)
    if path in devices:
        yield devices[path]
    elif run_directory.ranks(path) or _is_mindspores(path):
        yield path
    else:
        for inner in sorted(path.iterdir()):
            if inner.name == _RUN or inner in devices or not inner.is_dir():
                continue
            if run_directory.ranks(inner) or _is_mindspores(inner):
                yield inner
        yield from devices.values()


def _devices(path: Path) -> dict[Path, Capture]:
    """Return the captures of Ascend devices at and below a path, by their roots."""
    from stepscope.read import sniff  # the training process does not load readers

    try:
        return {capture.root: capture for capture in sniff.look(path) if capture.format == "ascend"}
    except NotATraceError:
        return {}


def _is_mindspores(path: Path) -> bool:
    return (path / _FRAMEWORK).is_dir()


def _analyse(found: Path | Capture, request: results.Request) -> None:
    """Analyse one; log an error, so that the others are still analysed."""
    name = found if isinstance(found, Path) else found.root
    try:
        if not isinstance(found, Path):
            run = _made_beside(found)
        else:
            run = found if run_directory.ranks(found) else _adopted(found)
        code = results.report(run, request)
    except (OSError, StepscopeError) as error:
        _LOG.error("offline analysis failed: %s", error)
        return
    if code:
        _LOG.error("offline analysis failed: %s: exit code %d", name, code)


def _made_beside(capture: Capture) -> Path:
    """Import an Ascend device's capture as a run; an existing import is reused."""
    from stepscope.run import adopt

    directory = RankDirectory(capture.root.parent / _RUN / capture.name / f"rank{capture.rank or 0}")
    if not directory.manifest_path.exists():
        shutil.rmtree(directory.path, ignore_errors=True)
        adopt([capture], directory, world_size=1)
    return directory.path.parent


def _adopted(path: Path) -> Path:
    """Import a directory of MindSpore's own profiler as a run; an existing import is reused."""
    directory = RankDirectory(path / _RUN / f"rank{_rank(path)}")
    if not directory.manifest_path.exists():
        shutil.rmtree(directory.path, ignore_errors=True)
        directory.create()
        shutil.copytree(path / _FRAMEWORK, directory.capture / "mindspore")
        directory.write_manifest(
            {
                "status": "complete",
                "source": "import",
                "imported_from": str(path),
                "format": "mindspore",
                "rank": directory.rank,
                "world_size": 1,
                "host": path.name.split("_")[0],
                "imported_ns": time.time_ns(),
            }
        )
    return directory.path.parent


def _rank(path: Path) -> int:
    """Return the rank that the names of MindSpore's files end in."""
    ends = (name.stem.rpartition("_")[2] for name in (path / _FRAMEWORK).glob("cpu_op_*"))
    return next((int(end) for end in ends if end.isascii() and end.isdigit()), 0)
