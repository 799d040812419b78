"""Kineto traces (PyTorch's profiler, Chrome trace JSON): file → tables."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.native.kineto import NotTokenized
from stepscope.read.chrome_json import tokenizer
from stepscope.read.chrome_json.columns import ChromeBatch, ChromeEvents, join
from stepscope.read.chrome_json.decode import ChromeDecoder
from stepscope.read.chrome_json.document import Document
from stepscope.read.common.part_builder import PartBuilder
from stepscope.read.common.source import Progress, read_blocks
from stepscope.read.kineto import kineto_details, kineto_spans, kineto_tracks, xprof_events
from stepscope.read.kineto.kineto_facts import KinetoFacts
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import labelled

#: A file of fewer bytes is read in one thread: starting others would cost more.
_SMALL = 1 << 20


def read(
    path: Path, ledger: LossLedger, progress: Progress | None = None, *, brief: bool = False, rank: int | None = None
) -> dict[str, pl.DataFrame]:
    """Read one trace file.

    Args:
        path: The file.
        ledger: Counts what is lost.
        progress: Called with bytes read, and in total.
        brief: Leave out what the analysis of a job does not need: inputs of operators, sizes of kernels, memory.
        rank: Rank to read, of a timeline that stepscope made of a job.

    Returns:
        Tables of the schema, without parents, steps and links between spans; ``allocations`` also has the column
        ``track``, and ``arrows`` are flows between (track, ts) and (track, ts).

    Raises:
        InputError: The file cannot be read, is not a trace, or is damaged before its first event.
    """
    document = Document(path, ledger)
    events = read_events(document, progress)
    events = events if rank is None else _of_rank(events, rank)
    facts = KinetoFacts(document.metadata)
    part = PartBuilder(facts.rank or 0, facts.host or "")
    named = xprof_events.processes(events)
    spans = kineto_spans.add_to(part, events, facts, ledger)
    kineto_details.add_to(part, spans, facts, ledger, brief=brief and not named)
    part.add_facts(facts.metadata)
    for label in () if rank is None else kineto_tracks.said_names(events, "process_labels", "labels").values():
        part.add_facts(labelled(label))
    return xprof_events.refined(part.tables(), named) if named else part.tables()


def _of_rank(events: ChromeEvents, rank: int) -> ChromeEvents:
    """Return the events of the processes that a timeline of a job calls by a rank."""
    named = kineto_tracks.said_names(events, "process_name").items()
    processes = [events.texts.index(process) for (process, _), name in named if name.startswith(f"rank {rank} ·")]
    return events.where(np.isin(events.base["process"], processes))


def read_events(document: Document, progress: Progress | None = None) -> ChromeEvents:
    """Read the columns of all events of a document; its metadata is complete afterwards."""
    if tokenizer.available():
        small = document.path.stat().st_size < _SMALL
        return _read_natively(document, progress, 1 if small else tokenizer.cores())
    decoder = ChromeDecoder(document.ledger)
    batches = []
    for chunk, last in document.chunks(read_blocks(document.path, document.ledger, progress)):
        batches.append(_decode_last(document, decoder, chunk) if last else decoder.decode(chunk))
    return join(batches, [decoder.interner], document.ledger)


def _decode_last(document: Document, decoder: ChromeDecoder, chunk: bytes | memoryview) -> ChromeBatch:
    batch, tail = decoder.decode_last(chunk, in_object=document.is_object)
    document.read_tail(tail)
    return batch


def _read_natively(document: Document, progress: Progress | None, workers: int) -> ChromeEvents:
    """Tokenize chunk after chunk in C; a chunk that the tokenizer does not take is decoded in Python.

    The file is read and inflated in this thread while others tokenize; the number of chunks in memory is bounded.
    """
    decoder = ChromeDecoder(document.ledger)
    tokenizers = tokenizer.Tokenizers(workers)
    waiting: deque[tuple[bytes | memoryview, Future[Any]]] = deque()
    parts: list[Any] = []

    def take() -> None:
        chunk, future = waiting.popleft()
        try:
            parts.append(future.result())
        except NotTokenized:
            parts.append(decoder.decode(chunk))

    try:
        for chunk, last in document.chunks(read_blocks(document.path, document.ledger, progress)):
            while waiting and (last or len(waiting) > 2 * workers):
                take()
            if last:
                parts.append(_tokenize_last(document, tokenizers, decoder, chunk))
            else:
                waiting.append((chunk, tokenizers.submit(chunk)))
    finally:
        tokenizers.close()
    batches = tokenizers.batches(parts, first_pool=1)
    return join(batches, [decoder.interner, *tokenizers.pools()], document.ledger)


def _tokenize_last(
    document: Document, tokenizers: tokenizer.Tokenizers, decoder: ChromeDecoder, chunk: bytes | memoryview
) -> Any:  # noqa: ANN401 - a batch, or what becomes one
    try:
        part, end = tokenizers.tokenize_last(chunk)
    except NotTokenized:
        return _decode_last(document, decoder, chunk)
    document.read_tail(bytes(chunk[end:]))
    return part
