"""The table of options: one row per option, from which its five interfaces ("doors") are generated.

The doors are a flag of ``stepscope run``, a keyword of ``stepscope.profile`` or of what records a trainer, a key of
``STEPSCOPE_OPTIONS``, and a key of the file that ``stepscope.dynamic`` follows. An option has the same name and the
same check at all of them.
``python -m stepscope.collect.options`` prints ``docs/options.md``.
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

#: Kind of an option → its values in words, and their placeholder in the help of the command line.
_KINDS = {
    bool: ("true or false", ""),
    int: ("a whole number", "N"),
    float: ("a number", "N"),
    str: ("a text", "WORD"),
    list: ("a list of texts", "A,B"),
    Path: ("the path of a directory", "PATH"),
}


class Door(Enum):
    """A way to give an option."""

    RUN = "`stepscope run`"
    CODE = "`stepscope.profile`"
    TRAINER = "`stepscope.integrations`"
    ENVIRONMENT = "`STEPSCOPE_OPTIONS`"
    DYNAMIC = "`profiler_config.json`"


@dataclass(frozen=True)
class Option:
    """One option: its name, its allowed values, and the doors that accept it.

    Attributes:
        name: Its name at every door; the command line writes it with hyphens.
        kind: ``bool``, ``int``, ``float``, ``str``, ``list`` (of texts) or ``Path``.
        default: Its value if it is not given.
        help: What it does.
        unit: Unit of a number.
        choices: Texts that are allowed; empty for any.
        least: Smallest number.
        most: Largest number.
        above: Whether ``least`` itself is excluded.
        codes: Further allowed values, all of one type → the value that each stands for.
        text: Converts an item to the text that is compared with the choices.
        accepts: For texts without choices: returns a false value, or raises ValueError, if a text is not allowed.
        words: The allowed values in words, if the other attributes cannot express them.
        doors: The doors that accept it.
        defaults: Defaults that differ from ``default``, by door.
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
        """Convert a word of the command line to the option's kind; a word of another kind stays a text."""
        if self.kind is list:
            return [item for item in word.split(",") if item]
        if self.kind in (int, float):
            with suppress(ValueError):
                return int(word) if re.fullmatch(r"-?\d+", word, re.ASCII) else float(word)
        return word

    @property
    def metavar(self) -> str:
        """The placeholder of the value in the help of the command line."""
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
    """Return the :class:`Activity` value of a member, of a name in any case, or of a member of torch's enumeration."""
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
        "whose work is recorded; by default that of the CPU and of every device that the framework finds",
        choices=tuple(activity.value for activity in Activity),
        text=activity_name,
    )
    # Shapes and memory cost little and answer most questions; stacks double the time of a step.
    record_shapes: bool = _switch("shapes and types of operator inputs", "--shapes", defaults={Door.RUN: True})
    profile_memory: bool = _switch(
        "memory allocations and frees. Kineto records those of the starting thread only. With Paddle, `stepscope run` "
        "records them only if this option is given",
        "--memory",
        defaults={Door.RUN: True},
    )
    #: Whether memory is on only by the default of ``stepscope run``: Paddle, where it is expensive, then leaves it out.
    memory_by_default: bool = False
    with_stack: bool = _switch("the Python stack of every operator", "--stacks")
    with_flops: bool = _switch("floating-point operations of matrix products and convolutions", "--flops")
    with_modules: bool = _switch("the module that called each operator", "--modules")
    host_pipeline: bool = _switch(
        "calls, queues and waits of MindSpore's threads: the thread of an operator and, in PyNative mode, its phase. "
        "It adds time to every operator",
        default=True,
    )
    counters_hz: float = _row(
        10.0,
        float,
        "how often the counters of the host and of GPUs are sampled; 0 turns them off",
        unit="samples a second",
        least=0,
        most=1000,  # above it, the sampling thread would run all the time
    )
    stacks_hz: float = _row(
        50.0,
        float,
        "how often the Python stacks of all threads are sampled, over all steps of the run; workers of data loaders at "
        "most 12.5 times. It is less often where it would take more than 0.5 % of a core; 0 turns it off",
        unit="samples a second",
        least=0,
        most=1000,  # one look costs 20 to 40 µs of a core
    )
    data_process: bool = _switch(
        "MindSpore's data pipelines: queues, and the processor time of every operation. It adds a third to the time of "
        "a batch",
        "--data",
    )
    parallel_strategy: bool = _switch("the parallel strategy that the model's MindSpore context and cells declare")
    host_sys: tuple[str, ...] = _row(
        (),
        list,
        "further counters of the host; the processor and memory of the process are sampled by default",
        choices=("cpu", "mem", "disk", "network", "osrt"),
    )
    sys_io: bool = _switch("traffic of every network interface")
    pcie: bool = _switch(
        "traffic between the host and NVIDIA GPUs without PCIe counters; GPUs that have them are sampled by default"
    )
    collector: str = _row(
        "auto",
        str,
        "the recorder of PyTorch's operators: `kineto`, PyTorch's own profiler; `native`, stepscope's recorder, which "
        "is built on first use; `auto`, the native one on CPUs if it can be built, and on NVIDIA GPUs if "
        "`stepscope doctor --build` has verified that it records the same as Kineto; otherwise Kineto",
        choices=("auto", "native", "kineto"),
    )
    sample: float = _row(
        1.0,
        float,
        "fraction of PyTorch's operators to record; less than 1 needs the native recorder",
        least=0,
        most=1,
        above=True,
    )
    mstx_domain_include: tuple[str, ...] = _row(
        (), list, "domains whose `mstx` marks and ranges are recorded; by default all"
    )
    mstx_domain_exclude: tuple[str, ...] = _row((), list, "domains whose `mstx` marks and ranges are not recorded")
    argv: bool = _switch(
        "the command line, in the manifest; values of options named like a key, token, secret or password, and what "
        "looks like a credential, are replaced by `<redacted>`",
        default=True,
    )

    def describe(self) -> dict[str, Any]:
        """Return the options as plain values for the manifest."""
        return {**asdict(self), "activities": [activity.value for activity in self.activities]}


