"""Python in the step: which of the program's own lines take time outside the framework, and what they wait for."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import sqrt

import polars as pl

from stepscope.advise.calls import executing, explained_calls, recorded_calls
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed, SampledFrame
from stepscope.advise.rules.data_rules import loads_data, lock_holder, wanting_lock
from stepscope.advise.rules.memory_rules import pages_read_again
from stepscope.analyse.quantities import count_text, duration_text, percent_text
from stepscope.analyse.stacks.sampled_time import sampled_time
from stepscope.trace.tables import columns_of

#: Part of the step below which a place is not told.
_TOLD = 0.05
#: A place is outside the framework if this part of its time is.
_PURE = 0.6
#: A place inside another stands for it with this part of its time.
_STANDS_FOR = 0.8
#: Functions that make Python's values of tensors. Their Python is outside of operators; in their native part, a thread
#: may wait for operators that are queued.
READS = frozenset(
    [
        "int",
        "long",
        "float",
        "bool",
        "index",
        "getitem",
        "getitem_origin",
        "iter",
        "item",
        "tolist",
        "array",
        "numpy",
        "asnumpy",
    ]
)
#: Functions that make tensors of Python's and NumPy's values, as they must: told from that part of the step on.
_MUCH = 0.2
_MAKES = frozenset(["array", "asarray", "device_put", "to_tensor", "tensor", "as_tensor", "from_numpy"])
#: What runs functions of the program for compiled programs of JAX; the operators that call them.
_CALLS_BACK = re.compile(r"[/\\]jax[/\\]_src[/\\](?:callback|debugging)\.py$")
_CALLBACKS = r"^(?:pure|io|debug)_callback"
#: What goes through the parts of a model, and what calls one.
_OF_MODELS, _CALLS_MODEL = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\]module\.py$"), "_call_impl"
#: What turns tensors into text.
_TEXTS = re.compile(r"[/\\](?:torch[/\\]_tensor_str|paddle[/\\]tensor[/\\]to_string)\.py$")
#: Part of the run that the thread waits for a core, from which on times of operators are known to this part of them.
_HALF, _BUSY_ERROR = 0.5, 0.3
#: An event of steps, and how many of them in a run are asked for every few steps.
_COLLECTS, _AGAIN = "garbage collection", 4
#: Computes on other threads while Python goes on. So does JAX, of which the waits for results tell it.
_MEANWHILE = "mindspore"
#: Fewest looks that tell a place.
_LOOKS = 4
#: What calling an operator takes where this machine's time is unknown, ns.
_CALL_NS = 1500.0
#: States in which a thread waits: cause, what it does there, and the change.
_WAITS = {
    "sleep": ("sleep-in-step", "sleeps", "Take the sleep out of the step."),
    "io": (
        "io-in-step",
        "waits for files or the network",
        "Keep what it reads in memory, write less often, or do it in another thread or process.",
    ),
    "lock": (
        "lock-wait",
        "waits for a lock or another thread",
        "Shorten what the other thread does while it holds the lock, or hand the work over without waiting for it.",
    ),
    "child": ("subprocess-in-step", "waits for another process", "Start it once, before the loop, or do not wait."),
    "waiting": ("wait-in-step", "waits", "Take the wait out of the step."),
}
#: The same of a line that goes through a model.
_OF_MODEL = (
    "python-in-step",
    "go through the parts of a model in Python",
    "Go through it once, before the loop, and keep what you need: parameters = list(model.parameters()), "
    "state = model.state_dict(), which holds the tensors themselves.",
)
#: What runs beside the training thread, by framework.
_WORKERS = "the data loader's workers"
_BESIDE = {"jax": "a thread or process that prepares the next batch", "mindspore": "the dataset's workers"}


@dataclass
class _Place:
    """A call site or a function of the program's own code: time of the stacks that go through it, ns per step."""

    file: str
    line: int | None
    function: str
    depth: float = 0.0
    outside: float = 0.0
    total: float = 0.0
    count: float = 0.0
    rows: list[int] = field(default_factory=list)

    @property
    def error(self) -> float:
        """The standard error of its time, by the number of looks."""
        return self.total / sqrt(max(self.count, 1.0))


