"""How fast each link of a job is, against the others of its sort: pairs of ranks, and groups where no pair can be told.

What a collective takes is the time from its last arrival to its end. The rank that arrives last waits for nobody, so
this is the shortest of the durations that its ranks recorded: no clock is needed. Links are alike if they join as many
ranks, on one machine or on several, for the same purpose; of these, collectives of the same operation and size are
compared.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import polars as pl

from stepscope.cluster.groups import GROUPS_SCHEMA
from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.meetings import of_several_peers
from stepscope.cluster.peers import median_of_others

Frame: TypeAlias = pl.DataFrame

_PAIRS = ("send", "recv", "isend", "irecv", "sendrecv")
#: Collectives with the same of these are compared.
ALIKE = ("operation", "kind", "size", "machines", "bytes")
#: How much links that are alike differ in a healthy job, as a standard deviation of the logarithm of their times.
_SPREAD = 0.05
#: A link is slow if it differs from its peers by this many standard deviations: with two peers and more, with one.
_SIGMAS, _SIGMAS_OF_TWO = 5.0, 8.0
#: Less than so many collectives say nothing of a link.
_FEW = 3
#: So many times as long takes each link of a machine with a slow network as each of the others.
_MUCH_SLOWER = 1.5
_MAD_TO_SIGMA = 1.4826

LINKS_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "link": pl.String,
    "kind": pl.String,
    "ranks": pl.List(pl.Int32),
    "machines": pl.Int64,
    "collectives": pl.Int64,
    "bytes": pl.Int64,
    "transit_ns": pl.Int64,
    "peers_transit_ns": pl.Int64,
    "bandwidth": pl.Float64,
    "peers_bandwidth": pl.Float64,
    "ratio": pl.Float64,
    "peers": pl.Int64,
    "slow": pl.Boolean,
}


def transits(tables: JobTables, meetings: Frame, groups: Frame) -> Frame:
    """Return what each collective takes once all its ranks are there.

    Args:
        tables: The tables of the job.
        meetings: Its collectives with ``meeting``; those of which a rank is missing say nothing.
        groups: What :func:`stepscope.cluster.groups.parallel_groups` returns.

    Returns:
        meeting, link (``a-b`` for a pair, ``group n``), kind, ranks, size, machines (1, 2 for several; null if not
        known), hosts (their names), operation, bytes, step, transit (ns); one row a meeting.
    """
    host = tables.ranks.filter(pl.col("fault").is_null()).unique("rank").select("rank", "host")
    kinds = groups.unique("group").select("group", "kind") if len(groups) else pl.DataFrame(schema=GROUPS_SCHEMA)
    # A broadcast does not end together: its root goes on before the others have it.
    # The host's call of a collective whose work is not recorded takes no time of the link.
    ran = pl.col("launched").fill_null(value=True).all().over("meeting")
    # A kernel with messages of several peers also waits for the others.
    together = pl.col("meeting").is_not_null() & pl.col("complete").fill_null(value=False) & ran
    together &= ~of_several_peers().any().over("meeting")
    whole = meetings.filter(together, pl.col("operation") != "broadcast").join(host, on="rank", how="left")
    each = whole.group_by("meeting", maintain_order=True).agg(
        pl.col("operation").min(),
        pl.col("group").first(),
        pl.col("step").first(),
        pl.col("rank").sort().alias("ranks"),
        bytes=pl.max_horizontal("bytes_in", "bytes_out").max(),
        transit=pl.col("dur").min(),
        machines=pl.when(pl.col("host").null_count() == 0).then(pl.col("host").n_unique().clip(1, 2)).cast(pl.Int64),
        hosts=pl.col("host").drop_nulls().unique().sort(),
    )
    pair = pl.col("ranks").list.len() == 2
    moves = pl.col("operation").is_in(_PAIRS)
    name = pl.when(pair).then(pl.col("ranks").cast(pl.List(pl.String)).list.join("-"))
    return (
        each.filter(pl.col("ranks").list.len() > 1)
        .join(kinds.select("group", "kind"), on="group", how="left")
        .select(
            "meeting",
            link=pl.coalesce(name, pl.format("group {}", "group")),
            kind=pl.when(moves).then(pl.lit("pp")).otherwise(pl.col("kind").fill_null("unknown")),
            ranks="ranks",
            size=pl.col("ranks").list.len().cast(pl.Int64),
            machines="machines",
            hosts="hosts",
            operation=pl.when(moves).then(pl.lit("send")).otherwise("operation"),
            bytes="bytes",
            step="step",
            transit="transit",
        )
        .drop_nulls("link")
    )


def link_speeds(transits: Frame) -> Frame:
    """Return how fast each link is, the slowest against its peers first.

    Columns: link, kind, ranks, machines, collectives, bytes (of all), transit_ns (of all), peers_transit_ns (what the
    same would take its peers), bandwidth and peers_bandwidth (bytes a ns, which is GB/s, of what the ranks put in),
    ratio (median of the times by those of its peers), peers (number of links that are alike), slow.
    """
    known = (
        _compared(transits)
        .filter(pl.col("usual") > 0, pl.col("own") > 0)
        .with_columns(log=(pl.col("own") / pl.col("usual")).log())
    )
    weight = pl.col("usual") * pl.col("count")
    speeds = known.group_by("link", "kind", "size", "machines", "outside", maintain_order=True).agg(
        pl.col("ranks").first(),
        pl.col("count").sum().cast(pl.Int64).alias("collectives"),
        pl.col("peers").min(),
        bytes=(pl.col("bytes") * pl.col("count")).sum(),
        transit_ns=pl.col("whole").sum(),
        peers_transit_ns=weight.sum(),
        # The operations and sizes that take most time decide.
        log=((pl.col("log") * weight).sum() / weight.sum()),
    )
    of_peers = ("kind", "size", "machines", "outside")
    away = (pl.col("log") - pl.col("log").median().over(of_peers)).abs()
    # Two links do not show how much links usually differ.
    seen = pl.when(pl.col("peers") > 1).then(_MAD_TO_SIGMA * away.median().over(of_peers)).otherwise(0.0)
    sigma = pl.max_horizontal(seen, _SPREAD)
    sigmas = pl.when(pl.col("peers") > 1).then(_SIGMAS).otherwise(_SIGMAS_OF_TWO)
    slow = (pl.col("log") > sigmas * sigma) & (pl.col("collectives") >= _FEW)
    found = speeds.with_columns(slow=slow.fill_null(value=False), ratio=pl.col("log").exp()).with_columns(
        bandwidth=pl.col("bytes") / pl.col("transit_ns"), peers_bandwidth=pl.col("bytes") / pl.col("peers_transit_ns")
    )
    return found.sort("ratio", descending=True).select(pl.col(name).cast(dtype) for name, dtype in LINKS_SCHEMA.items())


def as_its_peers(transits: Frame, links: list[str]) -> Frame:
    """Return what the collectives of some links would take at the speed of their peers: meeting, transit (ns)."""
    compared = _compared(transits)
    factor = compared.select("link", *ALIKE, factor=pl.col("usual") / pl.col("own"))
    slow = transits.filter(pl.col("link").is_in(links)).join(factor, on=["link", *ALIKE], nulls_equal=True)
    return slow.drop_nulls("factor").select("meeting", transit=pl.col("transit") * pl.col("factor"))


def _compared(transits: Frame) -> Frame:
    """Return each link by :data:`ALIKE`: its median transit ``own``, and ``usual``, that of its peers.

    Where all links of one machine are slow, its peers are those of the others, however many there are: they lie
    ``outside``.
    """
    of_link = transits.group_by("link", *ALIKE, maintain_order=True).agg(
        pl.col("ranks", "hosts").first(), count=pl.len(), own=pl.col("transit").median(), whole=pl.col("transit").sum()
    )
    of_link = of_link.with_columns(outside=_of_slow_machine(of_link))
    others = pl.col("own").filter(~pl.col("outside")).median().over(ALIKE)
    return of_link.with_columns(
        peers=pl.when("outside")
        .then((~pl.col("outside")).sum().over(ALIKE))
        .otherwise(pl.len().over(*ALIKE, "outside").cast(pl.Int64) - 1),
        usual=pl.when("outside").then(others).otherwise(median_of_others(of_link, (*ALIKE, "outside"), "own")),
    )


def _of_slow_machine(of_link: Frame) -> pl.Series:
    """Return which links are those of a machine all of whose links are slow, and those between other machines are not.

    None is, if that is true of machines with different links.
    """
    between = of_link.with_row_index("row").filter(pl.col("machines") == 2, pl.col("hosts").list.len() == 2)
    sorts = between.partition_by(ALIKE, maintain_order=True)
    wide = [links for links in sorts if links["own"].max() >= _MUCH_SLOWER * links["own"].min()]  # type: ignore[operator]
    machines = {host for links in wide for host in links["hosts"][links["own"].arg_max() or 0]}
    found = {rows for host in machines if (rows := _slow_only_here(sorts, host))}
    slow = np.zeros(len(of_link), np.bool_)
    if len(found) == 1:
        slow[list(found.pop())] = True
    return pl.Series(slow)


def _slow_only_here(sorts: list[Frame], host: str) -> tuple[int, ...]:
    """Return the rows of a machine's links, if of each sort all of them are slow, and no others; none otherwise."""
    rows: list[int] = []
    for links in sorts:
        touches = links["hosts"].list.contains(host)
        here, elsewhere = links["own"].filter(touches), links["own"].filter(~touches)
        if here.is_empty() or elsewhere.is_empty():
            continue
        if len(here) == 1 or len(elsewhere) == 1 or here.min() < _MUCH_SLOWER * elsewhere.max():  # type: ignore[operator]
            return ()
        rows += links["row"].filter(touches).to_list()
    return tuple(rows)


