"""What lies at a path: its captures, from one look at names and heads; and which of them are of one rank."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

from stepscope.errors import DamagedTraceError, FormatVersionError, InputError, NotATraceError, UsageError
from stepscope.extensions import extensions
from stepscope.read import collapsed, pprof
from stepscope.read.ascend import ascend_files
from stepscope.read.chrome_json.document import Document
from stepscope.read.common.source import DEEPEST, HEAD, Capture, Directories, rank_in_name, read_blocks
from stepscope.read.common.torch_events import KEYS_OF_KINETO
from stepscope.read.kineto.kineto_facts import KinetoFacts
from stepscope.read.memory_snapshot import snapshot_reader
from stepscope.read.mindspore import mindspore_files
from stepscope.read.nsight import nsight_reader
from stepscope.read.paddle import fluid_profile, node_trees
from stepscope.read.perfetto import packets
from stepscope.read.rocprof import rocprof_reader
from stepscope.read.speedscope import speedscope_reader
from stepscope.read.xplane import xplane_files
from stepscope.trace.losses import LossLedger
from stepscope.trace.run_directory import exists

#: First bytes of stepscope's own files → their format.
_OWN = {b"SSJ1": "journal", b"SSC1": "cupti", b"SSR1": "recorder"}
#: Formats that say what a process held in memory, and not which process it was.
_MEMORY = ("pprof", "memory_snapshot")
#: Formats whose captures are directories: a reader takes all of their files.
OF_DIRECTORIES = frozenset({"ascend", "mindspore"})

#: Names that only captures have; such a file is named if it cannot be read.
_CERTAIN = re.compile(
    r".+\.(?:pt|paddle)[._]trace\.(?:json(?:\.gz)?|pb)|.+\.ss[jcr]|.+\.xplane\.pb(?:\.gz)?|memory\.pb\.gz"
    r"|.+\.speedscope(?:\.json)?(?:\.gz)?|.+\.(?:pftrace|perfetto-trace)(?:\.gz)?"
)
#: Names that captures may have, as other files do.
_POSSIBLE = re.compile(
    r".+\.(?:json|csv)(?:\.gz)?|.+\.pb(?:\.gz)?|.+\.(?:pickle|pkl)(?:\.gz)?|.+\.(?:sqlite|db)"
    r"|.+\.(?:collapsed|folded)(?:\.txt)?(?:\.gz)?|profile[^.]*"
)
#: Most files without a certain name that are opened in vain, and most blocks of one of them that are read.
MOST_STRANGERS, _MOST_BLOCKS = 500, 3
#: First bytes that show a format of protocol buffers.
_MOST_HEAD = 4096
# Only Paddle numbers the recordings of a process before the list of events; the spelling changed. What stepscope
# exports of such a file keeps the number; its form is PyTorch's, with a base of its times.
_PADDLE_JSON = re.compile(
    rb'(?:\xef\xbb\xbf)?\s*\{(?![^\[\]]{0,2000}"baseTimeNanoseconds")[^\[\]]{0,2000}"span_ind(?:ex|x)"\s*:'
)
#: First bytes of files that hold another one → what they are, and the command that takes it out.
_PACKED = {
    b"\xfd7zXZ\x00": ("compressed by xz", "xz -d"),
    b"BZh": ("compressed by bzip2", "bzip2 -d"),
    b"\x28\xb5\x2f\xfd": ("compressed by Zstandard", "zstd -d"),
    b"PK\x03\x04": ("a zip archive", "unzip"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "7z x"),
    b"ustar": ("a tar archive", "tar -xf"),
    b"\xff\xfe": ("text in UTF-16", "iconv -f utf-16 -t utf-8"),
    b"\xfe\xff": ("text in UTF-16", "iconv -f utf-16 -t utf-8"),
}
#: Where a tar archive names its form: behind the header of its first file.
_TAR = slice(257, 262)
#: ``py-spy dump --json``: threads, each with its frames.
_DUMP = re.compile(rb'\s*\[\s*\{\s*"pid"\s*:\s*\d+\s*,\s*"thread_id"\s*:')
#: ``export_memory_timeline`` of PyTorch, raw: time, action, bytes and category of each change.
_MEMORY_TIMELINE = re.compile(rb"\s*\[(?:\s*\[-?\d+,\s*\d+,\s*-?\d+,\s*\d+\],?){2}")
#: ``tensorboard_trace_handler``: worker, which is host and process if the program does not name it, and time.
_OF_TENSORBOARD = re.compile(r"(?P<worker>(?P<host>.+?)(?:_(?P<process>\d+))?)\.\d{10,20}\.pt\.trace\.json(?:\.gz)?")
#: ``export_chrome_tracing`` and ``export_protobuf`` of Paddle.
_OF_PADDLE = re.compile(r"(?P<worker>host_(?P<host>.+)pid_\d+)_time_.*")
#: A process that takes the place of another one begins to record later by more than this.
_RESTART_NS = 5 * 10**9
_RANK_DIRECTORY = re.compile(r"rank[-_]?(\d{1,6})", re.IGNORECASE)
_FIRST_TIME = re.compile(rb'"ts"\s*:\s*"?(-?\d{1,18})(?:\.(\d{1,9}))?[",}\s]')

#: Processes that only the timelines of CANN, torch_npu and MindSpore have; msprof adds a number.
_ASCEND_PROCESS = re.compile(
    rb'"args"\s*:\s*\{\s*"name"\s*:\s*"(?:Ascend Hardware|Overlap Analysis|Scope Layer|CPU OP|CANN)(?:\s*\([^")]*\))?"'
)
#: How the timelines that stepscope exports of a job name the processes of its ranks.
_OF_JOB = {
    "kineto": re.compile(rb'"process_name"[^{}]{0,200}\{"name"\s*:\s*"rank (\d{1,6}) \xc2\xb7 '),
    "perfetto": re.compile(rb"2[\0-\xff]{1,2}rank (\d{1,6}) \xc2\xb7 "),
}
_LONGEST_NAME = 400
_ENDING = re.compile(r"\.(?:json|pb)(?:\.gz)?$")

_SAME_AS_XPLANE = (".trace.json", ".trace.json.gz")
#: What ``jax.profiler.trace(create_perfetto_trace=True)`` calls the same events once more.
_OF_PERFETTO = "perfetto_trace.json.gz"

LOOKED_FOR = (
    "stepscope reads runs of `stepscope run` and `stepscope import` (manifest.json); traces of PyTorch and Chrome "
    "(*.pt.trace.json, *.json, also .gz); of JAX and XLA (*.xplane.pb, plugins/profile/<time>); of Ascend devices "
    "(*_ascend_ms, *_ascend_pt, PROF_*); of MindSpore on a CPU (cpu_op_execute_timestamp_*.txt); of Paddle "
    "(*.paddle_trace.json, *.pb, profile); of rocprofv3 (*_results.json); of Nsight Systems, exported (*.sqlite); of "
    "Perfetto (*.pftrace); of py-spy and others in speedscope's format (*.speedscope.json) or as collapsed stacks "
    "(*.100hz.collapsed.txt); profiles in pprof's form (*.pb.gz); snapshots of torch.cuda.memory._dump_snapshot "
    "(*.pickle, *.pkl); and its own files (*.ssj, *.ssr, *.ssc)."
)


def look(path: Path) -> list[Capture]:
    """Return the captures at a path: the one that a file is, or those in a directory and below it.

    Each file is opened once, for its head, and each directory listed once; at most
    :data:`~stepscope.read.common.source.MOST_ENTRIES` names are read. A file in a directory that has the name of a
    capture and cannot be read is in the list, with its fault.

    Raises:
        InputError: The path cannot be read.
        NotATraceError: No capture is there; the message says what was looked for and what was found.
        DamagedTraceError: The one file is damaged.
    """
    if not exists(path) or not path.is_dir():
        return _each_rank([_of_file(path)])
    directories = Directories(path)
    of_devices = ascend_files.captures(path, directories)
    found = of_devices + mindspore_files.captures(path, directories, [capture.root for capture in of_devices])
    taken = {file.parent for capture in found for file in capture.all} | {capture.root for capture in found}
    found += _of_files(list(_candidates(path, directories, taken)), path)
    found += ascend_files.without_events(directories, [capture.root for capture in found])
    found += [Capture("", inner, {}, fault=why) for inner, why in directories.unreadable.items()]
    if all(capture.fault for capture in found):
        raise NotATraceError(_nothing(path, directories, found), LOOKED_FOR)
    return _with_workers([_with_named_rank(capture, path) for capture in _each_rank(_each_once(found))])


def look_at_each(paths: Sequence[Path]) -> list[Capture]:
    """Return the captures at paths of one process; one of several that cannot be read is in the list, with its fault.

    Raises:
        InputError: None can be read; the error is that of the first.
    """
    found: list[Capture] = []
    first: InputError | None = None
    for path in paths:
        try:
            found += look(path)
        except FormatVersionError:
            raise
        except InputError as error:
            first = first or error
            found.append(_unreadable(path, error))
    if first is not None and all(capture.fault for capture in found):
        raise first
    return found


def _unreadable(path: Path, error: InputError) -> Capture:
    files = {} if path.is_dir() else {"": [path]}
    return Capture("", path, files, rank_in_name(path), worker=str(path), fault=error.message)


def _candidates(path: Path, directories: Directories, taken: set[Path]) -> Iterator[Path]:
    """Yield the files that may be captures by their names, nearest directories first."""
    level = [path]
    for _ in range(DEEPEST + 1):
        below = []
        for directory in level:
            names, inner = ([], []) if directory in taken else directories.listed(directory)
            for name in names:
                if _is_certain(name) or _POSSIBLE.fullmatch(name):
                    yield directory / name
            below += [directory / name for name in inner]
        level = below


def _of_files(files: Sequence[Path], top: Path) -> Iterator[Capture]:
    """Yield the captures among files; of XPlane those of the latest recording."""
    planes = {file for file in files if file.name.endswith(xplane_files.SUFFIXES)}
    latest = set(xplane_files.latest(list(planes))) if planes else set()
    # Beside the files of XPlane lie the same events as JSON; a memory profile belongs to its recording.
    same = {Path(str(file).split(".xplane.pb")[0] + ending) for file in planes for ending in _SAME_AS_XPLANE}
    same |= {file.with_name(_OF_PERFETTO) for file in planes}
    older = {file.parent for file in planes - latest} - {file.parent for file in latest}
    strangers: list[Path] = []
    passed_over, names = 0, set()
    for file in sorted(files, key=lambda file: file.name == pprof.NAME):  # the recording before its profile
        if file in same or (file.parent in older and (file in planes or file.name == pprof.NAME)):
            continue
        certain = _is_certain(file.name)
        if not certain and len(strangers) >= MOST_STRANGERS:
            passed_over += 1
        elif (capture := _of_candidate(file, certain=certain)) is None:
            strangers.append(file)
        else:
            names.add(_without_numbers(file))
            yield capture
    for file in strangers:
        if re.search(r"\d", file.name) and _without_numbers(file) in names:
            fault = f"{file} holds no trace, but files of such a name beside it do."
            yield Capture("", file, {"": [file]}, rank_in_name(file), worker=str(file), fault=fault)
    if passed_over:
        fault = (
            f"After {len(strangers)} files that are not traces, {passed_over} more JSON and .pb files are not opened."
        )
        yield Capture("", top, {}, fault=fault)


def _without_numbers(path: Path) -> tuple[Path, str]:
    """Return what is the same of the files of a job's ranks: their directory, and their names but for numbers."""
    return path.parent, re.sub(r"\d+", "0", path.name.removesuffix(".gz"))


