"""Tracks of a Kineto trace: host threads, device streams, and separate lanes for annotations and waits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.read.chrome_json.columns import ChromeEvents, Codes, parse_arguments
from stepscope.read.chrome_json.event_schema import ABSENT, Class
from stepscope.read.common.dense import distinct_rows
from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import KIND_CODE, PartTracks, TrackRow
from stepscope.read.common.plain_text import printable
from stepscope.read.common.torch_events import HIP, KIND_OF_CATEGORY
from stepscope.read.kineto.kineto_facts import KinetoFacts

_NUMBER = re.compile(r"-?\d+")
#: How PyTorch's profiler labels the process of a device: ``GPU 0``, ``XPU 1``.
_DEVICE_LABEL = re.compile(r"(?!CPU)[A-Z]{2,8}[ :]?\d{1,4}")
# Events with a lane of their own, so that streams and threads hold only what runs there.
_LANE_OF_CATEGORY = {"gpu_user_annotation": "annotation", "cuda_profiler_range": "ranges"}
_LANE_OF_KIND = {KIND_CODE["sync"]: "sync", KIND_CODE["overhead"]: "overhead"}
_LANES = ("", "annotation", "ranges", "sync", "overhead")
_LANE_NAMES = {"sync": "synchronisation", "overhead": "profiler overhead", "ranges": "counter ranges"}
_SUFFIXES = {"annotation": " annotations", "sync": " synchronisation"}
_TRACK_KIND = {"thread": "thread", "stream": "stream", "annotation": "annotation", "counter": "counter"}


class KinetoKey(NamedTuple):
    """What identifies a track: its lane; process and thread on a host, device and stream on a device."""

    lane: str
    process: str = ""
    thread: str = ""
    device: int = ABSENT
    stream: int = ABSENT


class KinetoTracks:
    """The tracks of one file."""

    def __init__(self, events: ChromeEvents, tracks: PartTracks, facts: KinetoFacts) -> None:
        self._events = events
        self._tracks = tracks
        self._keys: list[KinetoKey] = []
        self._names = said_names(events, "thread_name")
        self._device_type = _device_type(events)
        self._visible = _visible_devices(events, facts)

    def number(self, key: KinetoKey) -> int:
        """Return the track with this key; the first call registers it."""
        number = self._tracks.known(key)
        if number < 0:
            number = self._tracks.number(self._row(key), key)
            self._keys.append(key)
        return number

    def of_spans(self, rows: Integers, kinds: npt.NDArray[np.uint8]) -> Codes:
        """Return the track of each span, by the row of its event and the number of its kind."""
        device_classes = np.array([kind is Class.DEVICE for kind in Class])[self._events.base["class"][rows]]
        device_classes |= self.strange(rows)
        result = np.empty(len(rows), np.int32)
        for chosen in (~device_classes, device_classes):
            result[chosen] = self._of_distinct(rows[chosen], kinds[chosen], device=chosen is device_classes)
        return result

    def strange(self, rows: Integers) -> npt.NDArray[np.bool_]:
        """Return which events are work of a device although their category is unknown: their process is a device."""
        base, texts = self._events.base, self._events.texts
        labels = said_names(self._events, "process_labels", "labels")
        devices = {process for (process, _), label in labels.items() if _DEVICE_LABEL.fullmatch(label)}
        known, of_device = (np.zeros(len(texts) + 1, np.bool_) for _ in range(2))
        known[[code for code, text in enumerate(texts) if text in KIND_OF_CATEGORY]] = True
        of_device[[code for code, text in enumerate(texts) if text in devices]] = True
        other: npt.NDArray[np.bool_] = base["class"][rows] == Class.OTHER
        return other & of_device[base["process"][rows]] & ~known[base["category"][rows]]

    def _of_distinct(self, rows: Integers, kinds: npt.NDArray[np.uint8], *, device: bool) -> Codes:
        base = self._events.base
        columns = [self._lanes(base["category"][rows], kinds), base["process"][rows], base["thread"][rows]]
        columns += [column[rows] for column in self._devices()] if device else []
        first, inverse = distinct_rows(columns)
        numbers = []
        for row in first.tolist():
            lane, process, thread, *where = (int(column[row]) for column in columns)
            names = (self._text(process), self._text(thread))
            if device:
                numbers.append(self.number(_device_key(_LANES[lane] or "stream", names, *where)))
            else:
                numbers.append(self.number(KinetoKey(_LANES[lane] or "thread", *names)))
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
        """Return the host thread's track of events that are not spans: marks and arrows."""
        return self._of_threads(rows, lambda process, thread: self.number(KinetoKey("thread", process, thread)))

    def of_flows(self, rows: Integers) -> Codes:
        """Return the track of each flow event: a registered thread's, else a stream's, else −1."""

        def known(process: str, thread: str) -> int:
            number = self._tracks.known(KinetoKey("thread", process, thread))
            stream = _device_key("stream", (process, thread), ABSENT, ABSENT)
            return number if number >= 0 else self._tracks.known(stream)

        return self._of_threads(rows, known)

    def _of_threads(self, rows: Integers, number: Callable[[str, str], int]) -> Codes:
        """Return a number for each event, made once for each distinct process and thread."""
        process, thread = (self._events.base[name][rows] for name in ("process", "thread"))
        first, inverse = distinct_rows([process, thread])
        numbers = [number(self._text(int(process[row])), self._text(int(thread[row]))) for row in first.tolist()]
        return np.array(numbers, np.int32)[inverse]

    def _text(self, code: int) -> str:
        return self._events.texts[code] if code >= 0 else ""

    def _devices(self) -> tuple[Integers, Integers]:
        """Return device and stream of every event, as its arguments say them."""
        device, stream = (np.full(len(self._events), ABSENT, np.int64) for _ in range(2))
        columns = self._events.of(Class.DEVICE)
        small = (columns["device"] > -(1 << 31)) & (columns["device"] < 1 << 31)
        device[columns["event"]] = np.where(small, columns["device"], ABSENT)
        stream[columns["event"]] = columns["stream"]
        return device, stream

    def places(self) -> tuple[Integers, Integers]:
        """Return device index and stream of every track; :data:`ABSENT` for tracks of a host."""
        devices = [self._visible.get(key.device, key.device) for key in self._keys]
        return np.array(devices), np.array([key.stream for key in self._keys])

    def _row(self, key: KinetoKey) -> TrackRow:
        kind = _TRACK_KIND.get(key.lane, "other")
        if key.device != ABSENT:
            name = f"stream {key.stream}{_SUFFIXES.get(key.lane, '')}"
            device = self._visible.get(key.device, key.device)
            return TrackRow(kind, f"{self._device_type}:{device}", name, stream=key.stream)
        process, thread = (
            int(text) if _NUMBER.fullmatch(text) and len(text) < 19 else None for text in (key.process, key.thread)
        )
        if kind != "thread":
            return TrackRow(kind, "cpu", _LANE_NAMES.get(key.lane, key.thread), process)
        unnamed = key.thread if thread is None else f"thread {thread}"
        return TrackRow(kind, "cpu", self._names.get((key.process, key.thread)) or unnamed, process, thread)


