"""What does not fit in a job: ranks that are missing, there twice, unreadable, hung, or unlike the others.

A misfit makes other numbers of the job wrong or incomplete, so it is named before them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.analyse.quantities import count_text, duration_text
from stepscope.analyse.step.activity import IS_POINT_TO_POINT
from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.slow.own_work import OwnWork
from stepscope.trace.job_ranks import RankSaid, contradictions, listed

#: Stands for the group of ranks that name none.
_UNNAMED = -1
#: What torch calls a group whose program gives it no name.
_UNDEFINED = "undefined"
#: Clocks of at most this share of the machines, or of one, are misfits.
_FEW_CLOCKS = 0.25
#: A call that the end of a recording cuts off waits in vain if it lasts so long, ns, and so many times as long as the
#: others. The recorder writes every half a second: then no call of another rank is missing that came before.
_IN_VAIN_NS, _IN_VAIN = 2_000_000_000, 10


@dataclass(frozen=True)
class Misfit:
    """One thing that does not fit.

    Attributes:
        cause: Slug of the catalogue of findings.
        sentence: What it is, with names and numbers.
        ranks: Ranks that it concerns, those at fault if that is known.
        details: What supports it, one clause each.
        certain: Whether it is read from the files; false: concluded.
    """

    cause: str
    sentence: str
    ranks: tuple[int, ...]
    details: tuple[str, ...] = ()
    certain: bool = True


def misfits(
    tables: JobTables, works: Sequence[OwnWork] = (), clocks: pl.DataFrame | None = None, *, whole: bool = True
) -> list[Misfit]:
    """Return what does not fit, what makes most other numbers wrong first.

    Args:
        tables: The tables of the job.
        works: The work of its ranks, to be compared.
        clocks: The clocks of its ranks; None if they were not looked for.
        whole: Whether the tables hold all that there is of the job, so that other ranks are missing.
    """
    hung = list(_hung(tables))
    said = list(_contradictions(tables, whole=whole))
    unreadable = list(_unreadable(tables))
    # What stops a rank early explains that it has fewer steps, and no clock.
    explained = {rank for misfit in (*hung, *unreadable) for rank in misfit.ranks}
    return [
        *hung,
        *unreadable,
        *said,
        *([] if hung else _unequal_steps(tables, explained)),
        *_unlike(tables, works),
        *_uncalibrated(tables, clocks, explained),
    ]


def without_device_work(tables: JobTables) -> list[int]:
    """Return the ranks without work of a device, if at least half of all ranks have some: it was not recorded."""
    known = tables.ranks.filter(pl.col("fault").is_null() & pl.col("device").is_not_null())
    bare = known.filter(pl.col("device") == "cpu")["rank"].unique().sort().to_list()
    return bare if 0 < 2 * len(bare) <= known["rank"].n_unique() else []


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {listed([str(number) for number in numbers])}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _contradictions(tables: JobTables, *, whole: bool) -> Iterator[Misfit]:
    rows = tables.ranks.select("directory", "rank", "world_size", "host").rows()
    said = [
        RankSaid(directory, rank, frozenset([size] if size else ()), frozenset([host] if host else ()))
        for directory, rank, size, host in rows
    ]
    for one in contradictions(said, whole=whole) if said else ():
        yield Misfit(one.cause, one.sentence, one.ranks)


def _unreadable(tables: JobTables) -> Iterator[Misfit]:
    sound = tables.ranks.filter(pl.col("fault").is_null())
    # Another capture of a rank that is there is a duplicate, whatever it holds.
    bad = tables.ranks.filter(pl.col("fault").is_not_null()).join(sound, on="rank", how="anti").sort("rank")
    if not bad.is_empty():
        numbers = [rank for rank in bad["rank"] if rank >= 0]  # negative: nothing says which rank it is
        details = tuple(f"{directory}: {fault}" for directory, fault in bad.select("directory", "fault").rows())
        names = [*([_capital(_ranks(numbers))] if numbers else []), *bad.filter(pl.col("rank") < 0)["directory"]]
        yield Misfit("unreadable-rank", f"{listed(names)} cannot be read.", tuple(numbers), details)
    if bare := without_device_work(tables):
        sentence = f"The capture of {_ranks(bare)} has no work of its device; those of the others have."
        yield Misfit("unreadable-rank", sentence, tuple(bare))
    cut = tables.ranks.filter(pl.col("cut") & pl.col("fault").is_null()).sort("rank")
    if not cut.is_empty():
        numbers = cut["rank"].to_list()
        steps = dict(tables.steps.group_by("rank").len().rows())
        details = tuple(f"rank {rank} has {count_text(steps.get(rank, 0), 'step')}" for rank in numbers)
        sentence = f"The capture of {_ranks(numbers)} ends before the recording did."
        yield Misfit("unreadable-rank", sentence, tuple(numbers), details)


def _unequal_steps(tables: JobTables, explained: set[int]) -> Iterator[Misfit]:
    have = (
        tables.steps.filter(~pl.col("rank").is_in(explained))
        .group_by("rank")
        .agg(pl.col("step").min().alias("first"), pl.col("step").max().alias("last"), pl.col("step").n_unique())
        .sort("rank")
    )
    kinds = Counter(have.select("first", "last", "step").rows())
    if len(kinds) < 2:
        return
    usual, often = kinds.most_common(1)[0]
    unlike = have.filter(pl.struct("first", "last", "step") != dict(zip(("first", "last", "step"), usual, strict=True)))
    details = tuple(
        f"rank {rank} has {count_text(count, 'step')}, {first} to {last}" for rank, first, last, count in unlike.rows()
    )
    first, last, count = usual
    others = f"{'the other has' if often == 1 else f'{often:,} others have'} {count:,}, {first} to {last}"
    numbers = unlike["rank"].to_list()
    sentence = f"{_capital(_ranks(numbers))}: other steps than the others ({details[0]}; {others})."
    yield Misfit("unequal-steps", sentence, tuple(numbers), details)


def _unlike(tables: JobTables, works: Sequence[OwnWork]) -> Iterator[Misfit]:
    """Yield ranks with another version of the framework, or that run other operators in place of their peers'."""
    for column, what in (("framework", "another framework"), ("version", "another version of the framework")):
        known = tables.ranks.filter(pl.col(column).is_not_null()).sort("rank")
        values = Counter(known[column].to_list())
        if len(values) > 1:
            usual, often = values.most_common(1)[0]
            unlike = known.filter(pl.col(column) != usual)
            numbers = unlike["rank"].to_list()
            details = tuple(f"rank {rank}: {value}" for rank, value in unlike.select("rank", column).rows())
            others = "the other" if often == 1 else f"the {often:,} others"
            sentence = f"{_capital(_ranks(numbers))}: {what} than {others} ({unlike[column][0]}, not {usual})."
            yield Misfit("different-code", sentence, tuple(numbers), details)
            return
    for work in works:
        found = work.replaced()
        # Of two ranks that differ, the one whose operators no rank of the job shares is the odd one.
        alone = {rank for rank, (own, _) in found.items() if sum(other.runs(own) for other in works) == 1}
        for rank, (own, others) in found.items():
            if rank in (alone or found):
                details = (f"only rank {rank} runs {own}", f"its peers run {others}, and rank {rank} does not")
                yield Misfit("different-code", f"Rank {rank} runs other code than its peers: {own}.", (rank,), details)


