"""What every page in the terminal shares: its width, what the terminal can show, and how its lines are laid out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, OverflowMethod, RenderableType
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from stepscope.advise.finding import Finding
from stepscope.analyse.quantities import duration_text, percent_text
from stepscope.analyse.step.summary import StepPart
from stepscope.report.safe_text import printable

#: Wider than this the eye loses the line.
_WIDEST = 104
#: Characters of one text from the trace, so that a name of a megabyte leaves room for the rest.
_LONGEST = 300
#: Width of the labels in front of the single facts.
LABEL = 12

STRONG, QUIET, WARNING, OURS, POINT = "bold", "dim", "yellow", "#2fa37c", "#e0a030"
#: Colour of each part of the step, distinct also without red and green, on dark and light ground; and
#: its sign without colour, in Unicode and in ASCII.
_PARTS: dict[str, tuple[str, str, str]] = {
    "computing": ("#2fa37c", "█", "#"),
    "communication": ("#8f7ee7", "▓", "="),
    "copy": ("#4aa3d8", "▒", "+"),
    "data wait": ("#e0a030", "░", "~"),
    "sync": ("#c85a9b", "▞", "*"),
    "host only": ("#d9705f", "▚", "-"),
    "idle": ("#80868f", "·", "."),
}


class ConsolePage:
    """A page of text for a console.

    On a terminal it is in colour; elsewhere, and with NO_COLOR, it is plain text with signs in place of colours. Names
    from the trace are shown as text, whatever is in them. Nothing is wider than the console.

    Args:
        console: Where to print.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = min(console.width, _WIDEST)
        self.inside = self.width - 2
        self.ascii = console.options.ascii_only
        self.overflow: OverflowMethod = "crop" if self.ascii else "ellipsis"
        self.coloured = console.color_system is not None and not console.no_color
        self.separator = " | " if self.ascii else " · "
        self.dash = "-" if self.ascii else "–"

    def lines(self, parts: Iterable[RenderableType]) -> list[list[Segment]]:
        """Return the lines that some parts take, each without the spaces at its end, so that a log of it has none."""
        options = self.console.options.update(width=self.width, highlight=False)
        page = Padding(Group(*parts), (0, 1))
        return [_stripped(line) for line in self.console.render_lines(page, options, pad=False)]

    def print(self, parts: Iterable[RenderableType]) -> None:
        """Print parts below each other."""
        for line in self.lines(parts):
            self.console.print(Segments([*line, Segment.line()]), end="", soft_wrap=True)

    def title(self, program: str, where: Iterable[str]) -> RenderableType:
        """Return the first line: stepscope and the program, and on the right what it ran on."""
        name = Text.assemble(("stepscope", f"{STRONG} {OURS}"), (f"  {self.shown(program)}", STRONG), overflow="fold")
        right = Text(self.separator.join(map(self.shown, where)), style=QUIET)
        if name.cell_len + 2 + right.cell_len > self.inside:
            right.justify, right.overflow = "right", "fold"
            return Group(name, right)
        return name.append(" " * (self.inside - name.cell_len - right.cell_len)).append_text(right)

    def flow(self, facts: Iterable[Text], gap: int = 3) -> Text:
        """Put facts beside each other, and on the next line where they do not fit."""
        lines = [Text()]
        for fact in facts:
            if lines[-1] and lines[-1].cell_len + gap + fact.cell_len > self.inside:
                lines.append(Text())
            lines[-1].append(" " * gap if lines[-1] else "").append_text(fact)
        return Text("\n").join(lines)

    def labelled(self, facts: Iterable[tuple[str, Text]]) -> RenderableType:
        """Return facts below each other, each behind its label."""
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=LABEL, style=QUIET, no_wrap=True, overflow=self.overflow)
        grid.add_column(ratio=1, overflow="fold")
        for label, fact in facts:
            grid.add_row(label, fact)
        return grid

    def bar(self, split: Sequence[StepPart]) -> RenderableType:
        """Draw the parts of the step as one bar."""
        line = Text(no_wrap=True)
        for part, cells in zip(split, _cells(split, self.inside), strict=True):
            # The same colour behind the sign closes the seams that some fonts leave between blocks.
            colour = _PARTS[part.name][0]
            line.append(self.sign(part.name) * cells, style=f"{colour} on {colour}" if self.coloured else colour)
        return line

    def legend(self, split: Sequence[StepPart], unknown: Iterable[str], times: Iterable[str] = ()) -> RenderableType:
        """Name the parts in columns of one width, as many as fit; parts that take no time are left out.

        Args:
            split: The parts.
            unknown: Names of parts that are not known.
            times: The time of each part, in words; by default that in the mean step.
        """
        items = []
        for part, time in zip(split, times or [self.time(part.mean_ns) for part in split], strict=True):
            if part.total_ns:
                sign = "■" if self.coloured and not self.ascii else self.sign(part.name)
                item = Text.assemble((f"{sign} ", _PARTS[part.name][0]), f"{part.name} ")
                item.append(percent_text(part.share), style=STRONG)
                items.append(item.append(f" {time}", style=QUIET))
        items += [Text(f"{name} {self.dash}", style=QUIET) for name in unknown]
        widest = max((item.cell_len for item in items), default=0) + 3
        columns = max(1, min(len(items), (self.inside + 3) // widest))
        grid = Table.grid(padding=(0, 3, 0, 0))
        for _ in range(columns):
            grid.add_column(no_wrap=True, overflow=self.overflow)
        for first in range(0, len(items), columns):
            grid.add_row(*items[first : first + columns])
        return grid

    def between(self, low: float, high: float) -> str:
        """Return a range of times with the unit once, where it is the same: ``52.0–59.0 ms``."""
        first, last = self.time(low), self.time(high)
        number, _, unit = first.partition(" ")
        if first == last:
            return last
        return f"{number if last.endswith(f' {unit}') else first}{self.dash}{last}"

    def cut(self, text: Text, width: int, most: int) -> Text:
        """Return a text of at most ``most`` lines."""
        lines = list(text.wrap(self.console, width))
        if len(lines) > most:
            del lines[most:]
            lines[-1].truncate(width - 3 if self.ascii else width - 1)
            lines[-1].rstrip()
            lines[-1].append("..." if self.ascii else "…")
        return Text("\n").join(lines)

    def findings(self, findings: Sequence[Finding], sentence: str, step_ns: float | None, lines: int) -> RenderableType:
        """Return findings with what they save: of the one in the first sentence the change, of others the title.

        Args:
            findings: Those that are told.
            sentence: The first sentence of the page.
            step_ns: Time of a step, of which a gain is a share; None if unknown.
            lines: Most lines of one text.
        """
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=2)
        width = self.inside - 3
        grid.add_column(width=width, overflow="fold")
        for number, finding in enumerate(findings, 1):
            told_above = finding.title.rstrip(".") == sentence.rstrip(".")
            head = Text(self.shown(finding.remedy if told_above else finding.title), style=STRONG)
            told = Text(self.shown("; ".join(one.text for one in finding.evidence[:2])), style=QUIET)
            saves = self.saves(finding, step_ns)
            gap = width - head.cell_len - saves.cell_len
            if gap > 1:
                head.append(" " * gap).append_text(saves)
            elif saves:
                told = saves.append(self.separator, style=QUIET).append_text(told)
            grid.add_row(Text(str(number), style=f"{STRONG} {POINT}"), self.cut(head, width, lines))
            grid.add_row("", self.cut(told, width, lines))
        return grid

    def saves(self, finding: Finding, step_ns: float | None) -> Text:
        """Return what a finding saves, with its share of the step; empty if unknown."""
        if finding.gain_ns is None:
            return Text()
        low, high = finding.gain_low_ns, finding.gain_high_ns
        time = self.time(finding.gain_ns) if low is None or high is None else self.between(low, high)
        whole = finding.step_ns or step_ns
        share = f" ({percent_text(finding.gain_ns / whole)})" if whole else ""
        return Text(f"saves {time}{share}", style=OURS)

    def phases(self, phases: Iterable[StepPart]) -> RenderableType:
        """Name the phases that take time, each with its time in the mean step."""
        known = (part for part in phases if part.total_ns)
        named = (Text.assemble(f"{part.name} ", (self.time(part.mean_ns), QUIET)) for part in known)
        return self.flow(named, gap=2)

    def shown(self, text: object) -> str:
        """Return text from the trace as the terminal can show it, on one line."""
        text = str(text)
        if len(text) > _LONGEST:
            text = text[:_LONGEST] + ("..." if self.ascii else "…")
        encoding = self.console.encoding
        return printable(text).encode(encoding, "backslashreplace").decode(encoding)

    def sign(self, part: str) -> str:
        """Return the sign of a part of the step."""
        _, unicode, plain = _PARTS[part]
        if self.ascii:
            return plain
        return "█" if self.coloured else unicode

    def time(self, ns: float) -> str:
        """Return nanoseconds as text that the terminal can show."""
        return duration_text(ns, micro="u" if self.ascii else "µ")

    def amount(self, ns: float) -> str:
        """Return how long something takes that may not be there at all."""
        return self.time(ns) if round(ns) else "none"


def _stripped(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.strip(" "):
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(" "), kept[-1].style)
    return kept


def _cells(parts: Sequence[StepPart], width: int) -> list[int]:
    """Share ``width`` cells out by largest remainder."""
    exact = [part.share * width for part in parts]
    cells = [int(each) for each in exact]
    by_remainder = sorted(range(len(parts)), key=lambda part: cells[part] - exact[part])
    for part in by_remainder[: max(0, width - sum(cells))]:
        cells[part] += 1
    return cells
