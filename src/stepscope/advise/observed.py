"""What rules look at: one rank, its time per step without what its thread waited for a core, and its facts."""

from __future__ import annotations

import json
import linecache
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from stepscope.analyse.results import Results
from stepscope.analyse.stacks.sampled_time import SampledTime, no_samples, sampled_time
from stepscope.analyse.step.summarise import summarise
from stepscope.analyse.step.summary import Summary
from stepscope.trace.manifest import Manifest
from stepscope.trace.schema import SPEEDS
from stepscope.trace.tables import Tables, collected, columns_of, facts

#: Steps of the warm-up. A run of at least ten times as many is judged without them.
_WARM_UP = 5
#: Looks at a thread on a core that tell where its CPU time goes, and how many times what looks stand for the steps of a
#: run take at most: the sampler looks less often where that costs much.
_ENOUGH, _MOST_UNSEEN = 30, 1.5
#: States in which a thread is on a core.
_ACTIVE = ("python", "native", "collecting")
#: Modules of frameworks in the paths of files; where these are installed, an environment may have such a name, too.
_FRAMEWORKS = r"[/\\](?:torch|jax|jaxlib|flax|optax|mindspore|paddle|functorch|triton)[/\\]"
_INSTALLED = r"^.*[/\\](?:site|dist)-packages|^.*[/\\]lib[/\\]python\d"

#: Modules of Python that do the work of a line themselves; the others only pass calls on.
_PYTHONS = re.compile(
    r"[/\\]lib[/\\]python\d[^/\\]*[/\\](?!(?:site|dist)-packages|(?:contextlib|functools|threading|runpy|queue|weakref|abc|enum|typing"
    r"|timeit|c?Profile|selectors|subprocess)\.py|(?:asyncio|concurrent|multiprocessing|importlib|unittest)[/\\])"
)

#: Packages whose compiled code computes itself, and calls no framework's operators.
_COMPUTING = re.compile(r"[/\\](?:site|dist)-packages[/\\](?:numpy|scipy|pandas|sklearn|skimage|PIL|cv2)[/\\]")


class SampledFrame(NamedTuple):
    """A frame of a sampled stack: where it stands, and whether it is the program's own code."""

    file: str
    function: str
    line: int
    own: bool


