"""Which operators and kernels take a rank's time, by step, and what tells its program from that of another rank."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.operators import op_statistic
from stepscope.analyse.operators.operator_calls import host_operators, or_negative, rows_of
from stepscope.analyse.step import sample
from stepscope.analyse.step.activity import device_rows, of_kinds, span_codes, span_kinds
from stepscope.analyse.step.step_trace_time import Split
from stepscope.cluster.rank_summary import ColumnValues, Integers, Texts
from stepscope.read.common.dense import distinct_rows, places
from stepscope.trace.tables import Tables, codes, columns_of, has_rows

Mask: TypeAlias = npt.NDArray[np.bool_]

#: Distinct operators and kernels that a summary names, and most rows of them over all steps.
_MOST_NAMES, _LEAST_NAMES, _MOST_ROWS = 60, 8, 3_000
#: Names of the host, and of the device, whose time is known as a whole.
_FIRST = 12
#: Most characters of a name.
LONGEST = 300
#: All others, a name that no operator has; and the module of what is left of a name.
OTHERS = "(others)"
_KINDS = ("operator", "kernel")


@dataclass(frozen=True, eq=False)
class Coded:
    """A column of texts as numbers: places among its distinct texts, in their order; null is the first of them."""

    codes: Integers
    texts: list[str | None]


def coded(column: pl.Series, rows: Integers | None = None, values: npt.NDArray[Any] | None = None) -> Coded:
    """Return a column of texts, or some rows of it, as numbers; ``values`` are Polars' own numbers, where known."""
    if values is None:
        (values,) = codes(column.cast(pl.Categorical()) if column.dtype == pl.String else column)
    first, which = distinct_rows([values if rows is None else values[rows]])
    texts = column[places(first if rows is None else rows[first])].to_list()
    order = sorted(range(len(texts)), key=lambda place: (texts[place] is not None, texts[place] or ""))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return Coded(place[which], [texts[place] for place in order])


