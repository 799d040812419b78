"""Why a rank is slow: what of its own takes longer than its peers', in words, with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from stepscope.advise.finding import Evidence
from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.slow.explanation import Explanation, explain
from stepscope.cluster.slow.own_work import OwnWork, work_by_role
from stepscope.cluster.slow.slow_functions import SlowFunction, slow_function

Row: TypeAlias = dict[str, Any]

#: A part explains a rank if it is this share of what the rank takes longer.
EXPLAINS = 0.5
#: Cores of other processes, above those on other ranks' machines, that explain a rank.
_OTHER_LOAD = 0.3
#: Characters of a name in a sentence.
_LONGEST = 48
#: All work takes longer by one factor if this part of it does.
_ALIKE = 0.8
#: What the framework calls the processes that load data.
_WORKERS = {"torch": "num_workers", "paddle": "num_workers", "mindspore": "num_parallel_workers"}


@dataclass(frozen=True)
class Diagnosis:
    """Why a rank is slow.

    Attributes:
        cause: Slug of the catalogue.
        amount_ns: What the cause takes longer a step than on the peers.
        because: The second half of the title: “its aten::mm takes 2.3 × as long as its peers'”.
        evidence: What supports it, first the cause in a few words.
        remedy: What to do.
        operator: Operator, kernel or module that makes it slow, if one does.
    """

    cause: str
    amount_ns: float
    because: str
    evidence: tuple[Evidence, ...]
    remedy: str
    operator: str | None = None


def diagnose(tables: JobTables, row: Row, works: list[OwnWork], lost: float | None) -> Diagnosis:
    """Return why a rank is slow.

    Args:
        tables: The tables of the job.
        row: Its row of :func:`stepscope.cluster.slow.slow_ranks.slow_ranks`.
        works: The work of the ranks.
        lost: What the job loses by it, ns a step; None if unknown.
    """
    rank, added = int(row["rank"]), int(row["added_ns"])
    framework = tables.ranks.filter(pl.col("rank") == rank)["framework"].first()
    if (row["garbage_ns"] or 0) >= EXPLAINS * added:
        return _garbage(row)
    parts = {name: row[f"{name}_ns"] or 0 for name in ("computing", "data_wait", "host")}
    largest = max(parts, key=lambda name: parts[name])
    work = next((work for work in works if rank in work.ranks), None)
    why = explain(work.row(rank)) if work else None
    if largest == "data_wait":
        alone = _data_wait(tables, row, str(framework or ""))
    elif largest == "host":
        alone = _host_bound(tables, row, work)
    else:
        alone = _computing(tables, row, why)
        if alone.amount_ns < EXPLAINS * (lost or 0):
            alone = _unexplained(row, alone, lost or 0)
    # Both may be there: a slow operator on a busy machine. What leaves less unexplained is the cause. A rank that waits
    # for its cores does so in its operators, for its data, and, which its own time does not show, in communication.
    specific = largest == "data_wait" or (largest == "computing" and why is not None and why.what != "all")
    left = max(added - (row["delay_ns"] or 0), 0)
    disturbed = _other_process(tables, row)
    return alone if disturbed is None or (specific and abs(added - alone.amount_ns) < left) else disturbed


def _garbage(row: Row) -> Diagnosis:
    text = f"garbage collection pauses it {ms(row['garbage_ns'])} ms a step more than its peers"
    return Diagnosis(
        "slow-rank",
        float(row["garbage_ns"]),
        text,
        (Evidence(text=text, value=float(row["garbage_ns"]), unit="ns", rank=int(row["rank"])),),
        "Call gc.freeze() before the loop, and gc.collect() on all ranks at the same step (gc.disable() between).",
    )


def _data_wait(tables: JobTables, row: Row, framework: str) -> Diagnosis:
    rank, amount = int(row["rank"]), ms(row["data_wait_ns"])
    workers = _WORKERS.get(framework)
    more = f"more {workers}, " if workers else "more workers that load data, "
    waits = f"it waits {amount} ms longer than its peers for its next batch"
    text = f"data wait: {amount} ms a step longer than its peers"
    evidence = [Evidence(text=text, value=float(row["data_wait_ns"]), unit="ns", rank=rank)]
    for thread in ("training", "workers"):
        # Workers load while the training computes: the training waits for a part of their time only.
        least = EXPLAINS * row["data_wait_ns"]
        if function := slow_function(tables.functions, rank, least, thread):
            where = "" if thread == "training" else "in its loader's workers, "
            waits += f", in {function.name}"
            evidence.append(_in_function(rank, function, where))
            break
    return Diagnosis(
        "data-wait-rank",
        float(row["data_wait_ns"]),
        waits,
        tuple(evidence),
        f"Look at the data of this rank: its share (longer samples, a slower disk or mount), and its loader: {more}"
        "prefetching. If only its machine is affected, compare the machine's disk and network.",
    )


def _in_function(rank: int, function: SlowFunction, where: str = "") -> Evidence:
    peers = f"on its peers {ms(function.peers_ns)} ms" if function.peers_ns else "its peers were not seen in it"
    text = f"{where}{function.name} takes {ms(function.total_ns)} ms a step; {peers}"
    return Evidence(text=text, value=float(function.more_ns), unit="ns", rank=rank)


def _other_process(tables: JobTables, row: Row) -> Diagnosis | None:
    """Return that another process takes the rank's cores, if its run-queue delay or the load beside it says so.

    Of ranks that share cores, no one is named: which of them waits is the scheduler's choice.
    """
    rank, delay = int(row["rank"]), row["delay_ns"] or 0
    loads = tables.ranks.filter(pl.col("other_load").is_not_null())
    mine, others = (loads.filter(same)["other_load"] for same in (pl.col("rank") == rank, pl.col("rank") != rank))
    queued = row["delayed"] and delay >= EXPLAINS * row["added_ns"]
    load, usual = (float(np.median(part)) if len(part) else np.nan for part in (mine, others))
    loaded = load - usual >= _OTHER_LOAD  # not if one is unknown
    if not queued and not (loaded and row["delay_ns"] is None):
        return None
    texts = []
    if queued:
        texts.append(
            f"another process: its training thread waits {ms(delay)} ms a step longer than its peers' for a core"
        )
    if loaded:
        texts.append(f"another process: others use {load:.1f} cores of its machine, beside its peers {usual:.1f}")
    return Diagnosis(
        "slow-rank",
        float(row["added_ns"]),
        "another process takes its cores",
        tuple(Evidence(text=text, value=float(delay), unit="ns", rank=rank) for text in texts),
        "Find it with `top` on that machine and move it, or give each rank cores of its own (taskset, numactl, the "
        "scheduler's binding).",
    )


def _host_bound(tables: JobTables, row: Row, work: OwnWork | None) -> Diagnosis:
    rank, amount = int(row["rank"]), float(row["host_ns"])
    device = tables.ranks.filter(pl.col("rank") == rank)["device"].first()
    where = "between its operators" if device in (None, "cpu") else "in which its device waits for its host"
    because = f"it spends {ms(amount)} ms more than its peers {where}"
    evidence = [
        Evidence(
            text=f"host-bound: {ms(amount)} ms a step more than its peers {where}", value=amount, unit="ns", rank=rank
        )
    ]
    function, remedy = slow_function(tables.functions, rank, EXPLAINS * amount), _ON_HOST.format(rank=rank)
    if function is not None:
        because += f", in {function.name}"
        evidence.append(_in_function(rank, function))
        remedy = (
            f"Take {function.name} out of the step, or do it less often; if every rank has to do it, find out why it "
            "takes this rank longer: a slower or busy processor, a slower disk or mount, more data."
        )
    elif work is not None and (operator := _on_host(tables, rank, work, amount)) is not None:
        because += f", {operator.text}"
        evidence.append(operator)
    return Diagnosis("host-bound-rank", amount, because, tuple(evidence), remedy)


def _on_host(tables: JobTables, rank: int, work: OwnWork, amount: float) -> Evidence | None:
    """Return which operator takes the host of a rank longer, or that all of them do; None if they explain nothing."""
    (on_host, *_) = work_by_role(tables, dict.fromkeys(work.ranks, 0), on_host=True) or (None,)
    why = explain(on_host.row(rank)) if on_host is not None and rank in on_host.ranks else None
    if why is None or why.excess_ns < EXPLAINS * amount or why.what not in ("name", "all"):
        return None
    times = f"takes {why.ratio:.2f} × as long as its peers'" if why.ratio < 1e3 else "is called on no other rank"
    name = f"its {_short(why.values[0])}" if why.values else "each call of an operator"
    text = f"{name} {times} on its host: {ms(why.excess_ns)} ms more a step"
    return Evidence(text=text, value=why.excess_ns, unit="ns", rank=rank, operator=next(iter(why.values), None))


def _computing(tables: JobTables, row: Row, why: Explanation | None) -> Diagnosis:
    rank, amount = int(row["rank"]), float(row["computing_ns"] or 0)
    if why is None:
        text = f"its computing takes {ms(amount)} ms longer than its peers'"
        return Diagnosis(
            "slow-rank", amount, text, (Evidence(text=text, value=amount, unit="ns", rank=rank),), _COMPARE
        )
    if why.what == "all":
        return _everything(tables, row, why)
    verb, first = ("takes" if len(why.values) == 1 else "take"), _short(why.values[0])
    name = {
        "name": first,
        "operator": first,
        "module": f"module {first}",
        "names": f"{first} and {len(why.values) - 1} more",
        "phase": f"{first} phase",
    }[why.what]
    within = f" in {why.module}" if why.module else ""
    if why.ratio < 1e3:
        longer, remedy = f"{verb} {why.ratio:.2f} × as long as its peers'", _COMPARE
        because, text = f"its {name} {longer}", f"its {name}{within} {longer}: {ms(why.excess_ns)} ms more a step"
    else:
        because, remedy = f"it runs {name}, which its peers do not", _ONLY_HERE
        text = f"its {name}{within} {verb} {ms(why.excess_ns)} ms a step; its peers do not run it"
    evidence = Evidence(
        text=text,
        value=why.excess_ns,
        unit="ns",
        rank=rank,
        operator=why.values[0] if why.what in ("name", "operator", "names") else None,
        module=why.values[0] if why.what == "module" else why.module,
    )
    return Diagnosis("slow-rank", why.excess_ns, because, (evidence,), remedy, why.values[0])


def _unexplained(row: Row, why: Diagnosis, lost: float) -> Diagnosis:
    """Return that the job loses much more than what takes longer on the rank: it pauses, or does other work."""
    text = f"operators that its peers run, too, take {ms(why.amount_ns)} ms a step longer; the job loses {ms(lost)} ms"
    return Diagnosis(
        "slow-rank",
        lost,
        "it is late by more than the operators take longer that its peers run, too",
        (Evidence(text=text, value=lost, unit="ns", rank=int(row["rank"])),),
        "Look at its time line beside a peer's (stepscope view RUN): pauses of its host before a collective, such as "
        "garbage collection, logging or checks on one rank, and operators that only this rank runs.",
    )


def _everything(tables: JobTables, row: Row, why: Explanation) -> Diagnosis:
    """Return that all work takes longer by one factor: on a device, its clock is lower."""
    rank = int(row["rank"])
    facts = tables.ranks.filter(pl.col("rank") == rank).row(0, named=True)
    on_device = facts["device"] not in (None, "cpu")
    what = "kernel" if on_device else "operator"
    if why.alike < _ALIKE:
        text = f"its {what}s take {why.ratio:.2f} × as long as its peers', some much more than others"
        evidence = (Evidence(text=text, value=why.ratio, rank=rank),)
        return Diagnosis("slow-rank", why.excess_ns, text, evidence, _COMPARE)
    throttled = [Evidence(text=f"clocks throttled: every {what} {why.ratio:.2f} ×", value=why.ratio, rank=rank)]
    clocks = tables.ranks.filter(pl.col("rank") != rank)["clock_mhz"].drop_nulls()
    if facts["clock_mhz"] is not None and len(clocks):
        clock = f"its clock runs at {facts['clock_mhz']:.0f} MHz, its peers' at {np.median(clocks):.0f} MHz"
        throttled.append(Evidence(text=clock, value=facts["clock_mhz"], unit="MHz", rank=rank))
    return Diagnosis(
        "slow-rank",
        why.excess_ns,
        f"every {what} takes {why.ratio:.2f} × as long as its peers', as with throttled clocks",
        tuple(throttled),
        _COOL if on_device else _COOL_HOST,
    )


_ON_HOST = (
    "Look at what its host does that others do not: logging, checkpoints or checks on one rank, a slower or busy "
    "processor, a power plan, cores of the wrong socket. `stepscope report RUN --rank {rank} --findings` says what its "
    "own steps lose; `stepscope view RUN` shows them beside those of a peer."
)
_COOL = (
    "Look at temperature, power limit and clocks of this device (`nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE`), "
    "and at who else uses it; change the device if it stays slow."
)
_COOL_HOST = (
    "Look at the frequency of this machine's processor, its cooling and its power plan, and at who else uses it."
)
_COMPARE = (
    "Compare what this rank gives the operator: shapes, number of calls, data types, and its library version. If these "
    "are equal, the device or its memory is slower: try the rank on another one."
)
_ONLY_HERE = (
    "Find what the program does on this rank alone: a branch on the rank, metrics, checks or samples of another kind. "
    "Move it behind the step, do it less often, or share it among the ranks."
)


def _short(name: str) -> str:
    """Return a name of an operator or kernel that fits into a sentence."""
    plain = (
        name.removeprefix("void ").replace("(anonymous namespace)::", "").split("<")[0].split("(")[0].strip() or name
    )
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 1]}…"


def ms(ns: float) -> str:
    """Return a time in ms with one decimal, from a second on with none."""
    ms = float(ns) / 1e6
    return f"{ms:.1f}" if ms < 1000 else f"{ms:,.0f}"
