"""What devices wait for: calls that synchronise, the allocator, the host, copies and communication; and compiling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.advise.calls import a_step, of_step
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.device_idle import HOST_REASONS, IdleRow, idle_rows, places, waited
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.advise.rules.collective_rules import exposed_communication
from stepscope.analyse.idle.gaps import gaps, launches
from stepscope.analyse.intervals import subtract, union, unite
from stepscope.analyse.operators.operator_calls import or_negative, rows_of
from stepscope.analyse.quantities import bytes_text, duration_text, number_text, percent_text
from stepscope.analyse.step.activity import Rows, device_rows, of_kinds, span_codes, span_kinds, texts_of
from stepscope.analyse.step.step_trace_time import split
from stepscope.collect.options import asked
from stepscope.trace.tables import Tables, columns_of

#: Part of the step that a device waits for its host, or communicates, from which on it is told; and that it copies.
_HOST_TOLD, _COMMUNICATION_TOLD, _COPIES_TOLD = 0.2, 0.2, 0.1
#: Part of the step below which idle time and copies are not looked into.
_LEAST = 0.05
#: Fewest pieces of work of a step that are many.
_PIECES = 16
#: Part of the step that a device idles while the host runs Python that launches nothing, from which on it is told.
_PYTHON_TOLD = 0.1
#: What claims of waits explain beyond their own idle time.
_RUNNING_AHEAD = "idle until the host runs ahead again"
#: Parts of such a wait that the change saves: least, usual, most.
_SAVED = (0.5, 0.75, 1.0)
#: From this part of the step on, compiling is told.
_COMPILING = 0.1
#: From so many compiling steps on, something is compiled again, also if the framework gives no reason.
_AGAIN = 2
#: Copies by what their names say: CUDA's and HIP's words for the direction.
_TO_DEVICE, _TO_HOST = r"HtoD|HostToDevice|-> Device\)", r"DtoH|DeviceToHost|Device -> (?:Pageable|Pinned|Host)"
_ON_DEVICE = r"DtoD|PtoP|DeviceToDevice|Device -> Device"
#: Bytes a second that a copy from pinned memory reaches at least, by the generation of an NVIDIA GPU: PCIe 3, 4, 5.
_PINNED = {7: 11e9, 8: 22e9, 9: 44e9, 10: 44e9}
_SLOWEST_PINNED = 11e9

_MORE_WORK = {
    "": "Launch more work per call: larger batches, or a compiled step.",
    "torch": "Launch more work per call: torch.compile(model), CUDA graphs (torch.compile(mode=\"reduce-overhead\")), "
    "foreach or fused optimizers, or larger batches.",
    "mindspore": "Launch more work per call: graph mode (mindspore.jit), data sink, or larger batches.",
    "paddle": "Launch more work per call: paddle.jit.to_static, or larger batches.",
    "jax": "Launch more work per call: one jax.jit around the whole step, or larger batches.",
}  # fmt: skip
_FEWER_WAITS = {
    "": "Read results less often, and keep calls that wait for the device out of the loop.",
    "torch": "Keep results on the device: add losses up as tensors (total += loss.detach()) and read them (.item(), "
    ".cpu(), print(loss), if on a tensor) every hundredth step; take torch.cuda.synchronize() out of the loop.",
    "jax": "Keep results on the device: read them (float(loss), .item(), block_until_ready()) every hundredth step.",
}
_KEPT_MEMORY = {
    "": "Let the framework keep the memory that it has taken from the device.",
    "torch": "Let torch keep its memory: take torch.cuda.empty_cache() out of the loop, and "
    "PYTORCH_NO_CUDA_MEMORY_CACHING (PYTORCH_NO_HIP_MEMORY_CACHING) out of the environment.",
}  # fmt: skip
_LESS_MEMORY = {
    "": "Leave the framework room on the device: smaller batches, or less that is kept for the backward.",
    "torch": "Leave torch room on the device: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which needs no pieces "
    "of one size; smaller batches; or torch.utils.checkpoint for the layers that keep most.",
}
#: Part of a device's memory that is taken at most, from which on what is given back makes room for other pieces.
_NEARLY_FULL = 0.9
#: Where Dynamo and Inductor compile; what they have compiled runs through other files of theirs.
_COMPILES = re.compile(
    r"torch[/\\](?:_dynamo[/\\]convert_frame|_inductor[/\\](?:compile_fx|async_compile|graph|codecache))\.py$"
)
#: How a function stays one compiled program, in the words of the framework.
_ONE_PROGRAM = {
    "": "Keep shapes, types and Python values of the arguments the same, or mark the size that changes as dynamic; "
    "call the compiled function that was made before the loop.",
    "torch": "Mark the size that changes as dynamic: torch.compile(model, dynamic=True), or "
    "torch._dynamo.mark_dynamic(x, 0); pass numbers that change as tensors, and call torch.compile before the loop.",
    "jax": "Pad arguments to a few fixed shapes; pass values that change as arrays, not as static_argnames; call "
    "jax.jit once, before the loop.",
    "mindspore": "Give the size that changes as None: net.set_inputs(mindspore.Tensor(shape=[None, 32], "
    "dtype=mindspore.float32)), or pad to one shape; pass numbers that change as tensors, and make the function with "
    "mindspore.jit before the loop.",
    "paddle": "Give the size that changes as None: paddle.jit.to_static(net, "
    'input_spec=[paddle.static.InputSpec([None, 32], "float32")]), or pad to one shape; call to_static before the '
    "loop.",
}


def device_parts(observed: Observed) -> Iterator[Claim]:
    """Yield what devices wait for in each step, where it is a large part of it."""
    if not observed.summary.on_device or observed.summary.sampled < 1 or not observed.step_ns:
        return
    yield from _communication(observed)
    found = gaps(observed.tables)
    many = max(len(found.windows.start), 1) * max(len(found.devices), 1)
    idling = float((found.end - found.start).sum()) / many
    if observed.share(idling + (observed.part("copy") or 0.0)) < _LEAST:
        return
    idle = idle_rows(observed.tables, after_waits=True)
    by: dict[str, list[IdleRow]] = {"churn": [], "copy": [], "wait": [], "": []}
    for row in idle:
        by[_of_wait(row)].append(row)
    claims = [
        *_waits(observed, by["wait"], _SYNCHRONISING),
        *_waits(observed, by["churn"], _near_limit(observed) or _CHURN),
        *_copies(observed, by["copy"]),
    ]
    yield from claims
    # What the host needs to run ahead again after a wait is its own where the wait was shorter.
    caused = sum(claim.explains.get(_RUNNING_AHEAD, 0.0) for claim in claims)
    host = idle_rows(observed.tables, after_waits=False) if any(row.ahead for row in idle) else idle
    host = [row for row in host if row.reason in HOST_REASONS and not _of_wait(row)]
    time = _time(host)
    if observed.share(time) < _PYTHON_TOLD:
        return
    python = [row for row in host if row.reason == "python" and row.long]
    if observed.looks.is_empty() and observed.share(_time(python)) >= _PYTHON_TOLD:
        yield _python(observed, python)
        host = [row for row in host if row.reason != "python" or not row.long]
    yield from _host(observed, host, _time(host) - caused)


def _of_wait(row: IdleRow) -> str:
    """Return whether the device idles for its ``churn`` of memory, a ``copy`` from pageable memory, or another wait."""
    if row.allocates or row.reason == "allocator":
        return "churn"
    if row.copy and "Pageable" in row.copy and re.search(_TO_DEVICE, row.copy):
        return "copy"
    return "wait" if row.reason == "synchronising call" else ""


def _time(idle: Iterable[IdleRow]) -> float:
    return sum(row.time for row in idle)


def _calls_text(calls: float) -> str:
    number = number_text(calls)
    return "1 call" if number == "1" else f"{number} calls"


def _evidence(observed: Observed, idle: Sequence[tuple[str, float, float]]) -> tuple[Evidence, ...]:
    of = a_step(observed)
    return tuple(
        Evidence(text=f"{place}: {duration_text(time)} {of}" + (f", {_calls_text(calls)}" if calls else ""),
                 value=time, unit="ns", result="idle_reasons")
        for place, time, calls in idle[:3]
    )  # fmt: skip


class _Wait(NamedTuple):
    """What a claim of one kind of wait says.

    Attributes:
        cause: Its cause.
        title: Why the device idles.
        during: The idle time that its gain is computed from.
        usual: The part of the wait that the change usually saves.
        remedies: What to change, by framework.
        explains: Name of the time that it explains.
    """

    cause: str
    title: str
    during: str
    usual: float
    remedies: Mapping[str, str]
    explains: str


_SYNCHRONISING = _Wait(
    "synchronising-call",
    "because the host waited for it",
    "from a call that waits for it until the host runs ahead again, as far as it stood in such calls",
    0.9,
    _FEWER_WAITS,
    "idle in waits",
)
_CHURN = _Wait(
    "device-memory-churn",
    "while the host takes memory from the driver or gives it back",
    "in such calls and until the host runs ahead again, as far as it was in them",
    0.95,
    _KEPT_MEMORY,
    "idle in the allocator",
)


def _near_limit(observed: Observed) -> _Wait | None:
    """Return what a wait for memory says where a device is nearly full: the fullest; None where none is."""
    devices = observed.facts.get("deviceProperties")
    listed = [one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    sizes = {str(one.get("id")): one.get("totalGlobalMem") for one in listed}
    known = ((one.reserved or 0, sizes.get(one.device.rpartition(":")[2])) for one in observed.summary.memory)
    full = [(taken, size) for taken, size in known if isinstance(size, int) and 0 < _NEARLY_FULL * size <= taken]
    if not full:
        return None
    taken, size = max(full, key=lambda of: of[0] / of[1])
    return _CHURN._replace(
        cause="near-memory-limit",
        title=f"while the host gives memory back to take other pieces ({bytes_text(taken)} of its {bytes_text(size)} "
        "are taken)",
        remedies=_LESS_MEMORY,
    )


def _waits(observed: Observed, idle: Sequence[IdleRow], wait: _Wait) -> Iterator[Claim]:
    """Yield the wait if the calls of such idle time take a large part of the step."""
    if observed.share(_time(idle)) < _LEAST:
        return
    saved, ahead = waited(observed.tables, idle)
    if not saved:
        return
    found, calls = places(idle), sum(row.calls for row in idle)
    finding = Finding(
        cause=wait.cause,
        title=f"{of_step(observed, saved)} the device idles {wait.title}, in {_calls_text(calls)} {a_step(observed)}: "
        f"most in {found[0][0]}",
        gain_ns=round(wait.usual * saved), gain_low_ns=round(0.6 * saved), gain_high_ns=round(saved),
        basis=f"the idle time of the device {wait.during}",
        confidence=Confidence.MEASURED,
        evidence=_evidence(observed, found),
        remedy=wait.remedies.get(observed.framework, wait.remedies[""]),
        operator=found[0][0],
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {wait.explains: saved - ahead, _RUNNING_AHEAD: ahead})


def _python(observed: Observed, idle: Sequence[IdleRow]) -> Claim:
    time, found = _time(idle), places(idle)
    place = found[0][0]
    finding = Finding(
        cause="python-in-step",
        title=f"{of_step(observed, time)} the device idles while the host runs Python that launches nothing: most in "
        f"{place}",
        gain_ns=round(0.95 * time), gain_low_ns=round(0.7 * time), gain_high_ns=round(time),
        basis="the idle time of the device in gaps of a millisecond and more, while Python runs outside of operators",
        confidence=Confidence.MEASURED,
        evidence=_evidence(observed, found),
        remedy="Take it out of the step: do it once, in the data loader's workers, or in operators on the device.",
        operator=place,
    )  # fmt: skip
    return Claim(finding, Depth.PLACE, {"idle for Python": time})


def _host(observed: Observed, idle: Sequence[IdleRow], time: float) -> Iterator[Claim]:
    work = columns_of(observed.tables, "spans", "dur")["dur"].to_numpy()[device_rows(observed.tables)]
    each = len(work) / max(observed.summary.steps.count, 1)
    if observed.share(time) <= _HOST_TOLD or each < _PIECES or (launches(observed.tables) < 0).all():
        return
    usual = float(np.median(work))
    low, gain, high = (part * time for part in _SAVED)
    finding = Finding(
        cause="host-bound",
        title=f"{of_step(observed, time)} the device idles while the host prepares its work: {each:,.0f} pieces "
        f"{a_step(observed)}, of {duration_text(usual)} each",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(high),
        basis="the idle time of the device while the host prepares and launches its work, most of which is saved",
        confidence=Confidence.LIKELY,
        evidence=_evidence(observed, places(idle)),
        remedy=_MORE_WORK.get(observed.framework, _MORE_WORK[""]),
    )  # fmt: skip
    # Python that a deeper rule names is a part of what the host does.
    looks = observed.looks.filter((pl.col("state") == "python") & (pl.col("phase") != "data").fill_null(value=True))
    seen = observed.explained(looks.filter(~pl.col("in_framework")))
    scale = min(time / max(sum(seen.values()), 1.0), 1.0)
    explains = {name: scale * ns for name, ns in seen.items()}
    yield Claim(finding, Depth.SYMPTOM, {**explains, "idle for the host": time - sum(explains.values())})


class _Copies(NamedTuple):
    """The copies of one name, per step; ``exposed`` is the part of their time, ns, that no other work hides."""

    name: str
    number: float
    bytes: float
    time: float
    exposed: float


def _copies(observed: Observed, waits: Sequence[IdleRow]) -> Iterator[Claim]:
    """Copies that no computing hides, and the waits of the host in those from pageable memory."""
    if observed.share(_time(waits) + (observed.part("copy") or 0.0)) < _LEAST:
        return
    copies = _exposed_copies(observed.tables)
    slow = [one for one in copies if "Pageable" in one.name and re.search(_TO_DEVICE, one.name)]
    others = sorted((one for one in copies if one not in slow), key=lambda one: -one.exposed)
    saved, ahead = waited(observed.tables, waits)
    unpinned = sum(one.exposed for one in slow) + saved
    moved = sum(one.bytes for one in slow)
    least = unpinned - 1e9 * moved / _pinned_speed(observed)
    if least > 0 and moved:
        finding = Finding(
            cause="unpinned-copies",
            title=f"{of_step(observed, unpinned)} the device waits for {bytes_text(round(moved))} copied from pageable "
            "memory of the host",
            gain_ns=round(least), gain_low_ns=round(0.7 * least), gain_high_ns=round(unpinned),
            basis=f"the time of these copies that nothing hides, and of their calls, less "
            f"{_pinned_speed(observed) / 1e9:.0f} GB/s from pinned memory; a copy beside the computing saves all of it",
            confidence=Confidence.LIKELY,
            evidence=_copied(slow),
            remedy="Pin the host memory and do not wait: DataLoader(…, pin_memory=True), then "
            "x.to(device, non_blocking=True); copy the next batch while this one computes.",
        )  # fmt: skip
        yield Claim(finding, Depth.CAUSE, {"copies from pageable memory": unpinned - ahead, _RUNNING_AHEAD: ahead})
    time = sum(one.exposed for one in others)
    if not others or observed.share(time) <= _COPIES_TOLD:
        return
    low, gain, high = (part * time for part in _SAVED)
    finding = Finding(
        cause="exposed-copies",
        title=f"{of_step(observed, time)} the device copies and computes nothing: most is {others[0].name}, "
        f"{others[0].number:,.0f} times a step",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(high),
        basis="the time of copies that no computing and no communication hides, most of which the change saves",
        confidence=Confidence.POSSIBLE,
        evidence=_copied(others),
        remedy=_copy_remedy(others[0].name),
    )  # fmt: skip
    yield Claim(finding, Depth.SYMPTOM, {"copies": time})


def _copied(copies: Sequence[_Copies]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(text=f"{one.name}: {duration_text(one.exposed)} of {duration_text(one.time)} a step hidden by "
                 f"nothing, {number_text(one.number)} times, {bytes_text(round(one.bytes))}", value=one.exposed,
                 unit="ns", result="kernel_details")
        for one in copies[:3]
    )  # fmt: skip


def _copy_remedy(name: str) -> str:
    if re.search(_ON_DEVICE, name):
        return (
            "Copy less on the device: take clone(), contiguous() and copies between buffers out of the step, and let "
            "operators write where the result is needed (out=, views of one buffer)."
        )
    if re.search(_TO_HOST, name):
        return "Keep results on the device, or copy them with non_blocking=True into pinned memory, less often."
    return (
        "Copy the next batch on a stream of its own while this one computes (non_blocking=True), send smaller types "
        "(uint8 images, converted on the device), or keep the data on the device."
    )


def _exposed_copies(tables: Tables) -> list[_Copies]:
    """Return the copies by name, in the order in which the names first occur."""
    rows = device_rows(tables)
    rows = rows[of_kinds(span_kinds(tables)[rows], "memcpy")]
    if not len(rows):
        return []
    parts, steps = split(tables), max(len(split(tables).windows.start), 1)
    spans, moved = columns_of(tables, "spans", "ts", "dur"), _bytes_of(tables, rows)
    start, dur = (spans[name].to_numpy()[rows] for name in spans.columns)
    _, first, name = np.unique(span_codes(tables).name[rows], return_index=True, return_inverse=True)
    hidden = union(parts.work.computing, parts.work.communication)
    found = []
    for place in np.sort(first).tolist():
        mine = np.flatnonzero(name == name[place])
        lasting = unite(start[mine], start[mine] + dur[mine])
        exposed, time = (
            float(one.within(parts.windows.start, parts.windows.end).sum()) / steps
            for one in (subtract(lasting, hidden), lasting)
        )
        text = texts_of(tables, rows[[place]])[0] or ""
        found.append(_Copies(text, len(mine) / steps, float(moved[mine].sum()) / steps, time, exposed))
        hidden = union(hidden, lasting)
    return found


def _bytes_of(tables: Tables, rows: Rows) -> Rows:
    """Return the bytes that each of the ascending rows of ``spans`` moved; 0 where they are unknown."""
    kernels = columns_of(tables, "kernels", "span", "bytes")
    work = rows_of(columns_of(tables, "spans", "id")["id"], kernels["span"])
    place = np.minimum(np.searchsorted(rows, work), len(rows) - 1)
    known = np.flatnonzero(rows[place] == work)
    moved = np.zeros(len(rows), np.int64)
    moved[place[known]] = np.maximum(or_negative(kernels["bytes"][known]), 0)
    return moved


def _pinned_speed(observed: Observed) -> float:
    return _PINNED.get(generation(observed), _SLOWEST_PINNED)


def generation(observed: Observed) -> int:
    """Return the major compute capability of the first NVIDIA GPU; 0 if unknown, or of another maker."""
    devices = observed.facts.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else {}
    named = isinstance(first, dict) and not str(first.get("name")).startswith("AMD")
    return int(first.get("computeMajor") or 0) if named else 0


def _communication(observed: Observed) -> Iterator[Claim]:
    time = exposed_communication(observed)
    if observed.share(time) <= _COMMUNICATION_TOLD:
        return
    finding = Finding(
        cause="exposed-communication",
        title=f"{of_step(observed, time)} communication runs that no computing hides",
        gain_ns=round(0.65 * time), gain_low_ns=round(0.3 * time), gain_high_ns=round(time),
        basis="the part “communication” of the mean step, a third of which overlap saves, or all of it",
        confidence=Confidence.POSSIBLE,
        evidence=(
            Evidence(text=f"communication is {percent_text(observed.share(time))} of the step", value=time, unit="ns",
                     result="step_trace_time"),
        ),
        remedy="Overlap it with the backward pass, send less (larger local batch, lower precision), or look for a "
        "slow rank.",
    )  # fmt: skip
    yield Claim(finding, Depth.SYMPTOM, {"communication": time})


def compiling(observed: Observed) -> Iterator[Claim]:
    """Yield compilation that goes on in the recorded steps, or in others of the run all the time."""
    found, steps = observed.summary.compiling, max(observed.summary.steps.count, 1)
    if found is None or found.share <= _COMPILING:
        yield from _compiling_elsewhere(observed)
        return
    compiles = np.flatnonzero(of_kinds(span_kinds(observed.tables), "compile"))
    compiled_in = or_negative(columns_of(observed.tables, "spans", "step")["step"][compiles])
    recorded = max(len(np.unique(compiled_in[compiled_in >= 0])), 1)
    run = _compiled_in(observed) > 0
    first = not found.why and recorded < _AGAIN
    once = first or (len(run) > steps and (run.sum() < _AGAIN or not run[len(run) // 2 :].any()))
    each = found.total_ns / steps * min(observed.step_ns / max(observed.summary.steps.mean_ns, 1.0), 1.0)
    if len(run) > steps and not once:  # as many of all steps compile, not of the recorded ones
        each *= float(run.mean()) * steps / recorded
    where = f" ({asked(observed.manifest)})".replace(" ()", "")
    again = f" again: {found.why}" if found.why else " for the first time" if first else ""
    later = "; later steps compile nothing" if once and not first else ""
    time, whole = (found.total_ns, observed.summary.steps.total_ns) if once else (each, observed.step_ns)
    recorded_text = " recorded" if once else ""
    finding = Finding(
        cause="first-compilation" if once else "recompilation",
        title=f"{duration_text(time)} of {duration_text(whole)}{recorded_text} go into compiling {found.longest}{again}"
        f"{later}",
        gain_ns=None if once else round(each),
        gain_low_ns=None if once else round(0.8 * each),
        gain_high_ns=None if once else round(each),
        basis="compilations inside the recorded steps, for as many steps of the run as compile",
        confidence=Confidence.MEASURED,
        evidence=(Evidence(text=f"{percent_text(found.share)} of the steps are compilation", value=each, unit="ns"),),
        remedy=f"Record later steps{where}: each function is compiled once, which hides what steps cost later."
        if once
        else _ONE_PROGRAM.get(observed.framework, _ONE_PROGRAM[""]),
    )
    # A thread that compiles waits for the compiler's processes: by its samples, that is a wait at the line of the call.
    inside = [stack for stack, frames in observed.stacks.items() if any(_COMPILES.search(one.file) for one in frames)]
    seen = observed.explained(observed.looks.filter(pl.col("stack").is_in(inside)))
    yield Claim(finding, Depth.CAUSE, seen or {"compiling": each})


def _compiling_elsewhere(observed: Observed) -> Iterator[Claim]:
    """Yield compilation in steps that were not recorded, if it goes on to the end of the run."""
    run = _compiled_in(observed)
    each, many = float(run.mean()) if len(run) else 0.0, int((run > 0).sum())
    if many <= _AGAIN or not run[len(run) // 2 :].any() or observed.share(each) <= _COMPILING:
        return
    made = columns_of(observed.tables, "compilations", "name", "dur", "function", "why").sort("dur")
    made = made.filter(pl.col("name").cast(pl.String).str.starts_with("compile"), pl.len().over("function") > _AGAIN)
    if made.is_empty():  # functions that the program calls for the first time
        return
    what, why = made["function"][-1], made["why"].drop_nulls()
    because = f": {why[-1]}" if len(why) else ""
    time = f"{duration_text(each)} of {duration_text(observed.step_ns)}"
    elsewhere = f"{many} of {len(run):,} steps compile, none of the recorded ones for long"
    finding = Finding(
        cause="recompilation",
        title=f"{time} go into compiling {what} again{because}",
        gain_ns=round(each), gain_low_ns=round(0.8 * each), gain_high_ns=round(each),
        basis="compilations inside all steps of the run but the first ones",
        confidence=Confidence.MEASURED,
        evidence=(Evidence(text=elsewhere, value=float(many)),),
        remedy=_ONE_PROGRAM.get(observed.framework, _ONE_PROGRAM[""]),
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {"compiling": each})


def _compiled_in(observed: Observed) -> npt.NDArray[np.float64]:
    """Return of each step of the run, but for its warm-up, how long something was compiled in it, ns."""
    events = columns_of(observed.tables, "run_events", "name", "ts", "dur")
    events = events.filter(pl.col("name").cast(pl.String) == "compile").sort("ts")
    lasting = unite(events["ts"].to_numpy(), (events["ts"] + events["dur"]).to_numpy())
    steps = observed.run_steps.drop_nulls("ts")
    return lasting.within(steps["ts"].to_numpy(), (steps["ts"] + steps["dur"]).to_numpy()).astype(float)
