"""What MindSpore's files do not say of collectives in compiled graphs: the group, and of which type tensors are.

A graph names its operators and the shapes of their inputs, and no types. What data parallel training reduces are the
gradients of parameters, which have their parameters' shapes and types.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

_COMMUNICATION = "mindspore.communication._comm_helper"


def facts() -> dict[str, object]:
    """Return what ``stepscope.json`` says of collectives; nothing where communication was not initialised.

    Returns:
        ``group``, ``group_size`` and ``group_ranks`` of all collectives, where there is only the group of all ranks;
        ``parameter_types``: shape as JSON → type, of all shapes whose parameters have one type.
    """
    module: Any = sys.modules.get(_COMMUNICATION)
    world = getattr(module, "GlobalComm", None)
    if not getattr(world, "INITED", False):
        return {}
    return {**_group(module), "parameter_types": _types()}


def _group(module: Any) -> dict[str, object]:  # noqa: ANN401 - MindSpore's own
    if getattr(module, "_ExistingGroup", None) is None or module._ExistingGroup.ITEMS:
        return {}
    size = sys.modules["mindspore"].communication.get_group_size()
    return {"group": str(module.GlobalComm.WORLD_COMM_GROUP), "group_size": size, "group_ranks": list(range(size))}


def _types() -> dict[str, str]:
    kind = sys.modules["mindspore"].nn.Cell
    found: dict[str, set[str]] = {}
    for item in gc.get_objects():
        if issubclass(type(item), kind):  # a weak proxy may be dead
            for parameter in item.__dict__.get("_params", {}).values():
                if parameter is not None:
                    found.setdefault(str(list(parameter.shape)), set()).add(str(parameter.dtype))
    return {shape: types.pop() for shape, types in found.items() if len(types) == 1}
