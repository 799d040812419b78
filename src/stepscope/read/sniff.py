"""What a file is, cheaply: its format, and whose it is, from its first blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stepscope.read.kineto_document import Document
from stepscope.read.kineto_facts import Facts
from stepscope.read.source import open_trace, read_blocks
from stepscope.trace.losses import LossLedger

#: First bytes of stepscope's own journal.
JOURNAL_MAGIC = b"SSJ1"

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True)
class Identity:
    """What a file is.

    Attributes:
        format: ``kineto`` or ``journal``.
        rank: Rank of the process in its job; None where neither the file nor its name says.
        world_size: Number of processes of the job; None where the file does not say.
        host: Host name; None where the file does not say.
        start_ns: Time zero of the file, ns since the Unix epoch; None where the file does not say.
    """

    format: str
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    start_ns: int | None = None


def identify(path: Path) -> Identity:
    """Return what a file is; reads its first blocks only.

    Raises:
        InputError: The file cannot be read, or is no trace that stepscope knows.
    """
    if is_journal(path):
        return Identity("journal", rank=_rank_in_name(path))
    document = Document(path, LossLedger(path.name))
    document.read_head(read_blocks(path, document.ledger))
    facts = Facts(document.metadata)
    rank = facts.rank if facts.rank is not None else _rank_in_name(path)
    return Identity("kineto", rank, facts.world_size, facts.host, facts.base_ns or None)


def is_journal(path: Path) -> bool:
    """Return whether a file is stepscope's own journal."""
    with open_trace(path) as file:
        return file.read(len(JOURNAL_MAGIC)) == JOURNAL_MAGIC


def _rank_in_name(path: Path) -> int | None:
    match = _RANK_IN_NAME.search(path.name)
    return int(match[1]) if match else None
