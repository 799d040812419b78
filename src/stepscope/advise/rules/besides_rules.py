"""What a run does besides training: evaluations, checkpoints, logging and statistics that come too often."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from stepscope.advise.calls import elements, explained_within, of_step, of_steps, recorded_calls, sizes
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.advise.trainers import trainer_says
from stepscope.analyse.operators.cost_rules import FAMILIES
from stepscope.analyse.quantities import count_text, duration_text
from stepscope.analyse.step.announced import announced
from stepscope.trace.schema import EVALUATIONS
from stepscope.trace.tables import columns_of, has_rows

#: What comes less often than every so many steps is the user's choice.
_OFTEN = 25
#: Part of the steps up to which those without such an event tell what a step takes.
_MOST = 0.6
#: Phases of training, and part of the time of a place that makes all of it one for such events.
_TRAINS, _MOSTLY = ["data", "forward", "backward", "optimizer"], 0.5
#: Least number of them in a run, and of looks at one that the program does not announce.
_FEW, _LOOKS = 3, 10
#: Looks that tell how long the events take without waits for a core.
_TELL = 20


class _Kind(NamedTuple):
    """What a run does besides training: cause, noun, part of a step from which on it is told, and the change."""

    cause: str
    noun: str
    told: float
    remedy: str


_KINDS = {
    "evaluation": _Kind(
        "frequent-evaluation", "an evaluation", 0.15,
        "Evaluate less often: if step % 500 == 0: evaluate(); or on a part of the validation data.",
    ),
    "checkpoint": _Kind(
        "frequent-checkpoint", "a checkpoint", 0.1,
        "Save less often: if step % 500 == 0: save(); or save in a thread, from a copy of the state.",
    ),
    "logging": _Kind(
        "frequent-logging", "logging", 0.05,
        "Log every tenth or hundredth step, numbers rather than tensors and histograms.",
    ),
}  # fmt: skip

#: Where a framework's models have no switch to evaluation, the names of functions tell it: ``validate``, ``eval_step``.
_UNSWITCHED = ("jax",)
_EVALUATES = re.compile(r"(?:^|[._])(?:eval(?:uate|uation)?|validat(?:e|ion)|test)(?:_|$)")

#: Event of the run: a program is given what the training returned, and gives it nothing back.
_EVALUATION_RUN = "evaluation run"

#: What gives Python a number, and what makes one number, or few, of a whole tensor.
_READS = ("item", "_local_scalar_dense", "is_nonzero")
_REDUCES = frozenset(
    ["median", "nanmean", "nansum", "quantile", "histc", "count_nonzero", "kthvalue", "aminmax", "dist", "dot",
     "linalg_norm", "linalg_matrix_norm", "_foreach_norm", "linalg_svdvals", "cosine_similarity", "allclose", "equal"]
) | {name for name, family in FAMILIES.items() if family == "reduction"}  # fmt: skip
#: What gives a reduction its tensor, beside what works element by element.
_PREPARES = frozenset(
    ["to", "detach", "view", "reshape", "flatten", "square", "isnan", "isfinite", "isinf", "type_as", "__and__",
     "__or__", "__xor__", "bitwise_xor", "logical_xor", "floor_divide"]
)  # fmt: skip
#: What scales gradients: the norm that was read before belongs to the training.
_SCALES = frozenset(["mul_", "div_", "clamp_", "_foreach_mul_", "_foreach_div_", "_foreach_clamp_max_"])
#: Elements of a tensor up to which its size tells nothing.
_SMALL = 4096
_STATISTICS = "statistics-in-step"
#: Part of their time from which on the samples tell their line.
_SEEN = 0.25

#: Causes of what a run does besides training.
CAUSES = frozenset(kind.cause for kind in _KINDS.values()) | {_STATISTICS}


def besides_training(observed: Observed) -> Iterator[Claim]:
    """Yield evaluations, checkpoints and logging that take a large part of the run, by all of its steps."""
    steps = observed.run_steps
    if steps.is_empty():
        return
    if observed.framework in _UNSWITCHED:
        yield from _evaluation_runs(observed) or _evaluating(observed)
    if not has_rows(observed.tables, "run_events"):
        return
    begin, end = steps["ts"][0], steps["ts"][-1] + steps["dur"][-1]
    quiet = float(steps["quiet"].sum()) / max(float(steps["dur"].sum()), 1.0)
    for name in _KINDS:
        found = announced(observed.tables, name).filter(pl.col("ts").is_between(begin, end))
        if len(found) < _FEW:
            continue
        (time, having), looks = _time(steps, found, quiet), observed.looks.filter(pl.col("phase") == name)
        if looks["count"].sum() >= _TELL:  # such events may wait for a core less than the rest of the run
            time = min(max(time, float(looks["time"].sum())), float(found["dur"].sum()) / len(steps))
        around = _around(observed, name)
        time += float(around["time"].sum()) - float(looks["time"].sum())
        told = Evidence(
            text=f"in {having} of {count_text(len(steps), 'step')}", value=float(having), result="step_times"
        )  # fmt: skip
        yield from _too_often(observed, name, (time, len(steps) / max(having, 1)), around, told)


def _around(observed: Observed, name: str) -> pl.DataFrame:
    """Return the looks at such events and at what the program does for them, such as renaming a file behind saving it.

    A line or function of the program is for them if they take half of its time or more, and nothing of the training
    runs in it.
    """
    looks = observed.looks.with_row_index("row")
    places: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for row, stack in looks.select("row", "stack").iter_rows():
        own = [one for one in observed.stacks.get(stack, ()) if one.own and one.function != "<module>"]
        for key in {key for one in own for key in ((one.file, one.function, one.line), (one.file, one.function, 0))}:
            places[key].append(row)
    times, chosen = looks["time"].to_list(), set(looks.filter(pl.col("phase") == name)["row"].to_list())
    trains = set(looks.filter(pl.col("phase").is_in(_TRAINS))["row"].to_list())
    for rows in sorted(places.values(), key=lambda rows: sum(times[row] for row in rows)):
        mine = sum(times[row] for row in rows if row in chosen)
        if mine >= _MOSTLY * sum(times[row] for row in rows) > 0 and trains.isdisjoint(rows):
            chosen.update(rows)
    return looks.filter(pl.col("row").is_in(sorted(chosen))).drop("row")


def _time(steps: pl.DataFrame, found: pl.DataFrame, quiet: float) -> tuple[float, int]:
    """Return what these events take a step, ns, without waits for a core, and how many steps have one.

    Their time less the run's share of such waits is too little for an event that waits for a file and not for a core:
    then what its steps take longer than the others counts.
    """
    raw, ends = float(found["dur"].sum()), (steps["ts"] + steps["dur"]).to_numpy()
    place = np.searchsorted(steps["ts"].to_numpy(), found["ts"].to_numpy(), side="right") - 1
    having = np.zeros(len(steps), np.bool_)
    having[place[found["ts"].to_numpy() < ends[place]]] = True
    time, known = raw * quiet, steps["quiet"].to_numpy()
    if having.any() and having.mean() < _MOST:
        time = min(max(time, float((known[having] - np.median(known[~having])).sum())), raw)
    return time / len(steps), int(having.sum())


def _evaluation_runs(observed: Observed) -> list[Claim]:
    """What steps with runs of a program that evaluates take longer than the others, beyond what chance explains.

    A framework whose calls return before the result is computed does not say how long such runs last.
    """
    steps = observed.run_steps
    events = columns_of(observed.tables, "run_events", "name", "ts").with_columns(pl.col("name").cast(pl.String))
    starts = events.filter(pl.col("name") == _EVALUATION_RUN)["ts"].to_numpy()
    place = np.searchsorted(steps["ts"].to_numpy(), starts, side="right") - 1
    having = np.zeros(len(steps), np.bool_)
    having[place[place >= 0]] = True
    if having.sum() < _FEW or having.mean() >= _MOST:
        return []
    known = steps["quiet"].to_numpy()
    more = float(known[having].mean() - known[~having].mean())
    error = 2 * float(np.hypot(*(part.std() / len(part) ** 0.5 for part in (known[having], known[~having]))))
    if more <= error:
        return []
    functions = [tuple(place) for place in observed.facts.get(EVALUATIONS) or ()]
    through = [
        stack
        for stack, frames in observed.stacks.items()
        if any((one.file, one.function) in functions for one in frames)
    ]
    looks = observed.looks.filter(pl.col("stack").is_in(through))
    where = ", ".join(f"{function} ({Path(file).name})" for file, function in functions)
    told = Evidence(
        text=f"in {having.sum()} of {count_text(len(steps), 'step')} a program is given what the training returned, "
        f"and gives nothing back{': ' * bool(where)}{where}; they take {duration_text(more)} longer than the others",
        value=float(having.sum()), result="step_times",
    )  # fmt: skip
    time = more * float(having.mean())
    return list(_too_often(observed, "evaluation", (time, 1 / float(having.mean())), looks, told, Confidence.LIKELY))


def _evaluating(observed: Observed) -> Iterator[Claim]:
    """Own functions whose names say that they evaluate, by samples of all steps; how often, by the recorded."""
    stacks = [
        stack
        for stack, frames in observed.stacks.items()
        if any(one.own and _EVALUATES.search(one.function.lower()) for one in frames)
    ]
    looks = observed.looks.filter(pl.col("stack").is_in(stacks))
    runs = columns_of(observed.tables, "spans", "name", "step", "depth").drop_nulls("step").filter(pl.col("depth") == 0)
    named = runs["name"].cast(pl.String).str.extract(r"^PjitFunction\((.*)\)$").fill_null("")
    programs = [name for name in named.unique().sort().to_list() if _EVALUATES.search(name.lower())]
    within = runs.filter(named.is_in(programs))["step"].n_unique()
    if looks["count"].sum() < _LOOKS or within < _FEW:
        return
    place = observed.stacks[looks.sort("time", descending=True)["stack"][0]]
    at = next(one for one in reversed(place) if one.own and _EVALUATES.search(one.function.lower()))
    told = Evidence(
        text=f"{', '.join(programs)} runs in {within} of {observed.summary.steps.count} recorded steps, most of all by "
        f"{at.function} ({observed.place(at.file, at.line)})",
        value=float(within), result="api_statistic", source=f"{at.file}:{at.line}",
    )  # fmt: skip
    every = max(observed.summary.steps.count, 1) / within
    yield from _too_often(observed, "evaluation", (float(looks["time"].sum()), every), looks, told, Confidence.LIKELY)


def _too_often(
    observed: Observed,
    name: str,
    found: tuple[float, float],
    looks: pl.DataFrame,
    told: Evidence,
    confidence: Confidence = Confidence.MEASURED,
) -> Iterator[Claim]:
    """Yield the claim of what takes this time per step, ns, and comes every so many steps, if both are large."""
    (time, every), kind = found, _KINDS[name]
    if every > _OFTEN or observed.share(time) < kind.told:
        return
    often = "in every step" if every < 1.5 else f"every {every:.0f} steps"
    finding = Finding(
        cause=kind.cause,
        title=f"{of_step(observed, time)} is {kind.noun} {often}, {duration_text(time * every)} each time",
        gain_ns=round(0.95 * time), gain_low_ns=round(0.8 * time), gain_high_ns=round(1.1 * time),
        basis="its time over all steps of the run, of which a twentieth stays",
        confidence=confidence,
        evidence=(told,),
        remedy=trainer_says(observed, name, kind.remedy),
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {f"event {name}": time, **observed.explained(looks)})


def statistics(observed: Observed) -> Iterator[Claim]:
    """Yield numbers of whole tensors that Python reads in every step, by the operators of the recorded steps.

    Beside a device, it is the wait for it that costs (``synchronising-call``).
    """
    if observed.framework != "torch" or observed.summary.on_device or not observed.step_ns:
        return
    chosen = read_statistics(observed)
    if chosen.is_empty():
        return
    steps, computed = observed.summary.steps.count, float(chosen["time"].sum())
    many = len(chosen.filter(pl.col("name").str.strip_prefix("aten::").is_in(_READS))) / steps
    looks = observed.looks.filter(outside_training() & (pl.col("state") == "native"))
    line = observed.most_seen(looks) if looks["time"].sum() >= _SEEN * computed else ""
    finding = Finding(
        cause=_STATISTICS,
        title=f"{of_step(observed, computed)} statistics of whole tensors are computed for Python{line}",
        gain_ns=round(0.95 * computed), gain_low_ns=round(0.8 * computed), gain_high_ns=round(1.1 * computed),
        basis="the operators that end in these numbers, of which a twentieth stays",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{many:.0f} numbers a step are read of reductions outside of forward, backward and "
                     f"optimizer, {duration_text(computed)} together",
                     value=computed, unit="ns", result="operator_details"),
        ),
        remedy="Compute them in some steps only: if step % 50 == 0: log(p.norm().item()). To bound gradients: "
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explained_within(recorded_calls(observed), chosen))


def outside_training() -> pl.Expr:
    """Return whether looks are outside of loading, forward, backward and optimizer."""
    return pl.col("phase").is_null() | (pl.col("phase") == "other")


def read_statistics(observed: Observed) -> pl.DataFrame:
    """Return the recorded calls that compute numbers which Python reads; no row if few steps have them."""
    calls = recorded_calls(observed)
    time = pl.col("time").filter((pl.col("outer") < 0) & (pl.col("phase") == "other"))
    if observed.share(float(calls.select(time.sum()).item())) < _KINDS["logging"].told:
        return calls.clear()
    chosen = calls.filter(pl.col("row").is_in(_read_statistics(calls)))
    most = chosen["step"].n_unique() >= max(_FEW, _MOST * observed.summary.steps.count)
    return chosen if most else chosen.clear()


def _read_statistics(calls: pl.DataFrame) -> list[int]:
    """Return the rows of outermost calls that compute a number which Python reads.

    These are the read, the reductions before it, and what prepares their tensor element by element. A number that is
    read between a backward and the scaling of gradients is left out: it clips them.
    """
    name, outermost = pl.col("name").str.strip_prefix("aten::"), pl.col("outer") < 0
    found: list[int] = []
    for step in of_steps(calls, outermost & name.is_in(_READS)):
        top = step.filter(outermost).select("row", "phase", "shapes", name)
        before = None
        for _, run in top.group_by(pl.col("phase").rle_id(), maintain_order=True):
            phase = run["phase"][0]
            if phase == "other":
                found += _read_in(run, clips=before == "backward")
            before = phase
    return found


def _read_in(run: pl.DataFrame, *, clips: bool) -> list[int]:
    """Return the rows of these calls that compute a number which Python reads; none that clip gradients with it."""
    of_run: list[int] = []
    since: list[tuple[int, str, str | None]] = []
    for row, name, shapes in run.select("row", "name", "shapes").iter_rows():
        if name.endswith("_") and not name.endswith("__"):  # it changes a tensor; `__and__` does not
            since.clear()
        if name in _READS:
            of_run += _made_of(row, since)
            since.clear()
        elif name in _SCALES and clips:
            of_run = []
        elif name in _REDUCES or name in _PREPARES or FAMILIES.get(name) in ("elementwise", "copy"):
            since.append((row, name, shapes))
        else:
            since.clear()
    return of_run


def _made_of(read: int, since: list[tuple[int, str, str | None]]) -> list[int]:
    """Return the rows of the calls that a number was made of, and of its read; none if no reduction is among them."""
    rows, size = [read], 0
    for row, name, shapes in reversed(since):
        many = max(map(elements, sizes(shapes)), default=0)
        if name in _REDUCES:
            size = many
        elif many > max(size, _SMALL) or (many < size and many > _SMALL):
            break
        rows.append(row)
    return rows if size else []
