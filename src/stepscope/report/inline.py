"""Runs, findings and comparisons as a notebook shows them: the screen of the terminal as text, and as HTML.

Every text of a run is escaped; the HTML holds no script. Its colours follow the theme of Jupyter and VS Code, elsewhere
that of the system. The timeline is the page of ``stepscope report --html`` in a frame of its own.
"""

from __future__ import annotations

import io
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch
from html import escape
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.text import Text

from stepscope.advise.finding import MISFITS, Finding, Findings
from stepscope.advise.job_findings import job_verdict
from stepscope.advise.rank_findings import rank_findings, rank_sentence
from stepscope.analyse.quantities import number_text, percent_text
from stepscope.analyse.results import Result
from stepscope.analyse.step.summary import Entry, StepPart, Summary
from stepscope.collect.start.profile import profile
from stepscope.comparison.comparison import Comparison
from stepscope.comparison.verdict import SLOWER
from stepscope.comparison.wording import headline
from stepscope.errors import StepscopeError
from stepscope.notebook_display import NotebookDisplay
from stepscope.report.job_files import JobAnswer, job_answer, job_name
from stepscope.report.page.content import Shown
from stepscope.report.page.one_file import html
from stepscope.report.safe_text import printable
from stepscope.report.terminal.comparison_screen import ComparisonScreen, render_comparison
from stepscope.report.terminal.console_page import ConsolePage
from stepscope.report.terminal.finding_pages import render_findings
from stepscope.report.terminal.job_screen import JobPage, JobScreen, render_job
from stepscope.report.terminal.printed_summary import SummaryPage, render
from stepscope.report.terminal.run_lines import run_lines
from stepscope.run import CaptureRun, RankRun, Run

#: Columns of the text.
_WIDTH = 100
#: Findings, operators and ranks that are shown; characters of a text, and of a name in a table.
_TOLD, _NAMED, _RANKS, _LONGEST, _NAME = 3, 5, 8, 300, 100
#: Seconds that a profile waits for the results that another process computes.
_PATIENCE = 120.0
#: Parts of a step with their colours on light and dark ground; those of the page (`page/src/colours.ts`).
_PARTS = {
    "computing": ("#434fc8", "#72adf5"),
    "communication": ("#955733", "#dd8208"),
    "copy": ("#b78d12", "#f6dd8c"),
    "data wait": ("#12a1a5", "#5fa785"),
    "sync": ("#5b2e5e", "#9c52b1"),
    "host only": ("#364b00", "#accb1a"),
    "idle": ("#c4cad3", "#4a5463"),
}
_LIGHT = (
    "--ground:var(--jp-layout-color0,#fff);--panel:#f3f4f7;--line:#d5d9df;--text:#1a1d21;--quiet:#555d6b;"
    "--accent:#0b5cad;--warning:#8a4b00;color-scheme:light;"
)
_DARK = (
    "--ground:var(--jp-layout-color0,#14171c);--panel:#22272f;--line:#3a424d;--text:#e6e8eb;--quiet:#a9b2bd;"
    "--accent:#6cb2ff;--warning:#ffb454;color-scheme:dark;"
)
#: ``&`` stands for the block, thrice: the notebook's own rules for tables and paragraphs must not win.
_STYLE = """\
.stepscope,[data-jp-theme-light="true"] .stepscope,.vscode-light .stepscope{LIGHT}
@media (prefers-color-scheme:dark){.stepscope{DARK}}
[data-jp-theme-light="false"] .stepscope,.vscode-dark .stepscope{DARK}
&{background:var(--ground);color:var(--text);border:1px solid var(--line);border-radius:6px;padding:12px 16px;
max-width:960px;box-sizing:border-box;font:13px/1.45 system-ui,sans-serif;font-variant-numeric:tabular-nums;
text-align:left;overflow-wrap:anywhere}
& p{margin:0 0 8px;padding:0}
& .head{display:flex;flex-wrap:wrap;gap:0 10px;margin:0 0 8px}
& .head>:last-child,& .where{margin-left:auto}
& .brand{color:var(--accent);font-weight:700}
& .quiet{color:var(--quiet)}
& .warning{color:var(--warning)}
& .verdict{font-size:15px;font-weight:600}
& .told>span{margin-right:14px;white-space:nowrap}
& .told i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px;border:0}
& .bar{display:flex;gap:1px;height:14px;border-radius:3px;overflow:hidden;margin:0 0 6px}
& .bar i{min-width:0;flex-basis:0}
& details{border:1px solid var(--line);border-radius:6px;background:var(--panel);padding:5px 10px;margin:0 0 6px}
& summary{cursor:pointer;font-weight:600}
& .gain{color:var(--accent);float:right;margin-left:12px}
& details p,& details ul{margin:6px 0 0;font-weight:400;padding-left:18px}
& details p{padding-left:0}
& code{font:12px ui-monospace,Menlo,Consolas,monospace;background:none;color:inherit;padding:0}
& table{width:100%;border-collapse:collapse;margin:8px 0 0;font-size:12px;table-layout:auto;border:0}
& tr,& tbody tr:nth-child(odd){background:none}
& td,& th{padding:2px 12px 2px 0;border:0;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;
max-width:none;white-space:nowrap;font-weight:400;background:none;color:inherit}
& th{color:var(--quiet)}
& td:first-child,& th:first-child{text-align:left;white-space:normal;width:60%}
& .facts td{text-align:left;white-space:normal;border:0}
& .facts td:first-child{width:100px;color:var(--quiet);white-space:nowrap}
& .foot{margin:8px 0 0;font-size:12px}
"""


