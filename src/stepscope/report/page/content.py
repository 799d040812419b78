"""What the page of a rank shows, as plain values: the browser side reads them by the names of ``page/src/model.ts``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import Any

import msgspec
import polars as pl

from stepscope.advise.job_findings import job_verdict
from stepscope.advise.rank_findings import rank_findings, rank_sentence
from stepscope.analyse import there
from stepscope.analyse.operators import op_statistic
from stepscope.analyse.operators.shown_names import time_by_step
from stepscope.analyse.quantities import duration_text
from stepscope.analyse.results import RESULTS, Result, Results, kinds
from stepscope.analyse.step import sample
from stepscope.analyse.step.phase_times import phase_times
from stepscope.analyse.step.step_trace_time import split
from stepscope.analyse.step.summarise import losses_of
from stepscope.analyse.step.summary import Entry
from stepscope.cluster.job_results import JOB_RESULTS, JobResults
from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.collect.options import asked
from stepscope.errors import UsageError
from stepscope.report.job_files import JobAnswer, job_answer, source_in_job
from stepscope.report.page.flame_tree import flame_tree, launched_tree, sampled_tree
from stepscope.report.page.lane_spans import LaneSpans
from stepscope.report.page.overlays import SHOWN_KINDS
from stepscope.report.page.rank_timelines import Clocks
from stepscope.report.page.span_flows import span_flows
from stepscope.report.page.step_lines import step_lines
from stepscope.report.timeline.job_timeline import rank_clocks
from stepscope.run import RankRun, Run
from stepscope.trace.manifest import Manifest
from stepscope.trace.schema import TOTALS
from stepscope.trace.tables import Tables, collected, facts, has_rows

#: Version of the content, which the browser side checks.
VERSION = 2
#: Parts of the content that take long to compute.
PARTS = ("summary", "findings", "pages", "flame")
#: Steps that are drawn one by one.
_MOST_STEPS = 2000
#: Cells of a result that one file holds.
_MOST_CELLS = 120_000


@dataclass(frozen=True)
class _PageOf:
    """A page that shows results: its name, title, results, why a run has none, and the switch that records them."""

    name: str
    title: str
    results: tuple[str, ...]
    absent: str
    switch: str = ""

    def why(self, manifest: Manifest) -> str:
        """Return why a run has none of the results: what its collector says, or the switch that was not on."""
        for said in manifest.get("collectors", {}).values():
            missing = said.get("missing")
            if isinstance(missing, dict) and self.switch in missing:
                return f"{self.absent}: {missing[self.switch]}"
        if not self.switch or manifest.get("options", {}).get(self.switch):
            return self.absent
        return f"{self.absent} ({asked(manifest, self.switch)})"


PAGES = (
    _PageOf(
        "steps",
        "Steps",
        ("step_trace_time", "step_anatomy", "step_variation", "slow_steps", "step_times"),
        "no step was found",
    ),
    _PageOf("waits", "Idle and waits", ("idle_time", "idle_reasons", "critical_path"), "no span was recorded"),
    _PageOf(
        "operators",
        "Operators",
        ("op_statistic", "operator_lines", "operator_modules", "gradient_use", "operator_details"),
        "no operator was recorded",
    ),
    _PageOf(
        "kernels",
        "Kernels",
        ("device_time", "streams", "kernel_origins", "api_statistic", "kernel_details"),
        "no work of a device was recorded",
    ),
    _PageOf("code", "Python lines", ("python_lines",), "stacks were not sampled"),
    _PageOf(
        "memory",
        "Memory",
        (
            "memory_peak",
            "memory_growth",
            "memory_fragmentation",
            "memory_profile",
            "operator_memory",
            "memory_curve",
            "memory_record",
        ),
        "memory was not recorded",
        "profile_memory",
    ),
    _PageOf(
        "data",
        "Data pipeline",
        ("dataset", "batch_production", "minddata_pipeline_summary", "minddata_pipeline_raw"),
        "no wait for a batch was seen",
    ),
    _PageOf(
        "communication", "Communication", ("communication", "communication_matrix"), "no communication was recorded"
    ),
    _PageOf(
        "roofline",
        "Roofline",
        ("step_efficiency", "roofline", "instruction_details"),
        "no operator has a known cost",
        "record_shapes",
    ),
)
#: Results of a job on its page.
_OF_JOB = (
    "cluster_ranks",
    "cluster_what_if",
    "cluster_critical_path",
    "cluster_collectives",
    "cluster_links",
    "cluster_pipeline",
    "cluster_communication",
    "cluster_communication_matrix",
    "cluster_step_trace_time",
    "clocks",
)

#: Results that need little more than the overview of a page does.
OF_OVERVIEW = ("step_trace_time", "step_anatomy", "step_variation", "step_times")

#: Results whose times are µs without saying so: their columns have the names that users of this field know.
_MICROSECONDS = ("step_trace_time", "cluster_step_trace_time")


@dataclass
class Shown:
    """One rank of a run, as the page shows it; of a job, with what is to be said of all ranks.

    Attributes:
        run: The run.
        rank: The rank.
        job: What is to be said of the job; None for one rank.
        clocks: The clocks of its ranks.
    """

    run: Run
    rank: RankRun
    job: JobAnswer | None = None
    clocks: Clocks = field(default_factory=Clocks)

    @classmethod
    def of(cls, run: Run, number: int | None = None) -> Shown:
        """Return a rank of a run: the one of that number, else the first that a finding of the job names.

        Raises:
            UsageError: The run has no rank of that number.
        """
        answer = job_answer(run) if len(run.ranks) > 1 else None
        ranks = {rank.rank: rank for rank in run.ranks}
        named = (rank for finding in (answer.findings if answer else ()) for rank in finding.ranks if rank in ranks)
        number = next(named, run.ranks[0].rank) if number is None else number
        if number not in ranks:
            message = f"{run.path} has no rank {number}."
            raise UsageError(message, f"It has the ranks {', '.join(map(str, sorted(ranks)))}.")
        return cls(run, ranks[number], answer, Clocks(rank_clocks(run)) if answer else Clocks())

    @cached_property
    def results_of_job(self) -> JobResults:
        """The results of the job; only what a page asks for is computed."""
        return self.run.job.results

    @cached_property
    def in_job(self) -> Results:
        """The results of the rank with what only the job knows of its collectives: how long each waits for others."""
        return Results(source_in_job(self.rank, self.run).tables)

    def result(self, name: str) -> Result:
        """Return a result of the rank, or of the job.

        Raises:
            UsageError: No result has that name.
        """
        if self.job is not None and name in JOB_RESULTS:
            return self.results_of_job[name]
        if self.job is not None and name in ("communication", "communication_matrix"):
            return self.in_job.compute(name)
        return self.rank.result(name)

    def first(self, name: str, cells: int) -> tuple[Result, int]:
        """Return a result, of a large table at least its first rows of so many cells together; and its number of rows.

        Raises:
            UsageError: No result has that name.
        """
        if name in kinds() and (self.job is None or name not in ("communication", "communication_matrix")):
            return self.rank.results.first(name, cells)
        found = self.result(name)
        return found, len(found)


def content(shown: Shown, spans: LaneSpans, windows: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    """Return the content of a rank's page without the rows of its results: its head, and all that is computed of it.

    Args:
        shown: The rank.
        spans: Its timeline.
        windows: The times that the timeline is of, ns since its origin; all if there are none.
    """
    parts = (content_part(shown, name, spans, windows) for name in PARTS)
    return {**content_head(shown, spans), **{key: value for found in parts for key, value in found.items()}}


def content_head(shown: Shown, spans: LaneSpans) -> dict[str, Any]:
    """Return what the page begins with: what its timeline needs, and which pages there are. No result is computed.

    Args:
        shown: The rank.
        spans: Its timeline, which may lie in files.
    """
    rank, tables = shown.rank, shown.rank.shown
    manifest = rank.manifest
    of_one = manifest.get("imported_from") if len(shown.run.ranks) == 1 else shown.run.path.name
    title = PurePath(str(manifest.get("worker") or of_one or rank.directory.path.name)).name
    return {
        "version": VERSION,
        "title": title,
        "path": str(rank.directory.path),
        "facts": list(_facts(rank, tables)),
        "rank": rank.rank,
        "ranks": [one.rank for one in shown.run.ranks],
        "recording": manifest.get("status") == "recording",
        "losses": [asdict(loss) for loss in losses_of(tables)],
        "totalsCompared": TOTALS in facts(tables),
        "pages": list(_pages(shown, settled=False)),
        "results": {},
        "names": spans.names,
        "timeline": _timeline(shown, spans) if len(spans.start) else None,
        "provenance": list(_provenance(rank, tables)),
    }


def content_part(shown: Shown, name: str, spans: LaneSpans, windows: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    """Return a part of the content that takes long to compute.

    Args:
        shown: The rank.
        name: One of :data:`PARTS`.
        spans: Its timeline.
        windows: As for :func:`content`.

    Raises:
        UsageError: The page has no part of that name.
    """
    if name == "summary":
        return _summary(shown, each_step=not windows)
    if name == "findings":
        return {"verdict": _verdict(shown), "findings": list(_findings(shown, spans.origin))}
    if name == "pages":
        return {"pages": list(_pages(shown, settled=True))}
    if name == "flame":
        steps = split(shown.rank.shown).windows
        times = zip((steps.start - spans.origin).tolist(), (steps.end - spans.origin).tolist(), strict=True)
        ranges = windows or (list(times) if steps.declared else ())
        flame, left_out = flame_tree(spans, ranges)
        launched = launched_tree(spans, span_flows(shown.rank.shown, spans.row), ranges)
        samples = shown.rank.result("flame") if has_rows(shown.rank.shown, "samples") else None
        sampled = sampled_tree(samples) if isinstance(samples, pl.DataFrame) else None
        return {"flame": flame, "flameLeftOut": left_out, "launched": launched, "sampled": sampled}
    message = f"A page has no part {name!r}."
    raise UsageError(message, "")


def _summary(shown: Shown, *, each_step: bool) -> dict[str, Any]:
    rank, tables = shown.rank, shown.rank.shown
    summary, parts = rank.summary, split(tables)
    numbers = parts.windows.number.tolist() if parts.windows.declared else []
    known = {name: times for name, times in parts.parts.items() if name not in parts.unknown}
    phases = phase_times(tables, parts.windows, parts.work) if summary.phases else {}
    return {
        "steps": asdict(summary.steps),
        "split": [asdict(part) for part in summary.split],
        "phases": [asdict(part) for part in summary.phases],
        "stepNumbers": numbers[:_MOST_STEPS],
        "perStep": _per_step(known, len(numbers)),
        "perPhase": _per_step(phases, len(numbers)),
        "stepLines": step_lines(parts),
        "operators": _entries(tables, summary.operators, op_statistic.host_work, numbers if each_step else ()),
        "kernels": _entries(tables, summary.kernels, op_statistic.device_work, numbers if each_step else ()),
        "memoryPeak": [asdict(peak) for peak in summary.memory],
        "dataWait": asdict(summary.data_wait),
        "run": _run(rank),
    }


def _entries(
    tables: Tables, entries: Sequence[Entry], work: Callable[[Tables], pl.DataFrame], steps: Sequence[int]
) -> list[dict[str, Any]]:
    """Return what takes most time, each with its time in each of the steps; of a sample, or one step, without."""
    if not entries or not 1 < len(steps) <= _MOST_STEPS or sample.fraction(tables) < 1:
        return [asdict(entry) for entry in entries]
    times = time_by_step(tables, work(tables))
    return [
        asdict(entry) | {"trend": [of_entry.get(step, 0) for step in steps]}
        for entry in entries
        for of_entry in [times.get((entry.name, entry.kind), {})]
    ]


def result_columns(shown: Shown, name: str, most: int = _MOST_CELLS) -> dict[str, Any]:
    """Return a result as columns of plain values; of a large one, the first rows.

    Args:
        shown: The rank.
        name: Name of the result; a nested document becomes a table of its paths and values.
        most: Most cells.
    """
    found, count = shown.first(name, most)
    frame = found if isinstance(found, pl.DataFrame) else _flat(found)
    count = count if isinstance(found, pl.DataFrame) else len(frame)
    first = frame.head(max(1, most // max(1, frame.width)))
    kind = RESULTS.get(name) or JOB_RESULTS.get(name)
    columns = [
        {
            "name": column.name,
            "values": _plain(column),
            **({"unit": "us"} if name in _MICROSECONDS and column.dtype.is_float() else {}),
        }
        for column in first
        if column.null_count() < len(column)
    ]
    return {"title": kind.doc if kind else "", "columns": columns, "rows": len(first), "of": count}


def _verdict(shown: Shown) -> str:
    if shown.job is None:
        return rank_sentence(shown.rank)
    return job_verdict(shown.job.findings, shown.job.summary, duration_text)


def _findings(shown: Shown, origin: int) -> Iterable[dict[str, Any]]:
    """Yield the findings with the times of their evidence as the timeline counts them: from its start."""
    for finding in shown.job.findings if shown.job else rank_findings(shown.rank):
        found = msgspec.to_builtins(finding)
        for one, of in zip(found["evidence"], finding.evidence, strict=True):
            rank = shown.rank.rank if of.rank is None else of.rank
            for name in ("start_ns", "end_ns"):
                if (time := one.pop(name, None)) is not None and (shown.job or rank == shown.rank.rank):
                    one[name] = shown.clocks.since(rank, time, origin)
        yield found


def _plain(column: pl.Series) -> list[Any]:
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        number = column.cast(pl.Float64) if column.dtype.is_decimal() or column.dtype.is_float() else column
        return [None if value is None or value != value else value for value in number.to_list()]
    if column.dtype.is_nested():
        return [None if value is None else str(value) for value in column.to_list()]
    return column.cast(pl.String).to_list()


def _flat(document: Mapping[str, Any]) -> pl.DataFrame:
    """Return a nested document as a table: its innermost objects are rows, the names around them columns."""
    rows: list[dict[str, Any]] = []

    def visit(value: Mapping[str, Any], around: tuple[str, ...]) -> None:
        simple = {key: item for key, item in value.items() if not isinstance(item, Mapping | list)}
        if simple:
            rows.append({**{f"level {place + 1}": name for place, name in enumerate(around)}, **simple})
        for key, item in value.items():
            if isinstance(item, Mapping):
                visit(item, (*around, key))

    visit(document, ())
    return pl.DataFrame(rows, infer_schema_length=None, strict=False)


def _per_step(parts: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    if not count:
        return []
    found = ({"name": name, "values": times[:_MOST_STEPS].tolist()} for name, times in parts.items())
    return [part for part in found if any(part["values"])]


def _run(rank: RankRun) -> dict[str, Any]:
    steps = rank.result("step_times")
    if not isinstance(steps, pl.DataFrame) or steps.is_empty():
        return {"number": [], "dur": [], "recorded": [], "contains": []}
    every = max(1, -(-len(steps) // 100_000))
    steps = steps.gather_every(every)
    return {
        "number": steps["Step"].to_list(),
        "dur": (steps["Duration(us)"] * 1000).to_list(),
        "recorded": steps["Recorded"].to_list(),
        "contains": steps["Contains"].fill_null("").to_list(),
    }


def _facts(rank: RankRun, tables: Tables) -> Iterable[tuple[str, str]]:
    collectors = rank.manifest.get("collectors", {})
    for framework in FRAMEWORKS.values():
        described = collectors.get(framework.operators.name, {})
        if isinstance(described, dict) and described.get("version"):
            yield "framework", f"{framework.title} {described['version']}"
    yield "devices", ", ".join(there.devices(tables)[:4]) or "cpu"
    world = rank.manifest.get("world_size") or 1
    if world != 1:
        yield "ranks", f"rank {rank.rank} of {world}"


def _pages(shown: Shown, *, settled: bool) -> Iterable[dict[str, Any]]:
    """Yield the pages. A page that is there may name results without rows, which it leaves out when it is shown.

    Args:
        shown: The rank.
        settled: Whether results are computed where only they tell if a page has rows; else it is ``pending``.
    """
    results = shown.rank.results
    kinds = there.seen(shown.rank.shown)
    absent = "" if kinds else "no span was recorded"
    stacked = any(track in ("thread", "stream") and kind != "step" for track, kind in kinds)
    yield {"name": "overview", "title": "Overview", "results": [], "absent": ""}
    if shown.job is not None:
        found = [name for name in _OF_JOB if len(shown.results_of_job[name])]
        yield {"name": "ranks", "title": "All ranks", "results": found, "absent": ""}
    yield {"name": "timeline", "title": "Timeline", "results": [], "absent": absent}
    for page in PAGES:
        found = [name for name in page.results if results.there(name) is not False]
        sure = any(results.there(name) for name in found)
        if settled and not sure:
            found = [name for name in found if _has_rows(shown.rank, name)]
        pending = {"pending": True} if found and not sure and not settled else {}
        yield {
            "name": page.name,
            "title": page.title,
            "results": found,
            "absent": "" if found else page.why(shown.rank.manifest),
            **pending,
        }
        if page.name == "memory":
            yield {
                "name": "flame",
                "title": "Flame graph",
                "results": [],
                "absent": "" if stacked else "no work was recorded",
            }
    yield {"name": "losses", "title": "Losses, provenance", "results": [], "absent": ""}


def _has_rows(rank: RankRun, name: str) -> bool:
    if not rank.results.has_rows(name):
        return False
    result = rank.results.compute(name)
    return not isinstance(result, dict) or not _flat(result).is_empty()


def _timeline(shown: Shown, spans: LaneSpans) -> dict[str, Any]:
    own, clocks = shown.rank.rank, shown.clocks
    read = clocks.read(own, shown.rank.shown, spans.origin, spans.lanes)
    total = clocks.total(spans.total)
    return {
        "origin": str(spans.origin),
        "from": None if clocks.origin is None else str(clocks.origin),
        "begin": 0,
        "end": total,
        "total": total,
        "spans": len(spans.start),
        "of": len(spans.start),
        "kinds": list(SHOWN_KINDS),
        "steps": read["steps"],
        "focus": median_step(read["steps"]) if read["steps"] else [0, total],
        "ranks": [
            {**clocks.known(number), **({"read": read} if number == own else {})}
            for number in dict.fromkeys(rank.rank for rank in shown.run.ranks)
        ],
    }


def median_step(steps: list[dict[str, int]]) -> list[int]:
    """Return start and end of the step whose duration is nearest the median."""
    durations = [step["dur"] for step in steps]
    middle = sorted(durations)[len(durations) // 2]
    step = min(steps, key=lambda one: abs(one["dur"] - middle))
    return [step["start"], step["start"] + step["dur"]]


def _provenance(rank: RankRun, tables: Tables) -> Iterable[tuple[str, str]]:
    from stepscope import __version__

    yield "stepscope", __version__
    yield "directory", str(rank.directory.path)
    for key in ("worker", "host", "started", "command", "status", "source", "imported_from", "options"):
        if value := rank.manifest.get(key):
            yield key, _told(value)
    unused: dict[str, list[str]] = {}
    for name, described in rank.manifest.get("collectors", {}).items():
        if isinstance(described, Mapping) and set(described) == {"unused"}:
            unused.setdefault(str(described["unused"]).rstrip("."), []).append(name)
        else:
            yield f"collector {name}", _told(described)
    for why, names in unused.items():
        yield "not used", f"{', '.join(names)}: {why}"
    for capture in rank.captures:
        yield "capture", capture.name
    for key, value in collected(tables["metadata"].select("key", "value"), tables).iter_rows():
        yield key, _told(value)


def _told(value: object) -> str:
    """Return a value of a manifest as text that people read: ``workers 2, pin_memory no``; text may hold JSON."""
    if isinstance(value, str):
        with suppress(msgspec.DecodeError):
            return _told(msgspec.json.decode(value)) if value[:1] in ("{", "[", '"') else value
        return value
    if isinstance(value, Mapping):
        told = ((key, f"({_told(item)})" if isinstance(item, Mapping) else _told(item)) for key, item in value.items())
        return ", ".join(f"{key} {text}" for key, text in told) or "none"
    if isinstance(value, list | tuple):
        return "; ".join(map(_told, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)
