"""The arguments of slices: what the detail tables say about a span, by the names PyTorch users know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import polars as pl

from stepscope.report.timeline.word_lists import Vocabulary
from stepscope.trace.tables import ARGUMENTS, Tables

Form: TypeAlias = Literal["integer", "float", "text"]


@dataclass(frozen=True)
class Argument:
    """One argument of a slice.

    Attributes:
        name: Name as Kineto writes it, or ours where Kineto has none.
        column: Column of :meth:`Details.of` that holds it, null where a slice has none.
        form: ``integer``, ``float``, or ``text``: a number of ``Details.texts``.
    """

    name: str
    column: str
    form: Form


_FORMS: dict[str, Form] = {"integer": "integer", "float": "float", "text": "text", "json": "text"}

#: Arguments that are columns of the slices themselves.
OWN: tuple[Argument, ...] = (
    Argument("span", "id", "integer"),
    Argument("correlation", "correlation", "integer"),
    Argument("Sequence number", "sequence", "integer"),
)


@dataclass(frozen=True, eq=False)
class Details:
    """The details of all spans.

    Attributes:
        tables: Per detail table, its columns with texts as numbers of ``texts``, ordered by ``span``.
        arguments: Per detail table, the arguments found there that at least one span has.
        texts: The texts.
    """

    tables: Mapping[str, pl.DataFrame]
    arguments: Mapping[str, tuple[Argument, ...]]
    texts: Vocabulary

    @classmethod
    def collect(cls, tables: Tables) -> Details:
        """Read the detail tables."""
        texts = Vocabulary()
        found, arguments = {}, {}
        for name, frame in _sources(tables).items():
            collected = frame.sort("span", maintain_order=True).collect()
            wanted = [entry for entry in ARGUMENTS[name] if collected[entry[1]].null_count() < len(collected)]
            columns = {column: _prepared(collected[column], form, texts) for _, column, form in wanted}
            found[name] = pl.DataFrame({"span": collected["span"], **columns})
            arguments[name] = tuple(Argument(label, column, _FORMS[form]) for label, column, form in wanted)
        return cls(found, arguments, texts)

    def of(self, spans: pl.Series) -> list[tuple[Argument, pl.Series]]:
        """Return the arguments of some spans, as one column each, null where a span lacks it.

        Args:
            spans: Their ``spans.id``; null for slices that are not spans.
        """
        columns = []
        for name, frame in self.tables.items():
            row = _find(frame["span"], spans)
            if row.null_count() < len(row):
                columns += [(argument, frame[argument.column].gather(row)) for argument in self.arguments[name]]
        return columns


def _sources(tables: Tables) -> dict[str, pl.LazyFrame]:
    stacks = tables["stacks"].select(pl.col("id").alias("stack"), _stack_text().alias("text"))
    operators = tables["operators"].join(stacks, on="stack", how="left")
    external = tables["operators"].select(pl.col("span").alias("operator"), "external")
    return {
        "operators": operators.drop("stack").rename({"text": "stack"}),
        "kernels": tables["kernels"].join(external.unique("operator"), on="operator", how="left"),
        "collectives": tables["collectives"],
        "arguments": _arguments(tables).lazy(),
    }


def _stack_text() -> pl.Expr:
    """Return frames as Kineto writes a stack: innermost first, semicolons between."""
    frame = pl.element().struct
    line = frame.field("line").cast(pl.String)
    parts = [frame.field("file"), pl.lit("("), line, pl.lit("): "), frame.field("function")]
    return pl.col("frames").list.eval(pl.concat_str(parts, ignore_nulls=True)).list.join(";")


def _arguments(tables: Tables) -> pl.DataFrame:
    """Return per span its user arguments as one JSON object."""
    rows = tables["arguments"].unique(["span", "key"], keep="last", maintain_order=True).collect()
    known = Vocabulary()
    key, value = known.add(rows["key"]), known.add(rows["value"], is_json=True)
    json = pl.Series(known.json, dtype=pl.String)
    entries = rows.select("span", entry=json.gather(key) + pl.lit(": ") + json.gather(value))
    joined = entries.group_by("span", maintain_order=True).agg(pl.col("entry").str.join(", "))
    return joined.select("span", arguments=pl.lit("{") + pl.col("entry") + pl.lit("}"))


def _prepared(column: pl.Series, form: str, texts: Vocabulary) -> pl.Series:
    if form == "integer":
        return column
    if form == "float":
        return column.set(~column.is_finite(), None)  # JSON has no word for them
    if isinstance(column.dtype, pl.List):
        column = "[" + column.cast(pl.List(pl.String)).list.join(", ") + "]"
    return texts.add(column, is_json=form == "json")


def _find(known: pl.Series, wanted: pl.Series) -> pl.Series:
    """Return the index of each ``wanted`` value in the ascending ``known``, null if it is not there."""
    index = known.search_sorted(wanted, side="left")
    inside = index < len(known)
    found = known.gather(index.set(~inside, 0)) == wanted if len(known) else inside
    return index.set(~(inside & found.fill_null(value=False)), None)
