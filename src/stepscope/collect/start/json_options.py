"""Options that come as JSON: from a variable of the environment, or from a file that is edited while a job runs.

The keys are the options of :mod:`stepscope.collect.options` and every key that MindSpore's documents ever had. A value
that cannot be used is one warning, which names the key and the default, and never an error in the training.
"""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.collect.options import OPTIONS, Door, Option, Options, make_options, options_at

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
_NO_METRICS, _NO_METRICS_NAME = "None", "AiCoreNone"

#: Codes of AI-core metrics in ``Profiler(aicore_metrics=…)``; the file of the dynamic profiler has others.
LEGACY_METRICS: Mapping[int, str] = types.MappingProxyType(
    {
        -1: _NO_METRICS,
        0: "ArithmeticUtilization",
        1: "PipeUtilization",
        2: "Memory",
        3: "MemoryL0",
        4: "ResourceConflictRatio",
        5: "MemoryUB",
        6: "L2Cache",
    }
)

_LEVELS = ("LevelNone", "Level0", "Level1", "Level2")
_EVERYTHING = ["CPU", "NPU"]
#: MindSpore's names of activities that are not ours as well.
_MINDSPORES = {"GPU": "cuda", "NPU": ""}


#: A boolean as MindSpore's documents spell it in the variable of the environment.
_SPELLED = {"true": True, "false": False}


def _flags(**defaults: bool) -> dict[str, Option]:
    return {name: Option(name, bool, default) for name, default in defaults.items()}


_ACTIVITIES = replace(
    OPTIONS["activities"],
    default=_EVERYTHING,
    choices=(*OPTIONS["activities"].choices, *map(str.lower, _MINDSPORES)),
    words=" | ".join((*OPTIONS["activities"].choices, *_MINDSPORES)),
)
_AIC_METRICS = Option("aic_metrics", str, _NO_METRICS, choices=(*METRICS, _NO_METRICS, _NO_METRICS_NAME))
_LEVEL = Option("profiler_level", str, "Level0", choices=_LEVELS)
_EXPORT_TYPE = Option("export_type", list, ["text"], choices=("text", "db"))

#: MindSpore's keys of both documents that are not options of ours.
_BOTH = {
    "aic_metrics": _AIC_METRICS,
    "profiler_level": _LEVEL,
    "export_type": _EXPORT_TYPE,
    **_flags(l2_cache=False, mstx=False, sys_interconnection=False, data_simplification=True),
}

_ours = options_at(Door.ENVIRONMENT)
#: Key of the environment → its option: every name that MindSpore's page, its ``profile`` and its ``Profiler`` ever had,
#: and ours.
ENVIRONMENT: Mapping[str, Option] = {
    **_ours,
    **_BOTH,
    "activities": _ACTIVITIES,
    "output_path": _ours["output"],
    "memory": _ours["profile_memory"],
    "host_stack": _ours["with_stack"],
    **_flags(start=False, profile_communication=False, start_profile=True, op_time=True, sync_enable=True),
    **_flags(hbm_ddr=False),
    "hccl": Option("profile_communication", bool, default=False),
    "aicore_metrics": replace(_AIC_METRICS, kind=int, choices=(), codes=LEGACY_METRICS, least=-1, most=6),
    "profile_framework": Option("profile_framework", str, "all", choices=("all", "time", "memory")),
    "timeline_limit": Option("timeline_limit", int, 500, least=1),
}


def environment_keys(output: str) -> Mapping[str, Option]:
    """Return the keys of a variable whose runs lie in ``output`` by default."""
    row = replace(_ours["output"], default=output)
    return {**ENVIRONMENT, "output": row, "output_path": row}


