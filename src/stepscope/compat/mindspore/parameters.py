"""Every argument of the constructors, of any version, as a table: type, default, and the message for a wrong value.

Texts and defaults are those of MindSpore 2.10 (``profiler/common/profiler_parameters.py``). An argument of a wrong type
is logged and replaced by its default, an invalid combination is corrected with a warning; no argument raises an error.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, TypeAlias

from stepscope.compat.mindspore.schedules import is_schedule, schedule
from stepscope.compat.mindspore.vocabulary import (
    LEGACY_METRICS,
    AicoreMetrics,
    ExportType,
    HostSystem,
    ProfilerActivity,
    ProfilerLevel,
    _ExperimentalConfig,
    ours,
)

_LOG = logging.getLogger("stepscope")

Values: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Parameter:
    """One argument.

    Attributes:
        name: Its name.
        kind: Type of the argument, or of its elements.
        default: Its value if the caller passes None or a wrong value.
        check: Returns the value to use for what the caller passed.
    """

    name: str
    kind: Any
    default: Any
    check: Callable[[Parameter, Any], Any]

    def value(self, given: Mapping[str, object]) -> Any:  # noqa: ANN401 - of the kind
        """Return the value to use, from the arguments given by name."""
        value = given.get(self.name)
        return self.default if value is None else self.check(self, value)


def _plain(parameter: Parameter, value: object) -> object:
    if issubclass(parameter.kind, Enum):
        value = ours(value, parameter.kind)
    if isinstance(value, parameter.kind):
        return value
    _LOG.warning(
        "For Profiler, the type of %s should be %s, but got %s, reset to %s.",
        *(parameter.name, parameter.kind, type(value), parameter.default),
    )
    return parameter.default


def _members(parameter: Parameter, value: object) -> object:
    """Check a list of enumeration members, and remove duplicates."""
    members = [ours(item, parameter.kind) for item in value] if isinstance(value, list) else [None]
    if all(isinstance(item, parameter.kind) for item in members):
        return list(dict.fromkeys(members))
    quoted = f"'{parameter.name}'" if parameter.name == "host_sys" else parameter.name
    _LOG.warning("For Profiler, %s value is Invalid, reset to %s.", quoted, parameter.default)
    return parameter.default


def _export_type(parameter: Parameter, value: object) -> object:
    """Check one export type, its name, or a list of members."""
    if isinstance(value, str) and value in {"text", "db"}:
        value = ExportType(value)
    members = [ours(item, ExportType) for item in (value if isinstance(value, list) else [value])]
    if not value:
        return parameter.default
    if all(isinstance(item, ExportType) for item in members):
        return list(dict.fromkeys(members))
    _LOG.warning("Invalid parameter export_type, reset it to text.")
    return parameter.default


def _domains(parameter: Parameter, value: object) -> object:
    if not isinstance(value, list):
        _LOG.warning("For Profiler, %s value is Invalid, reset to [].", parameter.name)
        return []
    for name in value:
        if not isinstance(name, str) or not name:
            _LOG.warning("%s has value %s is not str or is empty, reset to [].", parameter.name, name)
            return []
    return list(dict.fromkeys(value))


def _callback(parameter: Parameter, value: object) -> object:
    if callable(value):
        return value
    _LOG.warning("For Profiler, %s value is Invalid, reset to %s.", parameter.name, parameter.default)
    return parameter.default


def _schedule(_parameter: Parameter, value: object) -> object:
    if is_schedule(value):
        return value
    reset = schedule(wait=0, active=1)
    _LOG.warning("For Profiler, schedule value is Invalid, reset to %s", reset)
    return reset


def _flags(**defaults: bool) -> list[Parameter]:
    return [Parameter(name, bool, default, _plain) for name, default in defaults.items()]


_ACTIVITIES = [ProfilerActivity.CPU, ProfilerActivity.NPU]

#: Every argument that has an effect, by name.
PARAMETERS: dict[str, Parameter] = {
    parameter.name: parameter
    for parameter in (
        Parameter("output_path", str, "./data", _plain),
        Parameter("profiler_level", ProfilerLevel, ProfilerLevel.Level0, _plain),
        Parameter("activities", ProfilerActivity, _ACTIVITIES, _members),
        Parameter("aic_metrics", AicoreMetrics, AicoreMetrics.AiCoreNone, _plain),
        *_flags(
            with_stack=False,
            profile_memory=False,
            data_process=False,
            parallel_strategy=False,
            start_profile=True,
            l2_cache=False,
            hbm_ddr=False,
            pcie=False,
            sys_io=False,
            sys_interconnection=False,
            sync_enable=True,
            data_simplification=True,
            record_shapes=False,
            mstx=False,
        ),
        Parameter("host_sys", HostSystem, [], _members),
        Parameter("export_type", ExportType, [ExportType.Text], _export_type),
        Parameter("mstx_domain_include", str, [], _domains),
        Parameter("mstx_domain_exclude", str, [], _domains),
        Parameter("schedule", schedule, None, _schedule),
        Parameter("on_trace_ready", Callable, None, _callback),
    )
}

_NO_EFFECT = "The parameter '{}' is deprecated and will have no effect"

#: Arguments of older versions → the warning. `pcie` and `hbm_ddr` cause it only if they are True.
DEPRECATED: dict[str, str] = {
    "profile_communication": "The parameter 'profile_communication' is deprecated, please use "
    "'profiler_level=ProfilerLevel.Level1' or 'profiler_level=ProfilerLevel.Level2' instead.",
    "op_time": "The parameter 'op_time' is deprecated, please use 'activaties=ProfilerActivity.NPU' instead.",
    "profile_framework": "The parameter 'profile_framework' is deprecated, "
    "please use 'activaties=ProfilerActivity.CPU' instead.",
    "host_stack": "The parameter 'host_stack' is deprecated, please use 'with_stack' instead.",
    "pcie": "The parameter 'pcie' will be deprecated in future versions. "
    "Please use 'sys_interconnection' in mindspore.profiler._ExperimentalConfig instead.",
    "hbm_ddr": "The parameter 'hbm_ddr' will be deprecated in future versions. Please use 'profile_memory' in instead.",
    "aicore_metrics": "The parameter 'aicore_metrics' is deprecated, please use 'aic_metrics' instead.",
    **{name: _NO_EFFECT.format(name) for name in ("timeline_limit", "optypes_not_deal", "ascend_job_id")},
}


@dataclass(frozen=True)
class Correction:
    """An invalid combination of arguments.

    Attributes:
        applies: Whether the values have this combination.
        changes: The values used instead.
        text: The warning; names in braces are arguments, after the correction.
    """

    applies: Callable[[Values], bool]
    changes: Values
    text: str


_NO_COUNTERS = (ProfilerLevel.LevelNone, ProfilerLevel.Level0)

#: Applied in this order, each to the result of the one before.
CORRECTIONS: tuple[Correction, ...] = (
    Correction(
        lambda values: is_schedule(values["schedule"]) and values["data_process"],
        {"data_process": False},
        "When 'schedule' is set, 'data_process' will be set to False.",
    ),
    Correction(
        lambda values: not values["mstx"] and values["profiler_level"] is ProfilerLevel.LevelNone,
        {"profiler_level": ProfilerLevel.Level0},
        "when 'mstx' is disabled, 'profiler_level' cannot be set to 'ProfilerLevel.LevelNone', "
        "reset to 'ProfilerLevel.Level0'.",
    ),
    Correction(
        lambda values: (
            values["profiler_level"] in _NO_COUNTERS and values["aic_metrics"] is not AicoreMetrics.AiCoreNone
        ),
        {"aic_metrics": AicoreMetrics.AiCoreNone},
        "when 'profiler_level' is set to '{profiler_level}', 'aic_metrics' cannot be set to other value except "
        "'AicoreMetrics.AiCoreNone', reset to 'AicoreMetrics.AiCoreNone'.",
    ),
    Correction(
        lambda values: (
            values["profiler_level"] not in _NO_COUNTERS and values["aic_metrics"] is AicoreMetrics.AiCoreNone
        ),
        {"aic_metrics": AicoreMetrics.PipeUtilization},
        "when 'profiler_level' is set to '{profiler_level}', 'aic_metrics' cannot be set to "
        "'AicoreMetrics.AiCoreNone', reset to 'AicoreMetrics.PipeUtilization'.",
    ),
    Correction(
        lambda values: values["record_shapes"] and ProfilerActivity.CPU not in values["activities"],
        {"record_shapes": False},
        "when 'ProfilerActivity.CPU' is not set in 'activities', 'Record_shapes' cannot be set to "
        "True, reset to 'False'.",
    ),
    Correction(
        lambda values: not values["mstx"] and bool(values["mstx_domain_include"] or values["mstx_domain_exclude"]),
        {"mstx_domain_include": [], "mstx_domain_exclude": []},
        "when 'mstx' is set to 'False', 'mstx_domain_include' and 'mstx_domain_exclude' cannot be set, "
        "reset them to '[]'.",
    ),
    Correction(
        lambda values: bool(values["mstx_domain_include"] and values["mstx_domain_exclude"]),
        {"mstx_domain_exclude": []},
        "mstx_domain_include and mstx_domain_exclude can not be set together, "
        "mstx_domain_exclude has been reset to {mstx_domain_exclude}.",
    ),
)

#: Unknown arguments that this process has logged.
logged: set[str] = set()


def resolve(given: Mapping[str, Any]) -> Values:
    """Return a value for every argument of the constructor.

    Args:
        given: Arguments by name; None means the default, unknown ones are logged once and have no effect.
    """
    given = _with_experimental(dict(given))
    _warn_of_deprecated(given)
    _say_unknown(given)
    values = {name: parameter.value(given) for name, parameter in PARAMETERS.items()}
    values.update(_legacy_metrics(given))
    for correction in CORRECTIONS:
        if correction.applies(values):
            values.update(correction.changes)
            # str() because format() of an Enum member differs between versions of Python; MindSpore's text has str().
            words = {name: str(value) for name, value in values.items()}
            warnings.warn(correction.text.format(**words), stacklevel=4)
    return values


def _with_experimental(given: Values) -> Values:
    """Return the arguments with ``experimental_config`` replaced by its fields."""
    config = given.pop("experimental_config", None)
    if config is None:
        return given
    if type(config).__name__ != _ExperimentalConfig.__name__:
        _LOG.warning(
            "For Profiler, experimental_config value must be the 'mindspore.profiler._ExperimentalConfig' class, "
            "reset to default value."
        )
        return given
    return {**given, **{field.name: getattr(config, field.name) for field in fields(_ExperimentalConfig)}}


def _warn_of_deprecated(given: Values) -> None:
    for name, text in DEPRECATED.items():
        if name in given and (name not in PARAMETERS or given[name] is True):
            warnings.warn(text, stacklevel=5)


def _say_unknown(given: Iterable[str]) -> None:
    for name in set(given) - set(PARAMETERS) - set(DEPRECATED) - logged:
        logged.add(name)
        _LOG.warning("For Profiler, the parameter %s is unknown and has no effect.", name)


def _legacy_metrics(given: Values) -> Values:
    """Return the values that ``aicore_metrics`` of older versions sets: the metrics, and a level that allows them."""
    number = given.get("aicore_metrics")
    if number is None:
        return {}
    if not isinstance(number, int) or isinstance(number, bool):
        _LOG.warning(
            "For 'Profiler', the parameter aicore_metrics must be int, but got type %s, it will be set to 0.",
            type(number),
        )
        number = 0
    if number not in LEGACY_METRICS:
        _LOG.warning(
            "For 'Profiler', the parameter aicore_metrics must be in %s, but got %s, it will be set to 0.",
            *(list(LEGACY_METRICS), number),
        )
        number = 0
    metrics = LEGACY_METRICS[number]
    level = ProfilerLevel.Level0 if metrics is AicoreMetrics.AiCoreNone else ProfilerLevel.Level1
    return {"aic_metrics": metrics, **({} if given.get("profiler_level") else {"profiler_level": level})}
