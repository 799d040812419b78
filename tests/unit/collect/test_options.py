"""The table of options: every option at every door, with values that it can have and values that it cannot."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch.profiler import ProfilerActivity

import stepscope
from stepscope.cli.main import build_parser
from stepscope.collect import options as table
from stepscope.collect.options import (
    OPTIONS,
    Activity,
    Door,
    Option,
    Options,
    asked,
    check_given,
    flags_of,
    make_options,
    options_at,
)
from stepscope.collect.schedule import Action
from stepscope.collect.start.flag_options import option_values
from stepscope.collect.start.json_options import DYNAMIC, ENVIRONMENT, options_of, read_options
from stepscope.errors import UsageError
from stepscope.integrations.trainer_recording import TrainerRecording

ROOT = Path(__file__).resolve().parents[3]

SWITCH = ([True, False], ["yes", 1, 0])
TEXTS = ([[], ["a", "b"]], ["a", [""], [3], {"a": 1}])

#: Option → values that it can have, and values that it cannot; what only Python or JSON can say is left out of `run`.
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "steps": (["all", "4", "3-5", "3:5"], ["", "some", "5:3", "1:2:3", "-1"]),
    "epochs": (["all", "0", "1-2", "1:2"], ["", "some", "2:1", "1:2:3", "-1"]),
    "skip": ([0, 7], [-1, 2.5, "x", ""]),
    "active": ([1, 100], [0, -1, 2.5, "x"]),
    "output": (["runs", "/tmp/runs"], [""]),
    "analyse": (["now", "background", "later"], ["", "soon", "Now"]),
    "metrics": (["train.prom", "/tmp/train.json"], ["", "train", "train.txt"]),
    "activities": ([["cpu"], ["CUDA", "cpu"]], [["tpu"], ["cpu", "x"], "cpu"]),
    "counters_hz": ([0, 2, 2.5, 10.0, 1000], [-1, 1001, 100000, float("nan"), float("inf"), "x", ""]),
    "stacks_hz": ([0, 2, 2.5, 10.0, 1000], [-1, 1001, 100000, float("nan"), float("inf"), "x", ""]),
    "host_sys": ([[], ["cpu"], ["mem", "disk", "network", "osrt"]], [["gpu"], ["cpu", "Mem"], "cpu"]),
    "collector": (["auto", "native", "kineto"], ["", "Kineto", "cupti"]),
    "sample": ([0.01, 0.5, 1, 1.0], [0, -0.5, 1.01, float("nan"), "x"]),
    "mstx_domain_include": TEXTS,
    "mstx_domain_exclude": TEXTS,
    **{name: SWITCH for name, option in OPTIONS.items() if option.kind is bool},
}


def give(door: Door, option: Option, value: Any) -> tuple[Mapping[str, Any], str]:
    """Give an option a value at a door; return the values of all options, or the sentence that refuses it."""
    try:
        if door is Door.CODE:
            stepscope.profile(**{option.name: value})
            return check_given(door, {option.name: value}), ""
        if door is Door.TRAINER:
            TrainerRecording({option.name: value})
            return check_given(door, {option.name: value}), ""
        if door is Door.RUN:
            return option_values(build_parser().parse_args(["run", *words(option, value), "train.py"])), ""
    except UsageError as error:
        assert error.remedy == f"{option.name}: {option.help}."
        return {}, error.message.removesuffix(".")
    known = ENVIRONMENT if door is Door.ENVIRONMENT else DYNAMIC
    reading = read_options(json.dumps({option.name: value}), known)
    if not reading.warnings:
        return reading.values, ""
    (warning,) = reading.warnings
    sentence, _, default = warning.partition("; ")
    assert default == f"the default {json.dumps(known[option.name].default)} is used"
    assert reading.values[option.name] == known[option.name].default
    return reading.values, sentence


def words(option: Option, value: Any) -> list[str]:
    flag = flags_of(option)[-1]
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    return [f"{flag}={','.join(value) if isinstance(value, list) else value}"]


def can_say(door: Door, option: Option, value: Any) -> bool:
    if door is not Door.RUN:
        return True
    if option.kind is bool:
        return isinstance(value, bool)
    if option.kind is list:
        return isinstance(value, list) and all(isinstance(item, str) and item for item in value)
    return True


CASES = [(door, name) for name in OPTIONS for door in OPTIONS[name].doors]
IDS = [f"{name}-{door.name.lower()}" for door, name in CASES]


def test_every_option_has_its_values_here() -> None:
    assert VALUES.keys() == OPTIONS.keys()


@pytest.mark.parametrize(("door", "name"), CASES, ids=IDS)
def test_a_value_that_it_can_have(door: Door, name: str) -> None:
    for value in VALUES[name][0]:
        values, refused = give(door, OPTIONS[name], value)
        assert refused == ""
        assert values[name] == value
        # and the other options keep the defaults of the door
        others = {other: option.default for other, option in options_at(door).items() if other != name}
        if door in (Door.CODE, Door.TRAINER, Door.RUN) and name != "steps":
            assert {other: values[other] for other in others} == others
        # and what is recorded is the same, whoever says it
        if name in vars(Options()):
            made = make_options(values) if door in (Door.CODE, Door.TRAINER, Door.RUN) else options_of(values)
            chosen = make_options({"activities": (), name: value})
            assert getattr(made, name) == getattr(chosen, name)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_value_that_it_cannot_have_gets_the_same_sentence_at_every_door(name: str) -> None:
    option = OPTIONS[name]
    for value in VALUES[name][1]:
        said = {door: give(door, option, value)[1] for door in option.doors if can_say(door, option, value)}
        assert all(said.values()), (value, said)
        # in JSON, MindSpore's words and codes are allowed as well
        said = {door: re.sub(r" \| GPU \| NPU| \(or [a-z\d, ]+\)", "", sentence) for door, sentence in said.items()}
        assert len(set(said.values())) == 1, said
        assert next(iter(said.values())).startswith(f"'{name}' should be ")


@pytest.mark.parametrize("name", OPTIONS)
def test_null_is_refused_where_it_can_be_said(name: str) -> None:
    for door in (Door.ENVIRONMENT, Door.DYNAMIC):
        if door in OPTIONS[name].doors:
            assert give(door, OPTIONS[name], None)[1].endswith("but is null")


@pytest.mark.parametrize("hertz", ["10", None, True])
def test_a_rate_is_a_number(hertz: object) -> None:
    with pytest.raises(UsageError, match="number of samples a second from 0 to 1000, but is"):
        stepscope.profile(counters_hz=hertz)  # type: ignore[arg-type]


def test_the_signature_of_profile_is_the_table() -> None:
    parameters = dict(inspect.signature(stepscope.profile).parameters)
    assert {parameters.pop("schedule").default, parameters.pop("on_trace_ready").default} == {None}
    kinds = {bool: "bool", float: "float", str: "str", list: "Iterable[str]", Path: "str | os.PathLike[str]"}
    expected = {name: (option.default, kinds[option.kind]) for name, option in options_at(Door.CODE).items()}
    expected["activities"] = (None, "Iterable[object] | None")
    expected["output"] = (table.DEFAULT_OUTPUT, expected["output"][1])
    assert {name: (found.default, found.annotation) for name, found in parameters.items()} == expected
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters.values())
    assert all(
        f"{name}: {option.help} (" in (stepscope.profile.__doc__ or "")
        for name, option in OPTIONS.items()
        if name in expected
    )


@pytest.mark.parametrize(
    ("short", "name"),
    [
        ("--shapes", "record_shapes"),
        ("--memory", "profile_memory"),
        ("--stacks", "with_stack"),
        ("--flops", "with_flops"),
        ("--modules", "with_modules"),
        ("--data", "data_process"),
    ],
)
def test_short_flags_are_the_same_option(short: str, name: str) -> None:
    for flag, value in ((short, True), (short.replace("--", "--no-", 1), False)):
        assert option_values(build_parser().parse_args(["run", flag, "train.py"]))[name] is value


def test_all_turns_on_every_switch_but_those_that_are_turned_off() -> None:
    values = option_values(build_parser().parse_args(["run", "--all", "--no-with-stack", "train.py"]))
    switches = {name for name, option in options_at(Door.RUN).items() if option.kind is bool}
    assert {name for name in switches if not values[name]} == {"with_stack"}


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert page == table.markdown(), "Run: python -m stepscope.collect.options > docs/options.md"


def activities(given: list[Any] | None) -> tuple[Activity, ...]:
    return make_options(check_given(Door.CODE, {"activities": given or ()})).activities


@pytest.mark.parametrize(
    "given",
    [
        [Activity.CPU, Activity.CUDA],
        ["cpu", "CUDA"],
        [ProfilerActivity.CPU, ProfilerActivity.CUDA],
        ["cpu", Activity.CUDA, ProfilerActivity.CPU],
    ],
)
def test_spellings_of_activities(given: list[object]) -> None:
    assert activities(given) == (Activity.CPU, Activity.CUDA)


def test_private_use_is_one_activity() -> None:
    assert activities([ProfilerActivity.PrivateUse1]) == activities([Activity.PRIVATE_USE]) == (Activity.PRIVATE_USE,)


def test_every_activity_of_torch_is_known() -> None:
    members = list(ProfilerActivity.__members__.values())
    assert len(activities(members)) == len(members)


def test_an_unknown_activity_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"'activities' should be a list of cpu \| cuda.*, but is \[\"gpu\"\]"):
        activities(["gpu"])


def test_options_are_plain_values_in_the_manifest() -> None:
    options = Options(activities=(Activity.CPU,), record_shapes=True)
    assert json.loads(json.dumps(options.describe()))["activities"] == ["cpu"]


def test_a_switch_is_named_as_the_user_gave_options() -> None:
    said = {door: asked({"door": door}, "with_stack").replace("`", "") for door in table.SPELLED}
    assert said["run"] == "stepscope run --stacks"
    assert build_parser().parse_args([*said["run"].split()[1:], "train.py"]).with_stack is True
    assert said["code"] == "stepscope.profile(with_stack=True)"
    assert isinstance(eval(said["code"]), stepscope.profile)
    assert said["trainer"] == "with_stack=True of the callback"
    for name, known in (("STEPSCOPE_OPTIONS", ENVIRONMENT), ("profiler_config.json", DYNAMIC)):
        text, _, where = said[name].partition(" in ")
        assert where == name
        assert read_options(f"{{{text}}}", known).values["with_stack"] is True
    # and so are later steps
    later = {door: asked({"door": door}).replace("`", "") for door in table.SPELLED}
    assert build_parser().parse_args([*later["run"].split()[1:], "train.py"]).skip == 10
    schedule = eval(later["code"].partition("=")[2])
    assert [schedule(number) for number in (9, 11)] == [Action.NONE, Action.RECORD]
    assert read_options(f"{{{later['STEPSCOPE_OPTIONS'].partition(' in ')[0]}}}", ENVIRONMENT).values["skip"] == 10
    assert read_options(f"{{{later['profiler_config.json'].partition(' in ')[0]}}}", DYNAMIC).values["start_step"] == 10
    # A capture of another tool was started by none of them
    assert (asked({"source": "import"}, "with_stack"), asked({})) == ("`with_stack`", "")