def python_code(observed: Observed) -> Iterator[Claim]:
    """Yield what the program's own code does in the step outside of the framework, garbage collection and the GIL.

    The GIL that a loader's thread holds is a matter of loading, see :mod:`.data_rules`.
    """
    looks = observed.looks
    if looks.is_empty() or not observed.step_ns:
        return
    yield from _garbage(observed)
    yield from _gil(observed)
    yield from _called_back(observed)
    yield from _written_out(observed)
    yield from _places(observed, looks.filter((pl.col("phase") != "data").fill_null(value=True)))


def _called_back(observed: Observed) -> Iterator[Claim]:
    """Yield the Python that a compiled program of JAX calls back, on a thread of XLA or while it is called."""
    sampled = sampled_time(observed.tables)
    beside = sampled.rows.filter(pl.col("order") == 2).select("stack", time="inside", count="count")
    steps = max(sampled.steps, 1)
    mine = observed.looks.filter(pl.col("stack").is_in(_through_callbacks(observed)))
    places: dict[tuple[str, str, int], float] = defaultdict(float)
    time, looks = 0.0, 0.0
    for rows, per_step in ((beside, steps), (mine.select("stack", "time", "count"), 1)):
        for stack, spent, count in rows.iter_rows():
            frames = observed.stacks.get(stack, ())
            back = next((place for place, frame in enumerate(frames) if _CALLS_BACK.search(frame.file)), 0)
            called = [frame for frame in frames[:back] if frame.own]
            if called:
                outer, inner = called[-1], called[0]
                places[inner.file, outer.function, inner.line] += spent / per_step
                time += spent / per_step
                looks += count
    if looks < _LOOKS:
        return
    # The operators of the recorded steps contain what such a call takes beside its Python.
    spans = columns_of(observed.tables, "spans", "name", "dur", "step", "kind").drop_nulls("step")
    calls = (pl.col("kind").cast(pl.String) == "operator") & pl.col("name").cast(pl.String).str.contains(_CALLBACKS)
    recorded = float(spans.filter(calls)["dur"].sum()) / max(observed.summary.steps.total_ns, 1) * observed.step_ns
    time = min(max(time, recorded), observed.step_ns)
    if observed.share(time) < _TOLD:
        return
    (file, function, line), most = max(places.items(), key=lambda item: item[1])
    what = f"{function} ({observed.place(file, line)})"
    finding = Finding(
        cause="python-in-step",
        title=f"{duration_text(time)} of {duration_text(observed.step_ns)} a compiled program waits for Python that it "
        f"calls back: {what}",
        gain_ns=round(time), gain_low_ns=round(0.7 * time), gain_high_ns=round(min(1.3 * time, observed.step_ns)),
        basis="the time of the program's operators that call Python, or that of the looks at the threads that run it",
        confidence=Confidence.MEASURED if recorded else Confidence.LIKELY,
        evidence=(
            Evidence(text=f"seen in {looks:.0f} looks, {percent_text(most / sum(places.values()))} of it "
                     f"at {observed.place(file, line)}", result="python_lines", source=f"{file}:{line}"),
        ),
        remedy=f"Write {function} with jax.numpy, so that it is compiled, too; or compute it on the host before the "
        "step and pass it as an argument. Log from callbacks every hundredth step: jax.lax.cond(step % 100 == 0, …).",
        operator=what,
    )  # fmt: skip
    waits = observed.looks.filter(pl.col("state").is_in(["lock", "waiting"]))
    seen = observed.explained(mine if len(mine) else waits)
    scale = min(time / max(sum(seen.values()), 1.0), 1.0)
    yield Claim(finding, Depth.CAUSE, {name: scale * ns for name, ns in seen.items()} or {f"callback {what}": time})