def _hung(tables: JobTables) -> Iterator[Misfit]:
    """Yield collectives that some ranks of a group called, and that never ran because others did not call them.

    Ranks that were held up have calls themselves that never ran. Who held them up has fewer calls than the others of a
    group, and none that waits.
    """
    # Of ranks that name no group, all of what they call belongs to all ranks.
    unnamed = pl.col("group").is_null().all().over("rank")
    everything = tables.collectives.with_columns(group=pl.when(unnamed).then(_UNNAMED).otherwise("group"))
    everything = _with_calls_in_vain(everything, tables.ranks)
    # What hangs lets no later call of its group run: work of a call that others followed is there, and was not found.
    called = pl.coalesce("launch", "ts")
    followed = called < called.filter("launched").max().over("rank", "group")
    everything = everything.with_columns(pl.col("launched") | followed.fill_null(value=False))
    calls = everything.filter(pl.col("group").is_not_null() & ~IS_POINT_TO_POINT)
    counts = calls.group_by("group", "rank").agg(
        pl.len().alias("calls"), (~pl.col("launched")).sum().alias("open"), pl.col("in_vain").any()
    )
    # Of pairs, ranks have any number of calls; they wait all the same.
    waiting = set(everything.filter(~pl.col("launched"))["rank"])
    # What a cut capture lacks may have been called, unless others wait in vain for the next call of its rank.
    done = (pl.col("calls") - pl.col("open")).filter(pl.col("in_vain")).min().over("group")
    whole = ~pl.col("rank").is_in(tables.ranks.filter("cut")["rank"].implode()) | (pl.col("calls") >= done)
    behind = counts.filter(pl.col("calls") < pl.col("calls").max().over("group"), ~pl.col("rank").is_in(waiting), whole)
    held = counts.join(behind.select("group").unique(), on="group", how="semi").filter(pl.col("open") > 0)
    behind = behind.join(held.select("group").unique(), on="group", how="semi")
    if behind.is_empty():
        yield from _unanswered(everything, waiting)
        return
    ranks = sorted(behind["rank"].unique().to_list())
    group = int(behind["group"].min())  # type: ignore[arg-type]
    others = counts.filter(pl.col("group") == group, pl.col("open") > 0)
    place = int(behind.filter(pl.col("group") == group)["calls"].min())  # type: ignore[arg-type]
    stopped = calls.filter((pl.col("group") == group) & ~pl.col("launched")).sort("ts")
    whose = "all ranks" if group == _UNNAMED else _named(tables.groups, group)
    where = f"{stopped['operation'].item(0)!s} {place} of {whose}"
    call, it = ("calls", "it") if len(ranks) == 1 else ("call", "them")
    wait = "rank waits" if len(waiting) == 1 else "ranks wait"
    sentence = f"{_capital(_ranks(ranks))} never {call} {where}: {len(waiting):,} {wait} for {it}."
    waited = max(stopped.filter("in_vain")["dur"], default=0)
    told = f"still waited when the recording ended, up to {duration_text(waited)}"
    what = told if waited else "no work of it is recorded"
    details = (
        f"{count_text(len(others), 'rank')} of the group launched {where}, and {what}",
        f"{_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'} for nobody",
    )
    yield Misfit("hung-collective", sentence, tuple(ranks), details, certain=False)


