"""Profiles in pprof's form → table ``live_memory`` if they measure memory, ``samples`` if they measure time.

A memory profile, as ``jax.profiler.device_memory_profile`` gives it, says what was alive at one moment: number and
bytes of the blocks of each call stack, device and kind of memory. A profile of time says how long each stack was seen,
but not when: all of its samples begin with the profile. Field numbers are those of pprof's ``profile.proto``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from stepscope.errors import NotATraceError
from stepscope.read.common.foreign_samples import ForeignSamples, Frame, SampledThread
from stepscope.read.common.part_builder import LARGEST_TIME, PartBuilder, sound_rows
from stepscope.read.common.protobuf import Fields, Messages
from stepscope.read.common.source import Progress, read_blocks, tell_all
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import complete

#: What our collector calls the file.
NAME = "memory.pb.gz"
#: The first fields: what is counted, as numbers of texts, each field's length, type and unit; then something else.
_HEAD = re.compile(
    rb"(?:\x0a[\x02-\x08](?:[\x08\x10](?:[\x00-\x7f]|[\x80-\xff][\x00-\x7f])){1,2})+[\x12\x1a\x22\x2a\x32]"
)
_BYTES, _COUNT = "bytes", "count"
#: Units of time → ns; of several times in a profile, the name of that of the CPU; labels that name a thread.
_TIMES = {"nanoseconds": 1, "microseconds": 1_000, "milliseconds": 1_000_000, "seconds": 1_000_000_000}
_CPU, _THREADS = ("cpu",), ("thread", "thread name", "thread_name", "thread_id")
#: Of several sizes in a profile, the name of the one of living blocks.
_ALIVE = ("space", "inuse_space")
_DEVICE = re.compile(r"(cpu|gpu|cuda|rocm|tpu)[^0-9]*(\d{1,6})?", re.IGNORECASE)


def is_profile(head: bytes) -> bool:
    """Return whether a file that begins so is one."""
    return _HEAD.match(head) is not None


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read a profile, plain or gzip; of a damaged one, what stands before the damage.

    Returns:
        All tables, empty but for ``live_memory`` or ``samples``, ``stacks`` and ``metadata``.

    Raises:
        InputError: It cannot be read, or measures neither memory nor time.
    """
    content = b"".join(read_blocks(path, ledger, progress))
    profile = Messages.whole(content).fields()
    texts = profile.every_text(6, ledger)[1]
    columns = _columns(profile, texts, path)
    if profile.broken.any() or _incomplete(profile, texts):
        ledger.add_cut()
    part = PartBuilder()
    if columns.unit:
        _add_time(part, profile, texts, columns, ledger)
    else:
        _add_memory(part, profile, texts, columns, ledger)
    tell_all(path, progress)
    return complete(part.tables())


class _Columns(NamedTuple):
    """Which value of a sample counts, which measures, and the ns of a unit of time; 0 for bytes."""

    number: int | None
    size: int
    unit: int


def _add_memory(
    part: PartBuilder, profile: Fields, texts: Sequence[str], columns: _Columns, ledger: LossLedger
) -> None:
    rows = _samples(part, profile, texts, ledger).with_columns(
        count=_value(columns.number),
        bytes=_value(columns.size),
    )
    part.add("live_memory", sound_rows(rows, ledger, event_damaged=pl.col("bytes").is_not_null()).drop("values"))


def _value(place: int | None) -> pl.Expr:
    return pl.lit(None, pl.Int64) if place is None else pl.col("values").list.get(place, null_on_oob=True)


def _add_time(part: PartBuilder, profile: Fields, texts: Sequence[str], columns: _Columns, ledger: LossLedger) -> None:
    fields = profile.within(2)[1].fields()
    ledger.add("event_damaged", int(fields.broken.sum()))
    frames = _frames(profile, texts)
    begin = profile.integers(9).max()
    start = begin if isinstance(begin, int) and 0 < begin < LARGEST_TIME else 0
    samples = ForeignSamples()
    for places, values, labels in zip(_lists(fields, 1), _lists(fields, 2), _labels(fields, texts), strict=True):
        if len(values) <= columns.size:
            ledger.add("event_damaged")
            continue
        chain = [frame for place in places for frame in frames.get(place, [])]
        looks = values[columns.number] if columns.number is not None and columns.number < len(values) else 1
        name = next((labels[key] for key in _THREADS if key in labels), "all threads")
        row = (start, values[columns.size] * columns.unit, looks, samples.stack(chain))
        samples.add(SampledThread(name, main=name == "MainThread"), [row])
    samples.add_to(part, ledger)