def bundle(thing: NotebookDisplay) -> dict[str, str]:
    """Return what a notebook shows of something, by MIME type; an error is one line."""
    try:
        return _bundle(thing)
    except StepscopeError as error:
        return _both(str(error), [_paragraph(error, "warning")])


class RunTimeline(NotebookDisplay):
    """The timeline of a rank, and its other pages, in a notebook: what :meth:`stepscope.Run.timeline` returns.

    Args:
        run: The run.
        rank: Number of the rank; by default the one to look at first.
        height: Pixels.
    """

    def __init__(self, run: Run, rank: int | None = None, *, height: int = 640) -> None:
        self.run = run
        self.rank = rank
        self.height = height

    @property
    def html(self) -> str:
        """The frame: the page runs in it as if it came from nowhere, and cannot reach the notebook.

        Raises:
            UsageError: The run has no such rank, or the browser side is not in this installation.
        """
        page = html(Shown.of(self.run, self.rank), first="timeline").decode()
        style = f"width:100%;height:{self.height}px;border:1px solid #8888;border-radius:6px;box-sizing:border-box"
        title = f"Timeline of {_shown(self.run.path)}"
        return (
            f'<iframe title="{title}" sandbox="allow-scripts" allow="clipboard-write" style="{style}" '
            f'srcdoc="{escape(page)}"></iframe>'
        )


@singledispatch
def _bundle(thing: NotebookDisplay) -> dict[str, str]:
    return {"text/plain": repr(thing)}


@_bundle.register
def _of_timeline(timeline: RunTimeline) -> dict[str, str]:
    said = f"The timeline of {timeline.run.path} is for a browser: stepscope report {timeline.run.path} --html"
    return {"text/plain": said, "text/html": timeline.html}


@_bundle.register
def _of_run(run: Run) -> dict[str, str]:
    if len(run.ranks) == 1:
        return _of_rank(run.ranks[0])
    answer = job_answer(run)
    job = JobPage(job_name(run), answer.summary, answer.findings)
    screen = JobScreen(job, _console())
    return _both(_text(lambda console: render_job(job, console)), [*_job(screen, answer), _foot(run.path)])


