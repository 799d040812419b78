"""All findings in the terminal, one below the other with their evidence: ``stepscope report --findings``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from stepscope.advise.finding import Finding
from stepscope.report.terminal.console_page import QUIET, STRONG, ConsolePage


def render_findings(findings: Sequence[Finding], step_ns: float | None, console: Console) -> None:
    """Print findings, each with what it saves, its evidence, the change, and the page that explains its cause.

    Args:
        findings: The findings, the most important first.
        step_ns: Time of a step, of which a gain is a share; None if unknown.
        console: Where to print.
    """
    page = _FindingPage(console)
    page.print(page.parts(findings, step_ns))


class _FindingPage(ConsolePage):
    """Findings from top to bottom."""

    def parts(self, findings: Sequence[Finding], step_ns: float | None) -> Iterator[RenderableType]:
        yield Text()
        if not findings:
            yield Text("Nothing stands out.")
        for number, finding in enumerate(findings, 1):
            yield Text(f"{number}  {self.shown(finding.title)}", style=STRONG)
            yield self.labelled(self.facts(finding, step_ns))
            yield Text()

    def facts(self, finding: Finding, step_ns: float | None) -> Iterator[tuple[str, Text]]:
        yield "change", Text(self.shown(finding.remedy))
        if finding.gain_ns is not None:
            saves = self.saves(finding, step_ns)
            yield "gain", saves.append(f"{self.separator}{self.shown(finding.basis)}", style=QUIET)
        for place, one in enumerate(finding.evidence):
            where = f"{self.separator}{one.result}" if one.result else ""
            yield "" if place else "evidence", Text(self.shown(one.text)).append(where, style=QUIET)
        if finding.check:
            yield "check", Text(self.shown(finding.check))
        yield (
            "cause",
            Text(
                f"{finding.cause}, {finding.confidence.value}{self.separator}docs/findings.md#{finding.cause}",
                style=QUIET,
            ),
        )
