"""Say what can be collected here, and why not what cannot.

PyTorch is tried in a process of its own, which takes some seconds. Nothing is installed, changed or left behind, but
for the native recorder that --build builds into the user's cache, and tries on the GPUs that torch sees.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.collect.doctor.diagnosis import Check

#: Mark, the same where the terminal has no Unicode, and colour.
_MARKS = {"yes": ("✓", "+", "green"), "partly": ("–", "~", "yellow"), "no": ("✗", "-", "red")}

HELP = "say what can be collected here, and why not what cannot"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``doctor``."""
    options.add_output(parser)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--build", action="store_true", help="build and try the native recorder of PyTorch's operators")


def execute(arguments: argparse.Namespace) -> int:
    """Print the findings; 0 whatever they are."""
    from stepscope import trial
    from stepscope.collect.doctor.diagnosis import diagnose

    checks = diagnose(Path(arguments.output), build=arguments.build)
    if arguments.build:
        checks += filter(None, [trial.check()])
    if arguments.json:
        sys.stdout.write(json.dumps([check.describe() for check in checks], indent=2) + "\n")
    else:
        _show(checks, options.output_console())
    return 0


def _show(checks: list[Check], console: Console) -> None:
    from rich.text import Text

    from stepscope.report.safe_text import printable

    unicode = console.encoding.lower().startswith("utf")

    def shown(text: str) -> str:
        return printable(text.encode(console.encoding, "backslashreplace").decode(console.encoding))

    for check in checks:
        mark, plain, colour = _MARKS[check.state]
        name = (f"{check.name:<22}", "bold")
        line = Text.assemble((f"{mark if unicode else plain} ", colour), name, shown(check.detail))
        console.print(line, soft_wrap=not console.is_terminal)
        if check.remedy:
            remedy = f"{'':<24}{'→' if unicode else '->'} {shown(check.remedy)}"
            console.print(Text(remedy, style="dim"), soft_wrap=not console.is_terminal)