@_bundle.register
def _of_rank(rank: RankRun) -> dict[str, str]:
    findings, summary, sentence = rank_findings(rank), rank.summary, rank_sentence(rank)
    page = SummaryPage(summary, findings, rank.manifest, _console())
    parts = [
        _head(page.program, page.where()),
        *_judged(page, sentence, findings, summary.steps.mean_ns or None),
        *_numbers(page),
        "" if summary.operators or summary.kernels else _lines(page, rank.result("python_lines")),
        _foot(rank.captures[0].root if isinstance(rank, CaptureRun) else rank.directory.path.parent),
    ]
    return _both(_text(lambda console: render(summary, findings, rank.manifest, console, sentence)), parts)


@_bundle.register
def _of_summary(summary: Summary) -> dict[str, str]:
    console = _console()
    page = SummaryPage(summary, (), {}, console)
    page.print(page.numbers())
    return _both(_printed(console), [_head("", [f"on {', '.join(summary.devices) or 'cpu'}"]), *_numbers(page)])


@_bundle.register
def _of_findings(findings: Findings) -> dict[str, str]:
    page = ConsolePage(_console())
    told = [_finding(page, number, finding, "", None) for number, finding in enumerate(findings, 1)]
    text = _text(lambda console: render_findings(findings, None, console))
    return _both(text, told or [_paragraph("Nothing stands out.", "verdict")])


@_bundle.register
def _of_finding(finding: Finding) -> dict[str, str]:
    text = _text(lambda console: render_findings([finding], None, console))
    return _both(text, [_finding(ConsolePage(_console()), 1, finding, "", None, opened=True)])


@_bundle.register
def _of_comparison(found: Comparison) -> dict[str, str]:
    screen = ComparisonScreen(ConsolePage(_console()), found)
    sides, design = screen.sides()
    kind = "verdict warning" if found.verdict == SLOWER else "verdict"
    parts = [
        _head("compare", screen.where()),
        f"<p>{_shown(sides)} <span class=quiet>{_shown(design)}</span></p>",
        _paragraph(headline(found), kind),
        _table(("part of the step", "", "change", ""), screen.changed()),
        _facts(screen.facts(())),
    ]
    return _both(_text(lambda console: render_comparison(found, (), console)), parts)


@_bundle.register
def _of_profile(recording: profile) -> dict[str, str]:
    if recording.recorded:
        last = recording.recorded[-1]
        last.wait(_PATIENCE)
        return _of_run(last.open())
    said = f"stepscope.profile: nothing is recorded yet, step {recording.step_number}."
    return _both(said, [_paragraph(said, "quiet")])


def _job(screen: JobScreen, answer: JobAnswer) -> Iterator[str]:
    """Yield what the screen of a job shows."""
    summary, findings = answer.summary, answer.findings
    yield _head(screen.job.program, screen.where())
    yield from (_paragraph(finding.title, "warning") for finding in findings if finding.cause in MISFITS)
    others = [finding for finding in findings if finding.cause not in MISFITS]
    yield from _judged(screen, job_verdict(findings, summary, screen.time), others, summary.step_ns)
    if summary.step_ns is not None:
        yield _told(screen.durations(summary.step_ns))
    times = [screen.between(entry.lowest_ns, entry.highest_ns) for entry in summary.split]
    yield _split(screen, [entry.part for entry in summary.split], summary.not_recorded, times)
    named = dict.fromkeys(rank for finding in findings for rank in finding.ranks)
    ranks = sorted(summary.ranks, key=lambda one: (one.rank not in named, one.rank))[:_RANKS]

    def known(ns: float | None) -> str:
        return screen.dash if ns is None else screen.time(ns)

    rows = [
        (f"rank {one.rank}{f' on {one.host}' if one.host else ''}", *map(known, (one.step_ns, one.own_ns, one.wait_ns)))
        for one in ranks
    ]
    yield _table((f"{len(ranks)} of {len(summary.ranks)} ranks", "step", "own time", "waits"), rows)
    heading = "kernels by time" if summary.on_device else "operators by self time"
    operators = [
        (one.name, number_text(one.count), screen.time(one.median_ns), percent_text(one.share))
        for one in summary.operators[:_NAMED]
    ]
    yield _table((heading, "calls/step", "time/step", "share"), operators)
    yield _facts(screen.facts())


