"""Loading of data: what makes the batches late, and how many workers would do."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
import polars as pl

from stepscope.advise.calls import a_step
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed, SampledFrame
from stepscope.advise.trainers import trainer_says
from stepscope.analyse.data.batch_production import workers_needed
from stepscope.analyse.quantities import count_text, duration_text, percent_text
from stepscope.analyse.stacks.sampled_time import sampled_time
from stepscope.analyse.step.summary import DataWait
from stepscope.trace.tables import columns_of

#: Part of the step below which waiting for batches is not told.
_TOLD = 0.05
#: A stage of loading stands for all of it with this part of the time.
_MOST = 0.6
#: A wait that is longer than the usual one by this many steps is for a worker that starts, where samples see workers of
#: several epochs and where none are seen; so many epochs tell a pattern.
_FIRST, _FIRST_UNSEEN, _EPOCHS = 0.1, 0.5, 3
#: Workers are of no use where they make a batch in less than this part of the wait for it: the rest is sending.
_SENT = 0.8
#: Time to make a batch in the training process, as part of the time in a worker, which takes shared memory for it.
_UNSHARED = 0.5
#: A loader limits the training if this part of the steps waits for it, divided by its workers.
_LIMITED = 0.8
#: Part of the distances between long waits that are equal where epochs begin with them.
_EVEN = 0.7
#: What programs do between epochs.
_BETWEEN = ("evaluation", "checkpoint")
#: What starts and stops the workers of a loader, and where.
_ITERATORS = ("__iter__", "__del__", "_shutdown_workers")
_STARTS = re.compile(
    r"(?:torch[/\\]utils[/\\]data|paddle[/\\]io[/\\].*)[/\\](?:dataloader|dataloader_iter|reader)\.py$"
)
#: Batches that tell padding; parts of a batch from which on it is told: what is beyond the longest sample, and all.
_BATCHES, _BEYOND, _MIXED = 4, 0.3, 0.5
#: Parts of the forward and backward on padding that go away with it: least, usual, most.
_UNPADDED = (0.5, 0.85, 1.1)
#: Looks at the training thread that tell that it waits for the GIL.
_HELD = 4
#: Looks at the training thread that tell where its time goes.
_LOOKS = 30
#: States in which a worker or the loader works; in the others it waits.
_WORKING = ("python", "native", "collecting")
_WAITING = ("sleep", "io", "lock", "child", "waiting")
#: Workers that wait for their queues stand in these files.
_QUEUES = re.compile(r"multiprocessing[/\\](?:connection|queues|popen_fork|resource)|selectors\.py$|threading\.py$")
#: What fetches the samples of a batch, in PyTorch and Paddle.
_FETCH = re.compile(r"(?:torch[/\\]utils[/\\]data[/\\]_utils[/\\]fetch|paddle[/\\]io[/\\]dataloader[/\\]fetcher)\.py$")
#: What asks a sampler of PyTorch for the next indices.
_ORDERS = re.compile(r"torch[/\\]utils[/\\]data[/\\](?:sampler\.py:|dataloader\.py:.*_next_index$)")
_SAMPLER = "torch/utils/data/sampler.py"
#: What makes batches; some frameworks do so in a thread of the training process.
_LOADS = re.compile(r"(?:torch[/\\]utils[/\\]data|paddle[/\\]io|mindspore[/\\]dataset|grain[/\\]_src[/\\]python)[/\\]")
#: What goes on in most of the time, for the title.
_MADE = {"training": " in the training process", "thread": " in a thread of the training process"}
#: What waits for workers, in a capture that does not say how many its loader has.
_OF_WORKERS = "_MultiProcessingDataLoaderIter"
_MAKES = {"sample": "samples are made", "collate": "they are collated", "order": "a sampler chooses its samples"}
#: How batches are loaded beside the training, by framework; ``{}`` is the number of workers. JAX has no loader.
_LOADER = {
    "torch": "Load in workers: DataLoader(…, num_workers={}, persistent_workers=True)",
    "paddle": "Load in workers: DataLoader(…, num_workers={})",
    "mindspore": "Load in workers: GeneratorDataset(…, num_parallel_workers={})",
    "jax": "Make the next batch in a thread or process while the step runs, such as Grain's or torch's DataLoader",
}
#: The same, by the loader that a program was seen to use.
_SEEN_LOADER = {
    "dataloader": _LOADER["torch"],
    "grain": "Load in workers: grain.DataLoader(…, worker_count={})",
    "grain_dataset": "Load in workers: dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers={}))",
}
_ALONE = {"mindspore": "GeneratorDataset(…, num_parallel_workers=1)"}
#: Workers from which on a framework makes batches in other processes.
_LEAST_WORKERS = {"mindspore": 2}
#: A batch that is made in less time, ns, is not worth sending from another process; loading in the training process is
#: told from this part of a step on.
_SENDING, _CHEAP = 1_000_000, 0.1
_WHOLE_BATCHES = {
    "torch": "Take whole batches in one call: DataLoader(data, batch_size=None, sampler=BatchSampler("
    "RandomSampler(data), 64, drop_last=False)), which gives __getitem__ all indices of a batch; or index the tensors "
    "in the loop: x = inputs[indices]",
    "paddle": "Take whole batches in one call: index the arrays in the loop, x = paddle.to_tensor(inputs[indices])",
}


@dataclass(frozen=True)
class _Loading:
    """Where the time goes in which batches are made, ns per step, all workers together.

    Attributes:
        stages: ``sample``, ``collate``, ``order`` (the program's own sampler) and ``loader`` with their time.
        lines: Own lines with their time, the longest first.
        working: Time on a core.
        waiting: Time in which it sleeps, reads or waits for a lock.
        looks: How many looks tell it.
        where: Who makes them: the ``training`` thread, another ``thread`` of its process, or ``workers``.
    """

    stages: dict[str, float]
    lines: list[tuple[str, int, str, float]]
    working: float
    waiting: float
    looks: int
    where: str

    @property
    def whole(self) -> float:
        return self.working + self.waiting

    def scaled(self, factor: float) -> _Loading:
        """Return the same with each time multiplied."""
        stages = {stage: time * factor for stage, time in self.stages.items()}
        lines = [(file, line, function, time * factor) for file, line, function, time in self.lines]
        return replace(self, stages=stages, lines=lines, working=self.working * factor, waiting=self.waiting * factor)


def data_loading(observed: Observed) -> Iterator[Claim]:
    """Yield what makes the training wait for its batches, or for the GIL while a thread makes them."""
    held, step = _held_by_loader(observed), observed.step_ns
    wait = _wait(observed) + float(held["time"].sum())
    if not step or wait < _TOLD * step:
        return
    waits = observed.summary.data_wait
    loading = (_in_workers(observed) if waits.workers else None) or _in_training(observed)
    looks = observed.looks.filter(pl.col("phase") == "data")
    explains = {"data wait": wait, **observed.explained(looks), **observed.explained(held)}
    starting = observed.looks.filter(
        pl.col("stack").is_in(_starting(observed)) & (pl.col("phase") != "data").fill_null(value=True)
    )
    restarts = _restarts(observed, wait, float(starting["time"].sum()))
    if restarts is not None:
        yield Claim(restarts, Depth.CAUSE, explains | observed.explained(starting))
        return
    if not waits.workers:  # an iterator that is made for each batch is a part of loading it, and so is its end
        order = observed.looks_through(_SAMPLER, "__iter__").filter((pl.col("phase") != "data").fill_null(value=True))
        again = pl.concat([starting, order]).unique()
        wait, explains = wait + float(again["time"].sum()), explains | observed.explained(again)
    making = _making(observed, loading)
    if making is not None and making < _SENT * wait:
        yield Claim(_useless_workers(observed, wait, making), Depth.CAUSE, explains)
        return
    saved = _saved(wait, waits, loading)
    if waits.workers == 0 and (saved < _CHEAP * step or (loading.whole < _SENDING and _whole_batches(observed))):
        return  # neither larger pieces nor a worker make it shorter, or not by much: a part of loading stays
    limits = "its workers" if _limit(observed, loading) else ""
    yield Claim(_slow(observed, wait, waits, loading), Depth.CAUSE, explains, limits)


def _whole_batches(observed: Observed) -> bool:
    """Return whether the loaders take whole batches from their data, as far as that was recorded."""
    loaders = [value for key, value in observed.facts.items() if key.startswith("dataloader.")]
    return bool(loaders) and all(isinstance(one, dict) and one.get("auto_collation") is False for one in loaders)


def padding(observed: Observed) -> Iterator[Claim]:
    """Yield padding that the model computes on: beyond the longest sample of each batch, or between long and short."""
    names = ("samples", "elements", "longest", "collated")
    batches = columns_of(observed.tables, "batches", *names).drop_nulls()
    if len(batches) < _BATCHES or (batches["samples"] * batches["longest"] == batches["elements"]).all():
        return  # samples of one size need no padding: what makes the batch larger is something else
    collated, elements = float(batches["collated"].sum()), float(batches["elements"].sum())
    needed = float((batches["samples"] * batches["longest"]).clip(0, batches["collated"]).sum())
    beyond, all_of_it = 1 - needed / collated, 1 - elements / collated
    if beyond < _BEYOND and all_of_it < _MIXED:
        return
    part = beyond if beyond >= _BEYOND else all_of_it
    phases = {one.name: one.share * observed.step_ns for one in observed.summary.phases}
    time = part * (phases.get("forward", 0.0) + phases.get("backward", 0.0))
    low, gain, high = (of * time for of in _UNPADDED)
    finding = Finding(
        cause="padding",
        title=f"{percent_text(max(beyond, all_of_it))} of each batch is padding, on which the model computes about "
        f"{duration_text(time)} of {duration_text(observed.step_ns)}",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(high),
        basis="that part of forward and backward; what does not depend on the length stays, attention saves more",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"samples have {elements / len(batches):,.0f} elements a batch, the batch has "
                     f"{collated / len(batches):,.0f}", value=all_of_it),
            Evidence(text=f"padded to the longest sample of each batch it would have {needed / len(batches):,.0f}",
                     value=beyond),
        ),
        remedy="Pad to the longest sample of the batch: torch.nn.utils.rnn.pad_sequence(samples, batch_first=True) in "
        'collate_fn; or no padding="max_length" in the tokenizer, and DataCollatorWithPadding(tokenizer, "longest").'
        if beyond >= _BEYOND
        else "Put samples of about one length into a batch: "
        + trainer_says(observed, "equal lengths", "sort or bucket by length in the sampler")
        + ".",
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, {"padding": time})


def _wait(observed: Observed) -> float:
    """Return the wait for batches per step, without the part in which the thread waited for a core.

    Of an iterator of the program's own, nothing but the samples tells it.
    """
    steps = observed.run_steps
    if steps["data_wait"].null_count() == len(steps):
        looks = observed.looks.filter(pl.col("phase") == "data")
        return max(observed.part("data wait") or 0.0, float(looks["time"].sum()) * (looks["count"].sum() >= _HELD))
    known = steps.drop_nulls("data_wait")
    mean = float(known["data_wait"].to_numpy().mean())
    seen = float(observed.looks.filter(pl.col("phase") == "data")["time"].sum())
    whole = float(known["dur"].sum())
    quiet = mean * float(known["quiet"].sum()) / whole
    # The samples tell what of it was spent on a core or truly waiting; where they are few, the steps' own share does.
    return min(mean, seen) if observed.looks["count"].sum() >= _LOOKS else quiet


def _limit(observed: Observed, loading: _Loading) -> bool:
    """Return whether the training is as slow as its workers: each step that gets shorter waits longer for them.

    That is not so where the workers compute on all cores: a shorter step leaves them more of these. Workers that make
    batches side by side end together, so that one of as many steps as there are workers waits.
    """
    waits, known = observed.summary.data_wait, observed.run_steps["data_wait"].drop_nulls().to_numpy()
    if loading.where != "workers" or not waits.workers or not len(known):
        return False
    if (waits.cores or math.inf) <= waits.workers and loading.working >= _MOST * loading.whole:
        return False
    return float((known > _TOLD * observed.step_ns).mean()) >= _LIMITED / waits.workers


def _held_by_loader(observed: Observed) -> pl.DataFrame:
    """Return the looks outside of loading at which the training wants the GIL, if the thread that loads holds it."""
    holder, _, stack = lock_holder(observed)
    looks = wanting_lock(observed, holder).filter((pl.col("phase") != "data").fill_null(value=True))
    return looks if looks["count"].sum() >= _HELD and loads_data(observed.stacks.get(stack, ())) else looks.clear()


def _starting(observed: Observed) -> list[int]:
    """Return the stacks in which a loop begins or ends its loader's iterator, which starts or stops workers."""
    return [
        stack
        for stack, frames in observed.stacks.items()
        if any(frame.function.endswith(_ITERATORS) and _STARTS.search(frame.file or "") for frame in frames)
    ]


def _epochs(observed: Observed, workers: int) -> float:
    """Return for how many epochs workers were started, by the processes that the samples saw; 0 if they saw none."""
    seen = columns_of(observed.tables, "samples", "process", "worker").drop_nulls("worker")
    return seen["process"].n_unique() / max(workers, 1)


def _evenly_long(observed: Observed, steps: pl.DataFrame, workers: int) -> int:
    """Return how many of the longest waits come at one distance, as epochs do; 0 where they do not.

    Workers that live for a few steps are rarely seen by samples; one that is seen for longer was not started again.
    Workers that make batches side by side end together: waits as many steps apart as there are workers are theirs.

    Args:
        observed: The rank.
        steps: The steps of the run, the longest wait first.
        workers: Workers of all loaders.
    """
    if len(steps) <= _EPOCHS:
        return 0
    long = steps.filter(pl.col("data_wait") >= steps["data_wait"][_EPOCHS - 1] / 2)["number"].sort()
    apart = long.diff().drop_nulls()
    usual = float(apart.median() or 0.0)  # type: ignore[arg-type]
    seen = columns_of(observed.tables, "samples", "ts", "process", "worker").drop_nulls("worker")
    lived = seen.group_by("process").agg(pl.col("ts").max() - pl.col("ts").min())["ts"].to_numpy().max(initial=0)
    if len(long) < _EPOCHS or usual <= workers or lived > 2 * usual * observed.step_ns:
        return 0
    return len(long) if int((apart == usual).sum()) >= _EVEN * len(apart) else 0


def _restarts(observed: Observed, wait: float, starting: float) -> Finding | None:
    """Return that the workers are started again for each epoch, if the waits for their first batches are most of it."""
    loaders = [value for key, value in observed.facts.items() if key.startswith("dataloader.")]
    started = [one for one in loaders if isinstance(one, dict) and one.get("workers")]
    if not started or any(one.get("persistent_workers") for one in started):
        return None
    workers = sum(int(one["workers"]) for one in started)
    seen = _epochs(observed, workers)
    steps = observed.run_steps.drop_nulls("data_wait").sort("data_wait", descending=True)
    waits = steps["data_wait"].to_numpy()
    epochs = max(seen, _evenly_long(observed, steps, workers))
    usual = float(np.median(waits)) if len(waits) else 0.0
    long = int((waits > usual + (_FIRST if epochs else _FIRST_UNSEEN) * observed.step_ns).sum())
    first = steps.head(min(long, round(epochs or long)))  # other long waits are not for workers that start
    excess, whole = float((first["data_wait"] - usual).sum()), max(float(waits.sum()), 1.0)
    time, restarting = wait + starting, wait * excess / whole + starting
    if min(len(first), epochs or _EPOCHS) < _EPOCHS or restarting < _MOST * time:
        return None
    every = len(waits) / len(first)
    # The first step of an epoch also copies pages after the fork, and has what the program does between epochs.
    longer = float((first["quiet"] - steps["quiet"].median()).sum()) / len(steps)
    others = sum(one.share for one in observed.summary.phases if one.name in _BETWEEN) * observed.step_ns
    gain = max(restarting, longer - others)
    keep = trainer_says(observed, "kept workers", "DataLoader(…, persistent_workers=True)")
    return Finding(
        cause="restarted-workers",
        title=f"{duration_text(time)} of {duration_text(observed.step_ns)} the training waits for its next batch: "
        f"every {every:.0f} steps an epoch begins, for which the workers are started again",
        gain_ns=round(gain),
        gain_low_ns=round(0.5 * gain),
        gain_high_ns=round(max(time, gain)),
        basis="what the first steps of epochs take longer than others, without evaluation and checkpoints",
        confidence=Confidence.MEASURED if epochs else Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{len(first)} of {len(waits)} steps have {percent_text(excess / whole)} of the "
                     "wait", value=float(len(first)), result="step_times"),
            Evidence(text="the loader has workers and no persistent_workers", result="dataset"),
            *((Evidence(text=f"workers were started for {seen:.0f} epochs, in {duration_text(starting)} a step",
                        value=seen, result="python_lines"),) if seen >= _EPOCHS else ()),
        ),
        remedy=f"Keep the workers: {keep}; or make epochs longer.",
    )  # fmt: skip