def step_range(text: str) -> tuple[int, int]:
    """Parse ``3-5``, ``3:5`` or ``4`` into first and last step, both included.

    Raises:
        ValueError: The text has another form, or the last step is before the first.
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

#: Every option, by name: first the steps, the output and the analysis, then the switches of the collectors.
OPTIONS: dict[str, Option] = {
    row.name: row
    for row in (
        Option(
            "steps",
            str,
            ALL_STEPS,
            'the steps to record, first and last included, counted from 0; replaces `skip` and `active`. With "all", '
            "`stepscope run` records the program as one step, from the import of its framework to its end",
            accepts=lambda text: text == ALL_STEPS or step_range(text),
            words='"all", one step such as "4", or a range such as "5:9"',
            doors=(*_SELECTING, Door.TRAINER),
            defaults={Door.RUN: None},
        ),
        Option(
            "epochs",
            str,
            ALL_STEPS,
            "the epochs of a trainer to record, first and last included, by its own count, from 0",
            accepts=lambda text: text == ALL_STEPS or step_range(text),
            words='"all", one epoch such as "1", or a range such as "1:2"',
            doors=(Door.TRAINER,),
        ),
        Option(
            "skip",
            int,
            0,
            "steps before the first one recorded. If neither it nor `steps` is given, `stepscope run` records again "
            "while the steps that follow differ by over 5 %, and keeps the window closest to the median of all steps",
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
            "the directory of runs; it is created if it does not exist",
            defaults={Door.DYNAMIC: "./"},
            flags=("-o",),
        ),
        Option(
            "analyse",
            str,
            "now",
            "when the results are computed: `now`, at the end of the program, which waits for them; in the "
            "`background`, by a process of low priority; or `later`, by `stepscope report`",
            choices=("now", "background", "later"),
            defaults={Door.CODE: "background", Door.TRAINER: "background", Door.DYNAMIC: "later"},
        ),
        Option(
            "metrics",
            Path,
            None,
            "a file that gets the figures of the recorded steps and the findings, with the results: for Prometheus "
            "(`.prom`) or OpenTelemetry (`.json`)",
            accepts=lambda text: Path(text).suffix in (".prom", ".json"),
            words="the path of a .prom or .json file",
            doors=(Door.RUN,),
        ),
        Option(
            "quiet",
            bool,
            default=False,
            help="nothing is said about what was recorded and where it lies; `-q` of `stepscope run`",
            doors=(Door.CODE, Door.TRAINER, Door.ENVIRONMENT),
        ),
        *(Option(row.name, default=row.default, **row.metadata) for row in dataclasses.fields(Options) if row.metadata),
    )
}


def options_at(door: Door) -> dict[str, Option]:
    """Return the options that a door accepts, with their defaults at that door."""
    return {
        name: dataclasses.replace(option, default=option.defaults.get(door, option.default))
        for name, option in OPTIONS.items()
        if door in option.doors
    }


def check_given(door: Door, given: Mapping[str, object]) -> dict[str, Any]:
    """Return the value of every option of a door: the given value, else its default.

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
    """Return the options of a recording from checked values by name; names that are not attributes are ignored."""
    names = values.keys() & {row.name for row in dataclasses.fields(Options)}
    chosen: dict[str, Any] = {
        name: tuple(values[name]) if isinstance(values[name], list) else values[name] for name in names
    }
    named = (Activity(activity_name(item)) for item in values["activities"])
    chosen["activities"] = tuple(dict.fromkeys(named))
    return Options(**chosen, memory_by_default=memory_by_default)


