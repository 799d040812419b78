"""The table of options: one row an option, from which every way to give it is made.

The four ways are the doors: a flag of ``stepscope run``, a keyword of ``stepscope.profile``, a key of
``STEPSCOPE_OPTIONS``, and a key of the file that ``stepscope.dynamic`` follows. An option has one name at all of them
and is checked by its row. ``python -m stepscope.collect.options`` prints ``docs/options.md``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from stepscope.errors import UsageError

DEFAULT_OUTPUT = Path("stepscope-runs")

#: Kind of an option → its values in words, and what the help of the command line writes for one.
_KINDS = {
    bool: ("true or false", ""),
    int: ("a whole number", "N"),
    float: ("a number", "N"),
    str: ("a text", "WORD"),
    list: ("a list of texts", "A,B"),
    Path: ("the path of a directory", "DIR"),
}


class Door(Enum):
    """A way to give an option."""

    RUN = "`stepscope run`"
    CODE = "`stepscope.profile`"
    ENVIRONMENT = "`STEPSCOPE_OPTIONS`"
    DYNAMIC = "`profiler_config.json`"


@dataclass(frozen=True)
class Option:
    """One option: what it is called, which values it may have, and where it can be given.

    Attributes:
        name: Its name at every door; the command line writes it with hyphens.
        kind: ``bool``, ``int``, ``float``, ``str``, ``list`` (of texts) or ``Path``.
        default: Its value if it is not given.
        help: What it is for.
        unit: What a number counts.
        choices: Texts that are allowed; empty for any.
        least: Smallest number.
        most: Largest number.
        above: Whether ``least`` itself is excluded.
        codes: Other values that are allowed, all of one type, and what each stands for.
        text: Returns the text that is compared with the choices.
        accepts: For texts without choices: returns something false, or raises ValueError, if one is not allowed.
        words: The values in words, if the other attributes cannot express them.
        doors: Where it can be given.
        defaults: Defaults that a door has of its own.
        flags: Other flags of the command line.
    """

    name: str
    kind: type
    default: Any
    help: str = ""
    unit: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    above: bool = False
    codes: Mapping[Any, object] = field(default_factory=dict)
    text: Callable[[Any], str] = str
    accepts: Callable[[str], object] = bool
    words: str = ""
    doors: tuple[Door, ...] = tuple(Door)
    defaults: Mapping[Door, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    def check(self, value: object) -> Any:  # noqa: ANN401 - of the option's kind
        """Return the value that ``value`` stands for.

        Raises:
            ValueError: The option cannot have this value; the message is the same at every door.
        """
        codes = self.codes
        if codes and type(value) is type(next(iter(codes))) and value in codes:
            return codes[value]
        if self.kind is list and isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
            value = list(value)
        if self.kind is Path and isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not self._allows(value):
            message = f"'{self.name}' should be {self.expectation}, but is {_short(value)}"
            raise ValueError(message)
        return float(value) if self.kind is float else value  # type: ignore[arg-type]

    def parse(self, word: str) -> object:
        """Return what a word of the command line says; one that is not of the option's kind stays a text."""
        if self.kind is list:
            return [item for item in word.split(",") if item]
        if self.kind in (int, float):
            with suppress(ValueError):
                return int(word) if re.fullmatch(r"-?\d+", word, re.ASCII) else float(word)
        return word

    @property
    def metavar(self) -> str:
        """What the help of the command line writes for the value."""
        return "|".join(self.choices) if self.kind is str and self.choices else _KINDS[self.kind][1]

    @property
    def expectation(self) -> str:
        """The values that are allowed, in words."""
        words = self.words or " | ".join(self.choices)
        if not words:
            words = _KINDS[self.kind][0] + (f" of {self.unit}" if self.unit else "")
            if self.least is not None:
                words += f" {'above' if self.above else 'from'} {_json(self.least)}"
                words += " on" if self.most is None else f"{' and up' if self.above else ''} to {_json(self.most)}"
        elif self.kind is list:
            words = f"a list of {words}"
        return words if self.kind is int or not self.codes else f"{words} (or {', '.join(map(_json, self.codes))})"

    def _allows(self, value: Any) -> bool:  # noqa: ANN401 - whatever was given
        if self.kind is list:
            return isinstance(value, list) and all(self._allows_text(item) for item in value)
        if self.kind in (int, float):
            number = isinstance(value, int if self.kind is int else (int, float)) and not isinstance(value, bool)
            low = number and (self.least is None or (self.least < value if self.above else self.least <= value))
            return low and (self.most is None or value <= self.most)
        if self.kind is bool:
            return isinstance(value, bool)
        return isinstance(value, str) and self._allows_text(value)

    def _allows_text(self, value: object) -> bool:
        if self.choices:
            return self.text(value) in self.choices
        with suppress(ValueError):
            return isinstance(value, str) and bool(self.accepts(value))
        return False


