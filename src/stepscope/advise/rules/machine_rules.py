"""The processor: more or fewer threads than cores, and other processes that have the cores."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

import polars as pl

from stepscope.advise.calls import each, elements, explained_calls, innermost, of_step, recorded_calls, sizes
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.advise.verdict import DISTURBED
from stepscope.analyse.quantities import count_text, duration_text, percent_text
from stepscope.analyse.step.run_steps import OTHERS_USE
from stepscope.trace.tables import columns_of

#: Elements from which on torch distributes an operator over its threads.
_PARALLEL = 32_768
#: Operators that are distributed by their own libraries.
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution_backward",
             "aten::mkldnn_convolution", "aten::_mkldnn_convolution")  # fmt: skip
#: Cores without work from which on more threads have one.
_IDLE = 0.5
#: What of the ideal speed-up threads reach: least, usual, most.
_REACHED = (0.5, 0.8, 1.0)
#: Part of the step from which on what the training waits for a core beside its own workers is more than its threads
#: save; cores that the workers compute on at least; and what of it fewer threads save: least, usual, most.
_CROWDED, _WORK, _BESIDE_WORKERS = 0.22, 0.3, (0.5, 1.0, 1.5)
#: Part of the busy cores that other processes have at least where the training waits for them.
_HALF = 0.5
#: What the names of threads that record begin with.
_OURS = "stepscope-"
#: A thread that has this many times as much to do as the training thread computes for it.
_BUSIER = 2.0
#: Parts of the time of distributed operators that goes into waiting for threads without a core.
_OVERSUBSCRIBED = (0.2, 0.6, 0.9)


def machine_use(observed: Observed) -> Iterator[Claim]:
    """Yield threads that do not fit the cores, and other processes."""
    yield from _others(observed)
    state, cores = observed.facts.get("torch.state"), _cores(observed)
    threads = state.get("threads") if isinstance(state, dict) else None
    if not isinstance(threads, int) or cores is None or observed.summary.on_device:
        return
    calls = recorded_calls(observed)
    if calls.is_empty():
        return
    large = each(calls["shapes"], lambda text: max(map(elements, sizes(text)), default=0) >= _PARALLEL, pl.Boolean())
    # A product may call another operator for its result; it computes itself all the same.
    parallel = calls.filter(pl.col("name").is_in(_PRODUCTS) | (large & innermost(calls)))
    time = float(parallel["self"].sum())
    most, usual = _own_cores(observed, cores)
    if threads > most:
        yield _too_many(observed, parallel, time, (threads, most))
    elif observed.summary.data_wait.workers and threads > 1:
        yield from _beside_workers(observed, threads, cores)
    elif usual is not None and threads < usual and not observed.summary.data_wait.workers:
        saved = _saved_by_cores(observed, threads / usual)
        if _idle_cores(observed, cores) >= _IDLE and saved > 0:
            yield _too_few(observed, parallel, saved * time, (threads, usual))


def _too_many(observed: Observed, parallel: pl.DataFrame, time: float, has: tuple[int, int]) -> Claim:
    threads, cores = has
    low, gain, high = (part * time for part in _OVERSUBSCRIBED)
    finding = Finding(
        cause="too-many-threads",
        title=f"torch uses {threads} threads on {count_text(cores, 'core')}: they wait for each other in "
        f"{of_step(observed, time)}",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(high),
        basis="the operators that are distributed over threads; what waiting takes of them differs by machine",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"torch.get_num_threads() is {threads}, the process may use {count_text(cores, 'core')}",
                     value=float(threads)),
        ),
        remedy=f"torch.set_num_threads({cores}), or OMP_NUM_THREADS={cores} in the environment.",
    )  # fmt: skip
    return Claim(finding, Depth.CAUSE, explained_calls(parallel))


def _beside_workers(observed: Observed, threads: int, cores: int) -> Iterator[Claim]:
    """Yield threads of torch that share their cores with the workers of a loader, and wait for each other there."""
    steps, made = observed.run_steps.drop_nulls("delay"), observed.result("batch_production")
    others = observed.summary.run.other_cpu
    if steps.is_empty() or made.is_empty() or (others is not None and others >= OTHERS_USE):
        return
    delay, whole = (float(steps[name].mean()) for name in ("delay", "dur"))  # type: ignore[arg-type]
    batch = made["Samples Computing(us)"] + made["Collation Computing(us)"]
    busy = 1000 * float((made["Batches/Step"] * batch).sum()) / whole
    fit = max(int(cores - busy), 1)
    if busy < _WORK or threads <= fit or delay < _CROWDED * whole:
        return
    low, gain, high = (part * delay for part in _BESIDE_WORKERS)
    workers = count_text(observed.summary.data_wait.workers or 0, "worker")
    finding = Finding(
        cause="too-many-threads",
        title=f"{duration_text(delay)} of {duration_text(whole)} the training waits for a core: torch uses {threads} "
        f"threads beside {workers} on {count_text(cores, 'core')}",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(high),
        step_ns=round(whole),
        basis="the run-queue delay of the training thread over all steps: where one thread of an operator has no core, "
        "the others wait for it",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text="the training thread could run and had no core for "
                     f"{percent_text(delay / whole)} of all steps", value=delay, unit="ns", result="step_times"),
            Evidence(text=f"its workers compute on {busy:.1f} cores", value=busy, result="batch_production"),
            *(() if others is None else (Evidence(text=f"other processes used {others:.1f} cores", value=others),)),
        ),
        remedy=f"torch.set_num_threads({fit}) leaves the workers cores of their own; or make samples cheaper.",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {"core wait": delay})


def _too_few(observed: Observed, parallel: pl.DataFrame, saved: float, has: tuple[int, int]) -> Claim:
    threads, cores = has
    time = float(parallel["self"].sum())
    low, gain, high = (part * saved for part in _REACHED)
    finding = Finding(
        cause="too-few-threads",
        title=f"torch uses {count_text(threads, 'thread')} of {count_text(cores, 'core')} in operators that take "
        f"{of_step(observed, time)}",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(high),
        basis="the operators that can be distributed, at 80 % of the speed-up that the cores allow or, where it was "
        "measured, that a matrix product on all of them has",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"torch.get_num_threads() is {threads}, the process may use {count_text(cores, 'core')}, "
                     "and no loader's workers use them", value=float(threads)),
        ),
        remedy=f"torch.set_num_threads({cores}), or OMP_NUM_THREADS={cores} in the environment.",
    )  # fmt: skip
    return Claim(finding, Depth.CAUSE, explained_calls(parallel))


def _cores(observed: Observed) -> int | None:
    """Return the cores that the process may use, by its affinity and control groups; None if unknown."""
    machine = observed.facts.get("machine")
    said = machine if isinstance(machine, dict) else {}
    cores = said.get("cores") or observed.cores
    quota = said.get("cpu_quota")
    return max(min(int(cores), ceil(quota)) if quota else int(cores), 1) if cores else None


def _own_cores(observed: Observed, cores: int) -> tuple[int, int | None]:
    """Return how many threads are one a core at most, and how many would use all cores; None where that is unknown.

    Ranks on one machine share its cores, unless each is bound to some. Two hardware threads of a core compute as one.
    """
    machine, ranks = observed.facts.get("machine"), _ranks_left_for_others(observed)
    said = machine if isinstance(machine, dict) else {}
    bound = said.get("cpus") is None or cores < int(said["cpus"])
    each_has = max(cores // ranks, 1) if ranks else None
    most = cores if bound or each_has is None else each_has
    usual = None if each_has is None else max(each_has // int(said.get("threads_per_core") or 1), 1)
    return most, usual


def _ranks_left_for_others(observed: Observed) -> int | None:
    """Return how many ranks of the job run on this machine; None if its launcher did not say."""
    if int(observed.manifest.get("world_size") or 1) == 1:
        return 1
    machine = observed.facts.get("machine")
    return machine.get("local_ranks") if isinstance(machine, dict) else None


def _saved_by_cores(observed: Observed, part: float) -> float:
    """Return the part of distributed operators' time that all cores save, of which the threads use this part."""
    for one in observed.speeds:
        every, used = one.get("all_cores") or {}, (one.get("products") or {}).get("float32") or {}
        if one.get("framework") == observed.framework and every and used and not one.get("disturbed"):
            return max(1 - float(used["flops_per_s"]) / float(every["flops_per_s"]), 0.0)
    return 1 - part


