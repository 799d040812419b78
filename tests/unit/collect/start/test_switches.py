"""Switches that come as JSON: a wrong one is a warning and its default, whatever it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collect.options import Activity
from stepscope.collect.start.switches import DYNAMIC, ENVIRONMENT, Switch, options_of, read_switches, unavailable


def read(known: dict[str, Switch] = ENVIRONMENT, /, **switches: Any) -> Any:  # type: ignore[assignment]
    return read_switches(json.dumps(switches), known)


def test_the_sample_of_the_documents() -> None:
    text = (
        '{"start": true, "output_path": "/XXX", "memory": false, "hccl": false, "aicore_metrics": 0, "l2_cache": false}'
    )
    reading = read_switches(text, ENVIRONMENT)
    assert reading.warnings == ()
    assert reading.values["start"] is True
    assert reading.values["output_path"] == "/XXX"
    assert reading.values["profile_memory"] is False
    assert reading.values["aic_metrics"] == "ArithmeticUtilization"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("start", "false", "'start' should be true or false, but is \"false\" (str); the default false is used"),
        ("start", 1, "'start' should be true or false, but is 1 (int); the default false is used"),
        ("memory", None, "'memory' should be true or false, but is null (NoneType); the default false is used"),
        ("output_path", 3, "'output_path' should be a text, but is 3 (int); the default \"\" is used"),
        ("timeline_limit", 0, "'timeline_limit' should be a whole number from 1 on, but is 0 (int)"),
        ("activities", ["CPU", "TPU"], "'activities' should be a list of CPU | NPU | GPU"),
        ("aicore_metrics", 9, "'aicore_metrics' should be a whole number (or -1, 0, 1, 2, 3, 4, 5, 6)"),
        ("profiler_level", "Level9", "'profiler_level' should be LevelNone | Level0 | Level1 | Level2"),
        ("memry", True, "'memry' is unknown and ignored; did you mean 'memory'?"),
    ],
)
def test_a_wrong_value_is_one_warning_and_the_default(key: str, value: object, expected: str) -> None:
    reading = read(**{key: value})
    (warning,) = reading.warnings
    assert warning.startswith(expected)
    name = ENVIRONMENT[key].name or key if key in ENVIRONMENT else "start"
    assert reading.values[name] == next(s.default for k, s in ENVIRONMENT.items() if (s.name or k) == name)
    assert reading.given == frozenset()


@pytest.mark.parametrize(
    ("key", "code", "stands_for"),
    [
        ("aic_metrics", 0, "PipeUtilization"),
        ("aic_metrics", 7, "MemoryAccess"),
        ("aic_metrics", "ResourceConflictRatio", "ResourceConflictRatio"),
        ("profiler_level", -1, "LevelNone"),
        ("profiler_level", 2, "Level2"),
        ("activities", 0, ["CPU", "NPU"]),
        ("activities", 1, ["CPU"]),
        ("activities", 2, ["NPU"]),
        ("export_type", 0, ["text"]),
        ("export_type", 1, ["db"]),
        ("export_type", 2, ["text", "db"]),
        ("export_type", ["db"], ["db"]),
        ("analyse_mode", 1, 1),
    ],
)
def test_both_codings_of_the_dynamic_file(key: str, code: object, stands_for: object) -> None:
    reading = read(DYNAMIC, **{key: code})
    assert reading.warnings == ()
    assert reading.values[key] == stands_for


def test_the_spelling_of_the_documents_sample() -> None:
    assert read(DYNAMIC, record_shape=True).values["record_shapes"] is True


def test_the_two_codings_of_metrics_differ() -> None:
    assert read(aicore_metrics=0).values["aic_metrics"] == "ArithmeticUtilization"
    assert read(DYNAMIC, aic_metrics=0).values["aic_metrics"] == "PipeUtilization"


def test_options_are_those_that_we_have() -> None:
    reading = read(memory=True, record_shapes=True, host_sys=["cpu"], activities=["CPU"], mstx_domain_include=["a"])
    options = options_of(reading.values)
    assert options.profile_memory
    assert options.record_shapes
    assert not options.with_stack
    assert options.host_sys == ("cpu",)
    assert options.mstx_domain_include == ("a",)
    assert options.activities == (Activity.CPU,)
    assert options_of(read().values).activities == ()


def test_what_no_machine_of_ours_can_serve() -> None:
    assert unavailable(read()) == {}
    missing = unavailable(read(l2_cache=True, aic_metrics="Memory", activities=["NPU"], host_sys=["osrt"]))
    assert list(missing) == ["aic_metrics", "l2_cache", "activities NPU"]


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", '{"start": tru}', '"start"'])
def test_no_json_object(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_switches(text, ENVIRONMENT)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(
    st.sampled_from(["ENVIRONMENT", "DYNAMIC"]),
    st.dictionaries(st.sampled_from([*ENVIRONMENT, *DYNAMIC, "other"]), _VALUES, max_size=6),
)
def test_any_values_give_options(table: str, document: dict[str, object]) -> None:
    known = {"ENVIRONMENT": ENVIRONMENT, "DYNAMIC": DYNAMIC}[table]
    reading = read_switches(json.dumps(document), known)
    options_of(reading.values)
    unavailable(reading)
    assert len(reading.warnings) <= len(document)
    for key, switch in known.items():
        if key not in document and not any((s.name or k) == (switch.name or key) for k, s in known.items() if k != key):
            assert reading.values[switch.name or key] == switch.default