def _incomplete(profile: Fields, texts: Sequence[str]) -> bool:
    """Return whether samples, places and functions name what is not in the file: one that is cut between fields."""
    samples, places, functions = (profile.within(number)[1].fields() for number in (2, 4, 5))
    lines = places.within(4)[1].fields()
    named = (
        (samples.packed_integers(1)[1], places.integers(1)),
        (lines.integers(1).drop_nulls().to_numpy(), functions.integers(1)),
    )
    absent = any(not set(asked.tolist()) <= set(there.to_list()) for asked, there in named)
    labels = samples.within(3)[1].fields()
    asked = [*(functions.integers(number) for number in (2, 4)), *(labels.integers(number) for number in (1, 2))]
    return absent or any(int(number) >= len(texts) for one in asked if (number := one.max()) is not None)  # type: ignore[arg-type]


def _columns(profile: Fields, texts: Sequence[str], path: Path) -> _Columns:
    """Return which value of a sample is a number of blocks or looks, and which their size or time."""
    types = profile.within(1)[1].fields()
    names, units = (_named(types.integers(number), texts) for number in (1, 2))
    sizes = [place for place, unit in enumerate(units) if unit == _BYTES]
    timed = [place for place, unit in enumerate(units) if unit in _TIMES]
    if timed and not sizes:
        place = next((place for place in timed if names[place] in _CPU), timed[-1])
        return _Columns(units.index(_COUNT) if _COUNT in units else None, place, _TIMES[units[place]])
    if not sizes:
        message = f"{path} is a profile of {', '.join(units) or 'nothing'}, neither of memory nor of time."
        raise NotATraceError(message, "Record memory, or the time of the CPU.")
    size = next((place for place in sizes if names[place] in _ALIVE), sizes[-1])
    # A number of blocks stands before their size.
    return _Columns(size - 1 if size and units[size - 1] == _COUNT else None, size, 0)


def _samples(part: PartBuilder, profile: Fields, texts: Sequence[str], ledger: LossLedger) -> pl.DataFrame:
    """Return the samples with their values; add their stacks."""
    _, messages = profile.within(2)
    fields = messages.fields()
    ledger.add("event_damaged", int(fields.broken.sum()))
    frames = _frames(profile, texts)
    places = _lists(fields, 1)
    known: dict[tuple[int, ...], int] = {}
    numbers = [known.setdefault(tuple(one), len(known)) if one else None for one in places]
    part.add_stacks(
        [dict(zip(("file", "line", "function"), one, strict=True)) for place in chain for one in frames.get(place, [])]
        for chain in known
    )
    labels = _labels(fields, texts)
    return pl.DataFrame(
        {
            "kind": [one.get("kind", "memory") for one in labels],
            "device": [device_name(one.get("device")) for one in labels],
            "stack": numbers,
            "values": _lists(fields, 2),
        },
        schema={"kind": pl.String, "device": pl.String, "stack": pl.Int64, "values": pl.List(pl.Int64)},
    )


def _frames(profile: Fields, texts: Sequence[str]) -> dict[int, list[Frame]]:
    """Return the frames of each place in the program, by its number: innermost first where calls were inlined."""
    functions = profile.within(5)[1].fields()
    names, files = (_named(functions.integers(number), texts) for number in (2, 4))
    function = dict(zip(functions.integers(1).fill_null(0).to_list(), zip(names, files, strict=True), strict=True))
    locations = profile.within(4)[1].fields()
    owners, lines = locations.within(4)
    of = lines.fields()
    result: dict[int, list[Frame]] = {}
    numbers = locations.integers(1).fill_null(0).to_list()
    for owner, called, line in zip(owners.tolist(), of.integers(1).fill_null(0), of.integers(2), strict=True):
        name, file = function.get(called, ("?", None))
        result.setdefault(numbers[owner], []).append((file or None, line, name))
    return result


def _labels(fields: Fields, texts: Sequence[str]) -> list[dict[str, str]]:
    """Return the labels of each sample that are texts."""
    owners, messages = fields.within(3)
    of = messages.fields()
    result: list[dict[str, str]] = [{} for _ in range(len(fields.messages))]
    keys, values = (_named(of.integers(number), texts) for number in (1, 2))
    for owner, key, value in zip(owners.tolist(), keys, values, strict=True):
        if value:
            result[owner][key] = value
    return result


def _named(numbers: pl.Series, texts: Sequence[str]) -> list[str]:
    """Return the text of each number; an empty one where it has none."""
    return [texts[number] if 0 <= number < len(texts) else "" for number in numbers.fill_null(0).to_list()]


def _lists(fields: Fields, number: int) -> list[list[int]]:
    result: list[list[int]] = [[] for _ in range(len(fields.messages))]
    for owner, value in zip(*(column.tolist() for column in fields.packed_integers(number)), strict=True):
        result[owner].append(value)
    return result


def device_name(name: str | None) -> str | None:
    """Return a device as the tables call it, where the source's name for it says which it is: ``TFRT_CPU_0``."""
    match = _DEVICE.search(name or "")
    if match is None:
        return name
    sort = match[1].lower()
    sort = "cuda" if sort == "gpu" else sort
    number = int(match[2] or 0)
    return sort if sort == "cpu" and number == 0 else f"{sort}:{number}"
