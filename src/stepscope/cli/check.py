"""Print what a run or capture holds, and what was lost; nothing is written.

Of a job of several ranks, this is said of all ranks together. The exit code is 3 if its ranks do not fit together:
some are missing, also if one alone is there; some are there twice, or cannot be read; or they contradict each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.run import RankRun, Run

HELP = "say what is in a run and what was lost"

#: What a collector counts: key in the manifest, and one of it.
_COUNTED = {
    "waits": "wait",
    "collections": "collection",
    "samples": "sample",
    "calls": "call",
    "buffers": "buffer",
    "parts": "part",
}
#: What the recorder of a framework's operators delivers: one of it, and the kinds of its spans.
_WORK = {
    "operator": ("operator",),
    "device event": ("kernel", "memcpy", "memset"),
    "collective": ("collective",),
}


#: Exit code for ranks of a job that do not fit together.
MISFIT = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``check``."""
    options.add_run(parser)
    options.add_rank(parser, "of a job of several ranks: show rank N by itself; or every rank, below each other")


def execute(arguments: argparse.Namespace) -> int:
    """Print what a run holds, of a job over all its ranks; exit with 3 if its ranks do not fit together."""
    from stepscope.cli.outputs import keep_one
    from stepscope.report.safe_text import printable
    from stepscope.run import Run

    console = options.output_console()
    fits = True
    with options.reading_progress(quiet=False) as progress:
        run = Run(arguments.run, progress=progress)
        if isinstance(arguments.rank, int):
            keep_one(run, arguments.rank)
        if len(run.ranks) > 1:
            fits = _show_job(run, console)
        if len(run.ranks) == 1 or arguments.rank is not None:
            for rank in run.ranks:
                _show(rank, console)
        if len(run.ranks) == 1 and arguments.rank is None and run.ranks[0].said.world_sizes:
            fits = not run.rank_problems
            for sentence in run.rank_problems:
                console.print(f"{'does not fit':<22} {printable(sentence)}", markup=False, soft_wrap=True)
    for capture in run.left_out:
        console.print(f"{'left out':<22} {printable(f'{capture.name}: {capture.fault}')}", markup=False, soft_wrap=True)
    return 0 if fits else MISFIT


def _show_job(run: Run, console: Console) -> bool:
    """Print what a job holds, and return whether its ranks fit together."""
    from stepscope.advise.finding import MISFITS
    from stepscope.analyse.quantities import bytes_text, count_text
    from stepscope.report.job_files import job_answer
    from stepscope.report.safe_text import printable
    from stepscope.report.terminal.job_screen import rank_list
    from stepscope.trace.losses import CATALOGUE

    answer = job_answer(run)
    summary = answer.summary
    unreadable = {name for name, _ in summary.unreadable}
    readable = [rank for rank in run.ranks if rank.directory.path.name not in unreadable]
    captures = [capture for rank in readable for capture in rank.captures]
    states: dict[str, dict[int, str]] = {}
    for rank in readable:
        for name, said in _collectors(rank, numbers=False).items():
            states.setdefault(name, {})[rank.rank] = said
    facts = {
        "ranks": f"{len({rank.rank for rank in readable}):,} of {summary.world_size or 'an unknown number'}",
        "hosts": summary.hosts or "not known of every rank",
        "status": _by_rank({rank.rank: str(rank.manifest.get("status", "unknown")) for rank in readable}),
        "captures": f"{len(captures):,} ({bytes_text(sum(capture.size for capture in captures))})",
        "steps": _by_rank({rank.rank: count_text(rank.steps or 0, "step") for rank in summary.ranks}),
        "clocks": f"{count_text(summary.clocks.aligned, 'rank')} aligned",
        **{name: _by_rank(said) for name, said in states.items()},
    }
    for name, value in facts.items():
        console.print(f"{name:<22} {printable(str(value))}", markup=False, soft_wrap=True)
    console.print(f"{'losses':<22}{'' if summary.losses else ' none'}", markup=False)
    for loss in summary.losses:
        text = f"  {loss.count:,} × {loss.what} ({loss.severity}, rank {rank_list(loss.ranks)})"
        advice = f": {CATALOGUE[loss.what][1]}" if loss.what in CATALOGUE else ""
        console.print(printable(text + advice), markup=False, soft_wrap=True)
    # A clock that cannot be aligned limits what can be known of the job; its ranks fit together.
    misfits = [found for found in answer.findings if found.cause in MISFITS - {"clock-uncalibrated"}]
    for finding in misfits:
        console.print(f"{'does not fit':<22} {printable(finding.title)}", markup=False, soft_wrap=True)
    return not misfits


def _by_rank(said: dict[int, str]) -> str:
    """Return what ranks say: once if they say the same, else each thing with its ranks."""
    from stepscope.report.terminal.job_screen import rank_list

    ranks: dict[str, list[int]] = {}
    for rank, text in said.items():
        ranks.setdefault(text, []).append(rank)
    if len(ranks) == 1:
        return next(iter(ranks))
    return "; ".join(
        f"{text} (rank {rank_list(of)})" for text, of in sorted(ranks.items(), key=lambda one: -len(one[1]))
    )


