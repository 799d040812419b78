"""The first sentence about a rank: the title of its first finding, or why nothing can or need be said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from stepscope.advise.finding import Finding
from stepscope.analyse.operators.cost_rules import PRODUCTS
from stepscope.analyse.quantities import bytes_text, duration_text, percent_text
from stepscope.analyse.results import Result
from stepscope.analyse.step.run_steps import OTHERS_USE
from stepscope.analyse.step.summary import OutOfMemory, Summary

#: Waiting for a core; a smaller part can be left out of the calls that it fell into.
DISTURBED = 0.2
#: Kernels of templates have names of a thousand characters; the sentence shows so many of them.
NAME_LENGTH = 80

#: Parts of a step in which a device does nothing; and the share of a step above which a part is what it mostly is.
_RESTS = frozenset({"host only", "sync", "idle"})
_MOST = 0.5

#: Losses after which it is not known what was lost of a step.
_INCOMPLETE = frozenset({"file_cut", "file_corrupt", "database_damaged", "capture_missing", "operators_missing"})

#: What families of products are called; a step that is mostly these is measured by what its machine can do.
_FAMILIES = {"matmul": "matrix products", "convolution": "convolutions", "attention": "attention"}
#: Speeds that the sentence does not rely on: the machine can do more.
_DOUBTED = "measured while busy"


def rank_verdict(findings: Sequence[Finding], summary: Summary, results: Mapping[str, Result] | None = None) -> str:
    """Return the first sentence about a rank.

    Args:
        findings: The findings of the rank, the most important first.
        summary: Its numbers.
        results: Its results; of a healthy rank the roofline is read, if it has one.
    """
    if findings:
        return f"{findings[0].title}."
    reasons = (reason(summary) for reason in (_nothing, _disturbed, _not_typical))
    return next(filter(None, reasons), None) or _near_the_roof(summary, results or {}) or _well(summary)


def _nothing(summary: Summary) -> str | None:
    if summary.exhausted and not summary.operators and not summary.kernels:
        last = summary.exhausted[-1]
        return f"{last.device} ran out of memory: {bytes_text(last.asked)} were asked for{_where(last)}."
    if summary.steps.total_ns and not summary.split and summary.not_recorded and not summary.sampled < 1:
        if _INCOMPLETE.intersection(loss.what for loss in summary.losses):
            return "What a step consists of is not known: a part of the capture is cut off, damaged or gone."
        return "What a step consists of is not in this capture: it lacks the work of the device."
    if summary.steps.total_ns:
        return None
    if summary.sampled_only is not None:
        most = summary.sampled_only
        return (
            f"Only Python stacks were sampled: {most.name} is {percent_text(most.share)} of the samples of its thread."
        )
    if summary.not_recorded:
        return "No event with a time is in this capture; what its files state stands in the results."
    if summary.memory:
        return "Only memory was recorded: the trace holds no operator and no device work."
    return "Nothing was recorded: the trace holds no operator and no device work."


def _where(refused: OutOfMemory) -> str:
    return f" by {refused.line}" if refused.line else ""


def _disturbed(summary: Summary) -> str | None:
    run = summary.run
    if (run.delay_share or 0) <= DISTURBED:
        return None
    share = percent_text(run.delay_share or 0)
    if run.other_cpu is not None and run.other_cpu < OTHERS_USE:
        return (
            f"Too few cores: the training thread waits {share} of the recorded time for a core, which threads and "
            "workers of the program itself have. Give it fewer of them, or more cores."
        )
    return (
        f"Disturbed: the training thread waited {share} of the recorded time for a core that something else had. "
        "End what runs beside the training, and record again; the times below are partly those of the wait."
    )


def _not_typical(summary: Summary) -> str | None:
    found = summary.run.typical
    if found is None or found.typical:
        return None
    recorded, others = (duration_text(ns) for ns in (found.recorded_ns, found.others_ns))
    if found.cause == "recording":
        added = percent_text(found.recorded_part / found.others_ns)
        return (
            f"Recording adds {added} to a step: the recorded steps take {recorded}, "
            f"the other {found.others:,} {others}."
        )
    return (
        f"Not typical: the recorded steps take {recorded}, the other {found.others:,} {others}. "
        "Record other steps before you trust where these go."
    )


def _near_the_roof(summary: Summary, results: Mapping[str, Result]) -> str | None:
    """Return how near the products come to what their device can do, if they are most of the step and all is known."""
    known = summary.steps.count and summary.sampled == 1 and not summary.not_recorded
    found = results.get("roofline") if known else None
    if not isinstance(found, pl.DataFrame):
        return None
    products = found.filter(pl.col("Family").is_in(PRODUCTS))
    rates = products["FLOPs"] / products["Peak(GFLOP/s)"]  # ns
    if not len(products) or rates.null_count() or (products["Peak From"] == _DOUBTED).any():
        return None
    device = _by_time(products, "Device_id")[0]
    mine = products.filter(pl.col("Device_id") == device)
    if mine["Opcode"].count():
        share, reached = _of_program(found.filter(pl.col("Device_id") == device), summary, results)
    else:
        time, least = 1000 * float(mine["Total Time(us)"].sum()), _least(mine)
        share, reached = time / summary.steps.total_ns, least / time
    if not _MOST < share <= 1 or not 0 < reached <= 1:
        return None
    *others, last = [_FAMILIES[family] for family in _by_time(mine, "Family")]
    named = f"{', '.join(others)} and {last}" if others else last
    what = "this machine" if device == "cpu" else "this device"
    said = f"the step is {percent_text(share)} {named} at {percent_text(reached)} of what {what} can do"
    return f"Nothing stands out: {said}."


def _of_program(rows: pl.DataFrame, summary: Summary, results: Mapping[str, Result]) -> tuple[float, float]:
    """Return the share of the step that the products of a compiled program take, and how near the peak; 0 if unknown.

    Its instructions run beside each other, and runs that the steps cut off are among the rows: parts of the steps' own
    time and operations are counted. What a GPU's profile says that it can do leaves out its matrix units.
    """
    steps, product = results.get("step_efficiency"), pl.col("Family").is_in(PRODUCTS)
    computing = sum((part.share for part in summary.split if part.name == "computing"), 0.0)
    doubted = pl.col("Device_id").str.starts_with("cuda") & (pl.col("Peak From") == "source")
    if not isinstance(steps, pl.DataFrame) or len(rows.filter(doubted)):
        return 0.0, 0.0
    whole = steps.filter((pl.col("Device_id") == rows["Device_id"][0]) & pl.col("Step").is_null())
    used = float(whole["MFU(%)"].fill_null(0.0).sum()) / 100
    products, model = rows.filter(product), rows.filter(product | pl.col("Family").is_null())
    computed = rows.filter(pl.col("Phase").ne_missing("communication"))
    share = computing * float(products["Total Time(us)"].sum()) / float(computed["Total Time(us)"].sum())
    # A product that ends before it can have computed has only been begun: it may go on while nothing is recorded.
    begun = (products["FLOPs"] / products["Peak(GFLOP/s)"] > 1000 * products["Total Time(us)"]).any()
    taken = share + (1 - computing if begun else 0)
    least = _least(model) * taken
    return share, used * _least(products) / least if least else 0.0


def _least(rows: pl.DataFrame) -> float:
    """Return the least time (ns) in which the device could do the operations of rows whose peak is known."""
    return float((rows["FLOPs"] / rows["Peak(GFLOP/s)"]).sum())


def _by_time(products: pl.DataFrame, column: str) -> list[str]:
    """Return the values of a column, those with most time first."""
    times = products.group_by(column, maintain_order=True).agg(pl.col("Total Time(us)").sum())
    return times.sort("Total Time(us)", descending=True, maintain_order=True)[column].to_list()


def _well(summary: Summary) -> str:
    largest = max(summary.split, key=lambda part: part.share, default=None)
    mostly = largest.name if largest is not None and largest.share > _MOST else "computing"
    # Where the device rests most of the time, its largest kernel says nothing: what the host does then is said.
    rests = summary.on_device and mostly in _RESTS
    said = []
    if largest is not None and largest.share:
        whole = "step" if summary.steps.count else "recording"
        said.append(f"the {whole} is {percent_text(largest.share)} {largest.name}")
    host = "operators' self time" if summary.sampled == 1 else "steps, estimated from a sample"
    lists = [(summary.kernels, "device work"), (summary.operators, host)]
    entries, what = next((each for each in (reversed(lists) if rests else lists) if each[0]), ((), ""))
    if not entries:
        return "No operator and no device work was recorded."
    name = entries[0].name
    name = name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"
    said.append(f"{name} is {percent_text(entries[0].share)} of the {what}")
    return f"{'Nothing' if mostly == 'computing' else 'No single cause'} stands out: {', '.join(said)}."
