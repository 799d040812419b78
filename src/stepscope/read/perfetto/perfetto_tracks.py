"""The tracks of a Perfetto trace: threads, counters, and lanes that a process or a thread has besides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stepscope.read.common.part_builder import TrackRow
from stepscope.read.common.protobuf import Fields
from stepscope.read.perfetto.packets import PROCESS_TREE, TRACK, Packets
from stepscope.trace.losses import LossLedger

#: Fields of ``TrackDescriptor``.
_UUID, _PROCESS, _THREAD, _PARENT, _COUNTER = 1, 3, 4, 5, 8
_NAMES = (2, 10, 13)
#: How stepscope names the processes of its own timelines: by rank, host and device.
_OURS = re.compile(r"(?:rank (?P<rank>\d{1,6})(?: on (?P<host>.+))?|.+): (?P<device>cpu|npu|[a-z]+:\d{1,4})", re.DOTALL)
#: The streams of PyTorch's, Ascend's and XLA's captures: ``stream 7``, ``Stream 2``, ``Stream #17(Kernel)``.
_OF_STREAM = re.compile(r"stream #?(?P<stream>-?\d{1,18})(?:\([^)]*\))?(?P<rest>.*)", re.DOTALL | re.IGNORECASE)
#: The lane of the collectives of a group on an Ascend device; what they consist of lies on other lanes.
_OF_GROUP = re.compile(r"Group \d{1,18} Communication")
#: Lanes that a track has further because its slices cross.
_FURTHER = re.compile(r"(?P<name>.+) \(\d+\)", re.DOTALL)
#: What stepscope calls the lane of the steps, and the first of the numbers that it makes up for processes.
_STEPS, _MADE_UP = "steps", 10_000_000
#: ``CounterDescriptor.Unit`` by number.
_UNITS = {1: "ns", 3: "bytes"}
#: Most tracks above another.
_DEEPEST = 32


@dataclass
class _Described:
    """What the descriptors of a track say; None where they do not."""

    name: str | None = None
    parent: int | None = None
    process: int | None = None
    process_name: str | None = None
    thread: int | None = None
    unit: str | None = None
    multiplier: int = 1
    counts_on: bool = False


class PerfettoTracks:
    """The described tracks of a trace, by their uuid.

    Attributes:
        rank: Rank that the name of a process says; None if none does.
        host: Host that it says; empty if none does.
        labels: Labels of processes.
    """

    def __init__(self, packets: Packets) -> None:
        self._ledger = packets.ledger
        self._known: dict[int, _Described] = {}
        self.labels: list[str] = []
        self._processes, self._threads = _names_of_system(packets, self._ledger)
        self._read(packets)
        ours = [match for one in self._known.values() if (match := _OURS.fullmatch(one.process_name or ""))]
        self.rank = next((int(match["rank"]) for match in ours if match["rank"]), None)
        self.host = next((match["host"] for match in ours if match["host"]), "")

    def _read(self, packets: Packets) -> None:
        described = packets.fields.within(TRACK)[1].fields()
        uuids: list[int] = [-1 if one is None else one for one in described.integers(_UUID).to_list()]
        names = [described.texts(number, self._ledger).to_list() for number in _NAMES]
        parents = described.integers(_PARENT).to_list()
        for place, uuid in enumerate(uuids):
            track = self._known.setdefault(uuid, _Described())
            track.name = next((one[place] for one in names if one[place]), track.name)
            track.parent = track.parent if parents[place] is None else parents[place]
        for number, take in (
            (_PROCESS, self._take_process),
            (_THREAD, self._take_thread),
            (_COUNTER, self._take_counter),
        ):
            for place, fields in _each(described, number):
                take(self._known[uuids[place]], fields)

    def _take_process(self, track: _Described, fields: Fields) -> None:
        track.process = _number(fields, 1, track.process)
        track.process_name = fields.texts(6, self._ledger)[0] or track.process_name
        self.labels += fields.texts(8, self._ledger).drop_nulls().to_list()

    def _take_thread(self, track: _Described, fields: Fields) -> None:
        track.process, track.thread = _number(fields, 1, track.process), _number(fields, 2, track.thread)
        track.name = fields.texts(5, self._ledger)[0] or track.name

    def _take_counter(self, track: _Described, fields: Fields) -> None:
        track.unit = fields.texts(6, self._ledger)[0] or _UNITS.get(_number(fields, 3) or 0, "")
        track.multiplier = _number(fields, 4) or 1
        track.counts_on = bool(_number(fields, 5))

    def _above(self, uuid: int) -> Iterable[_Described]:
        """Yield a track and those above it."""
        seen = 0
        place: int | None = uuid
        while place is not None and seen < _DEEPEST and (track := self._known.get(place)) is not None:
            yield track
            place, seen = track.parent, seen + 1

    def row(self, uuid: int | None, sequence: int) -> TrackRow:
        """Return the track of slices; one without a descriptor is that of its sequence of packets."""
        if uuid is None or uuid not in self._known:
            return TrackRow("other", "cpu", f"track {sequence if uuid is None else uuid & (1 << 64) - 1}")
        track = self._known[uuid]
        process, ours = self._owner(uuid)
        if track.thread is not None:
            name = track.name or self._threads.get(track.thread) or f"thread {track.thread}"
            return TrackRow("thread", "cpu", name, process, track.thread)
        name = track.name or track.process_name or self._processes.get(process or -1) or "track"
        if ours is None:
            return TrackRow("other", "cpu", name, process)
        further = _FURTHER.fullmatch(name)
        if further and (thread := self._thread_named(process, further["name"])) is not None:
            return self.row(thread, sequence)
        name = further["name"] if further else name
        device, stream = ours["device"], _OF_STREAM.fullmatch(name)
        if device == "cpu" or stream is None:
            of_group = device != "cpu" and _OF_GROUP.fullmatch(name)
            return TrackRow("stream" if of_group else "other", device, name, process)
        kind = {"": "stream", " annotations": "annotation"}.get(stream["rest"], "other")
        kind = "stream" if stream["rest"].startswith(" of context ") else kind
        return TrackRow(kind, device, name, process, stream=int(stream["stream"]))

    def _thread_named(self, process: int | None, name: str) -> int | None:
        """Return the uuid of a process's thread of a name; None without one."""
        threads = ((uuid, one) for uuid, one in self._known.items() if one.thread is not None and one.name == name)
        return next((uuid for uuid, one in threads if one.process == process), None)

    def _owner(self, uuid: int) -> tuple[int | None, re.Match[str] | None]:
        """Return the process of a track, and what its name says if it is one of ours."""
        found = next((one for one in self._above(uuid) if one.process is not None), None)
        if found is None:
            return None, None
        named = (one.process_name for one in self._above(uuid))
        name = next((one for one in named if one), None) or self._process_name(found.process)
        ours = _OURS.fullmatch(name or "")
        made_up = ours is not None and (found.process or 0) >= _MADE_UP
        return None if made_up or (ours and ours["device"] != "cpu") else found.process, ours

    def _process_name(self, process: int | None) -> str | None:
        return next(
            (one.process_name for one in self._known.values() if one.process == process and one.process_name), None
        )

    def counter(self, uuid: int) -> tuple[TrackRow, str, int, bool]:
        """Return a counter's track, its unit, what its values are multiplied by, and whether each counts on."""
        track = self._known.get(uuid, _Described())
        process, ours = self._owner(uuid) if uuid in self._known else (None, None)
        name = track.name or "counter"
        row = TrackRow("counter", ours["device"] if ours else "cpu", name, process)
        return row, track.unit or "", track.multiplier, track.counts_on

    def is_steps(self, uuid: int | None) -> bool:
        """Return whether a track is the lane on which stepscope draws the steps."""
        if uuid is None or uuid not in self._known or self._known[uuid].thread is not None:
            return False
        further = _FURTHER.fullmatch(self._known[uuid].name or "")
        name = further["name"] if further else self._known[uuid].name
        return name == _STEPS and self._owner(uuid)[1] is not None


