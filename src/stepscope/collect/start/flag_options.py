"""Options that come as flags: on the command line of ``stepscope run``, and behind ``%%stepscope`` in a notebook."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stepscope.collect.options import ALL_STEPS, Door, check_given, flags_of, options_at
from stepscope.errors import UsageError


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every option of ``stepscope run``, and ``--all``."""
    for name, option in options_at(Door.RUN).items():
        flags, text = flags_of(option), option.help.replace("`", "").replace("%", "%%")
        if option.kind is bool:
            text = f"record {text} ({'on' if option.default else 'off'})"
            parser.add_argument(*flags, dest=name, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            text += "" if option.kind is Path or "|" in option.metavar else f": {option.expectation}"
            text += "" if option.default in (None, ()) else f" ({option.default})"
            parser.add_argument(*flags, dest=name, type=option.parse, metavar=option.metavar, help=text)
    parser.add_argument("--all", action="store_true", help="turn on all options of the form --NAME, --no-NAME")
    parser.add_argument(
        "--later", dest="analyse", action="store_const", const="later", help="the same as --analyse later"
    )


def option_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the options, by name.

    Raises:
        UsageError: An option cannot have the value given, or ``--steps`` comes with ``--skip`` or ``--active``.
    """
    options = options_at(Door.RUN)
    given = {name: value for name in options if (value := getattr(arguments, name)) is not None}
    if arguments.all:
        given = {**{name: True for name, option in options.items() if option.kind is bool}, **given}
    if "steps" in given and given.keys() & {"skip", "active"}:
        message = "--steps names the same steps as --skip and --active."
        raise UsageError(message, "Use --steps alone, or the other two.")
    values = check_given(Door.RUN, given)
    return {**values, "skip": 0, "active": None} if values["steps"] == ALL_STEPS else values