def _written_out(observed: Observed) -> Iterator[Claim]:
    """Yield tensors that are turned into text, number by number, as ``print(tensor)`` and ``f"{tensor}"`` do."""
    through = [stack for stack, frames in observed.stacks.items() if any(_TEXTS.search(one.file) for one in frames)]
    looks = observed.looks.filter(pl.col("stack").is_in(through))
    time, count = float(looks["time"].sum()), float(looks["count"].sum())
    if observed.share(time) < _TOLD or count < _LOOKS:
        return
    error = 2 * time / count**0.5
    lines = _hottest(looks)
    at = f": {observed.place(*lines[0][:2])}" if lines else ""
    finding = Finding(
        cause="python-in-step",
        title=f"{duration_text(time)} of {duration_text(observed.step_ns)} tensors are turned into text{at}",
        gain_ns=round(time), gain_low_ns=round(max(time - error, 0.0)),
        gain_high_ns=round(min(time + error, observed.step_ns)),
        basis="its time in the sampled stacks of all steps, without waits for a core; nothing else overlaps it",
        confidence=Confidence.MEASURED if count >= 20 else Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{duration_text(time)} of the step in {count:.0f} looks at the training thread", value=time,
                     unit="ns", result="python_lines", source=":".join(map(str, lines[0][:2])) if lines else None),
        ),
        remedy="Print or log numbers, not tensors, and every so many steps: if step % 100 == 0: "
        'log.info("loss %.3f", loss.item()); of large tensors their mean and their norm.',
    )  # fmt: skip
    calls = recorded_calls(observed)
    calls = calls.filter(~pl.col("phase").is_in(["forward", "backward", "optimizer"]).fill_null(value=False))
    yield Claim(finding, Depth.CAUSE, observed.explained(looks) | explained_calls(calls))


def _through_callbacks(observed: Observed) -> list[int]:
    """Return the stacks in which JAX calls a function of the program from a compiled one."""
    found = []
    for stack, frames in observed.stacks.items():
        back = next((place for place, frame in enumerate(frames) if _CALLS_BACK.search(frame.file)), 0)
        if any(frame.own for frame in frames[:back]):
            found.append(stack)
    return found


def _places(observed: Observed, looks: pl.DataFrame) -> Iterator[Claim]:
    looks = looks.with_columns(of_model=pl.col("stack").is_in(_through_models(observed)))
    looks = looks.with_columns(outside=_outside(observed, looks)).with_row_index("row")
    if observed.framework == "jax":  # what a line waits for its results belongs to the program that computes them
        results = pl.col("state").is_in(["lock", "waiting"])
        looks = looks.with_columns(time=pl.when(results).then("outside").otherwise("time"))
    elsewhere = ["collecting", "gil"] + (["io"] if pages_read_again(observed) else [])
    left = looks.filter(~pl.col("state").is_in(elsewhere))
    while len(left):
        place = _largest(observed, left)
        if place is None:
            return
        chosen = left.filter(pl.col("row").is_in(place.rows))
        left = left.filter(~pl.col("row").is_in(place.rows))
        if _only_early(observed, chosen):
            continue
        if place.outside <= 2 * place.error:
            continue  # by so few looks it may take no time
        garbage = _garbage_of(observed, place, looks)
        place.total += float(garbage["time"].sum())
        place.outside += float(garbage["time"].sum())
        place.count += float(garbage["count"].sum())
        yield _claim(observed, place, pl.concat([chosen, garbage]))


def _garbage_of(observed: Observed, place: _Place, looks: pl.DataFrame) -> pl.DataFrame:
    """Return the looks at collections of garbage that a place makes: nearly all lie in it, and it takes as long itself.

    Without what it does, Python has no reason to collect.
    """
    collecting = looks.filter(pl.col("state") == "collecting")
    through = [
        stack for stack, frames in observed.stacks.items()
        if any((frame.file, frame.function) == (place.file, place.function)
               and place.line in (None, frame.line) for frame in frames)
    ]  # fmt: skip
    mine = collecting.filter(pl.col("stack").is_in(through))
    time, whole = float(mine["time"].sum()), float(collecting["time"].sum())
    return mine if _STANDS_FOR * whole <= time <= place.total else mine.clear()


def _only_early(observed: Observed, looks: pl.DataFrame) -> bool:
    """Return whether several looks fall into the first half of the run alone: what fills a cache is done with."""
    if looks["count"].sum() <= _LOOKS or observed.run_steps.is_empty():
        return False
    middle = observed.run_steps["ts"].median()
    samples = columns_of(observed.tables, "samples", "ts", "stack").filter(
        pl.col("stack").is_in(looks["stack"].implode())
    )
    return not samples.is_empty() and bool((samples["ts"] < middle).all())