def _judged(page: ConsolePage, sentence: str, findings: Sequence[Finding], step_ns: float | None) -> Iterator[str]:
    yield _paragraph(sentence, "verdict")
    for number, finding in enumerate(findings[:_TOLD], 1):
        yield _finding(page, number, finding, sentence, step_ns)
    if len(findings) > _TOLD:
        yield _paragraph(f"{len(findings) - _TOLD} more: run.findings", "quiet")


def _finding(
    page: ConsolePage, number: int, finding: Finding, sentence: str, step_ns: float | None, *, opened: bool = False
) -> str:
    """Return a finding, to be unfolded; that of the first sentence begins with the change."""
    told_above = finding.title.rstrip(".") == sentence.rstrip(".")
    head = finding.remedy if told_above else finding.title
    saves = page.saves(finding, step_ns).plain
    evidence = "".join(f"<li>{_shown(one.text)}</li>" for one in finding.evidence)
    below = ("" if told_above else _paragraph(finding.remedy, "")) + (f"<ul>{evidence}</ul>" if evidence else "")
    check = f"check: <code>{_shown(finding.check)}</code> · " if finding.check else ""
    return (
        f"<details{' open' if opened else ''}><summary>{f'<span class=gain>{_shown(saves)}</span>' if saves else ''}"
        f"{number}&nbsp; {_shown(head)}</summary>{below}"
        f"<p class=quiet>{check}{_shown(finding.cause)}, {_shown(finding.confidence.value)}"
        f"{f': {_shown(finding.basis)}' if finding.basis else ''}</p></details>"
    )


def _numbers(page: SummaryPage) -> Iterator[str]:
    """Yield what the summary of a rank says in numbers."""
    summary = page.summary
    yield _told(page.durations())
    yield _split(page, page.split, summary.not_recorded, [page.time(part.mean_ns) for part in page.split])
    phases = [f"{part.name} {page.time(part.mean_ns)}" for part in summary.phases if part.total_ns]
    yield _told([Text(phase, style="dim") for phase in phases])
    operators = "operators by self time" if summary.sampled == 1 else "operators, of a sample"
    for heading, entries in ((operators, summary.operators), ("device work by time", summary.kernels)):
        yield _entries(page, heading, entries[:_NAMED])
    yield _facts([*run_lines(summary.run, page.time, _WIDTH, ascii_only=False), *page.known()])


def _lines(page: SummaryPage, found: Result) -> str:
    """Return the lines of Python that take the time of the main thread, which is the first."""
    if not isinstance(found, pl.DataFrame) or found.is_empty():
        return ""
    own = (pl.col("Thread") == found["Thread"][0]) & (pl.col("Samples") > 0) & pl.col("File").is_not_null()
    rows = [
        (
            f"{Path(line['File']).name}:{line['Line']} {line['Function']}",
            page.time(1000 * (line["Self per Step(us)"] or line["Self(us)"])),
            percent_text(line["Share(%)"] / 100),
        )
        for line in found.filter(own).head(_NAMED).iter_rows(named=True)
    ]
    return _table(("lines of Python by self time, sampled", "time/step", "share"), rows)


def _entries(page: SummaryPage, heading: str, entries: Sequence[Entry]) -> str:
    per = "/step" if page.summary.steps.count else ""
    rows = [
        (
            one.name,
            number_text(one.count / page.steps),
            page.time(one.total_ns / page.steps),
            percent_text(one.share),
        )
        for one in entries
    ]
    return _table((heading, f"calls{per}", f"time{per}", "share"), rows)


