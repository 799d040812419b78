"""stepscope shows where every training step goes.

Public names are imported when they are first used: ``import stepscope`` loads no framework and no analysis.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.advise.finding import Finding
    from stepscope.advise.run_findings import findings
    from stepscope.cluster.job import Job, job
    from stepscope.collect.annotations import counter, mark, span
    from stepscope.collect.options import Activity
    from stepscope.collect.schedule import schedule
    from stepscope.collect.start.dynamic import dynamic
    from stepscope.collect.start.profile import add_metadata, add_metadata_json, profile
    from stepscope.comparison.comparison import Comparison, compare
    from stepscope.errors import StepscopeError
    from stepscope.run import Run, open, runs
    from stepscope.sql.query import query

__version__ = "0.1.0"

_HOME = {
    "Activity": "stepscope.collect.options",
    "profile": "stepscope.collect.start.profile",
    "add_metadata": "stepscope.collect.start.profile",
    "add_metadata_json": "stepscope.collect.start.profile",
    "schedule": "stepscope.collect.schedule",
    "dynamic": "stepscope.collect.start.dynamic",
    "span": "stepscope.collect.annotations",
    "mark": "stepscope.collect.annotations",
    "counter": "stepscope.collect.annotations",
    "open": "stepscope.run",
    "Run": "stepscope.run",
    "runs": "stepscope.run",
    "query": "stepscope.sql.query",
    "compare": "stepscope.comparison.comparison",
    "Comparison": "stepscope.comparison.comparison",
    "job": "stepscope.cluster.job",
    "Job": "stepscope.cluster.job",
    "findings": "stepscope.advise.run_findings",
    "Finding": "stepscope.advise.finding",
    "StepscopeError": "stepscope.errors",
}

__all__ = [
    "Activity",
    "Comparison",
    "Finding",
    "Job",
    "Run",
    "StepscopeError",
    "__version__",
    "add_metadata",
    "add_metadata_json",
    "compare",
    "counter",
    "dynamic",
    "findings",
    "job",
    "mark",
    "open",
    "profile",
    "query",
    "runs",
    "schedule",
    "span",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type is that of the public name
    home = _HOME.get(name)
    if home is None:
        message = f"module 'stepscope' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:  # noqa: ANN401 - IPython's InteractiveShell
    """Make ``%%stepscope`` known to a notebook, which says ``%load_ext stepscope``."""
    from stepscope.integrations.notebook import load

    load(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