def _idle_cores(observed: Observed, cores: int) -> float:
    """Return how many of the process's cores nothing used while steps were recorded; all but one if unknown."""
    others = observed.summary.run.other_cpu
    return cores - 1.0 - (others or 0.0)


def _left_for_others(observed: Observed, others: float) -> float:
    """Return how many of the process's own cores other processes can have had: what it did not use itself.

    The window says what its other threads use, all steps what the training thread does.

    Args:
        observed: The rank.
        others: Cores of the machine that they used.
    """
    cores = _cores(observed)
    counters = columns_of(observed.tables, "counters", "name", "value")
    used = counters.filter(pl.col("name").cast(pl.String) == "process CPU")["value"].drop_nulls().to_numpy()
    if cores is None or not len(used):
        return others
    process, known = float(used.mean()) / 100, observed.run_steps.drop_nulls("cpu")
    recorded = known.filter("recorded")
    if len(recorded):
        here, ever = (float(steps["cpu"].sum()) / float(steps["dur"].sum()) for steps in (recorded, known))
        process = max(process - here, 0.0) + ever
    return min(others, max(cores - process, 0.0))


def _computing_thread(observed: Observed) -> dict[str, Any] | None:
    """Return what the busiest other thread used in the window, where the training thread sleeps until it has computed.

    JAX computes on threads of XLA. None where the training thread itself has most to do, or it is not known.
    """
    threads = observed.facts.get("threads")
    listed = [one for one in threads if "cpu" in one] if isinstance(threads, list) else []
    main = observed.manifest.get("process")
    known = [one for one in listed if one.get("thread") != main and not str(one.get("name")).startswith(_OURS)]
    recorded = observed.run_steps.filter("recorded").drop_nulls(["cpu", "delay"])
    busiest = max(known, key=lambda one: one["cpu"] + one["delay"], default=None)
    if busiest is None or not len(recorded) or not observed.summary.steps.total_ns:
        return None
    own, busy = float((recorded["cpu"] + recorded["delay"]).sum()), busiest["cpu"] + busiest["delay"]
    if busy <= _BUSIER * own:
        return None
    # The window is longer than its steps: no more of it than fits lies in these.
    return {**busiest, "delay": busiest["delay"] * min(1.0, observed.summary.steps.total_ns / busy)}