_dynamic = options_at(Door.DYNAMIC)
#: Key of the file of the dynamic profiler → its option, with MindSpore's integer codings.
DYNAMIC: Mapping[str, Option] = {
    **_dynamic,
    **_BOTH,
    "activities": replace(_ACTIVITIES, codes={0: _EVERYTHING, 1: ["CPU"], 2: ["NPU"]}),
    "aic_metrics": replace(_AIC_METRICS, default=_NO_METRICS_NAME, codes=dict(enumerate(METRICS))),
    "profiler_level": replace(_LEVEL, codes=dict(enumerate(_LEVELS, start=-1))),
    "export_type": replace(_EXPORT_TYPE, codes={0: ["text"], 1: ["db"], 2: ["text", "db"]}),
    "record_shape": _dynamic["record_shapes"],
    "prof_path": _dynamic["output"],
    "start_step": Option("start_step", int, -1, least=-1),
    "stop_step": Option("stop_step", int, -1, least=-1),
    # False is "later"; with True, `analyse_mode` says whether the training waits for the results.
    "analyse": replace(_dynamic["analyse"], default=False, codes={False: False, True: True}),
    "analyse_mode": Option("analyse_mode", int, -1, least=-1, most=1),
}


class Reading(NamedTuple):
    """What a JSON text says: the value of every option, by name, and a line for each wrong or unknown key."""

    values: dict[str, Any]
    warnings: tuple[str, ...]
    #: Name of an option → the key that the document gives it by, where that is another one.
    written: Mapping[str, str] = types.MappingProxyType({})


def read_options(text: str, known: Mapping[str, Option]) -> Reading:
    """Read a JSON object of options.

    Raises:
        ValueError: The text is not a JSON object.
    """
    document = json.loads(text)
    if not isinstance(document, dict):
        message = f'a JSON object is needed, such as {{"start": true}}, not {type(document).__name__}'
        raise ValueError(message)  # noqa: TRY004 - one error for whatever is wrong with the text
    values: dict[str, Any] = {option.name: option.default for option in known.values()}
    warnings, written = [], {}
    for key, value in document.items():
        option = known.get(key)
        if option is None:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            warnings.append(f"'{key}' is unknown and ignored{hint}")
            continue
        try:
            spelled = option.kind is bool and isinstance(value, str)
            values[option.name] = replace(option, name=key).check(_SPELLED.get(value, value) if spelled else value)
            written[option.name] = key
        except ValueError as error:
            warnings.append(f"{error}; the default {json.dumps(option.default)} is used")
    return Reading(values, tuple(warnings), {name: key for name, key in written.items() if name != key})


def options_of(values: Mapping[str, Any]) -> Options:
    """Return the options of a recording: of the values of a document, those that are an option of ours."""
    named = [str(name).upper() for name in values["activities"]]
    # MindSpore's NPU stands for every device that the framework finds.
    activities = [] if "NPU" in named else [_MINDSPORES.get(name, name) for name in named]
    pcie = values.get("pcie", False) or values["sys_interconnection"]
    return make_options({**values, "pcie": pcie, "activities": activities})


_NPU = "it needs an Ascend NPU, which stepscope does not record"
_GPU = "this machine has no NVIDIA GPU"
_NVIDIA = Path("/proc/driver/nvidia/version")

#: Options that need a device: the name, whether the values turn it on, and what is missing.
_NEEDS: tuple[tuple[str, Callable[[Mapping[str, Any]], bool], str], ...] = (
    ("aic_metrics", lambda on: on["aic_metrics"] in METRICS, _NPU),
    ("l2_cache", lambda on: on["l2_cache"], _NPU),
    ("hbm_ddr", lambda on: on.get("hbm_ddr", False), _GPU),
    ("pcie", lambda on: on.get("pcie", False), _GPU),
    ("sys_interconnection", lambda on: on["sys_interconnection"], _GPU),
    ("activities NPU", lambda on: "NPU" in map(str.upper, on["activities"]), _NPU),
    ("activities GPU", lambda on: "GPU" in map(str.upper, on["activities"]), _GPU),
    ("sync_enable=False", lambda on: not on.get("sync_enable", True), _GPU),
)


def unavailable(values: Mapping[str, Any], written: Mapping[str, str] = types.MappingProxyType({})) -> dict[str, str]:
    """Return the options that are on and cannot be served on this machine, and why; for the manifest.

    The default activities do not count: they name the NPU on every machine.

    Args:
        values: Of every option, by name.
        written: Name of an option → the name that the user gave it by, where that is another one.
    """
    missing = {}
    for name, is_on, need in _NEEDS:
        default = name.startswith("activities") and values["activities"] == _EVERYTHING
        if not default and is_on(values) and not (need is _GPU and _NVIDIA.exists()):
            missing[written.get(name, name)] = need
    return missing