def _saved(wait: float, waits: DataWait, loading: _Loading) -> float:
    """Return what faster loading saves of a wait, ns: half of it, where taking batches whole is what is left to do."""
    return 0.5 * wait if _small(waits, loading) else wait


def _small(waits: DataWait, loading: _Loading) -> bool:
    """Return whether the training makes its batches in less time than sending them from a worker takes."""
    return waits.workers == 0 and 0 < loading.whole < _SENDING


def _slow(observed: Observed, wait: float, waits: DataWait, loading: _Loading) -> Finding:
    step, workers = observed.step_ns, waits.workers
    stage, part = max(loading.stages.items(), key=lambda item: item[1], default=("", 0.0))
    named = stage if loading.whole and part >= _MOST * loading.whole else ""
    made = f" in {count_text(workers, 'worker')}" if workers else "" if workers is None else _MADE["training"]
    made = _MADE.get(loading.where, made) if loading.looks else made
    where = ""
    if loading.lines:
        file, line, function, _ = loading.lines[0]
        where = f": {function.rpartition('.<locals>.')[2]} ({observed.place(file, line)})"
    advice, rest = _advice(observed, wait, loading)
    small = _small(waits, loading)
    evidence = [
        Evidence(text=f"the training waits {duration_text(wait)} {a_step(observed)} for its next batch", value=wait,
                 unit="ns", result="step_times"),
    ]  # fmt: skip
    if loading.whole:
        evidence.append(
            Evidence(
                text=f"a batch takes {duration_text(loading.whole)} to make{made}, "
                f"{percent_text(loading.working / loading.whole)} of it on a core",
                value=loading.whole, unit="ns", result="python_lines",
            )
        )  # fmt: skip
    evidence += [
        Evidence(text=f"{observed.place(file, line)} {function} takes {percent_text(time / loading.whole)} of that",
                 value=time, unit="ns", source=f"{file}:{line}", result="python_lines")
        for file, line, function, time in loading.lines[:3]
    ]  # fmt: skip
    return Finding(
        cause="slow-collate" if named == "collate" else "data-loader-slow",
        title=f"{duration_text(wait)} of {duration_text(step)} the training waits for its next batch"
        + (f"; {_MAKES.get(named, 'batches are made')}{made}{where}" if named or made or where else ""),
        gain_ns=round(_saved(wait, waits, loading)),
        gain_low_ns=round(0.25 * wait if small else max(min(rest, wait), 0.0)),
        gain_high_ns=round(wait),
        basis="half of the wait for batches, which are too small to be sent by a worker: taking them whole costs, too"
        if small
        else "the wait for batches, all of which faster loading saves; the lower end is what workers alone save on the "
        "cores of this machine",
        confidence=Confidence.MEASURED,
        evidence=tuple(evidence),
        remedy=advice,
    )