def _is_certain(name: str) -> bool:
    readers = extensions("stepscope.readers").values()
    return _CERTAIN.fullmatch(name) is not None or any(name.endswith(tuple(reader.suffixes)) for reader in readers)


def _of_candidate(path: Path, *, certain: bool) -> Capture | None:
    """Return the capture that a file in a directory is; None if it is something else."""
    try:
        return _of_file(path, certain=certain)
    except InputError as error:
        if not certain and isinstance(error, NotATraceError):
            return None
        return _unreadable(path, error)


def _of_file(path: Path, *, certain: bool = True) -> Capture:
    """Return the capture that a file is, by its name and its first bytes."""
    if ascend_files.is_part(path):
        for capture in ascend_files.captures(path.parent, Directories(path.parent)):
            if path in capture.all:
                return capture
    single = ascend_files.single(path) or mindspore_files.single(path)
    if single is not None:
        return single
    with closing(read_blocks(path, LossLedger(path.name), first=HEAD)) as blocks:
        head = next(blocks, b"")
        if not head.strip(b"\0"):
            message = f"{path} begins with nothing but zeros: it was never written to the disk."
            raise DamagedTraceError(message, "Copy it again, or record again.")
        if sort := ascend_files.sort_of_content(path, head):
            return Capture("ascend", path, {sort: [path]}, rank_in_name(path), worker=str(path))
        host, worker = None, str(path)
        format_ = _OWN.get(head[:4]) or _of_head(path, head)
        if format_ == "xplane":
            host = xplane_files.host_of(path)
            worker = host or worker
        elif format_ is not None:
            named = _OF_PADDLE.fullmatch(path.name)
            host, worker = (named["host"], named["worker"]) if named else (None, worker)
            worker = "" if format_ in {*_OWN.values(), *_MEMORY} else worker
        else:
            return _of_kineto(path, head, blocks, certain=certain)
        ranks = _ranks_named(chain([head], blocks), format_) if format_ in _OF_JOB else ()
    return Capture(format_, path, {"": [path]}, rank_in_name(path), host=host, worker=worker, ranks=ranks)


