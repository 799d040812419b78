"""Convert the arguments to stepscope's terms: options of collectors, unavailable switches, formats of results."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import Enum
from typing import Any

from stepscope.collect.options import Options
from stepscope.collect.start.json_options import options_of, unavailable
from stepscope.compat.mindspore.parameters import Values
from stepscope.compat.mindspore.vocabulary import ExportType

_LOG = logging.getLogger("stepscope")

#: Formats of `stepscope report` by MindSpore's name.
FORMATS: dict[ExportType, str] = {ExportType.Text: "csv,json,trace", ExportType.Db: "db"}

#: Argument → its name in MindSpore 1.x.
_OLDER = {"aic_metrics": "aicore_metrics"}

#: Arguments without effect on this machine that this process has logged.
logged: set[str] = set()


def unserved(values: Values, given: Iterable[str] = ()) -> dict[str, str]:
    """Return the arguments that this machine cannot serve, with the reason; each is logged once per process.

    Args:
        values: Of every argument.
        given: Names of the arguments that the program gave.
    """
    written = {name: older for name, older in _OLDER.items() if older in given and name not in given}
    missing = unavailable(_texts(values), written)
    for name in missing.keys() - logged:
        logged.add(name)
        _LOG.warning("stepscope: %s records nothing here: %s. Everything else is recorded.", name, missing[name])
    return missing


def options(values: Values) -> Options:
    """Return the options of the collectors."""
    return options_of(_texts(values))


def formats(values: Values) -> str:
    """Return the formats of the results, separated by commas."""
    return ",".join(FORMATS[kind] for kind in FORMATS if kind in values["export_type"])


def _texts(values: Values) -> dict[str, Any]:
    """Return the values in JSON's types: enumeration members become their values."""
    return {
        name: [_text(item) for item in value] if isinstance(value, list) else _text(value)
        for name, value in values.items()
    }


def _text(value: Any) -> Any:  # noqa: ANN401 - any argument
    return value.value if isinstance(value, Enum) else value