def _others(observed: Observed) -> Iterator[Claim]:
    steps, others = observed.run_steps, observed.summary.run.other_cpu
    if others is None or steps["delay"].null_count() == len(steps):
        return
    # Other ranks of the job are other processes, too. Whether they leave each other cores, the job's findings say.
    ranks = _ranks_left_for_others(observed) or int(observed.manifest.get("world_size") or 1)
    if others - (ranks - 1) < OTHERS_USE:
        return
    known = steps.drop_nulls("delay")
    delay = float(known["delay"].sum()) / len(known)
    whole = float(known["dur"].sum()) / len(known)
    during, thread = "all steps", "training thread"
    computes = _computing_thread(observed)
    if computes is not None and computes["delay"] / observed.summary.steps.total_ns > delay / whole:
        delay = computes["delay"] / observed.summary.steps.count
        whole = observed.summary.steps.total_ns / observed.summary.steps.count
        during, thread = "the recorded steps", f"thread that computes ({computes['name']})"
    # While a thread waits, all of its cores are busy; where others can have been no half of that, its own threads were.
    if (
        delay < DISTURBED * whole
        or _left_for_others(observed, others) < _HALF * (_cores(observed) or 1) * delay / whole
    ):
        return
    finding = Finding(
        cause="other-processes",
        title=f"{duration_text(delay)} of {duration_text(whole)} the training waits for a core that others have",
        gain_ns=round(delay), gain_low_ns=round(0.8 * delay), gain_high_ns=round(delay),
        step_ns=round(whole),
        basis=f"the run-queue delay of the {thread} over {during}",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"the {thread} could run and had no core for {percent_text(delay / whole)} of {during}",
                     value=delay, unit="ns", result="step_times"),
            Evidence(text=f"other processes used {others:.1f} cores", value=others),
        ),
        remedy="End what else runs on this machine (top shows it), start it so that it gives way to the training "
        "(nice -n 19 COMMAND), or keep it on other cores than the training (taskset -c).",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {"core wait": delay})
