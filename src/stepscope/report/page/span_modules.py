"""The modules of the spans of a timeline: of an operator its own, of device work that of the one that launched it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.anatomy.call_sites import call_sites
from stepscope.report.page.lane_spans import Array
from stepscope.trace.tables import Tables, columns_of


@dataclass(frozen=True, eq=False)
class SpanModules:
    """The module of each place of a timeline.

    Attributes:
        texts: The modules, outermost first, in order of the alphabet.
        number: Of each place 1 + the index of its module in ``texts``; 0 where none is known.
    """

    texts: list[str]
    number: npt.NDArray[np.uint32]

    def holding(self, text: str) -> npt.NDArray[np.bool_]:
        """Return of each place whether the name of its module holds a text, in letters of any size."""
        wanted = [False, *(text.lower() in one.lower() for one in self.texts)]
        return np.array(wanted)[self.number]


def span_modules(tables: Tables, row: Array) -> SpanModules:
    """Return the modules of the spans of a timeline.

    Args:
        tables: The tables of the rank.
        row: ``spans.id`` of each place of the timeline; −1 where something else lies.
    """
    operators = call_sites(tables).select(span="id", module="module").drop_nulls()
    kernels = columns_of(tables, "kernels", "span", "operator").drop_nulls()
    launched = kernels.join(operators.rename({"span": "operator"}), on="operator").select("span", "module")
    found = pl.concat([operators, launched]).unique("span", keep="first").sort("span")
    texts = found["module"].unique().sort()
    numbers = found["module"].cast(pl.Enum(texts)).to_physical().to_numpy() + np.uint32(1)
    ids = found["span"].to_numpy()
    at = np.minimum(np.searchsorted(ids, row), max(len(ids) - 1, 0))
    known = ids[at] == row if len(ids) else np.zeros(len(row), np.bool_)
    number = np.zeros(len(row), np.uint32)
    number[known] = numbers[at[known]]
    return SpanModules(texts.to_list(), number)
