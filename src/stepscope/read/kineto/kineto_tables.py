"""Columns of Kineto events → tables of the schema."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from stepscope.read.chrome_json.columns import Events
from stepscope.read.kineto import kineto_details, kineto_spans
from stepscope.read.kineto.kineto_facts import Facts
from stepscope.trace.losses import LossLedger


def build(events: Events, metadata: Mapping[str, str], ledger: LossLedger) -> dict[str, pl.DataFrame]:
    """Make the tables of one file.

    Args:
        events: Columns of all events.
        metadata: Top-level keys of the document other than the events, as JSON.
        ledger: Counts events that cannot become rows.
    """
    facts = Facts(metadata)
    spans = kineto_spans.build(events, facts, ledger)
    tables = {"spans": spans.frame(), **kineto_details.build(spans, facts, ledger)}
    # Marks, counters and arrows name tracks too, so the tracks come last.
    tables["tracks"] = spans.tracks.frame(facts)
    tables["steps"] = kineto_spans.steps(spans)
    tables["metadata"] = facts.frame()
    return tables