def _json(value: object) -> str:
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _short(value: object) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):  # a value of Python that JSON does not have
        text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


class Activity(Enum):
    """Whose work is recorded. Names are those of ``torch.profiler.ProfilerActivity``."""

    CPU = "cpu"
    CUDA = "cuda"
    XPU = "xpu"
    MTIA = "mtia"
    HPU = "hpu"
    PRIVATE_USE = "privateuse1"


def activity_name(item: object) -> str:
    """Return the value in :class:`Activity` of a member, of its name in any case, or of a member of torch's own."""
    return str(getattr(item, "name", item)).lower().replace("private_use", "privateuse1")


def _row(default: object, kind: type, help: str, **more: Any) -> Any:  # noqa: ANN401 - as dataclasses.field
    return field(default=default, metadata={"kind": kind, "help": help, **more})


def _switch(help: str, flag: str = "", *, default: bool = False, **more: Any) -> Any:  # noqa: ANN401
    return _row(default, bool, help, flags=(flag,) if flag else (), **more)


@dataclass(frozen=True)
class Options:
    """What the collectors of one profile record. Each attribute but ``memory_by_default`` is a row of the table."""

    activities: tuple[Activity, ...] = _row(
        (),
        list,
        "whose work is recorded; none means the CPU and every device that the framework finds",
        choices=tuple(activity.value for activity in Activity),
        text=activity_name,
    )
    # Shapes and memory cost little and answer most questions; stacks double what a step costs.
    record_shapes: bool = _switch("shapes and types of operator inputs", "--shapes", defaults={Door.RUN: True})
    profile_memory: bool = _switch(
        "memory taken and freed. With torch's Kineto: of the starting thread. With Paddle, `stepscope run` records it "
        "only if this option is given",
        "--memory",
        defaults={Door.RUN: True},
    )
    #: The default of ``stepscope run`` turned memory on, not the user: Paddle, where memory costs much, leaves it out.
    memory_by_default: bool = False
    with_stack: bool = _switch("the Python stack of every operator", "--stacks")
    with_flops: bool = _switch("floating-point operations of matrix products and convolutions", "--flops")
    with_modules: bool = _switch("the module that called each operator", "--modules")
    host_pipeline: bool = _switch(
        "calls, queues and waits of MindSpore's threads: the thread of an operator and, in PyNative mode, its phase. "
        "Each operator pays for it",
        default=True,
    )
    counters_hz: float = _row(
        10.0,
        float,
        "how often the counters of the host and of GPUs are sampled; 0 turns them off",
        unit="samples a second",
        least=0,
        most=1000,  # more often, the thread that samples does nothing else
    )
    data_process: bool = _switch(
        "MindSpore's data pipelines: queues, and the processor time of every operation; a batch takes a third longer",
        "--data",
    )
    parallel_strategy: bool = _switch("what the model's MindSpore context and cells declare of their distribution")
    host_sys: tuple[str, ...] = _row(
        (),
        list,
        "counters of the host besides the processor and memory of the process",
        choices=("cpu", "mem", "disk", "network", "osrt"),
    )
    sys_io: bool = _switch("traffic of every network interface")
    pcie: bool = _switch("traffic between the host and each NVIDIA GPU that has no PCIe counters of its own")
    collector: str = _row(
        "auto",
        str,
        "who records PyTorch's operators: `kineto`, PyTorch's own profiler; `native`, stepscope's recorder, which is "
        "built on first use; `auto`, the latter on CPUs in a single process if it can be built, and on NVIDIA GPUs "
        "where `stepscope doctor --build` has found that it records what Kineto records",
        choices=("auto", "native", "kineto"),
    )
    sample: float = _row(
        1.0,
        float,
        "fraction of PyTorch's operators that is recorded; less than 1 needs the native recorder",
        least=0,
        most=1,
        above=True,
    )
    mstx_domain_include: tuple[str, ...] = _row(
        (), list, "domains whose `mstx` marks and ranges are recorded; none means all"
    )
    mstx_domain_exclude: tuple[str, ...] = _row((), list, "domains whose `mstx` marks and ranges are not recorded")

    def describe(self) -> dict[str, Any]:
        """Return the options as plain values for the manifest."""
        return {**asdict(self), "activities": [activity.value for activity in self.activities]}


