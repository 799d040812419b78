"""Compute the results of a recorded window: run ``stepscope report`` in a separate process, and optionally wait."""

from __future__ import annotations

import importlib
import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from stepscope.analyse.quantities import count_text
from stepscope.collect.error_stream import say
from stepscope.collect.ranks import find_job_rank
from stepscope.collect.session import background
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.errors import StepscopeError, UsageError

_LOG = logging.getLogger("stepscope")


@dataclass(frozen=True)
class Request:
    """Which results to write.

    Attributes:
        formats: Formats, separated by commas.
        pretty: Indent JSON files.
        step_list: Recorded steps to keep; the first is 1. None keeps all.
        wait: Return only when the results are complete.
        show: Print the summary on standard error.
        deliverables: Directory for the window in MindSpore's own layout, too, if the results are waited for; None
            without it.
    """

    formats: str
    pretty: bool = False
    step_list: tuple[int, ...] | None = None
    wait: bool = True
    show: bool = True
    deliverables: Path | None = None


def checked_steps(step_list: object) -> tuple[int, ...] | None:
    """Return consecutive step numbers in order; else log MindSpore's line and return None."""
    if not step_list:
        return None
    if not isinstance(step_list, list):
        text = f"parameter step_list must be a list, but got type {type(step_list)}"
    elif not all(isinstance(step, int) for step in step_list):
        text = "elements of the parameter step_list must be integers"
    elif max(step_list) - min(step_list) != len(step_list) - 1:
        text = "elements of the parameter step_list must be continuous integers"
    else:
        return tuple(sorted(step_list))
    _LOG.error("For profiler, the %s, step_list reset to None.", text)
    return None


def checked_pretty(pretty: object) -> bool:
    """Return ``pretty`` if it is a bool; else log MindSpore's line and return False."""
    if isinstance(pretty, bool):
        return pretty
    _LOG.warning("For profiler, the parameter pretty must be bool, but got %s, reset to False.", type(pretty))
    return False


def checked_mode(mode: object) -> str:
    """Return ``mode`` if it is ``sync`` or ``async``; else log MindSpore's line and return ``sync``."""
    if not isinstance(mode, str):
        text = f"must be str, but got {type(mode)}, reset to sync."
    elif mode not in ("sync", "async"):
        text = f"must be one of ['sync', 'async'], but got {mode}, reset to sync."
    else:
        return mode
    _LOG.warning("For Profiler.analyse(), the parameter mode %s", text)
    return "sync"


def write(recorded: RecordedWindow, request: Request) -> None:
    """Write the results of a window into its ``results/``, those of ``step_list`` beside it. Errors are logged."""
    recorded.wait()
    rank = recorded.rank_path
    try:
        if request.wait:
            if report(rank, request):
                _warn(rank, "see above")
            elif not request.show and find_job_rank().rank == 0:
                steps = request.step_list and _step_range(rank, request.step_list)
                name = f"results_steps_{steps.replace(':', '-')}" if steps else "results"
                say(f"results in {rank / name}")
        else:
            process = background.start_analysis(rank, *_arguments(rank, request))
            threading.Thread(target=process.wait, name="stepscope-analysis", daemon=True).start()
        if request.deliverables is not None and request.wait:
            kinds = "text,db" if "db" in request.formats.split(",") else "text"
            background.run_export(rank, "--layout", "ascend", "--type", kinds, "--output", str(request.deliverables))
    except (OSError, RuntimeError, StepscopeError) as error:  # RuntimeError: no threads at the interpreter's end
        _warn(rank, str(error))


def report(run: Path, request: Request) -> int:
    """Write the results of a run, or of one rank of it, and wait; the first rank of a job shows the summary.

    Returns:
        Exit code of ``stepscope report``.

    Raises:
        OSError: The process cannot be started.
        StepscopeError: The run does not have the steps of ``step_list``.
    """
    show = request.show and find_job_rank().rank == 0
    return background.run_report(run, *([] if show else ["--quiet"]), *_arguments(run, request))


def _arguments(run: Path, request: Request) -> list[str]:
    arguments = ["--format", request.formats]
    if request.pretty:
        arguments.append("--pretty")
    if request.step_list is not None:
        arguments += ["--steps", _step_range(run, request.step_list)]
    return arguments


def _step_range(run: Path, step_list: tuple[int, ...]) -> str:
    """Convert indices of recorded steps (from 1) into the range of step numbers that ``stepscope report`` takes.

    Raises:
        UsageError: The run has fewer steps.
    """
    opened = importlib.import_module("stepscope.run").Run(run)
    numbers = sorted(opened.ranks[0].tables["steps"].select("number").collect()["number"].to_list())
    if not 1 <= step_list[0] <= step_list[-1] <= len(numbers):
        message = f"step_list={list(step_list)}, but {run} holds {count_text(len(numbers), 'step')}."
        raise UsageError(message, "Count them from 1: the first step that was recorded.")
    return f"{numbers[step_list[0] - 1]}:{numbers[step_list[-1] - 1]}"


def _warn(rank: Path, why: str) -> None:
    _LOG.warning("stepscope: the results of %s were not computed: %s", rank, why)