def _named(groups: pl.DataFrame, group: int) -> str:
    """Return a group by the name that its program gave it, else by its ranks."""
    found = groups.filter(pl.col("id") == group).select("description", "name", "ranks").rows()
    description, name, ranks = found[0] if found else (None, None, None)
    if ranks and description in (None, "", _UNDEFINED):
        return f"the group of {_ranks(ranks)}"
    return f"group {description or name or group}"


def _unanswered(calls: pl.DataFrame, waiting: set[int]) -> Iterator[Misfit]:
    """Yield the ranks that waiting ranks send to, or receive from, and that wait for nobody themselves."""
    pair, sends = ["source", "destination"], pl.col("operation").cast(pl.String).str.ends_with("send")
    said = calls.filter(IS_POINT_TO_POINT).with_columns(sends=sends)
    count = said.group_by(pair).agg(sent=pl.col("sends").sum(), received=(~pl.col("sends")).sum())
    # A message that its peer has called, too, moved in the end.
    lacks = pl.when("sends").then(pl.col("sent") > pl.col("received")).otherwise(pl.col("received") > pl.col("sent"))
    messages = said.filter("in_vain").join(count, on=pair).filter(lacks)
    messages = messages.with_columns(peer=pl.when("sends").then("destination").otherwise("source")).sort("ts", "rank")
    messages = messages.filter(pl.col("peer").is_in(set(calls["rank"]).difference(waiting)))
    if messages.is_empty():
        return
    ranks = sorted(messages["peer"].unique().to_list())
    first, sent = messages.select("rank", "sends").row(0)
    plural = "s" if len(ranks) == 1 else ""
    what = f"receive{plural} what rank {first} sends" if sent else f"send{plural} what rank {first} waits for"
    wait = "rank waits" if len(waiting) == 1 else "ranks wait"
    them = "it" if len(ranks) == 1 else "them"
    sentence = f"{_capital(_ranks(ranks))} never {what}: {len(waiting):,} {wait} for {them}."
    details = tuple(
        f"rank {rank} still waited for rank {peer} when the recording ended, {duration_text(dur)}"
        for rank, peer, dur in messages.unique(["rank", "peer"], maintain_order=True)
        .select("rank", "peer", "dur")
        .rows()
    )
    nobody = f"{_ranks(ranks)} wait{plural} for nobody"
    yield Misfit("hung-collective", sentence, tuple(ranks), (*details, nobody), certain=False)


def _with_calls_in_vain(calls: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the calls with ``in_vain``: those of a host that still waited when its recording was cut did not run."""
    cut = ranks.filter(pl.col("cut") & ~pl.col("imported"))["rank"]
    of_group = ("rank", "group")
    ends = pl.col("ts") + pl.col("dur")
    last = calls.with_columns(last=ends > pl.col("ts").max().over(of_group), pair=IS_POINT_TO_POINT)
    others = pl.col("dur").filter(~pl.col("last")).max().over(of_group).fill_null(0)
    long = pl.col("dur") >= pl.max_horizontal(_IN_VAIN_NS, _IN_VAIN * others)
    found = last.with_columns(in_vain=pl.col("last") & long & pl.col("rank").is_in(cut.implode()))
    # Calls behind one that waits in vain are in the queue of its group.
    queued = pl.col("ts") >= pl.col("ts").filter("in_vain").min().over(*of_group, "pair")
    found = found.with_columns(in_vain=queued.fill_null(value=False))
    return found.with_columns(pl.col("launched") & ~pl.col("in_vain"))


def _uncalibrated(tables: JobTables, clocks: pl.DataFrame | None, explained: set[int]) -> Iterator[Misfit]:
    # One machine's clock is set now and then. If many clocks do not fit, what they are fitted to is to blame, no rank.
    if clocks is None or tables.collectives.is_empty():
        return
    blank = clocks.filter(pl.col("offset_ns").is_null()).sort("rank")
    machines = clocks.select(pl.coalesce("host", pl.col("rank").cast(pl.String))).n_unique()
    # Ranks that agree with each other, and with none that has the clock of the job, have one clock.
    concerned = blank.select(pl.coalesce("host", pl.col("component").cast(pl.String))).n_unique()
    if len(blank) == len(clocks) or concerned > max(1.0, _FEW_CLOCKS * machines):
        return
    blank = blank.filter(~pl.col("rank").is_in(explained))
    for reason, numbers in blank.group_by("reason", maintain_order=True).agg(pl.col("rank")).rows():
        sentence = f"The clock of {_ranks(numbers)} is not calibrated: {reason or 'no reason is known'}."
        yield Misfit("clock-uncalibrated", sentence, tuple(numbers), ("who waits for whom is not said of these ranks",))
