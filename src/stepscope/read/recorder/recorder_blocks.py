"""Blocks of a recorder's file → facts, clocks, names of threads, and the words of all threads in the order of each.

A damaged block costs only itself. Where a block of a thread is missing, the ends after it cannot be matched with the
beginnings before it; so each block says whether it directly follows the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from stepscope.trace.blocks import read_frames, unpack
from stepscope.trace.losses import LossLedger
from stepscope.trace.recorder_layout import (
    CLOCK,
    CLOCK_BLOCK,
    FACTS,
    MAGIC,
    RATE,
    RATES,
    RATES_HEAD,
    THREAD,
    THREAD_HEAD,
    VERSION,
    WORDS,
    WORDS_HEAD,
)

Words: TypeAlias = npt.NDArray[np.uint64]

_WORD = 8
#: Later than every tick.
MOST = 1 << 61
_Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]


class RecorderFacts(msgspec.Struct):
    """What the first block and the last one say."""

    process: int | None = None
    host: str = ""
    torch: str = ""
    clock: str = ""
    chunk: int = 0
    options: dict[str, Any] = {}
    sample: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    losses: dict[str, _Count] = {}
    distributed: dict[str, Any] = {}
    threads: dict[str, str] = {}
    targets: list[tuple[_Count, _Count, _Count]] = []
    closed: bool = False


@dataclass(frozen=True)
class RecordedThread:
    """A thread: its native id, ``threading.get_ident``, torch's number of it, and its name, empty where unknown."""

    native: int
    ident: int
    torch: int
    name: str = ""


@dataclass(frozen=True)
class Moment:
    """The clocks at one moment.

    Attributes:
        ticks: Of the recorder's clock.
        monotonic: CLOCK_MONOTONIC, ns.
        epoch: ns since the Unix epoch.
        ticks_uncertainty: Ticks and monotonic agree within ± so many ns.
        epoch_uncertainty: Monotonic and epoch agree within ± so many ns.
    """

    ticks: int
    monotonic: int
    epoch: int
    ticks_uncertainty: int
    epoch_uncertainty: int


@dataclass
class WordBlock:
    """Words of one block, and what its head says of them.

    ``follows``: its first word comes directly after the last word of the thread's block before it.
    """

    thread: int
    chunk: int
    place: int
    dropped: int
    words: Words
    follows: bool = False


@dataclass
class RecorderContent:
    """What a file holds.

    Attributes:
        facts: What is said once.
        moments: The clocks, in the order of ticks.
        threads: Threads by their number in the file.
        blocks: Blocks of words, thread after thread, each in the order in which it wrote them.
        whole: Threads of which nothing can be missing behind their last block.
        dropped: Operators that were not recorded because the disk did not follow.
        rates: Of a sample: from when on, in ticks, which fraction of the operators is recorded.
        missing: From when to when, in ticks, words of any thread are missing because blocks of the file are.
        end: Up to when, in ticks, the file has the words of all threads, but for those that are missing; of a file that
            was closed, :data:`MOST`.
    """

    facts: RecorderFacts = field(default_factory=RecorderFacts)
    moments: list[Moment] = field(default_factory=list)
    threads: dict[int, RecordedThread] = field(default_factory=dict)
    blocks: list[WordBlock] = field(default_factory=list)
    whole: set[int] = field(default_factory=set)
    dropped: int = 0
    rates: list[tuple[int, float]] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    end: int = MOST


def open_file(path: Path, ledger: LossLedger) -> RecorderContent:
    """Take a file apart.

    Raises:
        InputError: The file cannot be read, is none of these, or a newer stepscope wrote it.
    """
    reading = _BlockReader(ledger)
    damage = LossLedger(path.name)
    for payload in read_frames(path, damage, MAGIC, VERSION):
        if not reading.add(payload, _total(damage)):
            ledger.add("journal_unreadable")
    for loss in damage.rows():
        ledger.add(loss.what, loss.count)
    content = reading.finish(_total(damage))
    if not content.facts.closed:
        ledger.add("ended_abruptly")
    return content