class Observed:
    """One rank as rules see it. Times are ns per step of the run unless a name says otherwise.

    Time in which the training thread waited for a core belongs to the machine, and is in none of them.

    Args:
        tables: The rank's tables, with names as results show them.
        manifest: Its manifest.
        results: Its results; by default they are computed from the tables.
        summary: The numbers of its printed summary, those of the recorded steps; likewise.
    """

    def __init__(
        self,
        tables: Tables,
        manifest: Manifest | None = None,
        results: Results | None = None,
        summary: Summary | None = None,
    ) -> None:
        self.tables = tables
        self.manifest: Manifest = manifest or {}
        self.summary = summarise(tables) if summary is None else summary
        self._results = Results(tables) if results is None else results

    @property
    def framework(self) -> str:
        """Module of the framework: ``torch``, ``jax``, ``mindspore``, ``paddle``; empty if unknown."""
        return self.summary.framework

    def result(self, name: str) -> pl.DataFrame:
        """Return a result that is a table.

        Raises:
            KeyError: No result has that name.
        """
        found = self._results.compute(name)
        return found if isinstance(found, pl.DataFrame) else pl.DataFrame()

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts about the run, by key, decoded; one that is not JSON is its text."""
        return dict(_decoded(facts(self.tables)))

    @property
    def speeds(self) -> list[dict[str, Any]]:
        """What was measured of this machine's speeds, one entry a framework; empty if nothing was."""
        found = self.facts.get(SPEEDS)
        return found if isinstance(found, list) else []

    @cached_property
    def run_steps(self) -> pl.DataFrame:
        """The steps of the run whose time is known, without those of the warm-up: ``quiet``, ns, is without delay."""
        names = ("number", "ts", "dur", "delay", "cpu", "minor_faults", "major_faults", "data_wait", "recorded")
        plan = columns_of(self.tables, "run_steps", *names).lazy().filter(pl.col("dur") > 0).sort("number")
        quiet = pl.col("dur") - pl.col("delay").fill_null(0).clip(0, pl.col("dur"))
        steps = plan.with_columns(quiet=quiet).pipe(collected, self.tables)
        return steps[_WARM_UP:] if len(steps) >= 10 * _WARM_UP else steps

    @cached_property
    def step_ns(self) -> float:
        """The mean step of the run without delay, or of the recorded ones; without steps, the whole recording.

        The host's own times tell no step where it runs ahead of what it asks for.
        """
        imported = self.manifest.get("source") == "import"  # all of its steps are those of the tables
        if len(self.run_steps) and not self.summary.run.ahead and not imported:
            return float(np.mean(self.run_steps["quiet"].to_numpy()))
        return self.summary.steps.mean_ns

    @property
    def cores(self) -> int | None:
        """Cores that the process may use; None if unknown."""
        return self.summary.data_wait.cores

    def part(self, name: str) -> float | None:
        """Return a part of the step, such as ``data wait``, by its share of the recorded ones; None if unknown."""
        return next((part.share * self.step_ns for part in self.summary.split if part.name == name), None)

    def share(self, ns: float) -> float:
        """Return a time per step as fraction of the step."""
        return ns / self.step_ns if self.step_ns else 0.0

    @cached_property
    def looks(self) -> pl.DataFrame:
        """The sampled time of the training thread in steps: one row a stack and state, times without core waits.

        Columns: ``stack``; ``phase``; ``state``; ``count``, of looks; ``time``, ns per step; ``file``, ``line`` and
        ``function`` of the innermost frame of the program's own; ``leaf``, file of the innermost frame;
        ``leaf_function``; ``in_framework``, whether that frame is of a framework's; ``in_library``, whether the
        program's own code called a module of Python there, such as ``copy`` or ``json``, whatever that calls, or NumPy
        or a package like it, which works itself.
        """
        sampled = sampled_time(self.tables)
        return _looks(sampled, self._of_library, self.step_ns, self._unseen) if sampled.rows.height else _no_looks()

    @cached_property
    def _unseen(self) -> float:
        """How many times longer the steps of the run are than what looks at the training thread stand for in them."""
        sampled, dur = sampled_time(self.tables), self.run_steps["dur"].mean()
        seen = float(sampled.rows.filter(pl.col("order") == 0)["inside"].sum())
        if not seen or dur is None or self.summary.run.ahead:
            return 1.0
        return min(max(float(dur) * sampled.steps / seen, 1.0), _MOST_UNSEEN)  # type: ignore[arg-type]

    @cached_property
    def _of_library(self) -> list[int]:
        """Stacks in which own code calls a module of Python that works itself, or NumPy, but not by a framework."""
        found = []
        for stack, frames in self.stacks.items():
            called = [frame.file for frame in takewhile(lambda frame: not frame.own, frames)]
            computes = called and _COMPUTING.search(called[0]) and not any(map(_of_framework, called))
            if len(called) < len(frames) and (computes or any(map(_PYTHONS.search, called))):
                found.append(stack)
        return found

    @cached_property
    def stacks(self) -> dict[int, list[SampledFrame]]:
        """The frames of each sampled stack, the innermost first."""
        frames = sampled_time(self.tables).frames.sort("stack", "place")
        if frames.is_empty():
            return {}
        frames = frames.with_columns(pl.col("file", "function").cast(pl.String).fill_null(""))
        columns = frames.group_by("stack", maintain_order=True).agg("file", "function", "line", "own")
        return {
            stack: [SampledFrame(*values) for values in zip(files, functions, lines, own, strict=True)]
            for stack, files, functions, lines, own in columns.iter_rows()
        }

    @cached_property
    def files(self) -> list[str]:
        """Files of all frames that were sampled, those of frameworks, trainers and Python among them."""
        return sampled_time(self.tables).frames["file"].cast(pl.String).drop_nulls().unique().sort().to_list()

    def looks_through(self, file: str, *functions: str) -> pl.DataFrame:
        """Return the rows of :attr:`looks` whose stack goes through one of these functions of a file.

        Args:
            file: End of its path: ``torch/utils/checkpoint.py``.
            functions: Names without classes.
        """
        found = [
            stack
            for stack, frames in self.stacks.items()
            if any(one.file.endswith(file) and one.function.rpartition(".")[2] in functions for one in frames)
        ]
        return self.looks.filter(pl.col("stack").is_in(found))

    def explained(self, looks: pl.DataFrame) -> dict[str, float]:
        """Return rows of :attr:`looks` as the time that a claim explains."""
        keys = zip(looks["stack"].to_list(), looks["state"].to_list(), looks["phase"].to_list(), strict=True)
        named = [f"stack {stack} {state} {phase}" for stack, state, phase in keys]
        return dict(zip(named, looks["time"].to_list(), strict=True))

    def place(self, file: str, line: int | None) -> str:
        """Return a line as it is shown: ``train.py:41``, relative to where the program lies."""
        roots = (str(self.manifest.get("directory") or ""), *self._programs)
        shown = next((file[len(root) + 1 :] for root in roots if root and file.startswith(f"{root}/")), file)
        return shown if line is None else f"{shown}:{line}"

    def most_seen(self, looks: pl.DataFrame) -> str:
        """Return the line in which the samples see most of it, as the end of a title; empty if they see none."""
        rows = looks.filter(pl.col("file").is_not_null()).group_by("file", "line").agg(pl.col("time").sum())
        if rows.is_empty():
            return ""
        file, line, _ = rows.sort("time", "file", "line", descending=[True, False, False]).row(0)
        return f": {self.place(file, line)}"

    @cached_property
    def _programs(self) -> list[str]:
        """Directories of the program's own files, the shortest first."""
        return sorted({str(Path(file).parent) for file in self.looks["file"].drop_nulls().unique()}, key=len)

    def code(self, file: str, line: int) -> str:
        """Return the text of a line, if the file is here and as it was when the run was recorded; else empty."""
        try:
            if Path(file).stat().st_mtime_ns > int(self.manifest.get("window", {}).get("start_ns", 0)):
                return ""
        except OSError:
            return ""
        return linecache.getline(file, line).strip()


