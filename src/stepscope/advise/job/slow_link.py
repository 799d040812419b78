"""Links that are slower than others of their sort, as findings: which, how much slower, what the job loses by it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeAlias

import polars as pl

from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.job.diagnosis import ms
from stepscope.analyse.quantities import count_text, number_text
from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.what_if.job_what_if import Gain

Row: TypeAlias = dict[str, Any]

#: A link that costs the job less than this share of its step is not worth a word.
_WORTH = 0.01
#: Ranks that a sentence names.
_NAMED = 8


def slow_link_findings(
    tables: JobTables, links: pl.DataFrame, gain: Callable[[list[str]], Gain | None]
) -> list[Finding]:
    """Return a finding for each slow link, or for a machine all of whose links to others, or to one other, are slow.

    Args:
        tables: The tables of the job.
        links: What :func:`stepscope.cluster.slow_links.link_speeds` returns.
        gain: What the job's step saves if some links are as fast as their peers; None if that is not known.
    """
    steps = max(tables.steps["step"].n_unique(), 1)
    step_ns = float(tables.steps["dur"].median() or 0)  # type: ignore[arg-type]
    host_of = dict(tables.ranks.unique("rank").select("rank", "host").drop_nulls().iter_rows())
    findings = []
    # What ranks on the cores of one machine send each other passes its memory: where it takes long, a core was missing.
    on_host = tables.ranks.filter(pl.col("device") == "cpu")["rank"].to_list()
    all_there = pl.col("ranks").list.eval(pl.element().is_in(on_host)).list.all()
    links = links.filter(~(all_there & (pl.col("machines") == 1)).fill_null(value=False))
    for between, rows in _by_machine(links, host_of):
        saved = gain([row["link"] for row in rows])
        # Links of one machine are slow at the same time: the longest counts.
        added = max(round((row["transit_ns"] - row["peers_transit_ns"]) / steps) for row in rows)
        if step_ns and (added if saved is None else saved.ns) >= _WORTH * step_ns:
            findings.append(_finding(rows, between, host_of, (added, saved, step_ns)))
    return findings


def _by_machine(links: pl.DataFrame, host_of: dict[int, str]) -> list[tuple[tuple[str, ...], list[Row]]]:
    """Put slow links together that are all links of one machine to others, or all between two; the others stand alone.

    Where only one of them is as fast as its peers, the job still waits for the others.
    """
    slow = links.filter("slow").rows(named=True)
    of_machines: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    between = links.filter(pl.col("machines") == 2).rows(named=True)
    for row in between:
        hosts = tuple(sorted({host_of[rank] for rank in row["ranks"] if rank in host_of}))
        for machines in {hosts, *((host,) for host in hosts)}:
            of_machines[machines].append(row)
    whole = {
        machines: rows
        for machines, rows in of_machines.items()
        if 1 < len(rows) < len(between) and all(row["slow"] for row in rows)
    }
    alone = [machines for machines in whole if len(machines) == 1]
    # All links of the neighbours of a machine may be slow, because they are links to it.
    most = max((len(whole[machines]) for machines in alone), default=0)
    alone = [machines for machines in alone if len(whole[machines]) == most]
    together = alone if len(alone) == 1 else [machines for machines in whole if len(machines) == 2]
    names = {row["link"] for machines in together for row in whole[machines]}
    return [
        *((machines, whole[machines]) for machines in together),
        *(((), [row]) for row in slow if row["link"] not in names),
    ]


def _finding(
    rows: list[Row], between: tuple[str, ...], host_of: dict[int, str], cost: tuple[int, Gain | None, float]
) -> Finding:
    worst = max(rows, key=lambda row: float(row["ratio"]))
    added, saved, step_ns = cost
    ranks = sorted({rank for row in rows for rank in row["ranks"]})
    pair = (ranks[0], ranks[1]) if len(ranks) == 2 else None
    machines = sorted({host_of[rank] for rank in ranks if rank in host_of})
    where = "" if not machines else f" ({' and '.join(machines)})" if len(machines) < 3 else ""
    who = f"ranks {ranks[0]} and {ranks[1]}" if pair else f"the {worst['kind']} group of ranks {_listed(ranks)}"
    if between:
        who, where = " and ".join([*between, "other machines"][:2]), ""
        ranks = [rank for rank in ranks if host_of.get(rank) in between]
    others = "the other link of its sort" if worst["peers"] == 1 else f"the other {worst['peers']:,} links of its sort"
    title = (
        f"Between {who}{where} data move at {number_text(worst['bandwidth'])} GB/s, over {others} at "
        f"{number_text(worst['peers_bandwidth'])}: {ms(added)} of {ms(step_ns)} ms a step"
    )
    known = all(rank in host_of for rank in ranks)
    return Finding(
        cause="slow-link",
        title=title,
        gain_ns=saved.ns if saved else None,
        gain_low_ns=saved.low if saved else None,
        gain_high_ns=saved.high if saved else None,
        basis="the recorded job, put together again with what the link's peers take" if saved else "",
        confidence=Confidence.MEASURED
        if known and worst["peers"] > 1
        else Confidence.LIKELY
        if known
        else Confidence.POSSIBLE,
        evidence=_evidence(rows, pair),
        remedy=_remedy(worst),
        check="stepscope report RUN",
        ranks=tuple(ranks),
        link=pair,
        added_ns=added,
    )


def _evidence(rows: list[Row], pair: tuple[int, int] | None) -> tuple[Evidence, ...]:
    found = [
        Evidence(
            text=f"{row['link']}: {count_text(row['collectives'], 'collective')} took {number_text(row['ratio'])} "
            f"times as long as on {count_text(row['peers'], 'link')} of the same kind, size and machines, from the "
            "last arrival to the end",
            value=float(row["ratio"]),
            result="cluster_links",
            row={"link": row["link"]},
        )
        for row in rows
    ]
    if pair is None and len(rows) == 1:
        text = "which of its links is slow cannot be told: every collective of the group runs over all of them"
        found.append(Evidence(text=text, result="cluster_links", row={"link": rows[0]["link"]}))
    return tuple(found)


def _remedy(row: Row) -> str:
    if row["machines"] == 1:
        return (
            "Look at how the devices are joined: nvidia-smi topo -m and nvidia-smi nvlink --status; NCCL_DEBUG=INFO "
            "shows the path that NCCL takes (P2P, SHM)."
        )
    return (
        "Measure the network between these machines (ib_write_bw, iperf3) and compare with others; NCCL_DEBUG=INFO "
        "shows the interface that NCCL takes (NET/IB, NET/Socket)."
    )


def _listed(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}–{ranks[-1]}"
    return ", ".join(map(str, ranks[:_NAMED])) + (" …" if len(ranks) > _NAMED else "")
