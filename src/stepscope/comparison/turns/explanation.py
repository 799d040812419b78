"""Why the step changed: one recording of each program, after the turns, whose parts are compared."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from stepscope.comparison.comparison import Comparison, compare
from stepscope.comparison.prediction import measured_against
from stepscope.comparison.turns.live_pair import started
from stepscope.comparison.turns.programs import ProgramInTurns
from stepscope.errors import StepscopeError
from stepscope.trace import run_directory
from stepscope.trace.run_directory import RankDirectory

#: Steps before the recorded ones, and those.
_SKIP, _ACTIVE = 20, 10
#: Seconds between looks for the end of a recording, and that it may take.
_TICK, _PATIENCE = 0.3, 900.0


def explained(
    found: Comparison, a: ProgramInTurns, b: ProgramInTurns, output: Path, say: Callable[[str], None]
) -> Comparison:
    """Return a comparison with what one recording a side says: parts, bytes, calls, whether an advice held.

    Where that fails, it stays as it is.

    Args:
        found: What the turns said.
        a: The program of A.
        b: The program of B.
        output: Where the recordings are made; they stay there.
        say: Told what happens, a line each.
    """
    runs = []
    for program in (a, b):
        say(f"records {program.name}")
        path = _recorded(program, output)
        if path is None:
            return msgspec.structs.replace(found, notes=[*found.notes, f"{program.name} could not be recorded"])
        runs.append(path)
    try:
        parts = compare(*runs)
    except StepscopeError as error:
        return msgspec.structs.replace(found, notes=[*found.notes, error.message])
    kept = parts.prediction and measured_against(parts.prediction, found.step, parts.parts)
    return msgspec.structs.replace(
        found,
        a=msgspec.structs.replace(found.a, runs=[str(runs[0])], environment=parts.a.environment),
        b=msgspec.structs.replace(found.b, runs=[str(runs[1])], environment=parts.b.environment),
        step_ns=parts.step_ns,
        parts=parts.parts,
        memory=parts.memory,
        compilations=parts.compilations,
        prediction=kept,
        losses=parts.losses,
    )


def _recorded(program: ProgramInTurns, output: Path) -> Path | None:
    """Run a program until its window is recorded, and return the run; None if nothing was."""
    before = set(run_directory.runs(output)) if output.is_dir() else set()
    where = {"output_path": str(output.resolve()), "analyse": "later", "quiet": True}
    options = {"start": True, "skip": _SKIP, "active": _ACTIVE, **where}
    options |= {"record_shapes": True, "profile_memory": True}
    environment = {**os.environ, **program.environment, "STEPSCOPE_OPTIONS": json.dumps(options)}
    environment.pop("STEPSCOPE_TURNS", None)
    deadline = time.monotonic() + _PATIENCE
    with started(program, environment) as process:
        while time.monotonic() < deadline:
            ended = process.poll() is not None
            for run in set(run_directory.runs(output)) - before if output.is_dir() else ():
                if _complete(run):
                    return run
            if ended:
                return None
            time.sleep(_TICK)
    return None


def _complete(run: Path) -> bool:
    """Return whether a rank's window is written: nothing of it changes from then on."""
    for rank in run_directory.ranks(run):
        try:
            manifest = RankDirectory(rank.path).read_manifest()
        except StepscopeError:
            return False
        if manifest.get("status") == "complete" and manifest.get("steps", {}).get("recorded"):
            return True
    return False
