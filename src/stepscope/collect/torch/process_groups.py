"""The process groups of torch.distributed, as torch's own profiler describes them in ``distributedInfo``."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any


def initialised() -> bool:
    """Return whether the program has joined its job by ``torch.distributed``."""
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed is not None and distributed.is_available() and distributed.is_initialized())


def describe() -> dict[str, Any]:
    """Return backend, rank, world size, and name, description, backend and ranks of each group; empty without groups.

    What the installed torch does not tell is missing.
    """
    found: dict[str, Any] = {}
    with suppress(Exception):  # the functions of the groups are torch's own; the collectives are recorded without them
        if initialised():
            distributed: Any = sys.modules["torch.distributed"]
            found["backend"] = str(distributed.get_backend())
            found["rank"], found["world_size"] = distributed.get_rank(), distributed.get_world_size()
            found["pg_config"] = _groups(distributed.distributed_c10d._world)
            found["pg_count"] = len(found["pg_config"])
    return found


def _groups(world: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - torch's own
    return [
        {
            "pg_name": str(name),
            "pg_desc": str(getattr(group, "group_desc", "")),
            "backend_config": str(world.pg_backend_config.get(group, "")),
            "pg_size": len(ranks),
            "ranks": sorted(ranks, key=ranks.__getitem__),  # rank in the job → rank in the group
        }
        for group, ranks in list(world.pg_group_ranks.items())
        if (name := world.pg_names.get(group)) is not None  # torch also keeps ranks of groups that it is not in
    ]
