"""Options that come as JSON: a wrong value is a warning and the default, whatever it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collect.options import Activity, Option
from stepscope.collect.start.json_options import (
    DYNAMIC,
    ENVIRONMENT,
    environment_keys,
    options_of,
    read_options,
    unavailable,
)


def read(known: dict[str, Option] = ENVIRONMENT, /, **switches: Any) -> Any:  # type: ignore[assignment]
    return read_options(json.dumps(switches), known)


def test_the_sample_of_the_documents() -> None:
    text = (
        '{"start": true, "output_path": "/XXX", "memory": false, "hccl": false, "aicore_metrics": 0, "l2_cache": false}'
    )
    reading = read_options(text, ENVIRONMENT)
    assert reading.warnings == ()
    assert reading.values["start"] is True
    assert reading.values["output"] == "/XXX"
    assert reading.values["profile_memory"] is False
    assert reading.values["aic_metrics"] == "ArithmeticUtilization"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("start", "yes", "'start' should be true or false, but is \"yes\"; the default false is used"),
        ("start", 1, "'start' should be true or false, but is 1; the default false is used"),
        ("memory", None, "'memory' should be true or false, but is null; the default false is used"),
        (
            "output_path",
            3,
            "'output_path' should be the path of a directory, but is 3; the default \"stepscope-runs\" is used",
        ),
        ("timeline_limit", 0, "'timeline_limit' should be a whole number from 1 on, but is 0"),
        (
            "activities",
            ["CPU", "TPU"],
            "'activities' should be a list of cpu | cuda | xpu | mtia | hpu | privateuse1 | GPU | NPU, but is",
        ),
        (
            "aicore_metrics",
            9,
            "'aicore_metrics' should be a whole number from -1 to 6, but is 9; the default \"None\" is used",
        ),
        ("profiler_level", "Level9", "'profiler_level' should be LevelNone | Level0 | Level1 | Level2"),
        ("memry", True, "'memry' is unknown and ignored; did you mean 'memory'?"),
    ],
)
def test_a_wrong_value_is_one_warning_and_the_default(key: str, value: object, expected: str) -> None:
    reading = read(**{key: value})
    (warning,) = reading.warnings
    assert warning.startswith(expected)
    assert reading.values == read().values
    option = ENVIRONMENT.get(key, ENVIRONMENT["start"])
    assert reading.values[option.name] == option.default


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False)])
def test_booleans_may_be_spelled_as_in_the_document(text: str, value: bool) -> None:
    assert read(start=text).values["start"] is value
    assert read(start=text).warnings == ()


def test_what_cannot_be_served_has_the_name_that_the_user_wrote() -> None:
    reading = read(aicore_metrics=1)
    assert set(unavailable(reading.values, reading.written)) == {"aicore_metrics"}
    reading = read(aic_metrics="Memory")
    assert set(unavailable(reading.values, reading.written)) == {"aic_metrics"}


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
    assert unavailable(read().values) == {}
    missing = unavailable(read(l2_cache=True, aic_metrics="Memory", activities=["NPU"], host_sys=["osrt"]).values)
    assert list(missing) == ["aic_metrics", "l2_cache", "activities NPU"]


def test_each_variable_has_its_own_directory() -> None:
    keys = environment_keys("data")
    assert read(keys).values["output"] == "data"
    (warning,) = read(keys, output_path="").warnings
    assert warning.endswith('but is ""; the default "data" is used')
    assert read(keys, output_path="/runs").values["output"] == read(keys, output="/runs").values["output"] == "/runs"


@pytest.mark.parametrize(
    ("names", "activities"),
    [(["cpu"], (Activity.CPU,)), (["CUDA", "cpu"], (Activity.CUDA, Activity.CPU)), (["GPU"], (Activity.CUDA,))],
)
def test_activities_have_our_names_and_mindspores(names: list[str], activities: tuple[Activity, ...]) -> None:
    for known in (ENVIRONMENT, DYNAMIC):
        reading = read(known, activities=names)
        assert (reading.warnings, options_of(reading.values).activities) == ((), activities)


@pytest.mark.parametrize(
    ("given", "expected"), [(True, True), (False, False), ("background", "background"), ("now", "now")]
)
def test_the_dynamic_file_says_when_results_are_computed_in_both_ways(given: object, expected: object) -> None:
    reading = read(DYNAMIC, analyse=given)
    assert (reading.warnings, reading.values["analyse"]) == ((), expected)
    assert read(DYNAMIC, analyse=1).warnings


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", '{"start": tru}', '"start"'])
def test_no_json_object(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_options(text, ENVIRONMENT)


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
    reading = read_options(json.dumps(document), known)
    options_of(reading.values)
    unavailable(reading.values)
    assert len(reading.warnings) <= len(document)
    named = {known[key].name for key in document if key in known}
    for option in known.values():
        if option.name not in named:
            assert reading.values[option.name] == option.default