def step_range(text: str) -> tuple[int, int]:
    """Parse ``3-5``, ``3:5`` or ``4`` into first and last step, both included.

    Raises:
        ValueError: The text has another form, or the last step lies before the first.
    """
    match = re.fullmatch(r"(\d+)(?:[-:](\d+))?", text, re.ASCII)
    if match is None:
        message = f"{text!r} is not a range of steps; write 3-5 or 4"
        raise ValueError(message)
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        message = f"{text!r} ends before it begins; write {last}-{first}"
        raise ValueError(message)
    return first, last


ALL_STEPS = "all"
_SELECTING = (Door.RUN, Door.ENVIRONMENT)

#: Every option, by name: which steps, where, and when the results are computed; then what is recorded.
OPTIONS: dict[str, Option] = {
    row.name: row
    for row in (
        Option(
            "steps",
            str,
            ALL_STEPS,
            "the steps that are recorded, both included, counted from 0; in place of `skip` and `active`",
            accepts=lambda text: text == ALL_STEPS or step_range(text),
            words='"all", one step such as "4", or a range such as "5:9"',
            doors=_SELECTING,
            defaults={Door.RUN: None},
        ),
        Option(
            "skip",
            int,
            0,
            "steps before the first one recorded",
            unit="steps",
            least=0,
            doors=_SELECTING,
            defaults={Door.RUN: 5},
        ),
        Option("active", int, None, "steps recorded", unit="steps", least=1, doors=_SELECTING, defaults={Door.RUN: 5}),
        Option(
            "output",
            Path,
            str(DEFAULT_OUTPUT),
            "the directory of runs; it is made if it does not exist",
            defaults={Door.DYNAMIC: "./"},
            flags=("-o",),
        ),
        Option(
            "analyse",
            str,
            "now",
            "when the results are computed: `now`, and the program waits at its end; in the `background`, by a process "
            "of low priority; or `later`, by `stepscope report`",
            choices=("now", "background", "later"),
            defaults={Door.CODE: "background", Door.DYNAMIC: "later"},
        ),
        *(Option(row.name, default=row.default, **row.metadata) for row in dataclasses.fields(Options) if row.metadata),
    )
}


def options_at(door: Door) -> dict[str, Option]:
    """Return the options that can be given at a door, with the defaults that they have there."""
    return {
        name: dataclasses.replace(option, default=option.defaults.get(door, option.default))
        for name, option in OPTIONS.items()
        if door in option.doors
    }


