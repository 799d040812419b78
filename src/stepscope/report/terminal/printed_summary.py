"""The summary in the terminal: how long a step takes, what it consists of, and what would make it shorter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import PurePath

from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stepscope.advise.finding import Finding
from stepscope.advise.verdict import rank_verdict
from stepscope.analyse.quantities import bytes_text, count_text, number_text, percent_text, rate_text
from stepscope.analyse.step.summary import Entry, StepPart, Summary
from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.report.terminal.console_page import LABEL, OURS, QUIET, STRONG, WARNING, ConsolePage
from stepscope.report.terminal.run_lines import preempted_text, run_lines, spread_text
from stepscope.trace.losses import Loss, loss_text, note_text
from stepscope.trace.manifest import Manifest

#: Findings that are told, and lines of a text about one.
_TOLD, _LINES = 3, 3
#: Operators and kernels named.
_NAMED = 5
#: Narrower than this, names need the room more than the shares' bars.
_METERS_FROM = 72
#: Width of a column of rates.
_RATE = 14


def render(
    summary: Summary, findings: Sequence[Finding], manifest: Manifest, console: Console, sentence: str | None = None
) -> None:
    """Print the summary of a rank; see :class:`~.console_page.ConsolePage`.

    Args:
        summary: What to show.
        findings: The findings of the rank, the most important first; three are told.
        manifest: The rank's manifest; what it lacks is left out.
        console: Where to print.
        sentence: The first sentence; None for what findings and summary give.
    """
    page = SummaryPage(summary, findings, manifest, console)
    page.print(page.parts(sentence or rank_verdict(findings, summary)))


class SummaryPage(ConsolePage):
    """The parts of one summary, from top to bottom; and its texts, for other pages."""

    def __init__(self, summary: Summary, findings: Sequence[Finding], manifest: Manifest, console: Console) -> None:
        super().__init__(console)
        self.findings_of_rank = findings
        self.summary = summary
        self.manifest = manifest
        self.steps = max(summary.steps.count, 1)

    def parts(self, sentence: str) -> Iterator[RenderableType]:
        """Yield the screen from top to bottom, below its title the sentence."""
        yield Text()
        yield self.title(self.program, self.where())
        yield Rule(style=QUIET, characters="-" if self.ascii else "─")
        yield self.cut(Text(self.shown(sentence), style=STRONG), self.inside, _LINES + 1)
        if self.findings_of_rank:
            yield Text()
            yield self.findings(self.findings_of_rank[:_TOLD], sentence, self.summary.steps.mean_ns or None, _LINES)
        yield Text()
        yield from self.numbers()

    def numbers(self) -> Iterator[RenderableType]:
        """Yield what stands below the findings."""
        yield self.flow(self.durations())
        yield self.labelled(run_lines(self.summary.run, self.time, self.inside - LABEL - 1, ascii_only=self.ascii))
        if (self.split or self.summary.not_recorded) and self.summary.steps.total_ns:
            yield Text()
            if self.split:
                yield self.bar(self.split)
            yield self.legend(self.split, self.summary.not_recorded)
            if self.summary.phases:
                yield self.phases(self.summary.phases)
        sampled = self.summary.sampled
        host = "operators by self time" if sampled == 1 else f"operators, {number_text(100 * sampled)} % sample"
        tables = ((host, self.summary.operators), ("device work by time", self.summary.kernels))
        for heading, entries in tables:
            if entries:
                yield Text()
                yield self.entries(heading, entries[:_NAMED])
        yield Text()
        yield self.facts()
        yield Text()

    @property
    def split(self) -> Sequence[StepPart]:
        """The parts of the step; none if nothing is recorded that could work: all of it would count as idle."""
        parts = self.summary.split
        worked = self.summary.operators or self.summary.kernels
        return parts if worked or any(part.share and part.name != "idle" for part in parts) else ()

    @property
    def program(self) -> str:
        """What was recorded."""
        named = self.manifest.get("worker") or self.manifest.get("imported_from") or ""
        return PurePath(str(named)).name

    def where(self) -> Iterator[str]:
        """Yield where it ran: framework, devices, rank, and its status unless it is complete."""
        for framework in FRAMEWORKS.values():
            described = self.manifest.get("collectors", {}).get(framework.operators.name, {})
            if isinstance(described, dict) and described.get("version"):
                yield f"{framework.title} {described['version']}"
        if self.manifest.get("source") == "import":
            yield "imported"
        yield self._device()
        world = self.manifest.get("world_size") or 1
        yield f"rank {self.manifest.get('rank', 0)}" + (f" of {world}" if world != 1 else "")
        status = str(self.manifest.get("status", "complete"))
        if status != "complete":
            yield "end unknown" if status == "unknown" else status

    def _device(self) -> str:
        """Return the devices that worked; of a trace that does not show the work, those that have memory."""
        summary = self.summary
        if summary.on_device:
            return ", ".join(_ranges(summary.devices))
        unknown = "computing" in summary.not_recorded
        others = [peak.device for peak in summary.memory if peak.device != "cpu"]
        if others and (unknown or not summary.steps.total_ns):
            return ", ".join(_ranges(others))
        return "device unknown" if unknown else "cpu"

    def durations(self) -> list[Text]:
        """Return how many steps there are, how long they take, and how they were found."""
        steps = self.summary.steps
        if not steps.count:
            whole = f"the whole recording: {self.time(steps.total_ns)}" if steps.total_ns else "no event with a time"
            found = "no steps recorded" if self.summary.run.count else "no steps found"
            return [Text(found, style=STRONG), Text(whole, style=QUIET)]
        several = [
            Text(f"mean {self.time(steps.mean_ns)}", style=STRONG),
            Text(f"median {self.time(steps.p50_ns)}"),
            Text(spread_text(steps, self.time)),
        ]
        return [
            Text(count_text(steps.count, "step"), style=STRONG),
            *(several if steps.count > 1 else [Text(self.time(steps.mean_ns), style=STRONG)]),
            Text(f"{number_text(steps.per_second)} steps/s", style=QUIET),
            Text(self.shown(_how_found(self.summary, self.manifest)), style=QUIET),
            *([Text(self.of_device(*steps.of_device), style=WARNING)] if steps.of_device else []),
        ]

    def of_device(self, shortest: float, median: float, longest: float) -> str:
        """Say how long the steps are for the device, where the host runs ahead of it."""
        spread = f" ({self.time(shortest)} to {self.time(longest)})" if shortest < longest else ""
        return f"the host runs ahead: for the device, a step lasts {self.time(median)}{spread}"

    def entries(self, heading: str, entries: Sequence[Entry]) -> RenderableType:
        """Return a row for each operator."""
        per = "/step" if self.summary.steps.count else ""
        table = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
        table.add_column(heading, ratio=1, no_wrap=True, overflow=self.overflow)
        for name in (f"calls{per}", f"time{per}", "share"):
            table.add_column(name, justify="right", no_wrap=True, overflow=self.overflow)
        errors = any(entry.error_ns for entry in entries)
        if errors:
            table.add_column("+-" if self.ascii else "±", justify="right", no_wrap=True, overflow=self.overflow)
        rates = any(entry.flops for entry in entries)
        if rates:
            table.add_column("rate", justify="right", no_wrap=True, overflow=self.overflow)
        meter = self.inside // 6 if self.inside >= _METERS_FROM + (_RATE if rates else 0) else 0
        if meter:
            table.add_column(width=meter, no_wrap=True)
        largest = max(entry.share for entry in entries)
        for entry in entries:
            table.add_row(
                Text(self.shown(entry.name), no_wrap=True, overflow=self.overflow),
                Text(number_text(entry.count / self.steps), style=QUIET),
                self.time(entry.total_ns / self.steps),
                Text(percent_text(entry.share), style=STRONG),
                *([Text(percent_text(entry.error_ns / entry.total_ns), style=QUIET)] if errors else []),
                *([rate_text(entry.flops, entry.total_ns) if entry.flops else ""] if rates else []),
                *([self.meter(entry.share / largest if largest else 0.0, meter)] if meter else []),
            )
        return table

    def facts(self) -> RenderableType:
        """Return what is known besides."""
        return self.labelled(self.known())

    def known(self) -> Iterator[tuple[str, Text]]:
        """Yield what is known besides: data wait, garbage, memory, losses; and nothing about what was not recorded."""
        waits, garbage = self.summary.data_wait, self.summary.garbage
        if self.summary.preempted:
            yield "operators", Text(preempted_text(self.summary, self.time))
        if self.summary.sampled < 1:
            recorded = f"{number_text(100 * self.summary.sampled)} % of the operators was recorded"
            error = f"calls and times are estimates, with their standard error ({'+-' if self.ascii else '±'})"
            idle = "; idle is also what only the host does" if self.summary.split else ""
            yield "sample", Text(f"{recorded}: {error}{idle}")
        if waits.count:
            each, exposed = (self.time(ns / self.steps) for ns in (waits.total_ns, waits.exposed_ns))
            hidden = "" if waits.exposed_ns == waits.total_ns else f", {exposed} of it while nothing else worked"
            of = "a step" if self.summary.steps.count else "altogether"
            yield "data wait", Text(f"{each} {of}{hidden}{_loading(waits.workers)}")
        if garbage.count:
            pauses = count_text(garbage.count, "pause")
            share = f"{percent_text(garbage.share)} of the steps"
            yield "garbage", Text(f"{pauses} of Python's collector, {self.time(garbage.total_ns)}, {share}")
        if self.summary.not_recorded:
            yield "not recorded", Text(f"{', '.join(self.summary.not_recorded)}: not in this capture")
        memory = list(self.memory())
        if memory:
            yield "memory peak", Text(self.separator.join(memory))
        for one in self.summary.exhausted:
            free = "" if one.free is None else f", {bytes_text(one.free)} were free"
            line = f" ({self.shown(one.line)})" if one.line else ""
            times = f"; {one.count} requests failed" if one.count > 1 else ""
            refused = f"{self.shown(one.device)} did not have {bytes_text(one.asked)}{free}{line}{times}"
            yield "no memory", Text(refused, style=WARNING)
        recorder = _recorder(self.manifest)
        if recorder:
            yield "recorded by", Text(self.shown(recorder), style=QUIET)
        yield "lost", self.losses()

    def memory(self) -> Iterator[str]:
        """Yield the peak of each device."""
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
        text = Text() if missing else Text(self.nothing())
        for number, loss in enumerate(missing):
            text.append("\n" if number else "")
            text.append(f"{self.shown(loss_text(loss.what, loss.count))}. ", style=WARNING)
            text.append(self.shown(loss.advice))
        if notes:
            named = "; ".join(self.shown(note_text(loss.what, loss.count)) for loss in notes)
            text.append("\n" if missing else "; ").append(f"for information: {named}", style=QUIET)
        return text

    def nothing(self) -> str:
        """Say that nothing was lost, and how that is known."""
        if self.summary.totals_compared:
            return "nothing (checked against the file's own totals)"
        # A recorder of ours counts its losses itself; a file of another tool shows only what is visibly damaged.
        of_others = self.manifest.get("source") == "import"
        return "nothing that the file shows (it states no totals to check against)" if of_others else "nothing"

    def meter(self, fraction: float, width: int) -> Text:
        """Draw a fraction of the first entry's bar, to half a cell."""
        halves = round(2 * fraction * width)
        if self.ascii:
            return Text("#" * (halves // 2), style=OURS)
        return Text("━" * (halves // 2) + "╸" * (halves % 2), style=OURS)


def _ranges(devices: Iterable[str]) -> Iterator[str]:
    """Write devices of consecutive numbers as one: ``cuda:0-7``."""
    split = [device.rpartition(":") for device in devices]
    numbered = sorted((kind, int(number)) for kind, _, number in split if number.isdecimal())
    yield from (device for device, (_, _, number) in zip(devices, split, strict=True) if not number.isdecimal())
    for (kind, _), group in groupby(enumerate(numbered), key=lambda one: (one[1][0], one[1][1] - one[0])):
        numbers = [number for _, (_, number) in group]
        yield f"{kind}:{numbers[0]}" + (f"-{numbers[-1]}" if len(numbers) > 1 else "")


def _recorder(manifest: Manifest) -> str:
    """Return who recorded PyTorch's operators, and why not the native recorder; empty if nothing did."""
    described = manifest.get("collectors", {}).get("torch", {})
    recorder = described.get("recorder") if isinstance(described, dict) else None
    if recorder == "kineto":
        reason = described.get("native")
        return f"Kineto, not natively: {reason}" if reason else "Kineto"
    return "the native recorder" if recorder == "native" else ""


def _by_name(losses: Iterable[Loss]) -> list[Loss]:
    """Return one loss a name and advice, of those for information one a name; the table has the sources."""
    found: dict[tuple[str, str], Loss] = {}
    for loss in losses:
        key = loss.what, "" if loss.severity == "info" else loss.advice
        before = found.get(key)
        found[key] = replace(loss, count=loss.count + before.count) if before else loss
    return list(found.values())


def _how_found(summary: Summary, manifest: Manifest) -> str:
    by = str(manifest.get("steps", {}).get("by", ""))
    if not summary.steps.inferred:
        return f"declared by {by}" if by else "marked in the trace"
    if by.startswith("the whole "):
        return by
    return f"found by {'the optimizer' if 'optimizer' in by else by}" if by else "inferred"


def _loading(workers: int | None) -> str:
    if workers is None:
        return ""
    return f", {count_text(workers, 'worker')}" if workers else ", no workers"
