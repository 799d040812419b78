"""The output formats by name."""

from __future__ import annotations

from dataclasses import replace

from stepscope.errors import UsageError
from stepscope.extensions import besides
from stepscope.report.ascend.layout import Ascend
from stepscope.report.ascend.variant import MINDSPORE, PYTORCH
from stepscope.report.files.csv_results import Csv
from stepscope.report.files.json_results import Json
from stepscope.report.files.memory_viz import MemoryViz
from stepscope.report.files.sqlite_database import Database
from stepscope.report.protocol import Format
from stepscope.report.stacks.pprof_file import PprofProfile
from stepscope.report.stacks.stack_files import CollapsedStacks, Firefox, Speedscope
from stepscope.report.timeline.chrome_trace import TraceView
from stepscope.report.timeline.perfetto.writer import Pftrace

#: Every format, in the order they are written.
FORMATS: dict[str, Format] = {
    chosen.name: chosen
    for chosen in (
        *(Csv(), Json(), Database(), TraceView(), Pftrace()),
        *(Speedscope(), PprofProfile(), Firefox(), CollapsedStacks(), MemoryViz()),
    )
}

#: Layouts of other tools by name; a layout makes a directory a rank.
LAYOUTS: dict[str, Ascend] = {
    "ascend": Ascend(),
    "ascend_ms": Ascend(variant=MINDSPORE),
    "ascend_pt": Ascend(variant=PYTORCH),
}


#: Formats that a job has files of; each rank has files of all formats. Where a JSON file is asked for, it is a table.
JOB_FORMATS = ("csv", "json", "db")


def select_of_job(names: str, *, pretty: bool = False) -> list[Format]:
    """Return the formats named that a job has files of; arguments and errors as with :func:`select`."""
    chosen = [output for output in select(names, pretty=pretty) if output.name in JOB_FORMATS]
    return [replace(output, tables=True) if isinstance(output, Json) else output for output in chosen]


def select(names: str, *, pretty: bool = False) -> list[Format]:
    """Return the formats named.

    Args:
        names: Names with commas between them; ``all``, or ``none``.
        pretty: Indent JSON files.

    Raises:
        UsageError: A name is unknown.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip() not in ("", "none")]
    formats = {**FORMATS, **besides("stepscope.formats", FORMATS)} if set(wanted) - set(FORMATS) else FORMATS
    unknown = sorted(set(wanted) - set(formats) - {"all"})
    if unknown:
        message = f"Unknown format: {', '.join(map(repr, unknown))}."
        raise UsageError(message, f"Known formats: {', '.join(formats)}, all, none.")
    chosen = [output for name, output in formats.items() if name in wanted or "all" in wanted]
    return [replace(output, pretty=pretty) if isinstance(output, Json) else output for output in chosen]


def layout(name: str, types: str = "text") -> Ascend:
    """Return the layout named.

    Args:
        name: A name of :data:`LAYOUTS`.
        types: Types of files, with commas between them: ``text``, ``db``.

    Raises:
        UsageError: The layout, or a type of files, is unknown.
    """
    if name not in LAYOUTS:
        message = f"Unknown layout: {name!r}."
        raise UsageError(message, f"Known layouts: {', '.join(LAYOUTS)}.")
    wanted = tuple(dict.fromkeys(kind.strip() for kind in types.split(",") if kind.strip()))
    if not wanted or set(wanted) - {"text", "db"}:
        message = f"Layout {name} has no files of type {types!r}."
        raise UsageError(message, "Known types: text, db, or both with a comma.")
    return replace(LAYOUTS[name], types=wanted)