def _of_framework(file: str) -> bool:
    return re.search(_FRAMEWORKS, re.sub(_INSTALLED, "", file)) is not None


@cache
def _no_looks() -> pl.DataFrame:
    return _looks(no_samples(), [], 0.0, 1.0)


def _looks(sampled: SampledTime, of_library: list[int], step_ns: float, unseen: float) -> pl.DataFrame:
    rows = _on_core(sampled.rows.filter(pl.col("order") == 0)).with_columns(pl.col("spent") * unseen)
    frames = sampled.frames.sort("stack", "place")
    leaf = frames.group_by("stack", maintain_order=True).agg(
        leaf=pl.col("file").cast(pl.String).first(), leaf_function=pl.col("function").cast(pl.String).first()
    )
    place = pl.col("file", "line", "function").first()
    own = frames.filter("own").group_by("stack", maintain_order=True).agg(place)
    joined = rows.join(leaf, on="stack", how="left").join(own, on="stack", how="left")
    # Samples overestimate waits where the one who looks takes the core: no more than the rest of the step is left.
    on_core = pl.col("state").is_in(_ACTIVE)
    waits = float(joined.filter(~on_core)["spent"].sum())
    left = max(step_ns * max(sampled.steps, 1) - float(joined.filter(on_core)["spent"].sum()), 0.0)
    scale = min(left / waits, 1.0) if waits else 1.0
    joined = joined.with_columns(spent=pl.when(on_core).then(pl.col("spent")).otherwise(scale * pl.col("spent")))
    return joined.select(
        "stack", "phase", "state", "count",
        pl.col("file", "function").cast(pl.String), "line", "leaf", "leaf_function",
        time=pl.col("spent") / max(sampled.steps, 1),
        in_framework=pl.col("leaf").str.replace(_INSTALLED, "").str.contains(_FRAMEWORKS).fill_null(value=False),
        in_library=pl.col("stack").is_in(of_library),
    )  # fmt: skip


def _on_core(rows: pl.DataFrame) -> pl.DataFrame:
    """Return sampled rows with the time that the thread ``spent``: on a core its CPU time, else that of the look.

    All CPU time is spent where looks see the thread on a core, as far as the time of the looks holds it: before a look
    at a thread that waits, it worked elsewhere. Who waits for a core does so most where it wakes others. Only where few
    looks see it on a core, those in which it waits for one show where it works, too, in the states that the same stack,
    else all stacks, have otherwise.
    """
    rows = rows.with_columns(pl.col("state").cast(pl.String), pl.col("cpu").fill_null(0))
    active = pl.col("state").is_in(_ACTIVE)
    runs = active | (pl.col("state") == "core")
    whole = min(rows["cpu"].sum(), rows.filter(runs)["inside"].sum())
    if rows.filter(active)["count"].sum() >= _ENOUGH:
        rows = rows.filter(pl.col("state") != "core")
    spent = (
        pl.when(runs).then(pl.col("cpu") * whole / max(rows.filter(runs)["cpu"].sum(), 1)).otherwise(pl.col("inside"))
    )
    rows = rows.with_columns(spent=spent)
    keys = ["stack", "phase"]
    known = rows.filter(active).select(*keys, "state", part=pl.col("count") / pl.col("count").sum().over(keys))
    overall = rows.filter(active).group_by(other="state").agg(pl.col("count").sum())
    overall = overall.select("other", usual=pl.col("count") / pl.col("count").sum())
    waited = rows.filter(pl.col("state") == "core").drop("state")
    of_known = waited.join(known, on=keys, how="inner", nulls_equal=True)
    rest = waited.join(known, on=keys, how="anti", nulls_equal=True)
    of_rest = rest.join(overall, how="cross").rename({"other": "state", "usual": "part"})
    columns = [*keys, "state", "count", "spent"]
    shared = pl.concat([part.select(*columns, "part") for part in (of_known, of_rest)])
    shared = shared.with_columns(spent=pl.col("spent") * pl.col("part"), count=pl.col("count") * pl.col("part"))
    every = pl.concat(
        [rows.filter(pl.col("state") != "core").select(columns), shared.select(columns)], how="vertical_relaxed"
    )
    summed = every.group_by([*keys, "state"], maintain_order=True).agg(pl.col("count", "spent").sum())
    return summed.filter(pl.col("spent") > 0)


def _decoded(facts: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for key, value in facts.items():
        try:
            yield key, json.loads(value)
        except (TypeError, ValueError):
            yield key, value