def _each(fields: Fields, number: int) -> Iterable[tuple[int, Fields]]:
    """Yield the messages of a field that occurs once in each message, and the number of the outer one."""
    owners, messages = fields.within(number)
    for place, owner in enumerate(owners.tolist()):
        one = type(messages)(messages.content, messages.start[place : place + 1], messages.end[place : place + 1])
        yield owner, one.fields()


def _number(fields: Fields, number: int, default: int | None = None) -> int | None:
    value = fields.integers(number)[0]
    return value if isinstance(value, int) else default


def _names_of_system(packets: Packets, ledger: LossLedger) -> tuple[Mapping[int, str], Mapping[int, str]]:
    """Return the names of processes and of threads that a snapshot of the system's processes holds."""
    tree = packets.fields.within(PROCESS_TREE)[1].fields()
    processes, threads = (tree.within(number)[1].fields() for number in (1, 2))
    owners, words = processes.every_text(3, ledger)
    numbers = processes.integers(1).to_list()
    of_process = {numbers[owner]: word for owner, word in reversed(list(zip(owners.tolist(), words, strict=True)))}
    of_thread = dict(zip(threads.integers(1).to_list(), threads.texts(2, ledger).to_list(), strict=True))
    return of_process, {number: name for number, name in of_thread.items() if name}