def _outside(observed: Observed, looks: pl.DataFrame) -> pl.Series:
    """Return the part of each row's time that is outside of the framework's operators.

    A look does not tell whether native code is an operator. The recorded steps tell the time of all operators: the
    native time beyond it is outside. It is assigned to other packages first, then to the program's own lines.
    """
    native, python = looks["state"] == "native", looks["state"] == "python"
    own = looks["file"].is_not_null() & (looks["leaf"] == looks["file"])
    outside, reads = ~looks["in_framework"], looks["stack"].is_in(converting(observed, READS))
    waits = looks["state"].is_in(list(_WAITS)) & outside
    time, makes = looks["time"], looks["stack"].is_in(converting(observed, _MAKES))
    if observed.share(float(time.filter(makes).sum())) < _MUCH:
        makes &= False
    itself = looks["in_library"] | looks["of_model"]
    sure = (python & (outside | reads) | waits | itself).cast(pl.Float64)
    busy = observed.part("computing")
    if observed.framework == "jax" and busy:
        sure, busy = _beside_jax(observed, looks, sure, busy)
    sure, native = pl.select(pl.when(makes).then(1.0).otherwise(sure)).to_series(), native & ~makes
    if busy is None or observed.summary.on_device or not native.any():
        return sure * time
    shares, free = sure, native & ~itself
    most = _surely_beyond(observed, float(time.filter(native).sum()), busy)
    for part, explained in _parts(observed, looks, busy):
        beyond = max(float(time.filter(native & part).sum()) - explained, 0.0)
        for chosen, known in ((free & part & outside & ~own, beyond), (free & part & own, most)):
            of_chosen = float(time.filter(chosen).sum())
            taken = min(of_chosen, beyond, known)
            if taken > 0:
                shares = shares + chosen.cast(pl.Float64) * (taken / of_chosen)
                beyond -= taken
    return shares * time


def _through_models(observed: Observed) -> list[int]:
    """Return the stacks in which own code goes through a model's parts, such as by ``state_dict()``, and calls none."""

    def goes(frames: Sequence[SampledFrame]) -> bool:
        called = list(takewhile(lambda frame: not frame.own, frames))
        inside = bool(called) and _OF_MODELS.search(called[0].file) is not None
        return inside and not any(frame.function.endswith(_CALLS_MODEL) for frame in frames)

    return [stack for stack, frames in observed.stacks.items() if goes(frames)]


def _beside_jax(observed: Observed, looks: pl.DataFrame, sure: pl.Series, busy: float) -> tuple[pl.Series, float]:
    """Return what is surely outside without waits for results and calls, and the native time that operators explain.

    JAX computes on other threads or on a device: so long, a wait of the training thread is one for results, and this
    part of computing explains none of what the thread does itself.

    Args:
        observed: The rank.
        looks: The looks at the training thread.
        sure: What is surely outside of the framework, as part of each row's time, before.
        busy: Time of computing, ns per step.
    """
    time, own = looks["time"], looks["file"].is_not_null() & (looks["leaf"] == looks["file"])
    native, python = looks["state"] == "native", looks["state"] == "python"
    waits = {state: (looks["state"] == state) & ~looks["in_framework"] for state in ("lock", "waiting")}
    waited = {state: float(time.filter(rows).sum()) for state, rows in waits.items()}
    # Beyond that, threads of XLA may have waited for a core: a lock takes another thread of the program's own. Where
    # the system tells waits at locks, others, such as for a disk, are not for results.
    locked = max(busy, executing(observed)) if _own_threads(observed) else waited["lock"]
    inside = float(time.filter((looks["state"].is_in(list(waits))) & looks["in_framework"]).sum())
    left = 0.0 if waited["lock"] else max(busy - inside, 0.0)
    for state, results in (("lock", locked), ("waiting", left)):
        sure = sure * (1 - waits[state].cast(pl.Float64) * _part(results, waited[state]))
    # A jitted function has no frame: it is called in the program's own line, mostly without the interpreter's lock.
    dispatching = _dispatching(observed)
    calling = max(dispatching - float(time.filter(native & own).sum()), 0.0)
    sure = sure * (1 - (python & own).cast(pl.Float64) * _part(calling, float(time.filter(python & own).sum())))
    return sure, max(busy - inside - sum(waited.values()), dispatching)


