"""A comparison on one screen of 80 columns: the verdict, what became slower, what differs exactly, the gates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stepscope.analyse.quantities import bytes_text, count_text, percent_text
from stepscope.comparison.comparison import TURNS, Comparison
from stepscope.comparison.gates import FAILED, PASSED, Outcome
from stepscope.comparison.part_changes import PartChange
from stepscope.comparison.verdict import FASTER, SLOWER
from stepscope.comparison.wording import calls_text, headline, interval_text, part_name, promise, short_name, signed
from stepscope.report.terminal.console_page import OURS, POINT, QUIET, STRONG, WARNING, ConsolePage

#: Parts, counts, rows of memory and notes that are told; the files have all.
_PARTS, _COUNTS, _MEMORY, _NOTES = 6, 4, 3, 6


def render_comparison(found: Comparison, outcomes: Sequence[Outcome], console: Console) -> None:
    """Print a comparison and what came of the limits."""
    page = ConsolePage(console)
    page.print(ComparisonScreen(page, found).parts(outcomes))


class ComparisonScreen:
    """The parts of the screen from top to bottom; and its texts, for other pages."""

    def __init__(self, page: ConsolePage, found: Comparison) -> None:
        self.page = page
        self.found = found

    def parts(self, outcomes: Sequence[Outcome]) -> Iterator[RenderableType]:
        """Return the screen from top to bottom."""
        page, found = self.page, self.found
        yield page.title("compare", self.where())
        yield Rule(style=QUIET, characters="-" if page.ascii else "─")
        yield page.flow(self.sides())
        colour = {SLOWER: POINT, FASTER: OURS}.get(found.verdict, "")
        yield Text(page.shown(headline(found)), style=f"{STRONG} {colour}".rstrip())
        if rows := list(self.changed()):
            grid = Table.grid(padding=(0, 2, 0, 0))
            grid.add_column(overflow="ellipsis", no_wrap=True, ratio=3)
            grid.add_column(overflow="ellipsis", no_wrap=True, ratio=2, style=QUIET)
            grid.add_column(justify="right", no_wrap=True, min_width=max(len(row[2]) for row in rows))
            grid.add_column(no_wrap=True, style=QUIET, min_width=max(len(row[3]) for row in rows))
            for name, *others in rows:
                grid.add_row(f"  {name}", *others)
            yield grid
        if facts := list(self.facts(outcomes)):
            yield Text()
            yield page.labelled(facts)

    def where(self) -> Iterator[str]:
        """Yield framework, device, and the rank of a job that is compared."""
        about = self.found.a.environment
        yield from filter(None, (about.get("framework", ""), about.get("device", "")))
        if self.found.rank is not None:
            size = about.get("ranks")
            yield f"rank {self.found.rank}{f' of {size}' if size else ''}"

    def sides(self) -> list[Text]:
        """Return the names of the sides, and how they were compared."""
        names = [self.page.shown(_side(self.found, side)) for side in (0, 1)]
        return [Text(" -> ".join(names)), self._design()]

    def _design(self) -> Text:
        step = self.found.step
        runs = step.runs if step is not None else (len(self.found.a.runs), len(self.found.b.runs))
        if self.found.design == TURNS:
            took = f", {self.found.took_s:.0f} s" if self.found.took_s is not None else ""
            return Text(f"{count_text(runs[0], 'pair')} in turns{took}", style=QUIET)
        return Text(f"{runs[0]} and {count_text(runs[1], 'run')}", style=QUIET)

    def changed(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the parts that surely changed; without one, the phases, where nothing else can be compared."""
        parts = self.found.parts
        if parts is None:
            return
        for part in parts.sure[:_PARTS]:
            yield self.page.shown(part_name(part)), self._detail(part), self.page.shown(signed(part.change_ns)), "sure"
        if len(parts.sure) > _PARTS:
            yield f"and {len(parts.sure) - _PARTS} more", "", "", ""
        if not parts.parts:
            for phase in parts.phases:
                times = (self.page.shown("–") if ns is None else self.page.time(ns) for ns in (phase.a_ns, phase.b_ns))
                yield self.page.shown(phase.name), "", " -> ".join(times), ""

    def _detail(self, part: PartChange) -> str:
        return self.page.shown(", ".join(filter(None, (part.module or part.phase, calls_text(part)))))

    def facts(self, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, Text]]:
        """Yield what is known besides, each with its label."""
        found = self.found
        yield from (("note", Text(self.page.shown(note), style=WARNING)) for note in found.notes[:_NOTES])
        if len(found.notes) > _NOTES:
            yield "", Text(f"{len(found.notes) - _NOTES} more differences are in the JSON", style=QUIET)
        if (
            found.mean is not None
            and found.step is not None
            and found.mean.verdict not in (found.verdict, "one run a side")
        ):
            yield (
                "mean",
                Text(f"{found.mean.verdict}: {self.page.shown(interval_text(found.mean))}, a part of the steps"),
            )
        yield from (("memory", Text(self.page.shown(text))) for text in self._memory())
        yield from (("calls", Text(self.page.shown(text))) for text in self._counts())
        yield from (("replaced", Text(self.page.shown(text))) for text in self._replaced())
        if found.compilations[0] != found.compilations[1] and None not in found.compilations:
            yield "compiled", Text(f"{found.compilations[0]} times -> {found.compilations[1]}")
        if machine := self._machine():
            yield "machine", Text(self.page.shown(machine))
        if found.prediction is not None:
            yield "predicted", Text(self.page.shown(promise(found.prediction)))
        for side, lost in zip("AB", found.losses, strict=True):
            if lost:
                yield "lost", Text(self.page.shown(f"{side}: {', '.join(lost)}"), style=WARNING)
        for outcome in outcomes:
            style = {FAILED: WARNING, PASSED: OURS}.get(outcome.outcome, POINT)
            name = outcome.outcome.upper() if outcome.outcome == FAILED else outcome.outcome
            yield "gate", Text(self.page.shown(f"{outcome.rule} {name}: {outcome.why}"), style=style)

    def _memory(self) -> Iterator[str]:
        what = {"allocated": "peak", "reserved": "reserved", "taken": "allocated a step"}
        rows = [row for row in self.found.memory if row.a is not None and row.b is not None and row.a != row.b]
        for row in sorted(rows, key=lambda row: -abs((row.b or 0) - (row.a or 0)))[:_MEMORY]:
            share = (row.b or 0) / (row.a or 1) - 1
            exact = "varies between runs" if row.varies else "exact"
            sizes = f"{bytes_text(row.a or 0)} -> {bytes_text(row.b or 0)}"
            yield f"{what[row.what]} {sizes} ({share:+.1%}) on {row.device}, {exact}"

    def _counts(self) -> Iterator[str]:
        """Yield the calls a step that differ exactly: those that vary inside a run are in the files."""
        parts = self.found.parts.parts if self.found.parts is not None else []
        calls: dict[str, list[float]] = {}
        for part in parts:
            of = calls.setdefault(part.name, [0.0, 0.0])
            of[0], of[1] = of[0] + part.calls_a, of[1] + part.calls_b
        told = {part.name for part in parts if part.sure or part.varies}  # sure ones are above, with their calls
        rest = {name: of for name, of in calls.items() if of[0] != of[1] and name not in told}
        changed = [f"{short_name(name)} {a:g} -> {b:g}" for name, (a, b) in rest.items() if a and b]
        gone, new = ([short_name(name) for name, of in rest.items() if not of[side]] for side in (1, 0))
        for label, names in (("", changed), ("gone: ", gone), ("new: ", new)):
            if names:
                yield label + _several(names)

    def _replaced(self) -> Iterator[str]:
        """Yield what runs in the place of something else without a change of time that is sure."""
        parts = self.found.parts.parts if self.found.parts is not None else []
        pairs = [part for part in parts if part.name_a != part.name_b and part.name_a and part.name_b and not part.sure]
        if names := list(dict.fromkeys(map(part_name, pairs))):
            yield _several(names)

    def _machine(self) -> str:
        facts, (before, after) = [], self.found.machine.delay
        if before is not None and after is not None:
            same = percent_text(before) == percent_text(after)
            waited = (
                f"{percent_text(before)} on both sides" if same else f"{percent_text(before)} and {percent_text(after)}"
            )
            facts.append(f"waited for a core {waited}")
        if self.found.step is not None and self.found.step.spread is not None:
            source = "" if self.found.step.spread_from == "these runs" else f" ({self.found.step.spread_from})"
            facts.append(f"repeats itself to {100 * self.found.step.spread:.1f} %{source}")
        return self.page.separator.join(facts)


def _several(names: Sequence[str]) -> str:
    more = f", {len(names) - _COUNTS} more" if len(names) > _COUNTS else ""
    return f"{', '.join(names[:_COUNTS])}{more}"


def _side(found: Comparison, side: int) -> str:
    one = (found.a, found.b)[side]
    return " ".join(filter(None, (one.name, one.revision)))
