"""The summary of a job: one screen at any number of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stepscope.advise.finding import MISFITS, Finding
from stepscope.advise.job_findings import job_verdict
from stepscope.analyse.quantities import count_text, number_text, percent_text
from stepscope.cluster.job_summary import (
    JobCommunication,
    JobPipeline,
    JobSummary,
    OperatorOverRanks,
    OverRanks,
    RankNumbers,
    over_ranks,
)
from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.report.terminal.console_page import LABEL, OURS, QUIET, STRONG, WARNING, ConsolePage
from stepscope.report.terminal.run_lines import histogram
from stepscope.trace.losses import CATALOGUE, loss_text, note_text

#: Lines of the screen at 80 columns.
LINES = 40
#: Findings and kinds of losses that are told; the files have all.
_TOLD, _LOSSES = 3, 2
#: So few ranks besides those that stand out are rows of the table, and no distribution.
_FEW = 4
#: Lines that the operators take besides their own: a heading, and an empty line above it.
_AROUND = 2


@dataclass(frozen=True)
class _Detail:
    """How much is told.

    Attributes:
        lines: Lines of a text about a finding.
        facts: Lines of another fact.
        ranks: Misfits, and ranks that stand out.
        operators: Operators, at least.
        phases: Whether the phases of the step are told.
    """

    lines: int
    facts: int
    ranks: int
    operators: int = 0
    phases: bool = False


#: From the most to the least; the first is taken that there is room for.
_DETAILS = (
    _Detail(3, 3, 6, 2, phases=True),
    _Detail(2, 2, 4, 2, phases=True),
    _Detail(2, 2, 3, 2),
    _Detail(2, 1, 3, 2),
    _Detail(2, 1, 2),
    _Detail(1, 1, 2),
)


@dataclass(frozen=True)
class JobPage:
    """What the screen shows of a job.

    Attributes:
        program: What it is named after.
        summary: Its numbers.
        findings: Its findings, in the order of ``findings.json``.
        below: Number of lines that are printed below it.
    """

    program: str
    summary: JobSummary
    findings: Sequence[Finding]
    below: int = 0


def render_job(job: JobPage, console: Console) -> None:
    """Print the screen of a job; see :class:`~.console_page.ConsolePage`."""
    page = JobScreen(job, console)
    page.print(page.parts())


def rank_list(ranks: Iterable[int], most: int = 6) -> str:
    """Return ranks with consecutive ones as ranges: ``0-7, 12, 16-23``; of many, the first and how many more."""
    numbered = enumerate(sorted(ranks))
    runs = [[rank for _, rank in group] for _, group in groupby(numbered, key=lambda one: one[1] - one[0])]
    named = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:most]]
    more = sum(map(len, runs[most:]))
    return ", ".join(named) + (f" and {more:,} more" if more else "")


class JobScreen(ConsolePage):
    """The parts of the screen, from top to bottom."""

    def __init__(self, job: JobPage, console: Console) -> None:
        super().__init__(console)
        self.job = job
        self.summary = job.summary
        self.misfits = [finding for finding in job.findings if finding.cause in MISFITS]
        self.others = [finding for finding in job.findings if finding.cause not in MISFITS]
        self.detail = _DETAILS[0]

    def parts(self) -> list[RenderableType]:
        """Return the parts with as much detail as there is room for."""
        for self.detail in _DETAILS:
            above, below = list(self.above()), list(self.below())
            left = LINES - self.job.below - len(self.lines([*above, *below]))
            fewest = min(self.detail.operators, len(self.summary.operators))
            if left >= (fewest + _AROUND if fewest else 0):
                break
        if operators := self.summary.operators[: max(left - _AROUND, 0)]:
            above += [Text(), self.operators(operators)]
        return [*above, *below]

    def above(self) -> Iterator[RenderableType]:
        """Yield what stands above the operators."""
        yield Text()
        yield self.title(self.job.program, self.where())
        yield Rule(style=QUIET, characters="-" if self.ascii else "─")
        for finding in self.misfits[: self.detail.ranks]:
            yield self.cut(Text(f"! {self.shown(finding.title)}", style=WARNING), self.inside, self.detail.facts)
        if len(self.misfits) > self.detail.ranks:
            yield Text(f"! {len(self.misfits) - self.detail.ranks} more do not fit: findings.json", style=WARNING)
        sentence = job_verdict(self.job.findings, self.summary, self.time)
        yield self.cut(Text(self.shown(sentence), style=STRONG), self.inside, self.detail.lines + 1)
        if self.others:
            yield Text()
            yield self.findings(self.others[:_TOLD], sentence, self.summary.step_ns, self.detail.lines)
        yield Text()
        yield from self.ranks()
        yield from self.steps()

    def below(self) -> Iterator[RenderableType]:
        """Yield what stands below the operators."""
        yield Text()
        width = self.inside - LABEL - 1
        yield self.labelled((label, self.cut(fact, width, self.detail.facts)) for label, fact in self.facts())
        yield Text()

    def where(self) -> Iterator[str]:
        """Yield where the job ran: frameworks, devices, ranks and hosts."""
        for module, version in self.summary.frameworks[:2]:
            title = FRAMEWORKS[module].title if module in FRAMEWORKS else module
            yield f"{title} {version}".rstrip()
        for device, count in self.summary.devices[:2]:
            yield device if len(self.summary.devices) == 1 else f"{count:,} {'x' if self.ascii else '×'} {device}"
        there = len({rank.rank for rank in self.summary.ranks})
        world = self.summary.world_size
        missing = world is not None and world != there
        hosts = f" on {count_text(self.summary.hosts, 'host')}" if self.summary.hosts else ""
        yield (f"{there:,} of {world:,} ranks" if missing else count_text(there, "rank")) + hosts

    def ranks(self) -> Iterator[RenderableType]:
        """Yield the ranks that findings name as a table, and the others as a distribution; few others as rows, too."""
        named = dict.fromkeys(rank for finding in [*self.others, *self.misfits] for rank in finding.ranks)
        by_rank = {rank.rank: rank for rank in self.summary.ranks}
        standing = [by_rank[rank] for rank in named if rank in by_rank]
        rest = [rank for rank in self.summary.ranks if rank.rank not in named]
        told, more = standing[: self.detail.ranks], standing[self.detail.ranks :]
        if len(rest) <= _FEW and not more:
            told, rest = told + rest, []
        if told:
            yield self.table(told)
        if more:
            yield Text(f"and {len(more):,} more ranks that findings name", style=QUIET)
        distributed = [(label, over) for label, over in self.distributed(rest) if over is not None]
        if distributed:
            yield self.distribution("other ranks" if standing else "ranks", distributed)

    def table(self, ranks: Sequence[RankNumbers]) -> RenderableType:
        """Return a row for each rank."""
        grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
        for heading in ("rank", "step", "own time", "speed", "waits", "arrives last"):
            grid.add_column(heading, justify="right", no_wrap=True, overflow=self.overflow)
        grid.add_column("host", no_wrap=True, overflow=self.overflow)
        for rank in ranks:
            times = (rank.step_ns, rank.own_ns)
            grid.add_row(
                Text(str(rank.rank), style=STRONG),
                *(self.dash if value is None else self.time(value) for value in times),
                self.dash if rank.speed is None else f"{rank.speed:.2f}",
                self.dash if rank.wait_ns is None else self.amount(rank.wait_ns),
                f"{rank.times_last} of {rank.meetings}" if rank.meetings else self.dash,
                self.shown(rank.host or self.dash),
            )
        return grid

    def distributed(self, ranks: Sequence[RankNumbers]) -> Iterator[tuple[str, OverRanks | None]]:
        """Yield the numbers that are shown as a distribution."""
        yield "own time", over_ranks(rank.own_ns for rank in ranks)
        yield "waits", over_ranks(rank.wait_ns for rank in ranks)

    def distribution(self, heading: str, rows: Sequence[tuple[str, OverRanks]]) -> RenderableType:
        """Return one row a number: its lowest, quartiles and highest over ranks, and their histogram."""
        grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
        grid.add_column(f"{rows[0][1].ranks:,} {heading}", no_wrap=True, overflow=self.overflow)
        for name in ("min", "25 %", "median", "75 %", "max"):
            grid.add_column(name, justify="right", no_wrap=True, overflow=self.overflow)
        grid.add_column("", no_wrap=True, overflow=self.overflow)
        for label, over in rows:
            numbers = (over.lowest, over.quarter, over.median, over.three_quarters, over.highest)
            drawn = histogram(over.counts, ascii_only=self.ascii) if over.lowest < over.highest else ""
            grid.add_row(label, *map(self.amount, numbers), Text(drawn, style=OURS))
        return grid

    def steps(self) -> Iterator[RenderableType]:
        """Yield how long a step takes and what it consists of; nothing without steps."""
        if self.summary.step_ns is None:
            return
        yield Text()
        split = [entry.part for entry in self.summary.split]
        yield self.flow(self.durations(self.summary.step_ns))
        if split:
            yield self.bar(split)
        if split or self.summary.not_recorded:
            ranges = [self.between(entry.lowest_ns, entry.highest_ns) for entry in self.summary.split]
            yield self.legend(split, self.summary.not_recorded, ranges)
        if self.summary.phases and self.detail.phases:
            yield self.phases(entry.part for entry in self.summary.phases)

    def durations(self, step_ns: float) -> list[Text]:
        """Return how many steps there are, and how long they take on the ranks."""
        known = [rank.step_ns for rank in self.summary.ranks if rank.step_ns is not None]
        facts = [
            Text(count_text(self.summary.steps, "step"), style=STRONG),
            Text(f"median {self.time(step_ns)}", style=STRONG),
            Text(f"{self.between(min(known), max(known))} over {'the' if len(known) > 1 else '1 of the'} ranks"),
        ]
        there = sum(rank.steps is not None for rank in self.summary.ranks)
        if self.summary.split and self.summary.split_ranks < there:
            facts.append(Text(f"parts of {self.summary.split_ranks:,} of {there:,} ranks", style=QUIET))
        return facts

    def operators(self, entries: Sequence[OperatorOverRanks]) -> RenderableType:
        """Return a row for each operator."""
        heading = "kernels by time" if self.summary.on_device else "operators by self time"
        table = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
        table.add_column(heading, ratio=1, no_wrap=True, overflow=self.overflow)
        for name in ("calls/step", "time/step", "over ranks", "most on", "share"):
            table.add_column(name, justify="right", no_wrap=True, overflow=self.overflow)
        for entry in entries:
            over = self.between(entry.lowest_ns, entry.highest_ns)
            differs = self.time(entry.lowest_ns) != self.time(entry.highest_ns)
            table.add_row(
                Text(self.shown(entry.name), no_wrap=True, overflow=self.overflow),
                Text(number_text(entry.count), style=QUIET),
                self.time(entry.median_ns),
                Text(over if differs else "", style=QUIET),
                Text(f"rank {entry.highest_rank}" if differs else "", style=QUIET),
                Text(percent_text(entry.share), style=STRONG),
            )
        return table

    def facts(self) -> Iterator[tuple[str, Text]]:
        """Yield what is known besides, each with its label."""
        if self.summary.unlike:
            yield "not typical", Text(self.unlike(), style=WARNING)
        if self.summary.communication is not None:
            yield "collectives", Text(self.communication(self.summary.communication))
        if self.summary.pipeline is not None:
            yield "pipeline", Text(self.pipeline(self.summary.pipeline))
        yield "clocks", self.clocks()
        yield "lost", self.losses()

    def unlike(self) -> str:
        """Say whose recorded steps are unlike the other steps of the run."""
        first, *more = self.summary.unlike
        said = (
            f"the recorded steps of rank {first.rank} take {self.time(first.recorded_ns)}, "
            f"its other {first.others:,} {self.time(first.others_ns)}"
        )
        return f"{said}; nor are those of rank {rank_list(one.rank for one in more)}" if more else said

    def communication(self, found: JobCommunication) -> str:
        """Return number and times of the collectives."""
        named = (("exposed", found.exposed_ns), ("overlapped", found.overlapped_ns))
        of_time = ", ".join(f"{self.amount(ns)} {name}" for name, ns in named if ns is not None)
        facts = [f"{number_text(found.count)} a step", *([of_time] if of_time else [])]
        if found.wait_ns is not None and found.transit_ns is not None:
            waiting, moving = self.amount(found.wait_ns), self.amount(found.transit_ns)
            facts.append(f"{waiting} waiting for others, {moving} moving data")
        return "; ".join(facts)

    def pipeline(self, found: JobPipeline) -> str:
        """Return what the stages compute, and how long they wait for each other."""
        said = f"{found.stages} stages, each computes {self.between(found.shortest_ns, found.longest_ns)} a step"
        if found.least_bubble is None or found.most_bubble is None:
            return said
        ends = dict.fromkeys(map(percent_text, (found.least_bubble, found.most_bubble)))
        return f"{said}; bubbles, in which it waits for another stage: {' to '.join(ends)} of the step"

    def clocks(self) -> Text:
        """Return whose clocks are aligned."""
        clocks = self.summary.clocks
        text = Text()
        if clocks.aligned:
            uncertainty = (
                f" to {'+-' if self.ascii else '±'}{self.time(clocks.uncertainty_ns)}" if clocks.uncertainty_ns else ""
            )
            text.append(f"{count_text(clocks.aligned, 'rank')} aligned{uncertainty}")
        for reason, ranks in clocks.unknown[:2]:
            text.append("; " if text else "")
            text.append(f"rank {rank_list(ranks)} not aligned: {self.shown(reason)}", style=WARNING)
        return text

    def losses(self) -> Text:
        """Say what is missing and on which ranks; what is only worth knowing in a few words."""
        missing = [loss for loss in self.summary.losses if loss.severity != "info"]
        notes = [loss for loss in self.summary.losses if loss.severity == "info"]
        text = Text() if missing else Text(self.nothing())
        if gone := len(self.summary.unreadable):
            text = Text(f"{count_text(gone, 'rank')} left out. ", style=WARNING).append("\n" if missing else "")
        for number, loss in enumerate(missing[:_LOSSES]):
            ranks = "every rank" if len(loss.ranks) == len(self.summary.ranks) else f"rank {rank_list(loss.ranks)}"
            text.append("\n" if number else "")
            text.append(f"{self.shown(loss_text(loss.what, loss.count))} on {ranks}. ", style=WARNING)
            text.append(CATALOGUE[loss.what][1].split(". ")[0].rstrip(".") + "." if loss.what in CATALOGUE else "")
        if len(missing) > _LOSSES:
            text.append(f" {len(missing) - _LOSSES} more kinds.", style=WARNING)
        if notes:
            named = "; ".join(note_text(loss.what, loss.count) for loss in notes)
            text.append(" " if missing or gone else "; ").append(f"for information: {self.shown(named)}", style=QUIET)
        return text

    def nothing(self) -> str:
        """Say that nothing was lost, and how that is known."""
        there, checked = len(self.summary.ranks), self.summary.checked
        if checked:
            of = "" if checked == there else f" of {checked:,} of {there:,} ranks"
            return f"nothing (checked against the files' own totals{of})"
        return (
            "nothing that the files show (they state no totals to check against)"
            if self.summary.imported
            else "nothing"
        )