def _split(page: ConsolePage, split: Sequence[StepPart], unknown: Iterable[str], times: Sequence[str]) -> str:
    """Return the parts of the step as a bar, and their names, shares and times."""
    there = [(part, time) for part, time in zip(split, times, strict=True) if part.total_ns]
    colour = "background:var(--{})"
    cells = [f'<i style="flex-grow:{part.share:.4f};{colour.format(_slug(part.name))}"></i>' for part, _ in there]
    names = [
        f'<span><i style="{colour.format(_slug(part.name))}"></i>{_shown(part.name)} <b>{percent_text(part.share)}</b> '
        f"<span class=quiet>{_shown(time)}</span></span>"
        for part, time in there
    ]
    names += [f"<span class=quiet>{_shown(name)} {page.dash}</span>" for name in unknown]
    label = ", ".join(f"{part.name} {percent_text(part.share)}" for part, _ in there)
    bar = f'<div class=bar role=img aria-label="{_shown(label)}">{"".join(cells)}</div>' if cells else ""
    return bar + (f"<p class=told>{''.join(names)}</p>" if names else "")


def _head(program: str, where: Iterable[str]) -> str:
    told = " · ".join(_shown(one) for one in where)
    names = f"<span class=brand>stepscope</span><b>{_shown(program)}</b>"
    return f"<div class=head>{names}<span class=quiet>{told}</span></div>"


def _paragraph(text: object, kind: str) -> str:
    return f'<p class="{kind}">{_shown(text)}</p>'


def _told(texts: Iterable[Text]) -> str:
    """Return facts beside each other; what the terminal shows strong or quiet is so here."""
    names = {"bold": "b", "dim": "span class=quiet"}
    told = [
        f"<span><{name}>{_shown(text)}</{name.split()[0]}></span>"
        for text in texts
        for name in [names.get(str(text.style), "span")]
    ]
    return f"<p class=told>{''.join(told)}</p>" if told else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    names = "".join(f"<th>{_shown(name)}</th>" for name in head)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>" if body else ""


def _cell(text: str) -> str:
    if len(text) <= _NAME:
        return f"<td>{_shown(text)}</td>"
    return f'<td title="{_shown(text)}">{_shown(text[: _NAME - 1])}…</td>'


def _facts(facts: Iterable[tuple[str, Text]]) -> str:
    rows = "".join(
        f"<tr><td>{_shown(label)}</td><td>{'<br>'.join(map(_shown, text.plain.splitlines()))}</td></tr>"
        for label, text in facts
    )
    return f"<table class=facts><tbody>{rows}</tbody></table>" if rows else ""


def _foot(path: Path) -> str:
    return f"<p class='quiet foot'><code>{_shown(path)}</code></p>"


def _slug(name: str) -> str:
    return name.replace(" ", "-") if name in _PARTS else "idle"


def _shown(text: object) -> str:
    """Return a text, of which a run may hold any, as HTML that shows it."""
    text = str(text)
    return escape(printable(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"))


def _both(text: str, parts: Iterable[str]) -> dict[str, str]:
    page = f"<div class=stepscope><style>{_style()}</style>{''.join(parts)}</div>"
    return {"text/plain": _with_cells(text), "text/html": _with_cells(page)}


def _with_cells(text: str) -> str:
    """Return a text with the cells of this notebook by their numbers, instead of the files that IPython gives them."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    label = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)
    for file in list(linecache.cache):
        if (cell := label(file)) is not None:
            for name in (file, Path(file).name):
                text = text.replace(f"{name}:", f"{cell[1]}:").replace(f"({name})", f"({cell[1]})")
    return text


def _style() -> str:
    parts = ["".join(f"--{_slug(name)}:{both[side]};" for name, both in _PARTS.items()) for side in (0, 1)]
    styled = _STYLE.replace("&", ".stepscope.stepscope.stepscope")
    return styled.replace("LIGHT", _LIGHT + parts[0]).replace("DARK", _DARK + parts[1])


def _console() -> Console:
    return Console(file=io.StringIO(), width=_WIDTH, color_system=None, force_jupyter=False, force_terminal=False)


def _text(print_to: Callable[[Console], None]) -> str:
    console = _console()
    print_to(console)
    return _printed(console)


def _printed(console: Console) -> str:
    return str(console.file.getvalue()).strip("\n")  # type: ignore[attr-defined]
