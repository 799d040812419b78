"""Processes that a program under ``stepscope run`` starts by ``multiprocessing``: those that train are its ranks.

A process that is spawned, or forked by a server, begins a recording with the options of the command, as
:data:`.environment.OURS` would. Two steps show that a process trains; a worker that loads data takes none, and leaves
nothing. A process that is forked without a server inherits the parent's hooks, and is not recorded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.hooks.spawned_children import run_in_children
from stepscope.collect.start import environment
from stepscope.collect.start.json_options import ENVIRONMENT
from stepscope.trace.run_directory import ranks, runs

_CHILD = "from stepscope.collect.start.spawned import begin_in_child; begin_in_child({text!r})"


class SpawnedRanks:
    """Has the processes recorded that the program spawns, from :meth:`install` to :meth:`remove`.

    Args:
        values: Options of ``stepscope run`` by name.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._output = Path(values["output"])
        known = {name: value for name, value in values.items() if name in ENVIRONMENT and value is not None}
        text = json.dumps({**known, "start": True}, default=_plain)
        self._code = _CHILD.format(text=text)
        self._hooks = MethodHooks()
        self._withdraw: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Begin a recording in every process that is spawned from now on."""
        self._withdraw = run_in_children(self._hooks, "stepscope", lambda: self._code)

    def remove(self) -> None:
        """Put everything back."""
        self._withdraw()
        self._hooks.remove()

    def recorded(self) -> list[Path]:
        """Return the last run of each training that children of this process recorded, the latest first.

        Runs whose first rank is one process are windows of one training.
        """
        last: dict[object, Path] = {}
        for first in (ranks(run)[0] for run in reversed(runs(self._output))):
            manifest = first.read_manifest()
            if manifest.get("parent_process") == os.getpid():
                last.setdefault(manifest.get("process"), first.path.parent)
        return list(last.values())


def begin_in_child(text: str) -> None:
    """Begin the recording of a spawned process; its options are the JSON of :class:`SpawnedRanks`."""
    if environment.OURS in os.environ:
        return  # it has begun already, at the start of Python
    os.environ[environment.OURS] = text
    try:
        environment.begin()
        if (recording := environment.current()) is not None:
            recording.door = "run"
    finally:
        del os.environ[environment.OURS]  # what this process starts is not a rank


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else list(value)  # type: ignore[call-overload]