def _own_threads(observed: Observed) -> bool:
    """Return whether another thread runs, or waits in, the program's own code, other than for a compiled program."""
    rows = sampled_time(observed.tables).rows
    others: set[int] = {*rows.filter(pl.col("order") == 2)["stack"]}.difference(_through_callbacks(observed))
    return any(frame.own for stack in others for frame in observed.stacks.get(stack, ()))


def _surely_beyond(observed: Observed, native: float, busy: float) -> float:
    """Return what of the native time is surely beyond that of operators, which own lines call, too; ns per step.

    On a busy machine long operators contain a wait for a core in each call, and take more than their part.
    """
    delay = observed.summary.run.delay_share or 0.0
    return max(native - (1 + _BUSY_ERROR * delay) * busy, 0.0) if delay > _HALF else native


def _part(taken: float, time: float) -> float:
    return min(taken / time, 1.0) if time else 0.0


def _dispatching(observed: Observed) -> float:
    """Return the time per step, ns, in which JAX calls jitted functions."""
    spans = columns_of(observed.tables, "spans", "name", "dur", "step", "depth").drop_nulls("step")
    spans = spans.filter((pl.col("depth") == 0) & pl.col("name").cast(pl.String).str.starts_with("PjitFunction("))
    return float(spans["dur"].sum()) * _part(observed.step_ns, float(observed.summary.steps.total_ns))


def converting(observed: Observed, names: frozenset[str]) -> list[int]:
    """Return the stacks in which own code calls a function of a framework of these names."""
    found = []
    for stack, frames in observed.stacks.items():
        own = next((place for place, frame in enumerate(frames) if frame.own), 0)
        called = frames[own - 1].function if own else ""
        if called.rpartition(".")[2].strip("_") in names or (names is _MAKES and called.endswith("Tensor.__init__")):
            found.append(stack)
    return found


def _parts(observed: Observed, looks: pl.DataFrame, busy: float) -> Iterator[tuple[pl.Series, float]]:
    """Yield the looks in backward and optimizer, and the others, with the native time that operators explain, per step.

    Before a call of PyTorch is in its operator, it reads the arguments: this native time is in the program's own line,
    and in no operator. Outside of backward and optimizer, which call from C++, each call explains this machine's time
    of one. (Of a forward without gradients, the operators have no phase, and the looks have one.)
    """
    calls = recorded_calls(observed) if observed.framework == "torch" else pl.DataFrame()
    of_torch = pl.col("phase").is_in(["backward", "optimizer"]).fill_null(value=False)
    in_torch = looks.select(of_torch).to_series()
    if calls.is_empty() or not in_torch.any():
        yield pl.Series([True]).new_from_index(0, len(looks)), busy
        return
    top = calls.filter((pl.col("outer") < 0) & ~of_torch)
    operators = float(top["time"].sum())
    calling = len(top) / max(observed.summary.steps.count, 1) * _call_ns(observed)
    yield ~in_torch, operators + calling
    yield in_torch, max(busy - operators, 0.0)


def _call_ns(observed: Observed) -> float:
    """Return what calling an operator takes on this machine, ns."""
    return float(max((one["call_ns"] for one in observed.speeds if one.get("call_ns")), default=_CALL_NS))


def _largest(observed: Observed, looks: pl.DataFrame) -> _Place | None:
    """Return the place with most time outside of the framework; of nested ones that differ little, the innermost."""
    places: dict[tuple[str, int | None, str], _Place] = {}
    columns = ("row", "stack", "time", "outside", "count")
    for row, stack, time, outside, count in looks.select(columns).iter_rows():
        own = [frame for frame in reversed(observed.stacks.get(stack, ())) if frame.own]
        seen = set()
        for depth, frame in enumerate(own):
            for key, at in (
                ((frame.file, None, frame.function), depth - 0.5),
                ((frame.file, frame.line, frame.function), float(depth)),
            ):
                if key in seen or (frame.function.endswith(">") and key[1] is None):
                    continue
                seen.add(key)
                place = places.setdefault(key, _Place(*key))
                place.depth = max(place.depth, at)
                place.outside += outside
                place.total += time
                place.count += count
                place.rows.append(row)
    least = _TOLD * observed.step_ns
    known = [
        place for place in places.values() if place.outside >= max(least, _PURE * place.total) and place.count >= _LOOKS
    ]
    if not known:
        return None
    most = max(place.outside for place in known)
    return max((place for place in known if place.outside >= _STANDS_FOR * most), key=lambda place: place.depth)