def communication_by_operation(meetings: Frame, groups: Frame, arrivals: Frame) -> Frame:
    """Return the collectives by kind of group and operation: the result ``cluster_collectives``.

    Columns: kind, operation, a_step (collectives of a rank in a step), bytes (median), time_ns (of a rank in a step),
    wait_ns and transit_ns (parts of it; null where clocks are not known), exposed (share of the time in which nothing
    computes), small (share of the collectives below 256 KiB).
    """
    kinds = groups.unique("group").select("group", "kind")
    size = pl.max_horizontal("bytes_in", "bytes_out")
    known = arrivals.select("meeting", "rank", waited="wait", moved="transit")
    rows = meetings.join(kinds, on="group", how="left").join(known, on=["meeting", "rank"], how="left")
    # The messages of a batch share the time of their kernel.
    together = pl.when(pl.col("operation").is_in(_PAIRS)).then(pl.len().over("rank", "group", "ts", "dur")).otherwise(1)
    rows = rows.with_columns(pl.col("dur", "exposed", "waited", "moved") / together)
    steps = rows.select(pl.struct("rank", "step").n_unique()).item() or 1
    return (
        rows.group_by(pl.col("kind").fill_null("unknown"), "operation")
        .agg(
            a_step=pl.len() / steps,
            bytes=size.median(),
            time_ns=pl.col("dur").sum() / steps,
            wait_ns=pl.when(pl.col("waited").count() > 0).then(pl.col("waited").sum() / steps),
            transit_ns=pl.when(pl.col("moved").count() > 0).then(pl.col("moved").sum() / steps),
            exposed=pl.col("exposed").sum() / pl.col("dur").filter(pl.col("exposed").is_not_null()).sum(),
            small=(size < 1 << 18).mean(),
        )
        .sort("time_ns", descending=True)
    )