def _of_head(path: Path, head: bytes) -> str | None:
    """Return the format that the first bytes show; None if the file can only be JSON."""
    for name, reader in extensions("stepscope.readers").items():
        if path.name.endswith(tuple(reader.suffixes)) and reader.is_trace(path, head):
            return name
    if path.name.endswith(nsight_reader.REPORTS):
        message = f"{path} is a report of Nsight Systems, which only its own tools read."
        raise NotATraceError(message, "Export it with `nsys export --type sqlite`, and name the .sqlite file.")
    for first, (what, command) in _PACKED.items():
        if head.startswith(first) or head[_TAR] == first:
            message = f"{path} is {what}."
            raise NotATraceError(message, f"Name what `{command}` makes of it.")
    if nsight_reader.is_export(path, head):
        return "nsight"
    if xplane_files.is_trace(path, head):
        return "xplane"
    if pprof.is_profile(head):
        return "pprof"
    if snapshot_reader.is_pickle(head):
        if not snapshot_reader.is_snapshot(head):
            message = f"{path} is a pickle, and not a snapshot of an allocator's memory."
            raise NotATraceError(message, "stepscope runs no code of a pickle. Name what _dump_snapshot wrote.")
        return "memory_snapshot"
    if rocprof_reader.is_rocprof(head):
        return "rocprof"
    if speedscope_reader.is_speedscope(head):
        return "speedscope"
    if packets.is_trace(path, head):
        return "perfetto"
    if _PADDLE_JSON.match(head):
        return "paddle_json"
    if node_trees.is_trace(head[:_MOST_HEAD]):
        return "paddle"
    if fluid_profile.is_profile(head[:_MOST_HEAD]):
        return "fluid"
    if _DUMP.match(head):
        message = f"{path} holds the stacks of one moment (py-spy dump), and no time."
        raise NotATraceError(message, "Record for a while: `py-spy record --format speedscope`.")
    if _MEMORY_TIMELINE.match(head):
        message = (
            f"{path} is a memory timeline of PyTorch: bytes that change, and nothing of which operator, step or rank."
        )
        raise NotATraceError(message, "Name what export_chrome_trace or _dump_snapshot wrote of the same training.")
    if head.startswith(b"PAR1"):
        message = f"{path} is a table in Parquet, and not a trace."
        raise NotATraceError(message, "The tables of a run are read with it: name its directory.")
    return "collapsed" if collapsed.is_collapsed(path, head) else None