def _claim(observed: Observed, place: _Place, looks: pl.DataFrame) -> Claim:
    by_state: dict[str, float] = defaultdict(float)
    for stack, state, outside, in_framework in looks.select("stack", "state", "outside", "in_framework").iter_rows():
        if state in _WAITS and any(frame.file.endswith("/subprocess.py") for frame in observed.stacks.get(stack, ())):
            state = "child"  # it waits for its output, or for its start
        by_state["" if in_framework else state] += outside  # what a conversion waits for is the conversion
    state = max(by_state, key=lambda name: by_state[name])
    where = observed.place(place.file, place.line)
    what = f"{place.function.rpartition('.<locals>.')[2]} ({where})" if place.line is None else where
    if place.line is not None and (code := observed.code(place.file, place.line)):
        what += f" `{code[:60]}`"
    if float(looks.filter("of_model")["time"].sum()) >= _PURE * place.total:
        cause, does, remedy = _OF_MODEL
    else:
        cause, does, remedy = _WAITS.get(
            state,
            (
                "python-in-step",
                "go into Python outside of the framework",
                "Take it out of the step: do it once, less often, in one call of the framework or of NumPy, or in "
                f"{_BESIDE.get(observed.framework, _WORKERS)}.",
            ),
        )
    lines = _hottest(looks)
    step = observed.step_ns
    evidence = [
        Evidence(
            text=f"{duration_text(place.total)} of the step in {place.count:.0f} looks at the training thread",
            value=place.total, unit="ns", result="python_lines", source=f"{place.file}:{place.line or lines[0][1]}",
        ),
        *(
            Evidence(text=f"{observed.place(file, line)} takes {percent_text(part)} of it", value=part,
                     source=f"{file}:{line}", result="python_lines")
            for file, line, part in lines[:3]
        ),
    ]  # fmt: skip
    if garbage := float(looks.filter(pl.col("state") == "collecting")["time"].sum()):
        text = f"{duration_text(garbage)} of it Python collects the garbage that it makes"
        evidence.insert(1, Evidence(text=text, value=garbage, unit="ns", result="python_lines"))
    # Where other threads compute meanwhile, the step still takes what they compute.
    most = step - (observed.part("computing") or 0.0) if observed.framework == _MEANWHILE else step
    gain = min(place.total, most)
    finding = Finding(
        cause=cause,
        title=f"{duration_text(place.total)} of {duration_text(step)} {does}: {what}",
        gain_ns=round(gain),
        gain_low_ns=round(min(max(place.outside - 2 * place.error, 0), gain)),
        gain_high_ns=round(min(place.total + 2 * place.error, step)),
        basis="its time in the sampled stacks of all steps, without waits for a core"
        + (", as far as the other threads compute less" if gain < place.total else "; nothing else overlaps it"),
        confidence=Confidence.MEASURED if place.count >= 20 else Confidence.LIKELY,
        evidence=tuple(evidence),
        remedy=remedy,
        operator=what,
    )
    return Claim(finding, Depth.PLACE, observed.explained(looks))


def _hottest(looks: pl.DataFrame) -> list[tuple[str, int, float]]:
    """Return the innermost own lines by falling part of the time."""
    whole = float(looks["time"].sum()) or 1.0
    by_line = looks.filter(pl.col("file").is_not_null()).group_by("file", "line").agg(pl.col("time").sum())
    rows = by_line.sort("time", "file", "line", descending=[True, False, False]).rows()
    return [(file, line, time / whole) for file, line, time in rows]


