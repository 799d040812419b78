"""What shows itself in a notebook: a base of the classes that people look at."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class NotebookDisplay:
    """Shows itself where IPython asks for it: as HTML in a notebook, as text elsewhere.

    It calls the report, which lies above the classes that it is a base of, when somebody looks and not before.
    """

    __slots__ = ()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:  # noqa: ANN401, ARG002
        """Return what is shown by MIME type; IPython chooses."""
        bundle: dict[str, str] = import_module("stepscope.report.inline").bundle(self)
        return bundle