def _each_rank(found: Sequence[Capture]) -> list[Capture]:
    """Return captures; of a timeline of a job, one for each of its ranks."""
    return [replace(one, rank=rank) for one in found for rank in one.ranks or (one.rank,)]


def _ranks_named(blocks: Iterator[bytes], format_: str) -> tuple[int, ...]:
    """Return the ranks of a timeline that stepscope exported of a job of several; their names stand anywhere in it."""
    found: set[int] = set()
    before = b""
    for block in blocks:
        found.update(map(int, _OF_JOB[format_].findall(before + block)))
        before = block[-_LONGEST_NAME:]
    return tuple(sorted(found)) if len(found) > 1 else ()


def _of_kineto(path: Path, head: bytes, rest: Iterator[bytes], *, certain: bool) -> Capture:
    document = Document(path, LossLedger(path.name))
    try:
        text = next(document.after_head(chain([head], rest if certain else islice(rest, _MOST_BLOCKS))))
    except DamagedTraceError:
        if certain or next(rest, None) is None:
            raise
        message = f"{path} holds no list of events in its first blocks."
        raise NotATraceError(message, LOOKED_FOR) from None
    except NotATraceError as error:
        raise NotATraceError(error.message, LOOKED_FOR) from None
    if not certain and not document.is_object and b'"ph"' not in text[:HEAD]:
        message = f"{path} is a list of something else than events."
        raise NotATraceError(message, LOOKED_FOR)
    if not document.metadata.keys() & KEYS_OF_KINETO and _names_ascend(chain([text], rest)):
        return Capture("ascend", path, {"trace": [path]}, rank_in_name(path), worker=str(path))
    facts = KinetoFacts(document.metadata)
    named = _OF_TENSORBOARD.fullmatch(path.name)
    first = _FIRST_TIME.search(text[:HEAD])
    start = facts.base_ns + (int(first[1]) * 1000 + int(f"{(first[2] or b'').decode():0<3}"[:3]) if first else 0)
    rank = facts.rank if facts.rank is not None else rank_in_name(path)
    # What the program names itself (worker2_step_12) is not a host: the number behind a host is that of the process.
    process = named["process"] if named else None
    of_process = process and re.search(rb'"pid"\s*:\s*"?%b[",}\s]' % process.encode(), text[:HEAD])
    host = facts.host or (named["host"] if named and of_process else None)
    worker = named["worker"] if named else str(path)
    number = process if process and of_process else ""
    ranks = _ranks_named(chain([text], rest), "kineto") if "stepscope" in document.metadata else ()
    found = Capture("kineto", path, {"": [path]}, rank, facts.world_size, host, start or None, worker)
    return replace(found, process=number, ranks=ranks)