def _garbage(observed: Observed) -> Iterator[Claim]:
    looks = observed.looks.filter(pl.col("state") == "collecting")
    garbage, steps = observed.summary.garbage, max(observed.summary.steps.count, 1)
    # Looks weigh pauses by CPU time; those that were recorded contain what the thread waited for a core.
    sampled = float(looks["time"].sum())
    time = sampled if looks["count"].sum() >= _LOOKS else garbage.share * observed.step_ns
    if observed.share(time) < _TOLD:
        return
    lines = _hottest(looks)
    at = f" at {observed.place(*lines[0][:2])}" if lines and lines[0][2] >= _STANDS_FOR else ""
    explicit = bool(at) and "gc.collect" in observed.code(*lines[0][:2])
    pauses = columns_of(observed.tables, "spans", "kind", "step").filter(pl.col("kind").cast(pl.String) == "garbage")
    of_run = columns_of(observed.tables, "run_events", "name").filter(pl.col("name").cast(pl.String) == _COLLECTS)
    asked = explicit and len(of_run) >= _AGAIN  # every few steps
    if pauses["step"].drop_nulls().n_unique() < steps / 2 and not asked:
        return
    remedy = (
        f"Take gc.collect() out of the step ({observed.place(*lines[0][:2])}): call it between epochs."
        if explicit
        else "Make fewer objects that refer to each other in the step, or call gc.freeze() before the loop and "
        "gc.disable() with a gc.collect() between epochs."
    )
    finding = Finding(
        cause="garbage-collection",
        title=f"{duration_text(time)} of {duration_text(observed.step_ns)} Python collects garbage{at}",
        gain_ns=round(time), gain_low_ns=round(0.7 * time), gain_high_ns=round(1.1 * time),
        basis="the pauses of Python's collector, by samples of all steps or, where these are few, in the recorded ones",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{count_text(garbage.count, 'pause')} in {count_text(steps, 'step')}",
                     value=float(garbage.count)),
            *(Evidence(text=f"collects at {observed.place(file, line)}", source=f"{file}:{line}",
                       result="python_lines") for file, line, _ in lines[:2]),
        ),
        remedy=remedy,
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE if explicit else Depth.PLACE, observed.explained(looks))


def _gil(observed: Observed) -> Iterator[Claim]:
    holder, line, stack = lock_holder(observed)
    looks = wanting_lock(observed, holder)
    seen = float(looks["time"].sum())
    if observed.share(seen) < _TOLD or looks["count"].sum() < _LOOKS:
        return
    if not holder or loads_data(observed.stacks.get(stack, ())):
        return
    who, beside = f"thread {holder}", observed.looks.filter((pl.col("state") == "lock") & ~pl.col("in_framework"))
    if float(beside["time"].sum()) < seen:  # it also waits for what this thread makes, such as at its queue
        looks = pl.concat([looks, beside])
    time = max(float(looks["time"].sum()), _off_core(observed, looks))
    finding = Finding(
        cause="gil-contention",
        title=f"{duration_text(time)} of {duration_text(observed.step_ns)} the training thread waits for Python's "
        f"lock, which {who} holds",
        gain_ns=round(time), gain_low_ns=round(0.5 * time), gain_high_ns=round(min(1.5 * time, observed.step_ns)),
        basis="what the training thread waits in a step, by its CPU time, and not for a core; as far as the looks see "
        "it want the GIL or wait for that thread",
        evidence=(
            Evidence(text=f"the training thread is seen to want the GIL for {duration_text(seen)} a step", value=seen,
                     unit="ns"),
            Evidence(text=f"{who} runs Python at {line}", result="python_lines"),
        ),
        remedy=f"Move what {who} does at {line} to another process, or let it do less Python.",
        operator=line,
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, observed.explained(looks))


def _off_core(observed: Observed, looks: pl.DataFrame) -> float:
    """Return what of a step the training thread neither runs nor waits for a core, ns, by some of the looks at waits.

    It is 0 where its CPU time is unknown. Looks are few where another thread holds the GIL: who looks
    needs it at the end of each step.
    """
    cpu = observed.run_steps["cpu"].drop_nulls()
    waits = observed.looks.filter(pl.col("state").is_in([*_WAITS, "gil"]))
    if cpu.is_empty() or waits.is_empty():
        return 0.0
    part = float(looks["time"].sum()) / float(waits["time"].sum())
    return part * max(observed.step_ns - float(cpu.to_numpy().mean()), 0.0)
