"""What explains best that a rank's work takes longer than its peers': one operator, several, a module, or a factor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stepscope.cluster.slow.outliers import Flags, Floats

#: An explanation that names less must explain this much more of the differences.
_SIMPLER = 0.03
#: The module of an operator is named if it has this share of the operator's excess.
_NEARLY_ALL = 0.8
#: Other work takes longer by less than this part of it, if it is worth naming; of less weight, it says nothing.
_MUCH_LESS, _NO_WEIGHT = 0.5, 0.01


@dataclass(frozen=True)
class Explanation:
    """What a rank takes longer.

    Attributes:
        what: ``name``, ``operator`` (of kernels that others run, too), ``module``, ``names``, ``phase``, or ``all``:
            all of its work by one factor.
        values: Which ones, most excess first; empty for all.
        ratio: How many times as long as its peers the rank takes for it; infinite if only the rank does it.
        excess_ns: What that is a step.
        share: The part of the differences between the rank's work and its peers' that it explains, 0 to 1.
        module: Of a name or operator: the module that has nearly all of its excess, if one has.
        alike: The part of all work, by its peers' time, that takes longer by about the same factor, 0 to 1.
    """

    what: str
    values: tuple[str, ...]
    ratio: float
    excess_ns: float
    share: float
    module: str | None = None
    alike: float = 0.0


_ORDER = ("name", "operator", "pair", "module", "names", "phase", "all")


def explain(work: pl.DataFrame) -> Explanation | None:
    """Return the best explanation; None if the rank's work takes no longer than its peers'.

    An explanation says: this work takes longer by one factor, other work does not. The best leaves least of the
    differences unexplained; of about equally good ones the one that names most is taken, in the order of
    :attr:`Explanation.what`.

    Args:
        work: The work of the rank: ``name``, ``operator``, ``module``, ``phase``, ``total_ns``, ``peers_ns``.
    """
    known = work.filter(~pl.col("peers_ns").is_nan() & ~pl.col("total_ns").is_nan())
    peers = known["peers_ns"].to_numpy()
    excess = known["total_ns"].to_numpy() - peers
    if known.is_empty() or excess.sum() <= 0:
        return None
    found = [
        _fit(what, values, inside, excess, peers)
        for what, values, inside in _candidates(known, excess, peers)
        if excess[inside].sum() > 0 and (what == "all" or _apart(inside, excess, peers))
    ]
    best = max(one.share for one in found)
    near = [one for one in found if one.share >= best - _SIMPLER]
    chosen = min(near, key=lambda one: (_ORDER.index(one.what), -one.share))
    if chosen.what == "pair":
        return replace(chosen, what="name", values=chosen.values[:1], module=chosen.values[1])
    if chosen.what in ("name", "operator"):
        return replace(chosen, module=_module_of(known, excess, known[chosen.what] == chosen.values[0]))
    return replace(chosen, alike=_alike(known, chosen.ratio)) if chosen.what == "all" else chosen


def _apart(inside: Flags, excess: Floats, peers: Floats) -> bool:
    """Return whether other work, if it is of any weight, takes longer by much less than this work."""
    rest, here = float(peers[~inside].sum()), float(peers[inside].sum())
    if rest <= _NO_WEIGHT * peers.sum() or not here:
        return not here
    return bool(excess[~inside].sum() / rest < _MUCH_LESS * excess[inside].sum() / here)


def _alike(known: pl.DataFrame, ratio: float) -> float:
    by_name = known.group_by("name").agg(pl.col("total_ns", "peers_ns").sum())
    more = (by_name["total_ns"] / by_name["peers_ns"] - 1) / (ratio - 1)
    near = more.is_between(1 - _MUCH_LESS, 1 + _MUCH_LESS)
    return float(by_name["peers_ns"].filter(near).sum()) / float(by_name["peers_ns"].sum())


def _candidates(known: pl.DataFrame, excess: Floats, peers: Floats) -> Iterator[tuple[str, tuple[str, ...], Flags]]:
    """Yield what may explain a difference, with the work that it concerns."""
    yield "all", (), np.ones(len(known), dtype=np.bool_)
    for what in ("name", "operator", "phase"):
        values = known[what].cast(pl.String)
        for value in values.drop_nulls().unique().sort():
            yield what, (value,), (values == value).fill_null(value=False).to_numpy()
    modules = known["module"].cast(pl.String).fill_null("")
    for value in sorted({prefix for module in modules.unique() for prefix in _prefixes(module)}):
        yield "module", (value,), ((modules == value) | modules.str.starts_with(f"{value}/")).to_numpy()
    pairs = pl.DataFrame({"name": known["name"], "module": modules, "excess": excess}).filter(pl.col("module") != "")
    for name, module, _ in (
        pairs.group_by("name", "module").agg(pl.col("excess").sum()).top_k(5, by="excess").sort("module").rows()
    ):
        yield "pair", (name, module), ((known["name"] == name) & (modules == module)).to_numpy()
    by_name = (
        pl.DataFrame({"name": known["name"], "excess": excess, "peers": peers})
        .group_by("name", maintain_order=True)
        .agg(pl.col("excess", "peers").sum())
        .sort(pl.col("excess") / pl.col("peers"), descending=True)
    )
    names = by_name.filter(pl.col("excess") > 0)["name"].to_list()
    largest = dict(by_name.select("name", "excess").rows())
    for count in range(2, min(len(names) + 1, len(by_name))):
        chosen = names[:count]
        ordered = tuple(sorted(chosen, key=lambda name: -largest[name]))
        yield "names", ordered, known["name"].is_in(chosen).to_numpy()


def _prefixes(module: str) -> list[str]:
    parts = [part for part in module.split("/") if part]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def _fit(what: str, values: tuple[str, ...], inside: Flags, excess: Floats, peers: Floats) -> Explanation:
    took, more = float(peers[inside].sum()), float(excess[inside].sum())
    predicted = np.where(inside, peers * (more / took) if took else excess, 0.0)
    left = float(np.abs(excess - predicted).sum())
    ratio = 1 + more / took if took else math.inf
    return Explanation(what, values, ratio, more, 1 - left / float(np.abs(excess).sum()))


def _module_of(known: pl.DataFrame, excess: Floats, chosen: pl.Series) -> str | None:
    """Return the innermost module that has nearly all of what the chosen work takes longer."""
    inside = chosen.fill_null(value=False).to_numpy()
    total = float(excess[inside].sum())
    modules = [module or "" for module in known["module"].to_list()]
    held: dict[str, float] = {}
    for module, more in zip(np.array(modules, dtype=object)[inside].tolist(), excess[inside].tolist(), strict=True):
        for prefix in _prefixes(module):
            held[prefix] = held.get(prefix, 0.0) + more
    enough = [module for module, more in held.items() if more >= _NEARLY_ALL * total]
    return max(enough, key=lambda module: module.count("/"), default=None)