#: How a recording was started → how a switch is turned on there, and how later steps are recorded.
SPELLED = {
    "run": ("`stepscope run {flag}`", "`stepscope run --skip 10`"),
    "notebook": ("`%%stepscope {flag}`", "`%%stepscope --skip 10`"),
    "code": ("`stepscope.profile({name}=True)`", "`schedule=stepscope.schedule(wait=10, warmup=1, active=5)`"),
    "mindspore": ("`profile({name}=True)`", "`schedule=schedule(wait=10, warmup=1, active=5)`"),
    "trainer": ("`{name}=True` of the callback", '`steps="10-14"` of the callback'),
    "profiler_config.json": (
        '`"{name}": true` in `profiler_config.json`',
        '`"start_step": 10` in `profiler_config.json`',
    ),
    "STEPSCOPE_OPTIONS": ('`"{name}": true` in `STEPSCOPE_OPTIONS`', '`"skip": 10` in `STEPSCOPE_OPTIONS`'),
    "MS_PROFILER_OPTIONS": ('`"{name}": true` in `MS_PROFILER_OPTIONS`', '`"skip": 10` in `MS_PROFILER_OPTIONS`'),
}


def asked(manifest: Mapping[str, Any], switch: str = "") -> str:
    """Return how a switch is turned on, or without one how later steps are recorded, as the user wrote the recording.

    Of a capture of another tool it is the switch's name, which is that of ``torch.profiler``, or nothing.

    Args:
        manifest: That of the recording.
        switch: Name of an option that is true or false.
    """
    spelled = SPELLED.get(manifest.get("door", ""))
    if spelled is None:
        return f"`{switch}`" if switch else ""
    return spelled[0].format(flag=flags_of(OPTIONS[switch])[-1], name=switch) if switch else spelled[1]


def flags_of(option: Option) -> tuple[str, ...]:
    """Return the flags of an option on the command line, the one with its own name first."""
    own = f"--{option.name.replace('_', '-')}"
    return (*option.flags, own) if option.flags[:1] == ("-o",) else (own, *option.flags)


_INTRODUCTION = """\
# Options

Generated from `stepscope.collect.options` by `make docs`. An option has the same name, the same check and, unless the
table says otherwise, the same default at each of the five doors:

| door | written as | an invalid value |
|---|---|---|
| `stepscope run` | `--counters-hz 2.5`, `--with-stack`, `--no-pcie`, `--host-sys cpu,mem` | ends with exit code 2 |
| `stepscope.profile` | `counters_hz=2.5`, `with_stack=True`, `host_sys=["cpu", "mem"]` | raises `UsageError` |
| `stepscope.integrations` | the same keywords, of a trainer's callback, profiler or tracker | raises `UsageError` |
| `STEPSCOPE_OPTIONS` | `{"start": true, "counters_hz": 2.5, "host_sys": ["cpu"]}` | one warning; the default is used |
| `profiler_config.json` | the same keys, see [environment.md](environment.md) | one warning; the default is used |

The message about an invalid value is the same at every door: it names the option, the allowed values and the given one.
An option that `torch.profiler` also has carries the same name; the command line also accepts the short flags below.
`stepscope run --all` turns on every option that is true or false. MindSpore's own keys are in
[environment.md](environment.md), the arguments of its `Profiler` in [mindspore.md](mindspore.md).

| option | values | default | command line | what |
|---|---|---|---|---|
"""
_ELSEWHERE = """
`skip` and `active` are for `stepscope run` and the environment, `steps` for trainers, too; by default the environment
and trainers record all steps. In code, and in place of `steps` and `epochs`, `schedule` selects the steps; in
`profiler_config.json`, `start_step` and `stop_step`. There `"output": "./"` means the `output` of `stepscope.dynamic`,
and `analyse` may also be `false` (later) or `true` (`analyse_mode` says whether the training waits). `stepscope report`
has `--metrics`, too. In both JSON documents `activities` also takes MindSpore's `NPU` and `GPU`, and
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