def _device_key(lane: str, names: tuple[str, str], device: int, stream: int) -> KinetoKey:
    """Return the key of a track on a device, by process and thread where the arguments do not name it."""
    process, thread = names
    device = _number(process, 0) if device == ABSENT else device
    return KinetoKey(lane, "", "", device, _number(thread, 0) if stream == ABSENT else stream)


def _device_type(events: ChromeEvents) -> str:
    types = (("mtia_ccp_events", "mtia"), ("xpu_runtime", "xpu"), ("privateuse1_runtime", "privateuseone"))
    return next((name for category, name in types if category in events.texts), "cuda")


def _visible_devices(events: ChromeEvents, facts: KinetoFacts) -> dict[int, int]:
    """Return the number that the process knows a device by, for those that device work has under another number.

    On AMD, device work has the numbers of the system's agents, memory and ``deviceProperties`` those of the process's
    GPUs, in the same order. They are matched where there are as many of one as of the other.
    """
    if facts.gpus_of_amd is None:
        return {}
    memory, work = events.of(Class.MEMORY), events.of(Class.DEVICE)["device"]
    agents = np.unique(work[work != ABSENT]).tolist()
    taken = np.unique(memory["device"][memory["device_type"] == HIP]).tolist()
    for visible in (taken, facts.gpus_of_amd):
        if len(visible) == len(agents):
            return dict(zip(agents, visible, strict=True))
    return {}


def said_names(events: ChromeEvents, what: str, key: str = "name") -> dict[tuple[str, str], str]:
    """Return the names that metadata events give to processes or threads; the last one counts, as in Chrome's viewer.

    Args:
        events: All events.
        what: What such events are called: ``process_name``, ``process_labels`` or ``thread_name``.
        key: The argument that says it.
    """
    base, texts = events.base, events.texts
    columns = events.of(Class.OTHER)
    rows = columns["event"]
    if what not in texts:
        return {}
    chosen = (base["phase"][rows] == ord("M")) & (base["name"][rows] == texts.index(what))
    names = {}
    for row, code in zip(rows[chosen].tolist(), columns["arguments"][chosen].tolist(), strict=True):
        name = parse_arguments(texts[code]).get(key)
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
