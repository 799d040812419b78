"""Arguments: order, defaults, what is said of wrong ones, corrections. Texts are those of MindSpore 2.10."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from enum import Enum
from importlib.util import find_spec
from typing import Any

import pytest

from stepscope.compat import mindspore
from stepscope.compat.mindspore import (
    AicoreMetrics,
    ExportType,
    HostSystem,
    Profiler,
    ProfilerActivity,
    ProfilerLevel,
    _ExperimentalConfig,
    profile,
    schedule,
)
from stepscope.compat.mindspore.parameters import PARAMETERS, resolve
from stepscope.compat.mindspore.switches import formats

CPU, NPU, GPU = ProfilerActivity.CPU, ProfilerActivity.NPU, ProfilerActivity.GPU


def test_importing_loads_no_framework() -> None:
    # `DynamicProfilerMonitor` is a callback of MindSpore's, where that is installed
    names = [name for name in mindspore.__all__ if name != "DynamicProfilerMonitor" or not find_spec("mindspore")]
    code = f"import sys; from stepscope.compat.mindspore import {', '.join(names)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"torch", "mindspore", "polars", "numpy", "rich"}


@pytest.mark.parametrize("name", mindspore.__all__)
def test_every_name_resolves_to_what_it_says(name: str) -> None:
    value = getattr(mindspore, name)
    assert not inspect.ismodule(value)


def test_the_order_and_defaults_of_profile_are_those_of_mindspore() -> None:
    parameters = list(inspect.signature(profile).parameters.values())
    assert [(parameter.name, parameter.default) for parameter in parameters] == [
        ("activities", None),
        ("with_stack", False),
        ("profile_memory", False),
        ("data_process", False),
        ("parallel_strategy", False),
        ("start_profile", True),
        ("hbm_ddr", False),
        ("pcie", False),
        ("sync_enable", True),
        ("record_shapes", False),
        ("schedule", None),
        ("on_trace_ready", None),
        ("experimental_config", None),
    ]


def test_the_order_and_defaults_of_the_config_are_those_of_mindspore() -> None:
    parameters = list(inspect.signature(_ExperimentalConfig).parameters.values())
    assert [(parameter.name, parameter.default) for parameter in parameters] == [
        ("profiler_level", ProfilerLevel.Level0),
        ("aic_metrics", AicoreMetrics.AiCoreNone),
        ("l2_cache", False),
        ("mstx", False),
        ("data_simplification", True),
        ("export_type", None),
        ("mstx_domain_include", None),
        ("mstx_domain_exclude", None),
        ("sys_io", False),
        ("sys_interconnection", False),
        ("host_sys", None),
    ]


def test_defaults(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = resolve({})
    assert values == {
        "output_path": "./data",
        "profiler_level": ProfilerLevel.Level0,
        "activities": [CPU, NPU],
        "aic_metrics": AicoreMetrics.AiCoreNone,
        "with_stack": False,
        "profile_memory": False,
        "data_process": False,
        "parallel_strategy": False,
        "start_profile": True,
        "l2_cache": False,
        "hbm_ddr": False,
        "pcie": False,
        "sys_io": False,
        "sys_interconnection": False,
        "sync_enable": True,
        "data_simplification": True,
        "record_shapes": False,
        "mstx": False,
        "host_sys": [],
        "export_type": [ExportType.Text],
        "mstx_domain_include": [],
        "mstx_domain_exclude": [],
        "schedule": None,
        "on_trace_ready": None,
    }
    assert caplog.messages == []


def of_type(name: str, expected: str, got: str, default: object) -> str:
    return f"For Profiler, the type of {name} should be {expected}, but got <class '{got}'>, reset to {default}."


WRONG: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: "yes"}, of_type(name, "<class 'bool'>", "str", parameter.default))
        for name, parameter in PARAMETERS.items()
        if parameter.kind is bool
    ),
    ({"start_profile": 0}, of_type("start_profile", "<class 'bool'>", "int", True)),
    ({"output_path": 3}, of_type("output_path", "<class 'str'>", "int", "./data")),
    ({"activities": CPU}, f"For Profiler, activities value is Invalid, reset to {[CPU, NPU]}."),
    ({"activities": ["CPU"]}, f"For Profiler, activities value is Invalid, reset to {[CPU, NPU]}."),
    ({"activities": (CPU,)}, f"For Profiler, activities value is Invalid, reset to {[CPU, NPU]}."),
    ({"host_sys": [CPU]}, "For Profiler, 'host_sys' value is Invalid, reset to []."),
    ({"export_type": "csv"}, "Invalid parameter export_type, reset it to text."),
    ({"export_type": [ExportType.Db, "text"]}, "Invalid parameter export_type, reset it to text."),
    ({"mstx": True, "mstx_domain_include": "d"}, "For Profiler, mstx_domain_include value is Invalid, reset to []."),
    (
        {"mstx": True, "mstx_domain_exclude": ["a", 5]},
        "mstx_domain_exclude has value 5 is not str or is empty, reset to [].",
    ),
    (
        {"mstx": True, "mstx_domain_include": [""]},
        "mstx_domain_include has value  is not str or is empty, reset to [].",
    ),
    ({"on_trace_ready": 3}, "For Profiler, on_trace_ready value is Invalid, reset to None."),
    (
        {"schedule": 3},
        "For Profiler, schedule value is Invalid, "
        "reset to Schedule(wait=0, active=1, warmup=0, repeat=0, skip_first=0)",
    ),
    (
        {"experimental_config": 3},
        "For Profiler, experimental_config value must be the 'mindspore.profiler._ExperimentalConfig' class, "
        "reset to default value.",
    ),
    ({"aicore_metrics": "all"}, "the parameter aicore_metrics must be int, but got type <class 'str'>"),
    ({"aicore_metrics": 9}, "must be in [-1, 0, 1, 2, 3, 4, 5, 6], but got 9, it will be set to 0."),
    ({"colour": "red"}, "For Profiler, the parameter colour is unknown and has no effect."),
]


@pytest.mark.filterwarnings("ignore:The parameter 'aicore_metrics'")
@pytest.mark.parametrize(("given", "text"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_value_is_replaced_with_a_line(
    given: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    values = resolve(given)
    assert text in " | ".join(caplog.messages)
    for name in set(given) & set(PARAMETERS) - {"schedule", "mstx"}:
        assert values[name] == PARAMETERS[name].default


def test_an_unknown_argument_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        resolve({"colour": "red"})
    assert caplog.messages == ["For Profiler, the parameter colour is unknown and has no effect."]


def test_members_are_kept_once_and_in_order() -> None:
    assert resolve({"activities": [GPU, CPU, GPU]})["activities"] == [GPU, CPU]
    assert resolve({"export_type": ExportType.Db})["export_type"] == [ExportType.Db]
    assert resolve({"export_type": "db"})["export_type"] == [ExportType.Db]
    assert resolve({"host_sys": [HostSystem.CPU, HostSystem.CPU]})["host_sys"] == [HostSystem.CPU]


def test_members_of_mindspores_own_enumerations_are_taken() -> None:
    theirs = Enum("ProfilerActivity", {"CPU": "CPU"})  # type: ignore[misc]
    assert resolve({"activities": [theirs.CPU]})["activities"] == [CPU]  # type: ignore[attr-defined]


CORRECTED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"schedule": schedule(wait=0, active=1, warmup=1), "data_process": True},
        {"data_process": False},
        "When 'schedule' is set, 'data_process' will be set to False.",
    ),
    (
        {"profiler_level": ProfilerLevel.LevelNone},
        {"profiler_level": ProfilerLevel.Level0},
        "when 'mstx' is disabled, 'profiler_level' cannot be set to 'ProfilerLevel.LevelNone', "
        "reset to 'ProfilerLevel.Level0'.",
    ),
    (
        {"aic_metrics": AicoreMetrics.Memory},
        {"aic_metrics": AicoreMetrics.AiCoreNone},
        "when 'profiler_level' is set to 'ProfilerLevel.Level0', 'aic_metrics' cannot be set to other value except "
        "'AicoreMetrics.AiCoreNone', reset to 'AicoreMetrics.AiCoreNone'.",
    ),
    (
        {"profiler_level": ProfilerLevel.Level2},
        {"aic_metrics": AicoreMetrics.PipeUtilization},
        "when 'profiler_level' is set to 'ProfilerLevel.Level2', 'aic_metrics' cannot be set to "
        "'AicoreMetrics.AiCoreNone', reset to 'AicoreMetrics.PipeUtilization'.",
    ),
    (
        {"record_shapes": True, "activities": [NPU]},
        {"record_shapes": False},
        "when 'ProfilerActivity.CPU' is not set in 'activities', 'Record_shapes' cannot be set to True, "
        "reset to 'False'.",
    ),
    (
        {"mstx_domain_include": ["a"]},
        {"mstx_domain_include": [], "mstx_domain_exclude": []},
        "when 'mstx' is set to 'False', 'mstx_domain_include' and 'mstx_domain_exclude' cannot be set, "
        "reset them to '[]'.",
    ),
    (
        {"mstx": True, "mstx_domain_include": ["a"], "mstx_domain_exclude": ["b"]},
        {"mstx_domain_include": ["a"], "mstx_domain_exclude": []},
        "mstx_domain_include and mstx_domain_exclude can not be set together, "
        "mstx_domain_exclude has been reset to [].",
    ),
]


@pytest.mark.parametrize(("given", "changed", "text"), CORRECTED, ids=lambda value: str(value)[:40])
def test_a_combination_that_means_nothing_is_corrected(
    given: dict[str, Any], changed: dict[str, Any], text: str
) -> None:
    with pytest.warns(UserWarning) as said:
        values = resolve(given)
    assert [str(warning.message) for warning in said] == [text]
    assert {name: values[name] for name in changed} == changed
    config = {name: value for name, value in given.items() if name in vars(_ExperimentalConfig())}
    rest = {name: value for name, value in given.items() if name not in config}
    with pytest.warns(UserWarning, match=".*"):
        assert resolve({**rest, "experimental_config": _ExperimentalConfig(**config)}) == values


DEPRECATED = {
    "profile_communication": "The parameter 'profile_communication' is deprecated, please use "
    "'profiler_level=ProfilerLevel.Level1' or 'profiler_level=ProfilerLevel.Level2' instead.",
    "op_time": "The parameter 'op_time' is deprecated, please use 'activaties=ProfilerActivity.NPU' instead.",
    "profile_framework": "The parameter 'profile_framework' is deprecated, please use "
    "'activaties=ProfilerActivity.CPU' instead.",
    "host_stack": "The parameter 'host_stack' is deprecated, please use 'with_stack' instead.",
    "timeline_limit": "The parameter 'timeline_limit' is deprecated and will have no effect",
    "optypes_not_deal": "The parameter 'optypes_not_deal' is deprecated and will have no effect",
    "ascend_job_id": "The parameter 'ascend_job_id' is deprecated and will have no effect",
    "pcie": "The parameter 'pcie' will be deprecated in future versions. Please use 'sys_interconnection' in "
    "mindspore.profiler._ExperimentalConfig instead.",
    "hbm_ddr": "The parameter 'hbm_ddr' will be deprecated in future versions. Please use 'profile_memory' in instead.",
}


@pytest.mark.parametrize("name", DEPRECATED)
def test_an_argument_of_an_older_version_is_warned_of(name: str) -> None:
    with pytest.warns(UserWarning) as said:
        resolve({name: True})
    assert [str(warning.message) for warning in said] == [DEPRECATED[name]]


@pytest.mark.parametrize("name", ["pcie", "hbm_ddr"])
def test_what_is_off_is_not_warned_of(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve({name: False})


@pytest.mark.filterwarnings("ignore:The parameter 'aicore_metrics'")
@pytest.mark.parametrize(
    ("number", "metrics"),
    [
        (-1, "AiCoreNone"),
        (0, "ArithmeticUtilization"),
        (1, "PipeUtilization"),
        (2, "Memory"),
        (3, "MemoryL0"),
        (4, "ResourceConflictRatio"),
        (5, "MemoryUB"),
        (6, "L2Cache"),
    ],
)
def test_numbers_of_metrics_are_those_of_older_versions(number: int, metrics: str) -> None:
    assert resolve({"aicore_metrics": number})["aic_metrics"] is AicoreMetrics[metrics]


def test_every_argument_ever_is_taken_by_profiler(caplog: pytest.LogCaptureFixture) -> None:
    given: dict[str, Any] = {
        "output_path": "./out",
        "optypes_not_deal": "Variable",
        "ascend_job_id": "",
        "profile_communication": True,
        "profile_memory": True,
        "start_profile": False,
        "op_time": True,
        "aicore_metrics": 1,
        "l2_cache": True,
        "sync_enable": True,
        "data_process": True,
        "timeline_limit": 500,
        "parallel_strategy": True,
        "profile_framework": "all",
        "hbm_ddr": True,
        "pcie": True,
        "host_stack": True,
        "profiler_level": ProfilerLevel.Level1,
        "with_stack": True,
        "data_simplification": False,
        "activities": [CPU, NPU],
        "on_trace_ready": print,
        "mstx": True,
        "export_type": [ExportType.Text, ExportType.Db],
        "sys_io": True,
        "sys_interconnection": True,
        "host_sys": list(HostSystem),
        "mstx_domain_include": ["a"],
        "record_shapes": True,
    }
    with pytest.warns(UserWarning, match=".*") as said:
        Profiler(**given)
    assert len(said) == 10  # the older arguments, and no correction
    assert not [message for message in caplog.messages if "For Profiler" in message]
    assert "aicore_metrics records nothing here" in caplog.text  # what the older `aicore_metrics` asks for
    with pytest.warns(UserWarning, match=".*"):
        values = resolve(given)
    assert values["aic_metrics"] is AicoreMetrics.PipeUtilization
    assert formats(values) == "csv,json,trace,db"
