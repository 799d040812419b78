"""Two sides against each other: runs, directories of runs, or captures of other tools.

What ``stepscope.compare`` returns
::

    found = stepscope.compare("runs/main", "runs/branch")
    found.step.change, found.step.verdict      # 0.064, "slower"; with one run a side: "one run a side"
    found.parts.sure                           # the operators that surely changed, largest first
    found.judge("slower:5%,memory:2%")         # limits, for a build server
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import polars as pl

from stepscope.comparison import exact, gates, noise_history, prediction, verdict
from stepscope.comparison.exact import Exact, MemoryUse
from stepscope.comparison.levels import RunLevel, levels_of_rank
from stepscope.comparison.part_changes import PartChanges, change_of_parts, phases_together
from stepscope.comparison.parts import StepParts, step_parts
from stepscope.comparison.prediction import Prediction
from stepscope.comparison.verdict import StepChange
from stepscope.errors import UsageError
from stepscope.notebook_display import NotebookDisplay
from stepscope.run import Run
from stepscope.trace import run_directory

#: What a side may be given as: a path of a run, of a directory of runs, or of captures; a run; or several of these.
SideGiven: TypeAlias = "str | Path | Run | Sequence[str | Path | Run]"

SINGLE, RUNS, TURNS = "single runs", "runs", "turns"
SCHEMA = 1
#: Page faults a step that differ by as many are named; and shares of waiting for a core that differ by as much.
_FAULTS, _BUSIER = 200.0, 0.05
#: Settings of the allocator with which the heap gives no memory back: no page faults from step to step.
HEAP = "MALLOC_TRIM_THRESHOLD_=-1 MALLOC_MMAP_THRESHOLD_=4294967296"
#: Facts that are not mentioned when runs differ in them.
_UNSAID = ("stepscope",)


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side: its name, the paths of its runs, its revision, and facts about its program and machine."""

    name: str
    runs: list[str]
    revision: str = ""
    environment: dict[str, str] = {}


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine did on each side, A and B.

    Attributes:
        delay: Part of the steps' time in which their thread waited for a core; None if unknown.
        faults: Page faults in the median step; the median over the runs; None if unknown.
    """

    delay: tuple[float | None, float | None] = (None, None)
    faults: tuple[float | None, float | None] = (None, None)


class Comparison(NotebookDisplay, msgspec.Struct, frozen=True, kw_only=True):
    """What became slower from A to B, by how much, and how sure.

    Attributes:
        a: The first side, before a change.
        b: The second side.
        design: ``single runs``, ``runs`` or ``turns``.
        rank: The rank of a job that is compared; None of runs of one rank, and of live programs.
        step: How the step changed; None if no step of a known duration was timed.
        mean: How its mean changed; it also sees what makes one step in ten longer.
        step_ns: Time of a recorded step of A, of which ``parts`` are parts; None without recordings.
        parts: How the parts of the step changed; across frameworks or devices only the phases; None without recordings.
        memory: Bytes by device, exact.
        compilations: Compilations on each side; None if nobody watched.
        machine: What the machine did.
        levels: The level of each run of A and of B.
        prediction: Whether an advice held.
        notes: What to know first: differences that are not the program's.
        causes: Slugs of causes that these notes name.
        losses: What the recordings of each side lost.
        looks: Looks at the evidence; 1 unless more pairs were added.
        took_s: Seconds that turns took; None otherwise.
    """

    a: Side
    b: Side
    design: str
    rank: int | None = None
    step: StepChange | None = None
    mean: StepChange | None = None
    step_ns: float | None = None
    parts: PartChanges | None = None
    memory: list[MemoryUse] = []
    compilations: tuple[int | None, int | None] = (None, None)
    machine: Machine = Machine()
    levels: tuple[list[RunLevel], list[RunLevel]] = ([], [])
    prediction: Prediction | None = None
    notes: list[str] = []
    causes: list[str] = []
    losses: tuple[dict[str, int], dict[str, int]] = ({}, {})
    looks: int = 1
    took_s: float | None = None

    @property
    def verdict(self) -> str:
        """Verdict on the step: slower, faster, no difference, or that one run a side cannot tell."""
        return self.step.verdict if self.step is not None else verdict.NONE

    def judge(self, limits: str | Iterable[gates.Gate]) -> list[gates.Outcome]:
        """Return what comes of limits such as ``slower:5%,memory:2%``.

        Raises:
            UsageError: A limit is not one.
        """
        return gates.judge(self, gates.parse_gates(limits) if isinstance(limits, str) else list(limits))

    def to_dict(self, outcomes: Sequence[gates.Outcome] = ()) -> dict[str, Any]:
        """Return the comparison as JSON takes it; the keys are those of ``docs/compare.md``."""
        parts = self.parts or PartChanges()
        rows = [{**msgspec.to_builtins(part), "name": part.name} for part in parts.parts]
        local = {"change_ns": parts.change_ns, "low_ns": parts.low_ns, "high_ns": parts.high_ns}
        return {
            "schema": SCHEMA,
            **{side: msgspec.to_builtins(getattr(self, side)) for side in ("a", "b")},
            "design": self.design,
            "rank": self.rank,
            "looks": self.looks,
            "verdict": self.verdict,
            "level": msgspec.to_builtins(self.step),
            "mean": msgspec.to_builtins(self.mean),
            "step_ns": self.step_ns,
            "common": {"change": parts.common},
            "local": local if parts.parts else None,
            "gates": msgspec.to_builtins(list(outcomes)),
            "causes": self.causes,
            "notes": self.notes,
            "machine": msgspec.to_builtins(self.machine),
            "levels": msgspec.to_builtins(self.levels),
            "operators": [row for row in rows if row["name_a"] and row["name_b"]],
            "only_a": [row for row in rows if not row["name_b"]],
            "only_b": [row for row in rows if not row["name_a"]],
            "counts": [
                {"name": part.name, "phase": part.phase, "a": part.calls_a, "b": part.calls_b, "varies": part.varies}
                for part in parts.parts
                if part.calls_a != part.calls_b or part.varies
            ],
            "phases": msgspec.to_builtins(parts.phases),
            "modules": msgspec.to_builtins(parts.modules),
            "shapes": msgspec.to_builtins(parts.shapes),
            "memory": msgspec.to_builtins(self.memory),
            "compilations": list(self.compilations),
            "prediction": msgspec.to_builtins(self.prediction),
            "losses": {"a": self.losses[0], "b": self.losses[1]},
            "took_s": self.took_s,
        }

    def table(self) -> pl.DataFrame:
        """Return one row per part of the step: name, calls and time (ns) on both sides, and how sure its change is."""
        rows = [{**msgspec.to_builtins(part), "name": part.name} for part in (self.parts or PartChanges()).parts]
        columns = ["name", "phase", "module", "place", "matched", "calls_a", "calls_b", "varies", "a_ns", "b_ns"]
        columns += ["change_ns", "low_ns", "high_ns", "errors", "sure"]
        return pl.DataFrame(rows, schema=columns, infer_schema_length=None)


class _Seen:
    """One run of a side: what its rank of that number says."""

    def __init__(self, run: Run, number: int) -> None:
        rank = next(one for one in run.ranks if one.rank == number)
        tables = rank.tables
        self.path = str(run.path)
        self.levels: dict[bool, RunLevel] = levels_of_rank(tables)
        self.parts: StepParts = step_parts(tables)
        self.exact: Exact = exact.exact_of(rank)
        rank.release()


def compare(a: SideGiven, b: SideGiven, *, rank: int | None = None) -> Comparison:
    """Compare two sides: what became slower from A to B, by how much, and how sure.

    Args:
        a: The side before a change: a run, a directory of runs, a capture of another tool; or several of them.
        b: The side after it.
        rank: Rank of a job to compare; by default the first that every run has.

    Raises:
        InputError: A side cannot be read.
        UsageError: The runs have no rank in common.
    """
    runs = [_runs(side) for side in (a, b)]
    number = _common_rank([run for side in runs for run in side], rank)
    seen = [[_Seen(run, number) for run in side] for side in runs]
    facts = [exact.environment_of([one.exact for one in side]) for side in seen]
    levels = _levels(seen)
    several = min(len(side) for side in seen) > 1
    step = mean = None
    if all(levels):
        of = _compared([one.path for side in seen for one in side])
        known = noise_history.known_spread(_history_key(facts), turns=False, of=of)
        step = verdict.change_of_level(levels[0], levels[1], known)
        mean = verdict.change_of_mean(levels[0], levels[1])
    parts = _parts_changed([[one.parts for one in side] for side in seen], facts)
    machine = machine_of(levels[0], levels[1])
    before = prediction.gains_of(runs[0][-1]) if facts[0]["framework"] == facts[1]["framework"] else []
    gains = prediction.followed(before, prediction.gains_of(runs[1][-1])) if before else []
    notes, causes = _notes(facts, machine, step)
    if both := {one.path for one in seen[0]} & {one.path for one in seen[1]}:
        notes.insert(0, f"on both sides, so that it says nothing of a difference: {', '.join(sorted(both))}")
    exacts = [[one.exact for one in side] for side in seen]
    made = [[count for one in side if (count := one.compilations) is not None] for side in exacts]
    return Comparison(
        a=Side(name=_name(a, seen[0]), runs=[one.path for one in seen[0]], environment=facts[0]),
        b=Side(name=_name(b, seen[1]), runs=[one.path for one in seen[1]], environment=facts[1]),
        design=RUNS if several else SINGLE,
        rank=number if any(len(run.ranks) > 1 for side in runs for run in side) else None,
        step=step,
        mean=mean,
        step_ns=float(np.mean([one.parts.step_ns for one in seen[0]])),
        parts=parts,
        memory=exact.memory_of(exacts[0], exacts[1]),
        compilations=(max(made[0], default=None), max(made[1], default=None)),
        machine=machine,
        levels=(levels[0], levels[1]),
        prediction=prediction.held(gains, step, parts),
        notes=notes,
        causes=causes,
        losses=(exact.losses_of(exacts[0]), exact.losses_of(exacts[1])),
    )


def _levels(seen: Sequence[Sequence[_Seen]]) -> list[list[RunLevel]]:
    """Return the level of each run, of steps outside the windows if every run has one, else of recorded steps."""
    recorded = not all(False in one.levels for side in seen for one in side)
    return [[one.levels[recorded] for one in side if recorded in one.levels] for side in seen]


def remember(found: Comparison) -> None:
    """Add to the history of this machine how far the runs of each side lie apart; one comparison counts once."""
    facts = [found.a.environment, found.b.environment]
    if not all(found.levels) or (key := _history_key(facts)) is None:
        return
    squares, freedom = verdict.squares_of(*found.levels, turns=False)
    noise_history.remember(key, squares, freedom, _compared([*found.a.runs, *found.b.runs]))


def _compared(paths: Sequence[str]) -> str:
    """Return what identifies a comparison in the history: where its runs lie, whichever side they are on."""
    return "\n".join(sorted(str(Path(path).absolute()) for path in paths))


def _history_key(facts: Sequence[dict[str, str]]) -> str | None:
    """Return the key of the history of these runs; None of runs of other machines, or of different programs."""
    if any(side.get("host") != platform.node() or side.get("program") != facts[0].get("program") for side in facts):
        return None
    return noise_history.machine_key(facts[0].get("program", ""), facts[0]["framework"], turns=False)


def _runs(given: SideGiven) -> list[Run]:
    """Return the runs of a side: of a directory of runs all of them."""
    if isinstance(given, Run):
        return [given]
    if not isinstance(given, str | Path):
        return [run for one in given for run in _runs(one)]
    path = Path(given)
    several = [] if run_directory.ranks(path) else run_directory.runs(path)
    return [Run(run) for run in several] or [Run(path)]


def _common_rank(runs: Sequence[Run], wanted: int | None) -> int:
    if not runs:
        message = "A side names no run."
        raise UsageError(message, "Name a run, a directory of runs, or a capture.")
    common = set.intersection(*({one.rank for one in run.ranks} for run in runs))
    if wanted is None and common:
        return min(common)
    if wanted in common:
        return int(wanted)
    message = "The runs have no rank in common." if wanted is None else f"Not every run has a rank {wanted}."
    raise UsageError(message, "Name runs of one job, or a rank that all have with --rank.")


def _name(given: SideGiven, seen: Sequence[_Seen]) -> str:
    if isinstance(given, str | Path):
        return Path(given).name or str(given)
    return Path(seen[0].path).name if len(seen) == 1 else f"{len(seen)} runs"


def _parts_changed(seen: Sequence[Sequence[StepParts]], facts: Sequence[dict[str, str]]) -> PartChanges:
    """Return how parts changed; of two frameworks, or of a device and the host, only the phases can be told."""
    a, b = seen
    kinds = [{name.partition(":")[0] for name in side["device"].replace("/", " ").split()} for side in facts]
    if kinds[0] != kinds[1] or facts[0]["framework"] != facts[1]["framework"]:
        return PartChanges(phases=phases_together(a, b))
    return change_of_parts(a, b)


def machine_of(a: Sequence[RunLevel], b: Sequence[RunLevel]) -> Machine:
    """Return what the machine did on each side: medians over the runs."""
    known = [
        [[value for run in side if (value := getattr(run, name)) is not None] for side in (a, b)]
        for name in ("delay", "faults")
    ]
    delay, faults = (tuple(float(np.median(side)) if side else None for side in sides) for sides in known)
    return Machine(delay=(delay[0], delay[1]), faults=(faults[0], faults[1]))


def faults_note(machine: Machine, spread: float = 0.0, so: str = f"set {HEAP} on both sides") -> list[str]:
    """Return what to say of page faults: nothing unless they differ between sides, or by ``spread`` between runs.

    Args:
        machine: What the machine did.
        spread: How far the page faults of unchanged runs lie apart.
        so: What follows from that.
    """
    a, b = machine.faults
    if a is None or b is None or (abs(a - b) <= _FAULTS and spread <= _FAULTS):
        return []
    return [
        f"page faults a step differ between runs ({a:,.0f} and {b:,.0f}): the allocator gives memory back and takes it "
        f"again, by the luck of the heap; {so}"
    ]


def _notes(facts: Sequence[dict[str, str]], machine: Machine, step: StepChange | None) -> tuple[list[str], list[str]]:
    notes = [
        f"{name}: {facts[0].get(name, '–')} -> {facts[1].get(name, '–')}"
        for name in dict.fromkeys((*facts[0], *facts[1]))
        if facts[0].get(name) != facts[1].get(name) and name not in _UNSAID
    ]
    if step is None:
        notes.append("the steps of the two sides were timed in different ways, recorded and not, or not at all")
    causes = []
    if faults := faults_note(machine):
        causes.append("page-faults")
        notes += faults
    before, after = machine.delay
    if before is not None and after is not None and abs(before - after) > _BUSIER:
        notes.append(
            f"the machine was busier on one side: its thread waited for a core {before:.0%} and {after:.0%} of the time"
        )
    return notes, causes
