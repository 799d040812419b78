"""The state of a MindSpore program: mode, context, models and optimizers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.host import live_objects
from stepscope.collect.host.program_state import ProgramState, flushes_denormals
from stepscope.collect.journal.values import plain
from stepscope.collect.mindspore.mindspore_steps import CELL

_MOST = 16
#: Fact → name in MindSpore's context.
_CONTEXT = {
    "device": "device_target",
    "jit_level": "jit_level",
    "deterministic": "deterministic",
    "graph_kernel": "enable_graph_kernel",
    "pynative_synchronize": "pynative_synchronize",
    "save_graphs": "save_graphs",
    "runtime_threads": "runtime_num_threads",
    "check_bprop": "check_bprop",
    "memory_optimize_level": "memory_optimize_level",
}


#: Method of ``Model`` that trains an epoch or all of them → whether it sinks the data.
_WAYS = {"_train_dataset_sink_process": True, "_train_process": False}
#: Whether the model trains with data sinking, from the first ``Model.train`` on: the last that began.
_sinks: list[bool] = []


class MindSporeUses:
    """Notes whether ``Model.train`` sinks its data."""

    def __init__(self) -> None:
        self._hooks = MethodHooks()

    def install(self) -> None:
        """Put the hooks into MindSpore, which is imported."""
        model = getattr(sys.modules.get("mindspore.train.model"), "Model", None)
        for name, sinks in _WAYS.items():
            self._hooks.around(model, name, partial(_trains, sinks))

    def remove(self) -> None:
        """Remove them."""
        self._hooks.remove()


def _trains(sinks: bool, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, FBT001
    _sinks[:] = [sinks]
    return original(*args, **kwargs)


class MindSporeState(ProgramState):
    """Reads the state at the window's start."""

    name = "mindspore_state"
    framework = "mindspore"

    def state(self) -> dict[str, Any]:
        """Return mode, context, models and optimizers."""
        mindspore: Any = sys.modules["mindspore"]
        context, data = mindspore.context, sys.modules.get("mindspore.dataset")
        modes = {context.GRAPH_MODE: "graph", context.PYNATIVE_MODE: "pynative"}
        cells = live_objects.alive(CELL)
        optimizers = [cell for cell in cells if _optimizes(cell)]
        facts = {key: lambda name=name: plain(context.get_context(name)) for key, name in _CONTEXT.items()}
        return self.read(
            {
                "version": lambda: str(mindspore.__version__),
                "mode": lambda: modes.get(context.get_context("mode")),
                "flush_denormal": flushes_denormals,
                "sink": lambda: _sinks[0] if _sinks else None,
                "data_workers": lambda: data.config.get_num_parallel_workers() if data is not None else None,
                "data_prefetch": lambda: data.config.get_prefetch_size() if data is not None else None,
                **facts,
                "models": lambda: _models(cells),
                "optimizers": lambda: [_optimizer(one) for one in optimizers[-_MOST:]],
            }
        )


def _optimizes(cell: Any) -> bool:  # noqa: ANN401 - a mindspore.nn.Cell
    return any(kind.__name__ == "Optimizer" for kind in type(cell).__mro__)


def _models(cells: list[Any]) -> list[dict[str, Any]]:
    inner = {id(child) for cell in cells for child in (vars(cell).get("_cells") or {}).values()}
    found = [_model(cell) for cell in cells if id(cell) not in inner and not _optimizes(cell)]
    return sorted([one for one in found if one["parameters"]], key=lambda one: -int(one["parameter_bytes"]))[:_MOST]


def _model(root: Any) -> dict[str, Any]:  # noqa: ANN401 - a mindspore.nn.Cell
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    evaluating, seen, waiting = [], {id(root)}, [(type(root).__name__, root)]
    while waiting:
        name, cell = waiting.pop()
        state = vars(cell)
        counts["cells"] += 1
        if state.get("training") is False and vars(root).get("training"):
            evaluating.append(name)
        for one in (state.get("_params") or {}).values():
            if one is not None and id(one) not in seen:
                seen.add(id(one))
                counts["parameters"] += 1
                counts["trainable"] += bool(one.requires_grad)
                sizes[str(one.dtype).lower()] += int(one.nbytes)
        for key, child in reversed(list((state.get("_cells") or {}).items())):
            if child is not None and id(child) not in seen and not _optimizes(child):
                seen.add(id(child))
                waiting.append((f"{name}.{key}", child))
    return {
        "class": type(root).__name__,
        "modules": counts["cells"],
        "training": vars(root).get("training"),
        "parameters": counts["parameters"],
        "trainable_parameters": counts["trainable"],
        "parameter_bytes": sum(sizes.values()),
        "bytes_by_dtype": dict(sizes),
        "eval_modules": evaluating[:64],
        "eval_modules_count": len(evaluating),
    }


def _optimizer(optimizer: Any) -> dict[str, Any]:  # noqa: ANN401 - a mindspore.nn.Optimizer
    state = vars(optimizer)
    return {
        "class": type(optimizer).__name__,
        "parameters": len(state.get("_parameters") or ()),
        "groups": bool(state.get("is_group")),
        "loss_scale": plain(state.get("loss_scale")),
    }
