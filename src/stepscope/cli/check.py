"""Print what a run or capture holds, and what was lost; nothing is written."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from stepscope.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.run import RankRun

HELP = "say what is in a run and what was lost"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``check``."""
    options.add_run(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Print captures, rows, steps, collectors and losses of every rank."""
    from stepscope.report.safe_text import printable
    from stepscope.run import Run

    console = options.output_console()
    with options.reading_progress(quiet=False) as progress:
        run = Run(arguments.run, progress=progress)
        for rank in run.ranks:
            _show(rank, console)
    for capture in run.left_out:
        console.print(f"{'left out':<22} {printable(f'{capture.name}: {capture.fault}')}", markup=False, soft_wrap=True)
    return 0


def _show(rank: RankRun, console: Console) -> None:
    import polars as pl

    from stepscope.report.safe_text import printable

    manifest = rank.manifest
    counts = {name: int(frame.select(pl.len()).collect().item()) for name, frame in rank.tables.items()}
    facts = {
        "rank": f"{rank.rank} of {manifest.get('world_size') or 1}",
        "status": manifest.get("status", "unknown"),
        "captures": ", ".join(f"{capture.name} ({capture.size / 1e6:.1f} MB)" for capture in rank.captures),
        "tables": ", ".join(f"{count} {name}" for name, count in counts.items() if count),
        "steps": _steps(rank),
        **{f"collector {name}": _collector(state) for name, state in manifest.get("collectors", {}).items()},
    }
    for name, value in facts.items():
        console.print(f"{name:<22} {printable(str(value))}", markup=False, soft_wrap=True)
    losses = rank.tables["losses"].collect().rows(named=True)
    console.print(f"{'losses':<22} {'none' if not losses else ''}", markup=False)
    for loss in losses:
        text = f"  {loss['count']} × {loss['what']} ({loss['severity']}, {loss['source']}): {loss['advice']}"
        console.print(printable(text), markup=False, soft_wrap=True)


def _steps(rank: RankRun) -> str:
    steps = rank.tables["steps"].select("number", "source").collect()
    if steps.is_empty():
        return "none found"
    numbers = sorted(steps["number"].to_list())
    return f"{len(numbers)} ({numbers[0]} to {numbers[-1]}, {steps['source'][0]})"


def _collector(state: dict[str, object]) -> str:
    if state.get("unavailable"):
        return f"not available: {state['unavailable']}"
    if state.get("failed"):
        return f"failed: {state['failed']}"
    if state.get("unused"):
        return f"not used: {state['unused']}"
    parts = {name: str(said) for name, said in state.items() if name == "note" or str(said).startswith("not recorded")}
    return "; ".join(["recorded", *(f"{name}: {said}" for name, said in parts.items())])
