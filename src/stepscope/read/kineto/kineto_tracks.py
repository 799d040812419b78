"""Tracks of a Kineto trace: host threads, device streams, and lanes for what must not mix with them."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.chrome_json.columns import Codes, Events, Integers, parse_arguments, printable
from stepscope.read.chrome_json.event_schema import ABSENT, Class
from stepscope.read.common.dense import distinct_rows
from stepscope.read.common.part_builder import KIND_CODE
from stepscope.read.kineto.kineto_facts import Facts
from stepscope.trace.tables import dtype

_NUMBER = re.compile(r"-?\d+")
# What has a lane of its own, so that streams and threads hold only what runs there.
_LANE_OF_CATEGORY = {"gpu_user_annotation": "annotation", "cuda_profiler_range": "ranges"}
_LANE_OF_KIND = {KIND_CODE["sync"]: "sync", KIND_CODE["overhead"]: "overhead"}
_LANES = ("", "annotation", "ranges", "sync", "overhead")
_LANE_NAMES = {"sync": "synchronisation", "overhead": "profiler overhead", "ranges": "counter ranges"}
_SUFFIXES = {"annotation": " annotations", "sync": " synchronisation"}
_TRACK_KIND = {"thread": "thread", "stream": "stream", "annotation": "annotation", "counter": "counter"}


class Place(NamedTuple):
    """Where an event lies: process and thread on a host, device and stream on a device; :data:`ABSENT` is none."""

    process: str
    thread: str
    device: int = ABSENT
    stream: int = ABSENT


class Key(NamedTuple):
    """What makes a track: its lane, and where it is."""

    lane: str
    place: Place


class Tracks:
    """The tracks of one file, numbered as they are first asked for.

    Args:
        events: All events of the file.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._numbers: dict[Key, int] = {}
        self._device_type = _device_type(events)

    def number(self, key: Key) -> int:
        """Return the track with this key, new where there is none yet."""
        return self._numbers.setdefault(key, len(self._numbers))

    def of_spans(self, rows: Integers, kinds: npt.NDArray[np.uint8]) -> Codes:
        """Return the track of each span.

        Args:
            rows: Row of each span's event.
            kinds: Number of the kind of each span.
        """
        device_classes = np.array([kind is Class.DEVICE for kind in Class])[self._events.base["class"][rows]]
        result = np.empty(len(rows), np.int32)
        for chosen in (~device_classes, device_classes):
            result[chosen] = self._of_places(rows[chosen], kinds[chosen], device=chosen is device_classes)
        return result

    def _of_places(self, rows: Integers, kinds: npt.NDArray[np.uint8], *, device: bool) -> Codes:
        base = self._events.base
        columns = [self._lanes(base["category"][rows], kinds), base["process"][rows], base["thread"][rows]]
        columns += [column[rows] for column in self._places()] if device else []
        first, inverse = distinct_rows(columns)
        numbers = []
        for row in first.tolist():
            lane, process, thread, *where = (int(column[row]) for column in columns)
            place = Place(self._text(process), self._text(thread), *where)
            numbers.append(self.number(_device_key(_LANES[lane], place) if device else _host_key(_LANES[lane], place)))
        return np.array(numbers, np.int32)[inverse]

    def _lanes(self, category: Codes, kinds: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the number of each span's lane, 0 where it has none of its own."""
        texts = self._events.texts
        of_category, of_kind = np.zeros(len(texts) + 1, np.uint8), np.zeros(len(KIND_CODE), np.uint8)
        for name, lane in _LANE_OF_CATEGORY.items():
            if name in texts:
                of_category[texts.index(name)] = _LANES.index(lane)
        for kind, lane in _LANE_OF_KIND.items():
            of_kind[kind] = _LANES.index(lane)
        return np.maximum(of_category[category], of_kind[kinds])

    def of_thread(self, rows: Integers) -> Codes:
        """Return the host thread's track of each event that is not a span: marks and arrows."""
        places, inverse = self._distinct_places(rows)
        numbers = [self.number(Key("thread", place)) for place in places]
        return np.array(numbers, np.int32)[inverse]

    def of_flows(self, rows: Integers) -> Codes:
        """Return the track of each flow event, −1 where nothing else lies there: a thread's, else a stream's."""
        places, inverse = self._distinct_places(rows)
        numbers = []
        for place in places:
            stream = Key("stream", Place("", "", _number(place.process, 0), _number(place.thread, 0)))
            numbers.append(self._numbers.get(Key("thread", place), self._numbers.get(stream, -1)))
        return np.array(numbers, np.int32)[inverse]

    def _distinct_places(self, rows: Integers) -> tuple[list[Place], Integers]:
        """Return the threads of events, and which of them each event is on."""
        process, thread = (self._events.base[name][rows] for name in ("process", "thread"))
        first, inverse = distinct_rows([process, thread])
        return [Place(self._text(int(process[row])), self._text(int(thread[row]))) for row in first.tolist()], inverse

    def _text(self, code: int) -> str:
        return self._events.texts[code] if code >= 0 else ""

    def _places(self) -> tuple[Integers, Integers]:
        """Return device and stream of every event, as its arguments say them."""
        device, stream = (np.full(len(self._events), ABSENT, np.int64) for _ in range(2))
        columns = self._events.of(Class.DEVICE)
        small = (columns["device"] > -(1 << 31)) & (columns["device"] < 1 << 31)
        device[columns["event"]] = np.where(small, columns["device"], ABSENT)
        stream[columns["event"]] = columns["stream"]
        return device, stream

    def places(self) -> tuple[Integers, Integers]:
        """Return device index and stream of every track, :data:`ABSENT` for tracks that are on no device."""
        device, stream = (
            np.array([getattr(key.place, name) for key in self._numbers], np.int64) for name in ("device", "stream")
        )
        return device, stream

    def device_name(self, index: int) -> str:
        """Return the name of a device: type and index."""
        return f"{self._device_type}:{index}"

    def frame(self, facts: Facts) -> pl.DataFrame:
        """Return the table ``tracks``."""
        names = _thread_names(self._events)
        rows = [self._row(number, key, names) for key, number in self._numbers.items()]
        schema: dict[str, pl.DataType | type[pl.DataType]] = {
            "id": pl.Int32,
            "kind": dtype("enum:track_kind"),
            "device": pl.String,
            "process": pl.Int64,
            "thread": pl.Int64,
            "stream": pl.Int64,
            "name": pl.String,
            "order": pl.Int32,
        }
        frame = pl.DataFrame(rows, schema=schema, orient="row")
        return frame.with_columns(rank=pl.lit(facts.rank or 0, pl.Int32), host=pl.lit(facts.host or ""))

    def _row(self, number: int, key: Key, names: dict[tuple[str, str], str]) -> tuple[object, ...]:
        place = key.place
        kind = _TRACK_KIND.get(key.lane, "other")
        if place.device != ABSENT:
            name = f"stream {place.stream}{_SUFFIXES.get(key.lane, '')}"
            return number, kind, self.device_name(place.device), None, None, place.stream, name, number
        process, thread = (int(text) if _is_number(text) else None for text in (place.process, place.thread))
        if kind != "thread":
            return number, kind, "cpu", process, None, None, _LANE_NAMES.get(key.lane, place.thread), number
        name = names.get((place.process, place.thread)) or (place.thread if thread is None else f"thread {thread}")
        return number, kind, "cpu", process, thread, None, name, number


def _device_key(lane: str, place: Place) -> Key:
    """Return the key of a track on a device, which the process and thread name where the arguments do not."""
    device = _number(place.process, 0) if place.device == ABSENT else place.device
    stream = _number(place.thread, 0) if place.stream == ABSENT else place.stream
    return Key(lane or "stream", Place("", "", device, stream))


def _host_key(lane: str, place: Place) -> Key:
    return Key(lane or "thread", place)


def _device_type(events: Events) -> str:
    types = (("mtia_ccp_events", "mtia"), ("xpu_runtime", "xpu"), ("privateuse1_runtime", "privateuseone"))
    return next((name for category, name in types if category in events.texts), "cuda")


def _thread_names(events: Events) -> dict[tuple[str, str], str]:
    """Return the names that metadata events give to threads; the last one counts, as in Chrome's viewer."""
    base, texts = events.base, events.texts
    columns = events.of(Class.OTHER)
    rows = columns["event"]
    if "thread_name" not in texts:
        return {}
    chosen = (base["phase"][rows] == ord("M")) & (base["name"][rows] == texts.index("thread_name"))
    names = {}
    for row, code in zip(rows[chosen].tolist(), columns["arguments"][chosen].tolist(), strict=True):
        name = parse_arguments(texts[code]).get("name")
        if isinstance(name, str) and name.strip():
            place = (base["process"][row], base["thread"][row])
            names[(texts[place[0]] if place[0] >= 0 else "", texts[place[1]] if place[1] >= 0 else "")] = printable(
                name.strip()
            )
    return names


def _number(text: str, default: int) -> int:
    match = _NUMBER.search(text)
    value = int(match[0]) if match and len(match[0]) < 19 else default
    return value if -(1 << 31) <= value < 1 << 31 else default


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and len(text) < 19
