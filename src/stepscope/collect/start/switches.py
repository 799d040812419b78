"""Switches that come as JSON: from a variable of the environment, or from a file that is edited while a job runs.

Every name ever documented for MindSpore's profiler is known here with its types, codings and default, so that a wrong
value is one warning that names the key and the default, and never an error in the training.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.collect.options import COLLECTORS, Activity, Options


@dataclass(frozen=True)
class Switch:
    """One key: what it may be, and what it is when nobody says.

    Attributes:
        kind: ``bool``, ``int``, ``str`` or ``list`` (of texts).
        default: Value where the key is missing or wrong.
        choices: Texts that are allowed; empty for any.
        codes: Integers that are allowed as well, and what they stand for.
        name: What the key is called today.
        least: Smallest integer.
    """

    kind: type
    default: object
    choices: tuple[str, ...] = ()
    codes: Mapping[int, object] = field(default_factory=dict)
    name: str = ""
    least: int | None = None

    def read(self, value: object) -> object:
        """Return what ``value`` stands for.

        Raises:
            ValueError: It is nothing that the key may be; the message says what it may be.
        """
        if type(value) is int and self.codes:
            return self._one_of(value, self.codes)
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is not self.kind:
            raise ValueError(self._expectation())
        if type(value) is int and self.least is not None and value < self.least:
            raise ValueError(self._expectation())
        if isinstance(value, float) and not 0 < value <= 1:
            raise ValueError(self._expectation())
        for text in value if isinstance(value, list) else [value] if self.choices else []:
            if not isinstance(text, str) or (self.choices and text not in self.choices):
                raise ValueError(self._expectation())
        return value

    def _one_of(self, value: int, codes: Mapping[int, object]) -> object:
        if value not in codes:
            raise ValueError(self._expectation())
        return codes[value]

    def _expectation(self) -> str:
        words = _WORDS[self.kind]
        if self.least is not None:
            words += f" from {self.least} on"
        if self.choices:
            words = f"{'a list of ' if self.kind is list else ''}{' | '.join(self.choices)}"
        if self.codes:
            words += f" (or {', '.join(map(str, self.codes))})"
        return words


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a fraction above 0 and up to 1",
    str: "a text",
    list: "a list of texts",
}

LEVELS = ("LevelNone", "Level0", "Level1", "Level2")
METRICS = (
    "PipeUtilization",
    "ArithmeticUtilization",
    "Memory",
    "MemoryL0",
    "MemoryUB",
    "ResourceConflictRatio",
    "L2Cache",
    "MemoryAccess",
)
#: MindSpore spells "none" in two ways: as the value of the enum, and as its name.
NO_METRICS = "None"
_METRIC_NAMES = (*METRICS, NO_METRICS, "AiCoreNone")

#: Codes of AI-core metrics: of ``Profiler(aicore_metrics=…)``, and of the file of the dynamic profiler.
LEGACY_METRICS = types.MappingProxyType(
    dict(
        enumerate(
            (
                NO_METRICS,
                "ArithmeticUtilization",
                "PipeUtilization",
                "Memory",
                "MemoryL0",
                "ResourceConflictRatio",
                "MemoryUB",
                "L2Cache",
            ),
            start=-1,
        )
    )
)
DYNAMIC_METRICS = types.MappingProxyType(dict(enumerate(METRICS)))

_ACTIVITIES = ("CPU", "NPU", "GPU")
_BOTH = ["CPU", "NPU"]

#: What both sources know.
COMMON: Mapping[str, Switch] = {
    **{
        name: Switch(bool, default=False)
        for name in (
            "profile_memory",
            "parallel_strategy",
            "with_stack",
            "record_shapes",
            "with_flops",
            "with_modules",
            "l2_cache",
            "mstx",
            "sys_io",
            "sys_interconnection",
        )
    },
    "data_simplification": Switch(bool, default=True),
    "mstx_domain_include": Switch(list, default=[]),
    "mstx_domain_exclude": Switch(list, default=[]),
    "host_sys": Switch(list, default=[], choices=("cpu", "mem", "disk", "network", "osrt")),
}


@dataclass(frozen=True)
class Reading:
    """What a JSON text says.

    Attributes:
        values: Value of every key, by its name of today; the default where the text says nothing.
        given: Names that the text sets to something usable.
        warnings: One line for each key that is wrong or unknown.
    """

    values: dict[str, Any]
    given: frozenset[str]
    warnings: tuple[str, ...]


def read_switches(text: str, known: Mapping[str, Switch]) -> Reading:
    """Read a JSON object of switches.

    Args:
        text: The JSON text.
        known: The keys there are.

    Raises:
        ValueError: The text is no JSON object.
    """
    document = json.loads(text)
    if not isinstance(document, dict):
        message = f'a JSON object is needed, such as {{"start": true}}, not {type(document).__name__}'
        raise ValueError(message)  # noqa: TRY004 - one sort of error for whatever is wrong with the text
    values: dict[str, Any] = {switch.name or key: switch.default for key, switch in known.items()}
    given, warnings = set(), []
    for key, value in document.items():
        switch = known.get(key)
        if switch is None:
            warnings.append(_unknown(key, known))
            continue
        try:
            values[switch.name or key] = switch.read(value)
            given.add(switch.name or key)
        except ValueError as error:
            warnings.append(f"'{key}' should be {error}, but is {_short(value)}; {_default(switch)}")
    return Reading(values, frozenset(given), tuple(warnings))


def _default(switch: Switch) -> str:
    return f"the default {json.dumps(switch.default)} is used"


def _short(value: object) -> str:
    text = json.dumps(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"


def _unknown(key: str, known: Mapping[str, Switch]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    return f"'{key}' is unknown and ignored" + (f"; did you mean '{near[0]}'?" if near else "")


def options_of(values: Mapping[str, Any]) -> Options:
    """Return the options of a recording: of the switches, those that are an option of ours."""
    fields = {field.name for field in dataclasses.fields(Options)} - {"activities"}
    chosen: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if name in fields
    }
    chosen["pcie"] = bool(values.get("pcie") or values.get("sys_interconnection"))
    return Options(activities=activities_of(values.get("activities", _BOTH)), **chosen)


def activities_of(names: list[str]) -> tuple[Activity, ...]:
    """Return whose work is recorded: of everything, unless processors without an NPU are named."""
    if "NPU" in names or not names:
        return ()
    return tuple(dict.fromkeys({"CPU": Activity.CPU, "GPU": Activity.CUDA}[name] for name in names))


_NPU = "it needs an Ascend NPU, which stepscope does not record"
_GPU = "this machine has no NVIDIA GPU"
_NVIDIA = Path("/proc/driver/nvidia/version")

#: Switches that need a device: a test of whether one is on, and what it needs.
_NEEDS: tuple[tuple[str, Callable[[Mapping[str, Any]], bool], str], ...] = (
    ("aic_metrics", lambda on: on["aic_metrics"] in METRICS, _NPU),
    ("l2_cache", lambda on: on["l2_cache"], _NPU),
    ("hbm_ddr", lambda on: on.get("hbm_ddr", False), _GPU),
    ("pcie", lambda on: on.get("pcie", False), _GPU),
    ("sys_interconnection", lambda on: on["sys_interconnection"], _GPU),
    ("activities NPU", lambda on: "NPU" in on["activities"], _NPU),
    ("activities GPU", lambda on: "GPU" in on["activities"], _GPU),
    ("sync_enable=False", lambda on: not on.get("sync_enable", True), _GPU),
)


def unavailable(reading: Reading) -> dict[str, str]:
    """Return the switches that are on and cannot be served on this machine, and why; for the manifest.

    The default activities do not count: they name the NPU on every machine.
    """
    missing = {}
    for name, is_on, need in _NEEDS:
        default = name.startswith("activities") and reading.values["activities"] == _BOTH
        if not default and is_on(reading.values) and not (need is _GPU and _NVIDIA.exists()):
            missing[name] = need
    return missing


#: Keys of the environment (every name that MindSpore's page, its `profile` and its `Profiler` ever had), and ours.
ENVIRONMENT: Mapping[str, Switch] = {
    **COMMON,
    "start": Switch(bool, default=False),
    "output_path": Switch(str, default=""),
    "memory": Switch(bool, default=False, name="profile_memory"),
    "hccl": Switch(bool, default=False, name="profile_communication"),
    "profile_communication": Switch(bool, default=False),
    "aicore_metrics": Switch(int, default=NO_METRICS, codes=LEGACY_METRICS, name="aic_metrics"),
    "aic_metrics": Switch(str, default=NO_METRICS, choices=_METRIC_NAMES),
    "profiler_level": Switch(str, default="Level0", choices=LEVELS),
    "activities": Switch(list, default=_BOTH, choices=_ACTIVITIES),
    "export_type": Switch(list, default=["text"], choices=("text", "db")),
    "start_profile": Switch(bool, default=True),
    "data_process": Switch(bool, default=False),
    "op_time": Switch(bool, default=True),
    "sync_enable": Switch(bool, default=True),
    "hbm_ddr": Switch(bool, default=False),
    "pcie": Switch(bool, default=False),
    "host_stack": Switch(bool, default=False, name="with_stack"),
    "profile_framework": Switch(str, default="all", choices=("all", "time", "memory")),
    "host_pipeline": Switch(bool, default=True),
    "counters_hz": Switch(int, default=10, least=0),
    "timeline_limit": Switch(int, default=500, least=1),
    "collector": Switch(str, default="auto", choices=COLLECTORS),
    "sample": Switch(float, default=1.0),
    "skip": Switch(int, default=0, least=0),
    "active": Switch(int, default=0, least=1),
    "steps": Switch(str, default="all"),
    "analyse": Switch(str, default="now", choices=("now", "background", "later")),
}

#: Keys of the file of the dynamic profiler, with their integer codings.
DYNAMIC: Mapping[str, Switch] = {
    "start_step": Switch(int, default=-1, least=-1),
    "stop_step": Switch(int, default=-1, least=-1),
    "aic_metrics": Switch(str, default="AiCoreNone", choices=_METRIC_NAMES, codes=DYNAMIC_METRICS),
    "profiler_level": Switch(str, default="Level0", choices=LEVELS, codes=dict(enumerate(LEVELS, start=-1))),
    "analyse_mode": Switch(int, default=-1, codes={-1: -1, 0: 0, 1: 1}),
    "activities": Switch(list, default=_BOTH, choices=_ACTIVITIES, codes={0: _BOTH, 1: ["CPU"], 2: ["NPU"]}),
    "export_type": Switch(
        list, default=["text"], choices=("text", "db"), codes={0: ["text"], 1: ["db"], 2: ["text", "db"]}
    ),
    **COMMON,
    "record_shape": Switch(bool, default=False, name="record_shapes"),
    "analyse": Switch(bool, default=False),
    "prof_path": Switch(str, default="./"),
}