def check_given(door: Door, given: Mapping[str, object]) -> dict[str, Any]:
    """Return the value of every option of a door: what was given, else its default.

    Raises:
        UsageError: An option cannot have the value given.
    """
    values = {}
    for name, option in options_at(door).items():
        try:
            values[name] = option.check(given[name]) if name in given else option.default
        except ValueError as error:
            message = f"{error}."
            raise UsageError(message, f"{name}: {option.help}.") from None
    return values


def make_options(values: Mapping[str, Any], *, memory_by_default: bool = False) -> Options:
    """Return the options of a recording from checked values by name; values that are not attributes are left out."""
    names = values.keys() & {row.name for row in dataclasses.fields(Options)}
    chosen: dict[str, Any] = {
        name: tuple(values[name]) if isinstance(values[name], list) else values[name] for name in names
    }
    named = (Activity(activity_name(item)) for item in values["activities"])
    chosen["activities"] = tuple(dict.fromkeys(named))
    return Options(**chosen, memory_by_default=memory_by_default)


def flags_of(option: Option) -> tuple[str, ...]:
    """Return the flags of an option on the command line, the one with its own name first."""
    own = f"--{option.name.replace('_', '-')}"
    return (*option.flags, own) if option.flags[:1] == ("-o",) else (own, *option.flags)


_INTRODUCTION = """\
# Options

Generated from `stepscope.collect.options` by `make docs`. An option has the same name, the same check and, unless the
table says otherwise, the same default at each of the four doors:

| door | written as | a value that cannot be used |
|---|---|---|
| `stepscope run` | `--counters-hz 2.5`, `--with-stack`, `--no-pcie`, `--host-sys cpu,mem` | ends with exit code 2 |
| `stepscope.profile` | `counters_hz=2.5`, `with_stack=True`, `host_sys=["cpu", "mem"]` | raises `UsageError` |
| `STEPSCOPE_OPTIONS` | `{"start": true, "counters_hz": 2.5, "host_sys": ["cpu"]}` | one warning; the default is used |
| `profiler_config.json` | the same keys, see [environment.md](environment.md) | one warning; the default is used |

The sentence about a wrong value names the option, what it may be, and what it is: the same at every door. The names are
those of `torch.profiler` where it has the option; the command line also takes the short flags below.
`stepscope run --all` turns on every option that is true or false. MindSpore's own keys are in
[environment.md](environment.md), the arguments of its `Profiler` in [mindspore.md](mindspore.md).

| option | values | default | command line | what |
|---|---|---|---|---|
"""
_ELSEWHERE = """
`steps`, `skip` and `active` are for `stepscope run` and the environment, which records all steps unless they name some.
In code, `schedule` selects the steps; in `profiler_config.json`, `start_step` and `stop_step`. There `"output": "./"`
means the `output` of `stepscope.dynamic`, and `analyse` may also be `false` (later) or `true` (`analyse_mode` says
whether the training waits). In both JSON documents `activities` also takes MindSpore's `NPU` and `GPU`, and
`MS_PROFILER_OPTIONS` puts its runs into `data` by default.
"""


def markdown() -> str:
    """Return the reference page ``docs/options.md``."""
    lines = []
    for option in OPTIONS.values():
        defaults = [_default(option.default)]
        defaults += [f"{_default(value)} in {door.value}" for door, value in option.defaults.items()]
        flags = ", ".join(f"`{flag}`" for flag in flags_of(option)) if Door.RUN in option.doors else "–"
        values = option.expectation.replace(" | ", ", ")
        lines.append(f"| `{option.name}` | {values} | {'; '.join(defaults)} | {flags} | {option.help} |\n")
    return _INTRODUCTION + "".join(lines) + _ELSEWHERE


def _default(value: object) -> str:
    return "–" if value is None else f"`{_json(value)}`"


if __name__ == "__main__":
    sys.stdout.write(markdown())