def _show(rank: RankRun, console: Console) -> None:
    import polars as pl

    from stepscope.analyse.quantities import bytes_text
    from stepscope.report.safe_text import printable

    manifest = rank.manifest
    counts = {name: int(frame.select(pl.len()).collect().item()) for name, frame in rank.tables.items()}
    size = manifest.get("world_size") or ("an unknown number" if rank.rank else 1)
    facts = {
        "rank": f"{rank.rank} of {size}",
        "status": manifest.get("status", "unknown"),
        "captures": ", ".join(f"{capture.name} ({bytes_text(capture.size)})" for capture in rank.captures),
        "tables": ", ".join(f"{name} {count:,}" for name, count in counts.items() if count),
        "steps": _steps(rank),
        **_collectors(rank),
    }
    for name, value in facts.items():
        console.print(f"{name:<22} {printable(str(value))}", markup=False, soft_wrap=True)
    losses = rank.tables["losses"].collect().rows(named=True)
    none = " none in its files; what its manifest counted is not known" if facts["status"] == "unknown" else " none"
    console.print(f"{'losses':<22}{'' if losses else none}", markup=False)
    for loss in losses:
        text = f"  {loss['count']:,} × {loss['what']} ({loss['severity']}, {loss['source']}): {loss['advice']}"
        console.print(printable(text), markup=False, soft_wrap=True)


def _steps(rank: RankRun) -> str:
    steps = rank.tables["steps"].select("number", "source").collect()
    if steps.is_empty():
        return "none found"
    numbers = sorted(steps["number"].to_list())
    return f"{len(numbers)} ({numbers[0]} to {numbers[-1]}, {steps['source'][0]})"


def _collectors(rank: RankRun, *, numbers: bool = True) -> dict[str, str]:
    """Return what each collector recorded, in words: what it counted, or how much of it is in the tables.

    Args:
        rank: Whose collectors.
        numbers: Whether to say how many of what it recorded.
    """
    from stepscope.collect.frameworks import FRAMEWORKS

    manifest = rank.manifest
    states: dict[str, dict[str, Any]] = manifest.get("collectors", {})
    of_operators = {framework.operators.name for framework in FRAMEWORKS.values()}
    said = {name: _not_recorded(state) for name, state in states.items()}
    using = [name for name in of_operators & states.keys() if not said[name]]
    for name, state in states.items():
        if said[name]:
            continue
        if manifest.get("status") == "recording":
            said[name] = "recording when the process ended; how much, only its captures say"
        elif name in using:
            several = " by all frameworks together" if len(using) > 1 else ""
            said[name] = f"{_counted(_work(rank), 'operator or device work', numbers=numbers)}{several}"
        else:
            known = {noun: state[key] for key, noun in _COUNTED.items() if isinstance(state.get(key), int)}
            ran = "ran; it does not count what it records"
            said[name] = _counted(known, next(iter(known)), numbers=numbers) if known else ran
        said[name] = "; ".join([said[name], *_notes(state)])
    return {f"collector {name}": text for name, text in said.items()}


def _not_recorded(state: dict[str, Any]) -> str:
    """Return why a collector has recorded nothing, or not all; empty if it worked."""
    for key, words in {"unavailable": "not available", "failed": "failed", "unused": "not used"}.items():
        if state.get(key):
            return f"{words}: {state[key]}"
    idle = state.get("left_out") or state.get("waited")
    return f"not used: {idle}" if idle and "buffers" not in state else ""


def _work(rank: RankRun) -> dict[str, int]:
    """Return the numbers of operators and of spans of device work."""
    import polars as pl

    kinds = rank.tables["spans"].group_by(pl.col("kind").cast(pl.String)).len().collect()
    found = dict(kinds.iter_rows())
    return {noun: sum(found.get(kind, 0) for kind in kinds) for noun, kinds in _WORK.items()}


def _counted(counts: dict[str, int], what: str, *, numbers: bool) -> str:
    from stepscope.analyse.quantities import count_text

    some = [count_text(count, noun) if numbers else f"{noun}s" for noun, count in counts.items() if count]
    return f"recorded {', '.join(some)}" if some else f"recorded nothing: there was no {what}"


def _notes(state: dict[str, Any]) -> Iterator[str]:
    """Yield what a collector could not record, and why."""
    for name, said in state.items():
        if name in ("note", "waited") or str(said).startswith("not recorded"):
            yield str(said) if name in ("note", "waited") else f"{name}: {said}"
        elif name == "ended_early":
            yield f"ended early: {said}"
        elif name == "missing" and isinstance(said, dict):
            yield from (f"without {part}: {reason}" for part, reason in said.items())
    if state.get("native"):
        yield f"by Kineto, not natively: {state['native']}"