def _advice(observed: Observed, wait: float, loading: _Loading) -> tuple[str, float]:
    """Return what to change, and what more workers alone save per step."""
    waits, rest = observed.summary.data_wait, max(observed.step_ns - wait, 1.0)
    made = loading.whole or wait * max(waits.workers or 1, 1)
    on_core = loading.working / loading.whole if loading.whole else 1.0
    least = _LEAST_WORKERS.get(observed.framework, 1)
    needed, cores = workers_needed(made, rest, on_core, None, least), waits.cores
    place = observed.place(*loading.lines[0][:2]) if loading.lines else ""
    cheaper = f"Make what {place} does cheaper: do it once before the training, or for a whole batch in one call"
    if loading.stages.get("order", 0.0) >= _MOST * loading.whole > 0:
        return f"{cheaper}. Workers do not help: a sampler runs in the training process.", 0.0
    ordering = observed.looks_through(_SAMPLER, "__iter__")
    if loading.where == "training" and float(ordering["time"].sum()) >= _MOST * wait:
        return (
            "Make the loader's iterator once, before the loop: batches = iter(loader); x, y = next(batches). Each "
            "iter(loader) puts the indices of all samples into a new order.",
            float(ordering["time"].sum()),
        )
    if _small(waits, loading):
        batches = _WHOLE_BATCHES.get(observed.framework, "Take whole batches from the data in one call")
        return f"{batches}. A worker does not pay: sending a batch takes as long as making it.", 0.5 * wait
    names = columns_of(observed.tables, "spans", "name")["name"].unique().cast(pl.String)
    if waits.workers is None and names.str.contains(_OF_WORKERS).any():
        return "Its loader has workers: give it more (num_workers, prefetch_factor), or make its samples cheaper.", 0.0
    most = workers_needed(made, rest, on_core, cores, least)
    if cores == 1 and on_core >= _MOST:
        return f"{cheaper if place else 'Make loading cheaper'}: the process may use one core.", 0.0
    after = max(rest, made / most)
    if cores is not None:
        after = max(after, (rest + on_core * made) / cores)
    saved = observed.step_ns - after
    if waits.workers is not None and most <= waits.workers:
        why = f"more workers than {waits.workers} have no core"
        if needed <= waits.workers:
            why = f"{count_text(waits.workers, 'worker')} would do if all batches took equally long"
        return f"{cheaper if place else 'Make loading cheaper'}; {why}.", 0.0
    return f"{beside_training(observed, most)}." + (f" {cheaper}." if place else ""), saved


