"""The summary in the terminal: how long a step takes, what it consists of, and what to look at first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from rich.console import Console, Group, OverflowMethod, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from stepscope.analyse.step.summary import Entry, StepPart, Summary
from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.report.safe_text import printable
from stepscope.report.terminal.quantities import bytes_text, count_text, duration_text, percent_text
from stepscope.trace.losses import Loss
from stepscope.trace.run_directory import Manifest

#: Wider than this the eye loses the line.
_WIDEST = 104
#: Operators and kernels named.
_NAMED = 5
#: Characters of one text from the trace, so that a name of a megabyte leaves room for the rest.
_LONGEST = 300
#: Narrower than this, names need the room more than the shares' bars.
_METERS_FROM = 72
#: Width of the labels in front of the single facts.
_LABEL = 12

_STRONG, _QUIET, _WARNING, _OURS, _POINT = "bold", "dim", "yellow", "#2fa37c", "#e0a030"
#: Colour of each part of the step, distinct also without red and green, on dark and light ground; and
#: its sign without colour, in Unicode and in ASCII.
_PARTS: dict[str, tuple[str, str, str]] = {
    "computing": ("#2fa37c", "█", "#"),
    "communication": ("#8f7ee7", "▓", "="),
    "copy": ("#4aa3d8", "▒", "+"),
    "data wait": ("#e0a030", "░", "~"),
    "host only": ("#d9705f", "▚", "-"),
    "idle": ("#80868f", "·", "."),
}


def render(summary: Summary, manifest: Manifest, console: Console) -> None:
    """Print the summary of a rank.

    On a terminal it is in colour; elsewhere, and with NO_COLOR, it is plain text with signs in place of colours. Names
    from the trace are shown as text, whatever is in them. Nothing is wider than the console.

    Args:
        summary: What to show.
        manifest: The rank's manifest; what it lacks is left out.
        console: Where to print.
    """
    page = _Page(summary, manifest, console)
    options = console.options.update(width=page.width, highlight=False)
    for line in console.render_lines(Padding(Group(*page.parts()), (0, 1)), options, pad=False):
        console.print(Segments([*_stripped(line), Segment.line()]), end="", soft_wrap=True)


def _stripped(line: list[Segment]) -> list[Segment]:
    """Return a line without the spaces at its end, so that a log of it has none."""
    kept = list(line)
    while kept and not kept[-1].text.strip(" "):
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(" "), kept[-1].style)
    return kept


class _Page:
    """The parts of one summary, from top to bottom."""

    def __init__(self, summary: Summary, manifest: Manifest, console: Console) -> None:
        self.summary = summary
        self.manifest = manifest
        self.width = min(console.width, _WIDEST)
        self.inside = self.width - 2
        self.encoding = console.encoding
        self.ascii = console.options.ascii_only
        self.overflow: OverflowMethod = "crop" if self.ascii else "ellipsis"
        self.coloured = console.color_system is not None and not console.no_color
        self.steps = max(summary.steps.count, 1)

    def parts(self) -> Iterator[RenderableType]:
        yield Text()
        yield self.title()
        yield Rule(style=_QUIET, characters="-" if self.ascii else "─")
        yield self.durations()
        if self.summary.split and self.summary.steps.total_ns:
            yield Text()
            yield self.bar()
            yield self.legend()
        sampled = self.summary.sampled
        host = "operators by self time" if sampled == 1 else f"operators, {100 * sampled:.3g} % sample"
        tables = ((host, self.summary.operators), ("device work by time", self.summary.kernels))
        for heading, entries in tables:
            if entries:
                yield Text()
                yield self.entries(heading, entries[:_NAMED])
        yield Text()
        yield self.facts()
        yield Text()
        yield self.first()
        yield Text()

    def title(self) -> RenderableType:
        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(ratio=1, no_wrap=True, overflow=self.overflow)
        grid.add_column(justify="right", no_wrap=True, overflow=self.overflow, max_width=self.inside * 2 // 3)
        program = self.shown(_program(self.manifest))
        name = Text.assemble(("stepscope", f"{_STRONG} {_OURS}"), (f"  {program}", _STRONG))
        grid.add_row(
            name, Text(self.separator().join(map(self.shown, _where(self.summary, self.manifest))), style=_QUIET)
        )
        return grid

    def durations(self) -> RenderableType:
        steps = self.summary.steps
        if not steps.count:
            whole = f"the whole recording: {self.time(steps.total_ns)}"
            return self.flow([Text("no steps found", style=_STRONG), Text(whole, style=_QUIET)])
        facts = [
            Text(count_text(steps.count, "step"), style=_STRONG),
            Text(f"mean {self.time(steps.mean_ns)}", style=_STRONG),
            Text(f"p50 {self.time(steps.p50_ns)}"),
            Text(f"p95 {self.time(steps.p95_ns)}"),
            Text(f"{steps.per_second:.3g} steps/s", style=_QUIET),
            Text(self.shown(_how_found(self.summary, self.manifest)), style=_QUIET),
        ]
        return self.flow(facts)

    def flow(self, facts: Iterable[Text]) -> Text:
        """Put facts beside each other, and on the next line where they do not fit."""
        lines = [Text()]
        for fact in facts:
            if lines[-1] and lines[-1].cell_len + 3 + fact.cell_len > self.inside:
                lines.append(Text())
            lines[-1].append("   " if lines[-1] else "").append_text(fact)
        return Text("\n").join(lines)

    def bar(self) -> RenderableType:
        line = Text(no_wrap=True)
        for part, cells in zip(self.summary.split, _cells(self.summary.split, self.inside), strict=True):
            # The same colour behind the sign closes the seams that some fonts leave between blocks.
            colour = _PARTS[part.name][0]
            line.append(self.sign(part.name) * cells, style=f"{colour} on {colour}" if self.coloured else colour)
        return line

    def legend(self) -> RenderableType:
        """Name the parts in columns of one width, as many as fit; parts that take no time are left out."""
        items = []
        for part in self.summary.split:
            if part.total_ns:
                sign = "■" if self.coloured and not self.ascii else self.sign(part.name)
                item = Text.assemble((f"{sign} ", _PARTS[part.name][0]), f"{part.name} ")
                item.append(percent_text(part.share), style=_STRONG)
                items.append(item.append(f" {self.time(part.mean_ns)}", style=_QUIET))
        widest = max(item.cell_len for item in items) + 3
        columns = max(1, min(len(items), (self.inside + 3) // widest))
        grid = Table.grid(padding=(0, 3, 0, 0))
        for _ in range(columns):
            grid.add_column(no_wrap=True, overflow=self.overflow)
        for first in range(0, len(items), columns):
            grid.add_row(*items[first : first + columns])
        return grid

    def entries(self, heading: str, entries: Sequence[Entry]) -> RenderableType:
        per = "/step" if self.summary.steps.count else ""
        table = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False, header_style=_QUIET)
        table.add_column(heading, ratio=1, no_wrap=True, overflow=self.overflow)
        for name in (f"calls{per}", f"time{per}", "share"):
            table.add_column(name, justify="right", no_wrap=True, overflow=self.overflow)
        errors = any(entry.error_ns for entry in entries)
        if errors:
            table.add_column("+-" if self.ascii else "±", justify="right", no_wrap=True, overflow=self.overflow)
        meter = self.inside // 6 if self.inside >= _METERS_FROM else 0
        if meter:
            table.add_column(width=meter, no_wrap=True)
        largest = max(entry.share for entry in entries)
        for entry in entries:
            table.add_row(
                Text(self.shown(_short(entry.name)), no_wrap=True, overflow=self.overflow),
                Text(f"{entry.count / self.steps:.4g}", style=_QUIET),
                self.time(entry.total_ns / self.steps),
                Text(percent_text(entry.share), style=_STRONG),
                *([Text(percent_text(entry.error_ns / entry.total_ns), style=_QUIET)] if errors else []),
                *([self.meter(entry.share / largest if largest else 0.0, meter)] if meter else []),
            )
        return table

    def facts(self) -> RenderableType:
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=_LABEL, style=_QUIET, no_wrap=True, overflow=self.overflow)
        grid.add_column(ratio=1, overflow="fold")
        for label, fact in self.known():
            grid.add_row(label, fact)
        return grid

    def known(self) -> Iterator[tuple[str, Text]]:
        """Yield what is known besides: data wait, garbage, memory, losses; and nothing about what was not recorded."""
        waits, garbage = self.summary.data_wait, self.summary.garbage
        if self.summary.sampled < 1:
            recorded = f"{100 * self.summary.sampled:.3g} % of the operators was recorded"
            error = f"calls and times are estimates, with their standard error ({'+-' if self.ascii else '±'})"
            idle = "; idle is also what only the host does" if self.summary.split else ""
            yield "sample", Text(f"{recorded}: {error}{idle}")
        if waits.count:
            each, exposed = (self.time(ns / self.steps) for ns in (waits.total_ns, waits.exposed_ns))
            hidden = "" if waits.exposed_ns == waits.total_ns else f", {exposed} of it while nothing else worked"
            yield "data wait", Text(f"{each} a step{hidden}{_loading(waits.workers)}")
        if garbage.count:
            pauses = count_text(garbage.count, "pause")
            share = f"{percent_text(garbage.share)} of the steps"
            yield "garbage", Text(f"{pauses} of Python's collector, {self.time(garbage.total_ns)}, {share}")
        memory = list(self.memory())
        if memory:
            yield "memory peak", Text(self.separator().join(memory))
        recorder = _recorder(self.manifest)
        if recorder:
            yield "recorded by", Text(self.shown(recorder), style=_QUIET)
        yield "lost", self.losses()

    def memory(self) -> Iterator[str]:
        for peak in self.summary.memory:
            known = [
                f"{bytes_text(amount)} {what}"
                for amount, what in ((peak.allocated, "allocated"), (peak.reserved, "reserved"))
                if amount is not None
            ]
            if known:
                yield f"{self.shown(peak.device)} {', '.join(known)}"
        if self.summary.resident_bytes is not None:
            yield f"process {bytes_text(self.summary.resident_bytes)} resident"

    def losses(self) -> Text:
        """Say what is missing, and what to do; what is only worth knowing in a few words."""
        losses = _by_name(self.summary.losses)
        missing = [loss for loss in losses if loss.severity != "info"]
        notes = [loss for loss in losses if loss.severity == "info"]
        text = Text() if missing else Text("nothing")
        for number, loss in enumerate(missing):
            text.append("\n" if number else "")
            text.append(f"{loss.count:,} {self.shown(loss.what.replace('_', ' '))}. ", style=_WARNING)
            text.append(self.shown(loss.advice))
        if notes:
            named = ", ".join(f"{loss.count:,} {self.shown(loss.what.replace('_', ' '))}" for loss in notes)
            text.append("\n" if missing else "; ").append(f"for information: {named}", style=_QUIET)
        return text

    def first(self) -> RenderableType:
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(no_wrap=True, overflow=self.overflow)
        grid.add_column(ratio=1, overflow="fold")
        sign = ">" if self.ascii else "▶"
        grid.add_row(Text(f"{sign} look first", style=f"{_STRONG} {_POINT}"), Text(self.shown(self.summary.look_first)))
        return grid

    def meter(self, fraction: float, width: int) -> Text:
        """Draw a fraction of the first entry's bar, to half a cell."""
        halves = round(2 * fraction * width)
        if self.ascii:
            return Text("#" * (halves // 2), style=_OURS)
        return Text("━" * (halves // 2) + "╸" * (halves % 2), style=_OURS)

    def shown(self, text: object) -> str:
        """Return text from the trace as the terminal can show it, on one line."""
        text = str(text)
        if len(text) > _LONGEST:
            text = text[:_LONGEST] + ("..." if self.ascii else "…")
        return printable(text).encode(self.encoding, "backslashreplace").decode(self.encoding)

    def sign(self, part: str) -> str:
        _, unicode, plain = _PARTS[part]
        if self.ascii:
            return plain
        return "█" if self.coloured else unicode

    def time(self, ns: float) -> str:
        return duration_text(ns, micro="u" if self.ascii else "µ")

    def separator(self) -> str:
        return " | " if self.ascii else " · "


def _program(manifest: Manifest) -> str:
    named = manifest.get("worker") or manifest.get("imported_from") or ""
    return PurePath(str(named)).name


def _where(summary: Summary, manifest: Manifest) -> Iterator[str]:
    for framework in FRAMEWORKS.values():
        described = manifest.get("collectors", {}).get(framework.operators.name, {})
        if isinstance(described, dict) and described.get("version"):
            yield f"{framework.title} {described['version']}"
    if manifest.get("source") == "import":
        yield "imported"
    yield ", ".join(summary.devices) if summary.on_device else "cpu"
    world = manifest.get("world_size") or 1
    yield f"rank {manifest.get('rank', 0)}" + (f" of {world}" if world != 1 else "")
    status = str(manifest.get("status", "complete"))
    if status != "complete":
        yield status


def _recorder(manifest: Manifest) -> str:
    """Return who recorded PyTorch's operators, and why not the native recorder; empty if nothing did."""
    described = manifest.get("collectors", {}).get("torch", {})
    recorder = described.get("recorder") if isinstance(described, dict) else None
    if recorder == "kineto":
        reason = described.get("native")
        return f"Kineto, not natively: {reason}" if reason else "Kineto"
    return "the native recorder" if recorder == "native" else ""


def _by_name(losses: Iterable[Loss]) -> list[Loss]:
    """Return one loss a name; which source lost how much stands in the table."""
    found: dict[str, Loss] = {}
    for loss in losses:
        before = found.get(loss.what)
        found[loss.what] = replace(loss, count=loss.count + before.count) if before else loss
    return list(found.values())


def _how_found(summary: Summary, manifest: Manifest) -> str:
    by = str(manifest.get("steps", {}).get("by", ""))
    if not summary.steps.inferred:
        return f"declared by {by}" if by else "marked in the trace"
    return "found by the optimizer" if "optimizer" in by else by or "inferred"


def _loading(workers: int | None) -> str:
    if workers is None:
        return ""
    return f", {count_text(workers, 'worker')}" if workers else ", no workers"


def _cells(parts: tuple[StepPart, ...], width: int) -> list[int]:
    """Share ``width`` cells out by largest remainder."""
    exact = [part.share * width for part in parts]
    cells = [int(each) for each in exact]
    by_remainder = sorted(range(len(parts)), key=lambda part: cells[part] - exact[part])
    for part in by_remainder[: max(0, width - sum(cells))]:
        cells[part] += 1
    return cells


def _short(name: str) -> str:
    """Return a C++ kernel's name without what all of them begin with; any other name as it is."""
    for noise in ("void ", "at::native::", "(anonymous namespace)::"):
        name = name.replace(noise, "")
    return name
