"""The parallel strategy that a MindSpore program declares: metadata ``parallel_strategy``.

A JSON object::

    context      values of ``mindspore.get_auto_parallel_context``, by key
    world        rank, size and backend, if communication was initialised
    groups       name → ranks, of the groups that the program created
    networks     one for each ``AutoParallel`` wrapper: class of the network and its settings
    stages       name of a cell → its pipeline stage
    strategies   one for each operator or cell on which the program called ``shard``: cell, operator, in_strategy and
                 out_strategy, or in_layout and out_layout

It is collected when the window ends, because programs create models while they run.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.collect.journal.values import plain

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal
    from stepscope.collect.protocol import Context

_CONTEXT = "mindspore.parallel._auto_parallel_context"
_COMMUNICATION = "mindspore.communication._comm_helper"
_AUTO_PARALLEL = "mindspore.parallel.auto_parallel"
_STRATEGIES = ("in_strategy", "out_strategy", "in_layout", "out_layout")
_SETTING = bool | int | float | str
_DEEP = 6


class ParallelCollector:
    """Writes the declared parallel strategy into the journal."""

    name = "parallel"

    def __init__(self) -> None:
        self._started = False
        self._journal: Journal | None = None
        self._found: dict[str, object] = {}

    def available(self) -> str | None:
        """Return why nothing can be collected, or None."""
        return None if "mindspore" in sys.modules else "the program has not imported mindspore"

    def prepare(self, context: Context) -> None:
        """Keep the journal."""
        self._journal = context.journal

    def start(self) -> None:
        """Note that the window has opened."""
        self._started = True

    def stop(self) -> list[Path]:
        """Write the strategy into the journal."""
        if self._started and self._journal is not None:
            self._found = declared()
            self._journal.metadata("parallel_strategy", json.dumps(self._found))
        return []

    def describe(self) -> dict[str, object]:
        """Return the number of parts, and how many entries each has."""
        entries = {name: len(value) for name, value in self._found.items() if isinstance(value, dict | list)}
        return {"parts": len(self._found), **entries}


def declared() -> dict[str, object]:
    """Return the declared strategy, as the module's docstring describes it."""
    cells = _cells()
    # not the property `pipeline_stage`, which raises if no stage was set
    stages = {name: getattr(cell, "_pipeline_stage", None) for name, cell in cells.items()}
    found: dict[str, object] = {
        "context": _context(),
        "world": _world(),
        "groups": _plain(dict(getattr(_communication("_ExistingGroup"), "ITEMS", {}))),
        "networks": [_network(cell) for cell in cells.values() if type(cell).__module__ == _AUTO_PARALLEL],
        "stages": {name: _plain(stage) for name, stage in stages.items() if stage is not None},
        "strategies": [row for name, cell in cells.items() for row in _strategies(name, cell)],
    }
    return {name: value for name, value in found.items() if value}


def _context() -> dict[str, object]:
    functions = getattr(sys.modules.get(_CONTEXT), "_get_auto_parallel_context_func_map", {})
    deprecated = "auto_parallel_search_mode"  # the old name of `search_mode`; MindSpore logs a warning if it is read
    return {key: _plain(function()) for key, function in sorted(functions.items()) if key != deprecated}


def _communication(name: str) -> Any:  # noqa: ANN401 - MindSpore's own
    return getattr(sys.modules.get(_COMMUNICATION), name, None)


def _world() -> dict[str, object]:
    if not getattr(_communication("GlobalComm"), "INITED", False):
        return {}
    communication = sys.modules["mindspore"].communication
    return {
        "rank": communication.get_rank(),
        "size": communication.get_group_size(),
        "backend": str(_communication("GlobalComm").BACKEND),
    }


def _cells() -> dict[str, Any]:
    """Return every cell of the program by name: the class of its outermost cell, and the path from there."""
    kind = sys.modules["mindspore"].nn.Cell
    # not isinstance(), which raises for a dead weak proxy
    everything = [item for item in gc.get_objects() if issubclass(type(item), kind)]
    inner = {id(child) for cell in everything for child in cell.__dict__.get("_cells", {}).values()}
    found: dict[str, Any] = {}
    for root in (cell for cell in everything if id(cell) not in inner):
        for path, cell in root.cells_and_names():
            name = ".".join(filter(None, (type(root).__name__, path)))
            unique, number = name, 0
            while unique in found:  # as for the second network of a class
                number += 1
                unique = f"{name}#{number}"
            found[unique] = cell
    return found


def _network(cell: Any) -> dict[str, object]:  # noqa: ANN401
    settings = {key.lstrip("_"): _plain(value) for key, value in vars(cell).items() if isinstance(value, _SETTING)}
    network = vars(cell).get("network") or next(iter(cell.__dict__.get("_cells", {}).values()), None)
    return {"network": type(network).__name__, **settings}


def _strategies(name: str, cell: Any) -> Iterator[dict[str, object]]:  # noqa: ANN401
    own = {key: _plain(value) for key in _STRATEGIES if (value := vars(cell).get(f"_{key}"))}
    if own:
        yield {"cell": name, "operator": None, **own}
    kind = sys.modules["mindspore"].ops.Primitive
    held = (*vars(cell).values(), *cell.__dict__.get("_primitives", {}).values())
    for primitive in {id(value): value for value in held if issubclass(type(value), kind)}.values():
        given = {key: _plain(primitive.attrs[key]) for key in _STRATEGIES if primitive.attrs.get(key)}
        if given:
            yield {"cell": name, "operator": primitive.name, **given}


def _plain(value: object) -> object:
    """Return a value that JSON can represent."""
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else plain(value, _DEEP)
