"""Which framework a rank trained with, by what its recording says."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from stepscope.trace.tables import Tables, facts

#: Facts that only one framework's recordings hold.
_FACTS = {"torch": "torch", "mindspore": "mindspore", "ms_profiler_info": "mindspore"}
#: What the fact ``profiler`` begins with.
_PROFILERS = {"paddle": "paddle", "mindspore": "mindspore", "xplane": "jax"}
#: What names of PyTorch's operators, ranges and waits begin with.
_TORCH = ("aten::", "autograd::", "torch::", "c10d::", "enumerate(DataLoader)", "Optimizer.step#", "Torch-Compiled")


def framework_of(tables: Tables, names: Iterable[str]) -> str:
    """Return the module of the framework that the facts name, or that names of spans show; empty if unknown."""
    known = facts(tables)
    profiler = known.get("profiler", "").strip('"')
    said = (framework for key, framework in _FACTS.items() if key in known)
    by_profiler = (framework for start, framework in _PROFILERS.items() if profiler.startswith(start))
    by_name = ("torch" for name in names if name.startswith(_TORCH))
    return next(chain(said, by_profiler, by_name), "")