class OperatorTotals:
    """The operators and kernels of a rank within its steps, one entry for each call.

    Communication is not among them: it has a table of its own, and its time is mostly that of others.

    Args:
        tables: Tables of the rank.
        parts: Its steps, and whether it works on a device.
    """

    def __init__(self, tables: Tables, parts: Split) -> None:
        self._on_device = parts.work.on_device
        self._sampled, self._steps = sample.fraction(tables) < 1, len(parts.windows.number)
        spans = columns_of(tables, "spans", "id", "name", "dur", "step", "phase")
        host, device = host_operators(tables), device_rows(tables)
        of_host = rows_of(spans["id"], host["id"])
        rows = np.concatenate((of_host, device))
        on = np.repeat([0, 1], [len(of_host), len(device)])
        time = np.concatenate(
            ((host["dur"] if self._sampled else host["self"]).to_numpy(), spans["dur"].to_numpy()[device])
        )
        step = or_negative(spans["step"])[rows].astype(np.int64)
        kept = ~of_kinds(span_kinds(tables)[rows], "collective")
        if parts.windows.declared:
            kept &= step >= 0
        else:
            step = np.zeros(len(rows), np.int64)
        self._rows, self._on, self._time, self._step = (values[kept] for values in (rows, on, time, step))
        self._name = self._names(tables, spans, kept)
        self._phase = coded(spans["phase"], self._rows, span_codes(tables).phase)
        owner = _owners(tables, spans["id"])
        launched = (owner != np.arange(len(owner))) & (owner < len(spans))
        self._operator = _launching(tables, spans["name"], np.where(launched, owner, -1)[self._rows])
        self._module = _modules(tables, spans["id"], owner[self._rows])
        self._computes = ~of_kinds(span_kinds(tables)[self._rows], "memcpy", "memset")

    def _names(self, tables: Tables, spans: pl.DataFrame, kept: Mask) -> Coded:
        if not has_rows(tables, "tasks"):
            return coded(spans["name"], self._rows, span_codes(tables).name)
        # On an NPU the type of its operator names a kernel.
        host, device = op_statistic.host_work(tables)["name"], op_statistic.device_work(tables)["name"]
        return coded(pl.concat([host, device]).filter(pl.Series(kept)))

    def columns(self) -> dict[str, ColumnValues]:
        """Return the table ``operators``: what takes most time by step, the rest of the first names, all others."""
        if not len(self._rows):
            return {}
        parts = (self._phase, self._operator, self._module, self._name)
        key = self._on
        for part in parts:
            key = key * len(part.texts) + part.codes
        keys, which = np.unique(key, return_inverse=True)
        whole = np.bincount(which, self._time)
        count = max(_LEAST_NAMES, min(_MOST_NAMES, _MOST_ROWS // max(1, self._steps)))
        most = np.lexsort((keys, -whole))[:count]
        # Each work that is kept has a slot; behind them the others have one on the host, one on the device, and each of
        # the first names one for the rest of its calls.
        slot_of = np.full(len(keys), -1)
        slot_of[most] = np.arange(len(most))
        rest, rest_of = self._rest()
        beyond = np.where(rest_of >= 0, len(most) + 2 + rest_of, len(most) + self._on)
        slot = np.where(slot_of[which] >= 0, slot_of[which], beyond)
        slots, numbers = len(most) + 2 + len(rest), np.unique(self._step)
        cell, cells = np.unique(np.searchsorted(numbers, self._step) * slots + slot, return_inverse=True)
        step, slot = numbers[cell // slots], cell % slots
        lengths = [len(part.texts) for part in parts]
        on, *kept = self._split(keys[most], lengths)
        names = lengths[-1]
        # Behind the texts of a part: nothing, or all others; of the module, then, the rest of a name.
        ends = [
            np.full(len(rest), lengths[0]),
            np.full(len(rest), lengths[1]),
            np.full(len(rest), lengths[2] + 1),
            rest % names,
        ]
        phase, operator, module, name = (
            np.concatenate((codes, [length, length], end))[slot]
            for codes, length, end in zip(kept, lengths, ends, strict=True)
        )
        on = np.concatenate((on, [0, 1], rest // names))[slot]
        return {
            "step": step,
            "kind": Texts(on, _KINDS),
            "name": _named(self._name, name, OTHERS),
            "operator": _named(self._operator, operator, None),
            "module": _named(self._module, module, None, OTHERS),
            "phase": _named(self._phase, phase, None),
            "count": np.bincount(cells).astype(np.int64),
            "total": np.bincount(cells, self._time).astype(np.int64),
        }

    def _rest(self) -> tuple[Integers, Integers]:
        """Return the first names of the host and of the device, as numbers, and the place among them of each call."""
        key = self._on * len(self._name.texts) + self._name.codes
        names, which = np.unique(key, return_inverse=True)
        time = np.bincount(which, self._time)
        order = np.lexsort((names, -time))
        on = names[order] // len(self._name.texts)
        first = np.concatenate((order[on == 0][:_FIRST], order[on == 1][:_FIRST]))
        place = np.full(len(names), -1)
        place[first] = np.arange(len(first))
        return names[first], place[which]

    @staticmethod
    def _split(keys: Integers, lengths: list[int]) -> list[Integers]:
        """Return the parts of keys: where it works, and the codes of phase, operator, module and name."""
        parts = []
        for length in reversed(lengths):
            keys, code = np.divmod(keys, length)
            parts.append(code)
        return [keys, *reversed(parts)]

    def fingerprint(self) -> str | None:
        """Return what tells programs apart: how often each kernel, or operator without a device, runs in a usual step.

        Communication and copies do not count: stages and rank 0 have others. None of a sample, or of nothing.
        """
        chosen = (self._on == int(self._on_device)) & self._computes
        if not chosen.any() or (self._sampled and not self._on_device):
            return None
        numbers = np.unique(self._step)
        pair = self._name.codes[chosen] * len(numbers) + np.searchsorted(numbers, self._step[chosen])
        pairs, counts = np.unique(pair, return_counts=True)
        names, first = np.unique(pairs // len(numbers), return_index=True)
        usual = {}
        for name, of_steps in zip(names.tolist(), np.split(counts, first[1:]), strict=True):
            # The lower median over all steps: in those without the name it runs 0 times.
            place = (self._steps - 1) // 2 - (self._steps - len(of_steps))
            if place >= 0:
                usual[self._name.texts[name]] = int(np.sort(of_steps)[place])
        return hashlib.sha256(json.dumps(sorted(usual.items())).encode()).hexdigest()[:16]


def _named(column: Coded, codes: Integers, *last: str | None) -> Texts:
    """Return the texts of codes, of which those behind the last one are ``last``."""
    used, which = np.unique(codes, return_inverse=True)
    texts: list[Any] = [*column.texts, *last]
    found = [texts[code] for code in used.tolist()]
    pool = [text[:LONGEST] for text in found if text is not None]
    place = np.cumsum([text is not None for text in found]) - 1
    place[[text is None for text in found]] = -1
    return Texts(place[which], pool)


def _owners(tables: Tables, ids: pl.Series) -> Integers:
    """Return the row of each span, of a kernel that of the operator that launched it; a last one for no row."""
    kernels = columns_of(tables, "kernels", "span", "operator")
    owner = np.arange(len(ids) + 1)
    owner[rows_of(ids, kernels["span"])] = rows_of(ids, kernels["operator"])
    return owner


def _launching(tables: Tables, names: pl.Series, owner: Integers) -> Coded:
    """Return the names of the spans in these rows; null for −1."""
    known = np.flatnonzero(owner >= 0)
    said = coded(names, owner[known], span_codes(tables).name)
    codes = np.zeros(len(owner), np.int64)
    codes[known] = said.codes + 1
    return Coded(codes, [None, *said.texts])


def _modules(tables: Tables, ids: pl.Series, owner: Integers) -> Coded:
    """Return the module of the operators in these rows of the spans."""
    operators = columns_of(tables, "operators", "span", "module")
    if operators["module"].null_count() == len(operators):
        return Coded(np.zeros(len(owner), np.int64), [None])
    place = np.full(len(ids) + 1, -1)
    place[rows_of(ids, operators["span"])] = np.arange(len(operators))
    place[-1] = -1
    said = coded(operators["module"])
    texts = said.texts if said.texts[0] is None else [None, *said.texts]
    codes = np.append(said.codes + (len(texts) - len(said.texts)), 0)
    return Coded(codes[place[owner]], texts)
