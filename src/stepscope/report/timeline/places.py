"""Where things are drawn: processes and lanes, each with a number of its own that no viewer mistakes for another.

Viewers identify a lane by process and thread number and give some numbers a meaning: 0 is the idle process or the
process's main thread, and so is a thread number equal to the process number. Lanes that fall together lose what
overlaps. So real numbers are kept where they are unambiguous, for the reader's sake, and all others are made up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

#: Row of the table `tracks`.
Track: TypeAlias = dict[str, Any]
_Key: TypeAlias = tuple[str, str | int | None]

#: Made-up process numbers begin here: above Linux's largest process number, 2^22; and each rank has its own thousand.
_MADE_UP_PROCESS = 10_000_000
_MADE_UP_THREAD = 1_000_000
_RANKS = 1_000_000
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Process:
    """A group of lanes: a host process or a device.

    Attributes:
        pid: Number, unique in the file; a device's is also unique among the ranks of a job.
        name: Name to show.
        order: Place among the processes: the host first.
    """

    pid: int
    name: str
    order: int


@dataclass(frozen=True)
class Lane:
    """A row of slices that nest.

    Attributes:
        process: Where it belongs.
        tid: Number, unique in its process, never 0.
        name: Name to show.
        order: Place among all lanes.
        is_thread: Whether it is a host thread, which is a thread for the viewer too.
        is_stream: Whether it is a stream of a device, where work lies.
        device: Index of the device that it belongs to, a stream or what lies beside the streams; None on a host.
        stream: Number of the stream it belongs to; None if it has none.
    """

    process: Process
    tid: int
    name: str
    order: int
    is_thread: bool = False
    is_stream: bool = False
    device: int | None = None
    stream: int | None = None


class Places:
    """The processes and lanes of one rank.

    Args:
        tracks: Rows of the table `tracks`, in the order to show.
        label: What the rank is called among several, whose process numbers may be the same; empty for a rank alone.
    """

    def __init__(self, tracks: Iterable[Track], label: str = "") -> None:
        self._label = label
        self.tracks = list(tracks)
        self.rank = self.tracks[0]["rank"] if self.tracks else 0
        self._processes: dict[_Key, Process] = {}
        self._taken: dict[int, set[int]] = {}
        for track in sorted(self.tracks, key=lambda track: (_key(track)[0] != "host", track["order"])):
            self._process(_key(track), track["host"])
        self._lanes = count()

    @property
    def processes(self) -> list[Process]:
        """All processes, the host's first."""
        return list(self._processes.values())

    def home(self) -> Process:
        """Return the process for what belongs to none: the rank's first."""
        return next(iter(self._processes.values()), None) or self._process(("host", None), "")

    def of_device(self, device: str) -> Process:
        """Return the process of a device such as ``cuda:0``; the rank's first for ``cpu`` and unknown devices."""
        return self._processes.get(("device", device)) or self.home()

    def of(self, track: Track) -> Process:
        """Return the process of a track."""
        return self._processes[_key(track)]

    def lane(self, track: Track, number: int) -> Lane:
        """Return a new lane of ``track``: its main one for ``number`` 0, another one for what crosses there."""
        process = self.of(track)
        wanted = track["thread"] if track["kind"] == "thread" else track["stream"]
        tid = self._thread(process, wanted if number == 0 and track["kind"] in ("thread", "stream") else None)
        name = track["name"] if number == 0 else f"{track['name']} ({number + 1})"
        is_thread = track["kind"] == "thread" and number == 0
        index = track["device"].rpartition(":")[2]
        device = None if track["device"] == "cpu" else int(index) if index.isdecimal() else 0
        return Lane(
            process, tid, name, next(self._lanes), is_thread, track["kind"] == "stream", device, track["stream"]
        )

    def steps_lane(self, number: int) -> Lane:
        """Return a new lane for steps."""
        process = self.home()
        name = "steps" if number == 0 else f"steps ({number + 1})"
        return Lane(process, self._thread(process, None), name, next(self._lanes))

    def _process(self, key: _Key, host: str) -> Process:
        if key not in self._processes:
            kind, wanted = key
            pids = {process.pid for process in self._processes.values()}
            made_up = _MADE_UP_PROCESS + 1000 * (self.rank % _RANKS) + len(pids)
            is_free = isinstance(wanted, int) and 0 < wanted < _MADE_UP_PROCESS and wanted not in pids
            pid = wanted if isinstance(wanted, int) and is_free and not self._label else made_up
            label = self._label or f"rank {self.rank}{f' on {host}' if host else ''}"
            name = f"{label}: {'cpu' if kind == 'host' else wanted}"
            self._processes[key] = Process(pid, name, len(pids))
            # The main thread of a host process may have the process's number, as it has in the system.
            self._taken[pid] = {0} if kind == "host" else {0, pid}
        return self._processes[key]

    def _thread(self, process: Process, wanted: int | None) -> int:
        taken = self._taken[process.pid]
        if wanted is None or wanted in taken or not 0 < wanted <= _LARGEST:
            wanted = next(number for number in count(_MADE_UP_THREAD + len(taken)) if number not in taken)
        taken.add(wanted)
        return wanted


def _key(track: Track) -> _Key:
    return ("host", track["process"]) if track["device"] == "cpu" else ("device", track["device"])