def beside_training(observed: Observed, workers: int) -> str:
    """Return how batches are made in so many workers, in the words of the framework or trainer."""
    seen = (_SEEN_LOADER.get(key.partition(".")[0]) for key in observed.facts)
    load = next(filter(None, seen), _LOADER.get(observed.framework, f"Load in {count_text(workers, 'worker')}"))
    return trainer_says(observed, "workers", load).format(max(workers, _LEAST_WORKERS.get(observed.framework, 1)))


def _making(observed: Observed, loading: _Loading) -> float | None:
    """Return what samples and their collation take in workers, ns per step; None where nothing tells it.

    Workers that are the bottleneck take longer for a batch than the training waits for it. Where batches are not timed
    one by one, the samples of the stacks tell it; the rest of their time is sending.
    """
    if loading.where != "workers":
        return None
    timed = _timed(observed)
    if timed is not None:
        return timed
    return sum(time for stage, time in loading.stages.items() if stage != "loader") if loading.looks else None


def _timed(observed: Observed) -> float | None:
    """Return what the batches of a step take that are timed one by one: CPU time, and the usual wait, in ns."""
    batches = columns_of(observed.tables, "batches", "sample_dur", "sample_cpu", "collate_dur", "collate_cpu")
    if len(batches) < _BATCHES:
        return None
    cpu = (batches["sample_cpu"] + batches["collate_cpu"]).to_numpy()
    waited = (batches["sample_dur"] + batches["collate_dur"]).to_numpy() - cpu
    each = max(round(len(batches) / max(len(observed.run_steps), 1)), 1)
    return each * float(cpu.mean() + np.median(waited))


