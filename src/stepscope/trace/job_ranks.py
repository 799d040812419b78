"""What is wrong with the ranks of a job as a whole: some are missing, some are there twice, or they contradict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

#: Most names, or ranges of ranks, in one sentence; most ranks that a contradiction lists.
_MOST_NAMED, MOST_RANKS = 8, 1_024


@dataclass(frozen=True)
class RankSaid:
    """What one rank's directory says of itself.

    Attributes:
        directory: Its name.
        rank: Number of the rank.
        world_sizes: Numbers of ranks in its job, as its manifest and captures say; empty if none says.
        hosts: Machines that its captures are from.
    """

    directory: str
    rank: int
    world_sizes: frozenset[int] = frozenset()
    hosts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Contradiction:
    """Something that is wrong with the ranks of a job.

    Attributes:
        cause: Slug of the catalogue of findings: ``duplicate-rank``, ``world-size`` or ``missing-rank``.
        sentence: What is wrong.
        ranks: Ranks that it concerns, at most :data:`MOST_RANKS`.
    """

    cause: str
    sentence: str
    ranks: tuple[int, ...]


def contradictions(said: Sequence[RankSaid], *, whole: bool = True) -> list[Contradiction]:
    """Return what is wrong with the ranks of a job.

    Args:
        said: The ranks that are there.
        whole: Whether these are all that there is of the job, so that other ranks are missing.
    """
    return [*_twice(said), *_contradictory(said), *(_missing(said) if whole else ())]


def problems(said: Sequence[RankSaid], *, whole: bool = True) -> list[str]:
    """Return the sentences of :func:`contradictions`."""
    return [one.sentence for one in contradictions(said, whole=whole)]


def _twice(said: Sequence[RankSaid]) -> Iterator[Contradiction]:
    directories: dict[int, list[str]] = {}
    for one in said:
        directories.setdefault(one.rank, []).append(one.directory)
        if len(one.hosts) > 1:
            sentence = f"Captures of {one.directory} are from different machines: {listed(sorted(one.hosts))}."
            yield Contradiction("duplicate-rank", sentence, (one.rank,))
    for rank, names in directories.items():
        if len(names) > 1:
            sentence = f"{len(names):,} directories say that they are rank {rank}: {listed(names)}."
            yield Contradiction("duplicate-rank", sentence, (rank,))


def _contradictory(said: Sequence[RankSaid]) -> Iterator[Contradiction]:
    sizes: dict[int, list[str]] = {}
    for one in said:
        number = one.directory.removeprefix("rank")
        if number.isdecimal() and int(number) != one.rank:
            yield Contradiction("duplicate-rank", f"{one.directory} says that it is rank {one.rank}.", (one.rank,))
        for size in one.world_sizes:
            sizes.setdefault(size, []).append(one.directory)
        if one.world_sizes and one.rank >= max(one.world_sizes):
            which = f"rank {one.rank} of {max(one.world_sizes)}, which has no such rank"
            yield Contradiction("world-size", f"{one.directory} says that it is {which}.", (one.rank,))
    if len(sizes) > 1:
        each = "; ".join(f"{size:,} ({listed(names)})" for size, names in sorted(sizes.items()))
        few = min(map(len, sizes.values()))
        odd = tuple(one.rank for one in said if any(len(sizes[size]) == few for size in one.world_sizes))
        yield Contradiction("world-size", f"The ranks disagree about the number of ranks: {each}.", odd)


def _missing(said: Sequence[RankSaid]) -> Iterator[Contradiction]:
    there = sorted({one.rank for one in said})
    known = [size for one in said for size in one.world_sizes]
    size = max((there[-1] + 1, *known))
    gaps = [(low + 1, high - 1) for low, high in zip([-1, *there], [*there, size], strict=True) if high - low > 1]
    count = sum(last - first + 1 for first, last in gaps)
    if count:
        named = (str(first) if first == last else f"{first}-{last}" for first, last in gaps)
        of = f" of {size:,} ranks" if known else " rank" if count == 1 else " ranks"
        sentence = f"{count:,}{of} {'is' if count == 1 else 'are'} missing: {listed(list(named))}."
        lacking = chain.from_iterable(range(first, last + 1) for first, last in gaps)
        yield Contradiction("missing-rank", sentence, tuple(islice(lacking, MOST_RANKS)))


def listed(names: Sequence[str]) -> str:
    """Return names as a text that stays short: the first eight, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
