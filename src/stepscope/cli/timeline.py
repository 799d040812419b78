"""Make one timeline for ui.perfetto.dev or chrome://tracing of profile files of paddle.fluid.profiler.

The options are those of Paddle's own timeline.py: --profile-path trainer1=f1,trainer2=f2,ps=f3 --out timeline.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

#: The label of an only file without one.
_ALONE = "trainer"

HELP = "profile files of fluid.profiler become one timeline"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``timeline``."""
    parser.add_argument(
        "--profile-path",
        "--profile_path",
        required=True,
        metavar="FILES",
        help="one file, or label=file pairs with commas between them",
    )
    parser.add_argument(
        "--out",
        "--timeline-path",
        "--timeline_path",
        type=Path,
        default=Path("timeline.json"),
        metavar="FILE",
        help="the file to make (default: ./timeline.json)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Read the files, write the timeline and print its path; losses are named on standard error."""
    from stepscope.read.paddle import fluid_profile
    from stepscope.report.timeline import fluid_timeline
    from stepscope.trace.losses import LossLedger

    files = labelled(arguments.profile_path)
    ledgers = {label: LossLedger(path.name) for label, path in files.items()}
    profiles = {label: fluid_profile.load(path, ledgers[label]) for label, path in files.items()}
    fluid_timeline.write(profiles, arguments.out)
    for ledger in ledgers.values():
        for loss in ledger.rows():
            sys.stderr.write(f"stepscope: {loss.source}: {loss.what} × {loss.count}: {loss.advice}\n")
    sys.stdout.write(f"{arguments.out}\n")
    return 0


def labelled(text: str) -> dict[str, Path]:
    """Return the files by their labels.

    Raises:
        UsageError: Several files and one without a label, a label without a file, or a label twice.
    """
    from stepscope.errors import UsageError

    if "=" not in text and "," not in text:
        return {_ALONE: Path(text)}
    files: dict[str, Path] = {}
    for part in text.split(","):
        label, _, path = part.partition("=")
        if not label or not path:
            message = f"{part!r} is not a label=file pair."
            raise UsageError(message, "Write trainer1=f1,trainer2=f2.")
        if label in files:
            message = f"The label {label!r} is given twice."
            raise UsageError(message, "Give every file a label of its own.")
        files[label] = Path(path)
    return files