def _names_ascend(blocks: Iterator[bytes]) -> bool:
    """Return whether processes of a trace are those of Ascend's profilers; their names stand anywhere in the list."""
    before = b""
    for block in blocks:
        for part in (before + block[:_LONGEST_NAME], block):
            if b"process_name" in part and _ASCEND_PROCESS.search(part):
                return True
        before = block[-_LONGEST_NAME:]
    return False


def _each_once(found: Sequence[Capture]) -> list[Capture]:
    """Return captures; of a recording that Paddle wrote as JSON and as protocol buffer, the second is left out."""
    written = {_ENDING.sub("", str(capture.root)) for capture in found if capture.format == "paddle_json"}
    fault = "{} is of the same rank and the same time as the .json file beside it."
    return [
        replace(capture, fault=fault.format(capture.root))
        if capture.format == "paddle" and _ENDING.sub("", str(capture.root)) in written
        else capture
        for capture in found
    ]


def _with_named_rank(capture: Capture, path: Path) -> Capture:
    """Return a capture with the rank that directories above it are named after; XPlane keeps several hosts in one."""
    if capture.rank is not None or capture.format == "xplane":
        return capture
    if capture.format in OF_DIRECTORIES:
        return replace(capture, rank=rank_in_name(path))
    above = [parent for parent in capture.root.parents if parent == path or path in parent.parents]
    above += [path.absolute().parent] if path.name == "capture" else []
    named = (match for parent in above if (match := _RANK_DIRECTORY.fullmatch(parent.name)))
    return next((replace(capture, rank=int(match[1])) for match in named), capture)


def _with_workers(found: list[Capture]) -> list[Capture]:
    """Give captures without a rank to the process that they belong to, as far as names and neighbours say."""
    own = {capture.root.parent for capture in found if capture.format in _OWN.values()}
    said = {capture.worker: capture.rank for capture in found if capture.worker and capture.rank is not None}
    result = []
    for capture in found:
        if capture.rank is None and capture.root.parent in own and not capture.fault:
            capture = replace(capture, worker="")
        result.append(replace(capture, rank=said.get(capture.worker)) if capture.rank is None else capture)
    sound = [capture for capture in result if not capture.fault]
    groups = {capture.worker if capture.rank is None else capture.rank for capture in sound} - {""}
    loose = [c for c in sound if c.rank is None and not c.worker and c.format not in OF_DIRECTORIES]
    if not loose or not groups:
        return result
    if len(groups) == 1:
        (group,) = groups
        given = {"rank": group} if isinstance(group, int) else {"worker": group}
        return [replace(c, **given) if c in loose else c for c in result]
    fault = f"{len(groups)} ranks are there, and the file does not say whose it is."
    return [replace(c, fault=fault) if c in loose and c.format == "pprof" else c for c in result]


def _nothing(path: Path, directories: Directories, found: Sequence[Capture]) -> str:
    if found:
        faults = "; ".join(capture.fault for capture in found[:3]) + (" …" if len(found) > 3 else "")
        return f"{path} holds no capture that can be read: {faults}"
    files = [name for names, _ in directories.known.values() for name in names]
    count = "1 file" if len(files) == 1 else f"{len(files)} files"
    kinds = Counter(Path(name).suffix or name for name in files).most_common(3)
    seen = ", ".join(f"{count} × {kind}" for kind, count in kinds) or "nothing"
    return f"{path} holds no capture; in it and {DEEPEST} directories below are {count} ({seen})."