def _useless_workers(observed: Observed, wait: float, making: float) -> Finding:
    step, workers = observed.step_ns, observed.summary.data_wait.workers or 0
    alone = trainer_says(observed, "no workers", _ALONE.get(observed.framework, "num_workers=0"))
    gain = max(wait - _UNSHARED * making, 0.0)
    return Finding(
        cause="useless-workers",
        title=f"{duration_text(wait)} of {duration_text(step)} the training waits for batches that "
        f"{count_text(workers, 'worker')} send; making one takes {duration_text(making)}",
        gain_ns=round(gain),
        gain_low_ns=round(0.5 * gain),
        gain_high_ns=round(wait),
        basis="the wait for batches less half of the time to make one, which shared memory takes in a worker",
        evidence=(
            Evidence(text=f"the training waits {duration_text(wait)} a step for its next batch", value=wait,
                     unit="ns", result="step_times"),
            Evidence(text=f"the workers make samples and collate them for {duration_text(making)} a step",
                     value=making, unit="ns", result="python_lines"),
        ),
        remedy=f"Load in the training process: {alone}; sending a batch costs more than making it.",
    )  # fmt: skip


def _in_training(observed: Observed) -> _Loading:
    # Where workers make the batches, what the training thread does meanwhile is to receive them.
    asks = pl.col("phase") == "data" if not observed.summary.data_wait.workers else pl.lit(value=False)
    rows = observed.looks.filter(asks).select("stack", "state", "time", "count").rows()
    threads = [
        row
        for row in _others(observed, 2)
        if loads_data(frames := observed.stacks.get(row[0], ())) and any(one.own for one in frames)
    ]
    beside = _loading(observed, threads, "thread")
    own = _loading(observed, rows, "training")
    return beside if beside.working > own.working else own