def _united(first: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    """Return what two blocks say of the job: the groups of both, because the program may have left some."""
    configs = [said.get("pg_config") for said in (first, last)]
    groups = [group for config in configs if isinstance(config, list) for group in config if isinstance(group, dict)]
    named = {str(group.get("pg_name")): group for group in groups}
    united = {**first, **last}
    return {**united, "pg_count": len(named), "pg_config": list(named.values())} if united else {}


def _total(damage: LossLedger) -> int:
    return sum(loss.count for loss in damage.rows())


class _BlockReader:
    """Collects blocks; ``damages`` is how many of the file are known to be missing so far."""

    def __init__(self, ledger: LossLedger) -> None:
        self._ledger = ledger
        self._content = RecorderContent()
        self._names: dict[int, str] = {}
        self._of_thread: dict[int, list[WordBlock]] = {}
        # Damages that were known when a thread's last block came.
        self._seen: dict[int, int] = {}
        self._damages = 0
        # Readings of the clocks that came before each damage.
        self._damaged_at: list[int] = []
        self._decoder = msgspec.json.Decoder(RecorderFacts)

    def add(self, payload: bytes, damages: int) -> bool:
        """Add a block; return False if the recorder does not write such blocks."""
        self._note(damages)
        sort = payload[:1]
        if sort == WORDS:
            return self._add_words(payload, damages)
        if sort == CLOCK:
            return self._add_moment(payload)
        if sort == RATES:
            return self._add_rates(payload)
        if sort == THREAD and len(payload) >= THREAD_HEAD.size:
            self._names[THREAD_HEAD.unpack_from(payload)[1]] = payload[THREAD_HEAD.size :].decode("utf-8", "replace")
            return True
        return sort == FACTS and self._add_facts(payload[1:])

    def _note(self, damages: int) -> None:
        if damages != self._damages:
            self._damages = damages
            self._damaged_at.append(len(self._content.moments))

    def _add_facts(self, packed: bytes) -> bool:
        try:
            facts = self._decoder.decode(unpack(packed))
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return False
        known = self._content.facts
        if facts.closed:
            known.closed, known.losses, known.threads = True, facts.losses, facts.threads
            known.targets = facts.targets
            known.distributed = _united(known.distributed, facts.distributed)
        else:
            self._content.facts = facts
        return True

    def _add_moment(self, payload: bytes) -> bool:
        if len(payload) != CLOCK_BLOCK.size:
            return False
        moment = Moment(*CLOCK_BLOCK.unpack(payload)[1:])
        moments = self._content.moments
        if moment.ticks >= MOST or max(abs(moment.monotonic), abs(moment.epoch)) >= MOST:
            return False
        if moments and not (moment.ticks > moments[-1].ticks and moment.monotonic > moments[-1].monotonic):
            return False
        moments.append(moment)
        return True

    def _add_rates(self, payload: bytes) -> bool:
        if (len(payload) - RATES_HEAD.size) % RATE.size:
            return False
        found = list(RATE.iter_unpack(payload[RATES_HEAD.size :]))
        times = [ticks for ticks, _ in self._content.rates[-1:] + found]
        if times != sorted(times) or not all(ticks < MOST and 0 <= rate <= 1 for ticks, rate in found):
            return False
        self._content.rates += found
        return True

    def _add_words(self, payload: bytes, damages: int) -> bool:
        if len(payload) <= WORDS_HEAD.size or (len(payload) - WORDS_HEAD.size) % _WORD:
            return False
        _, thread, chunk, place, dropped, native, ident, torch = WORDS_HEAD.unpack_from(payload)
        block = WordBlock(thread, chunk, place, dropped, np.frombuffer(payload, "<u8", offset=WORDS_HEAD.size))
        blocks = self._of_thread.setdefault(thread, [])
        if blocks and (chunk, place) < (blocks[-1].chunk, blocks[-1].place + len(blocks[-1].words)):
            return False
        if blocks:
            block.follows = self._follows(blocks[-1], block, missing=damages != self._seen[thread])
        if place == 0:
            self._content.dropped += dropped
        blocks.append(block)
        self._seen[thread] = damages
        self._content.threads.setdefault(thread, RecordedThread(native, ident, torch))
        return True

    @staticmethod
    def _follows(before: WordBlock, block: WordBlock, *, missing: bool) -> bool:
        """Return whether nothing lies between two blocks of a thread; chunks may end before they are full."""
        if block.chunk == before.chunk:
            return block.place == before.place + len(before.words)
        return block.chunk == before.chunk + 1 and block.place == 0 and not block.dropped and not missing

    def finish(self, damages: int) -> RecorderContent:
        content = self._content
        content.threads = {
            number: replace(thread, name=content.facts.threads.get(str(thread.ident)) or self._names.get(number, ""))
            for number, thread in content.threads.items()
        }
        content.blocks = [block for blocks in self._of_thread.values() for block in blocks]
        self._note(damages)
        content.missing = [self._bounds(readings) for readings in self._damaged_at]
        content.whole = {number for number, seen in self._seen.items() if seen == damages}
        content.end = MOST if content.facts.closed else self._bounds(len(content.moments))[0]
        return content

    def _bounds(self, readings: int) -> tuple[int, int]:
        """Return between which ticks the words of a missing block lie.

        A reading of the clocks is written behind everything that was recorded before it, and before everything that was
        recorded behind the next.
        """
        ticks = [moment.ticks for moment in self._content.moments]
        return ticks[readings - 1] if readings else 0, ticks[readings + 1] if readings + 1 < len(ticks) else MOST