@dataclass(frozen=True)
class Ranks:
    """Captures by the process that they are of.

    Attributes:
        captures: Captures of each rank, windows in order of time.
        left_out: Captures that are not read, each with its fault.
        numbered: Rank → the process that got it by order of name, because no file says its rank.
    """

    captures: dict[int, list[Capture]]
    left_out: list[Capture] = field(default_factory=list)
    numbered: dict[int, str] = field(default_factory=dict)

    @property
    def world_size(self) -> int | None:
        """Number of ranks in the job: what a capture says, else that of the captures, if no rank between is missing."""
        said = [one.world_size for captures in self.captures.values() for one in captures if one.world_size]
        whole = sorted(self.captures) == list(range(len(self.captures)))
        return max(said) if said else len(self.captures) if whole else None

    def left_out_of(self, rank: int) -> list[Capture]:
        """Return what is left out of a rank; the first rank names what is of none."""
        first = min(self.captures)
        return [one for one in self.left_out if (one.rank if one.rank in self.captures else first) == rank]


def ranks(looks: Sequence[Sequence[Capture]], window: str = "all") -> Ranks:
    """Group captures by rank.

    A rank that no file says is the first free number, in order of worker: host, then process.

    Args:
        looks: What :func:`look` returned, of each path.
        window: Which recordings of a rank to keep of several that Kineto wrote: ``all``, ``last``, or a number from 1.

    Raises:
        UsageError: Captures of two paths say that they are of one rank, or a rank has no such window.
    """
    said: dict[int, list[Capture]] = {}
    unsaid: dict[tuple[int, str], list[Capture]] = {}
    left_out: list[Capture] = []
    for number, captures in enumerate(looks):
        here: dict[int, list[Capture]] = {}
        for capture in captures:
            if capture.fault:
                left_out.append(capture)
            elif capture.rank is not None:
                here.setdefault(capture.rank, []).append(capture)
            else:
                among = number if capture.worker in ("", str(capture.root)) else -1
                unsaid.setdefault((among, capture.worker), []).append(capture)
        for rank, group in here.items():
            earlier = said.setdefault(rank, [])
            if earlier and any(capture.format != "kineto" for capture in (*earlier, *group)):
                message = f"{earlier[0].root} and {group[0].root} both say they are rank {rank}."
                raise UsageError(message, "Import them one at a time.")
            earlier += group
    by_name = len(looks) == 1 or all(among < 0 for among, _ in unsaid)
    order = sorted(unsaid, key=lambda key: _natural(key[1])) if by_name else list(unsaid)
    free = (number for number in range(len(said) + len(unsaid)) if number not in said)
    numbered = dict(zip(free, order, strict=False))
    groups = {**said, **{rank: unsaid[key] for rank, key in numbered.items()}}
    chosen = {rank: _windows(groups[rank], rank, window, left_out) for rank in sorted(groups)}
    return Ranks(chosen, left_out, {rank: key[1] for rank, key in numbered.items() if key[1]})


def _natural(text: str) -> list[tuple[int, str]]:
    """Return what sorts texts with numbers: ``node_9`` before ``node_10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def _of_one_time(one: Capture, other: Capture) -> bool:
    """Return whether two captures of a rank were recorded at one time.

    A process that takes the place of another one begins seconds later.
    """
    if one.window is None or other.window is None:
        return False
    two = one.process and other.process and one.worker != other.worker
    return abs(one.window - other.window) <= (_RESTART_NS if two else 0)


def _windows(group: list[Capture], rank: int, window: str, left_out: list[Capture]) -> list[Capture]:
    """Return a rank's captures with its windows in order of time, each once; what is left out is added to a list."""
    windows: list[Capture] = []
    others = [capture for capture in group if capture.format != "kineto"]
    for capture in sorted((c for c in group if c.format == "kineto"), key=lambda c: (c.window or 0, str(c.root))):
        twin = next((earlier for earlier in windows if _of_one_time(earlier, capture)), None)
        if twin is None:
            windows.append(capture)
        else:
            fault = f"{capture.root} is of the same rank and the same time as {twin.root}."
            left_out.append(replace(capture, rank=rank, fault=fault))
    if window == "all" or not windows:
        return others + windows
    if window != "last" and not 1 <= int(window) <= len(windows):
        message = f"Rank {rank} has {len(windows)} windows, not {window}."
        raise UsageError(message, "Give --window a smaller number, last, or all.")
    return [*others, windows[-1] if window == "last" else windows[int(window) - 1]]