def _in_workers(observed: Observed) -> _Loading | None:
    rows = _others(observed, 1)
    if not rows:
        return None
    seen, timed = _loading(observed, rows, "workers"), _timed(observed)
    # the samples are few and begin late: they tell what the time consists of, the batches how much it is
    return seen if timed is None or not seen.whole else seen.scaled(timed / seen.whole)


def _others(observed: Observed, order: int) -> list[tuple[int, str, float, int]]:
    """Return stack, state, time in ns per step and looks of the workers (1) or of other threads (2)."""
    sampled = sampled_time(observed.tables)
    rows = sampled.rows.filter(pl.col("order") == order).with_columns(
        pl.col("state").cast(pl.String), time=pl.col("inside") / max(sampled.steps, 1)
    )
    return rows.select("stack", "state", "time", "count").rows()


def loads_data(frames: Iterable[SampledFrame]) -> bool:
    """Return whether a stack is that of a thread in which a framework's loader makes batches."""
    return any(_LOADS.search(frame.file or "") for frame in frames)


def _loading(observed: Observed, rows: list[tuple[int, str, float, int]], where: str) -> _Loading:
    stages: dict[str, float] = defaultdict(float)
    lines: dict[tuple[str, int, str], float] = defaultdict(float)
    spent = {"working": 0.0, "waiting": 0.0}
    looks = 0
    for stack, state, time, count in rows:
        frames = observed.stacks.get(stack, [])
        kind = "working" if state in _WORKING else "waiting" if state in _WAITING else ""
        if not kind or (kind == "waiting" and _at_queue(frames)):
            continue
        stages[_stage(frames)] += time
        spent[kind] += time
        looks += count
        own = next((frame for frame in frames if frame.own), None)
        named = next((frame for frame in frames if frame.own and not frame.function.endswith(">")), own)
        if own is not None and _stage(frames) != "loader":
            lines[own.file, own.line, (named or own).function] += time
    ordered = sorted(((*place, time) for place, time in lines.items()), key=lambda line: -line[3])
    return _Loading(dict(stages), ordered, spent["working"], spent["waiting"], looks, where)


def _at_queue(frames: list[SampledFrame]) -> bool:
    """Return whether a thread stands at a queue between processes, and no code of the program is further in."""
    for frame in frames:
        if frame.own:
            return False
        if _QUEUES.search(frame.file or ""):
            return True
    return not frames


def _stage(frames: list[SampledFrame]) -> str:
    """Return which stage of loading a stack is in, innermost frame first."""
    inside: SampledFrame | None = None
    for frame in frames:
        if _FETCH.search(frame.file or "") and (inside is None or not _FETCH.search(inside.file or "")):
            if inside is None:
                return "loader"
            return "sample" if re.search(r"__getitems?__$|__next__$|__iter__$", inside.function) else "collate"
        inside = frame
    makes = any(frame.own and frame.function.endswith("__getitem__") for frame in frames) or not loads_data(frames)
    inner = list(takewhile(lambda frame: not _LOADS.search(frame.file or ""), frames))
    caller = next((f"{frame.file}:{frame.function}" for frame in frames[len(inner) :]), "")
    orders = any(frame.own for frame in inner) and _ORDERS.search(caller)
    return "sample" if makes else "order" if orders else "loader"


def lock_holder(observed: Observed) -> tuple[str, str, int]:
    """Return the other thread that runs most Python, its line, and a stack of it; empty if none was seen."""
    sampled = sampled_time(observed.tables)
    running = pl.col("state").cast(pl.String).is_in(["python", "native"])
    others = sampled.rows.filter((pl.col("order") == 2) & running)
    if others.is_empty():
        return "", "", -1
    own = sampled.frames.filter("own").sort("stack", "place")
    frames = own.group_by("stack", maintain_order=True).agg(pl.col("file", "line").first())
    joined = others.join(frames, on="stack")
    if joined.is_empty():
        return "", "", -1
    by_place = joined.group_by("thread", "file", "line").agg(pl.col("time").sum(), pl.col("stack").min())
    thread, file, line, _, stack = by_place.sort("time", descending=True).row(0)
    return str(thread), observed.place(str(file), int(line)), int(stack)


def wanting_lock(observed: Observed, holder: str) -> pl.DataFrame:
    """Return the looks at which the training wants the GIL, without the time in which its holder waits for a core.

    Args:
        observed: The rank.
        holder: Name of the thread that holds it.
    """
    samples = columns_of(observed.tables, "samples", "ts", "dur", "process", "thread", "name", "worker", "state")
    samples = samples.filter(pl.col("worker").is_null()).with_columns(pl.col("name", "state").cast(pl.String))
    main, middle = pl.col("thread") == pl.col("process"), pl.col("ts") + pl.col("dur") // 2
    wanted = samples.filter(main & (pl.col("state") == "gil")).select(middle.alias("ts"), "dur").sort("ts")
    beside = samples.filter(~main & (pl.col("name") == holder)).select("ts", held="state").sort("ts")
    looks = observed.looks.filter(pl.col("state") == "gil")
    if wanted.is_empty() or beside.is_empty():
        return looks
    # One look sees all threads, one after the other: those at the middle of the time that a look stands for are its.
    held = wanted.join_asof(beside, on="ts")
    waits = float(held.filter(pl.col("held") == "core")["dur"].sum()) / max(float(held["dur"].sum()), 1.0)
    return looks.with_columns(pl.col("time") * (1 - waits))
