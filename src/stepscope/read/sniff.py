"""What a file is, cheaply: its format, and whose it is, from its first blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import NotATraceError
from stepscope.read import pprof
from stepscope.read.ascend import ascend_files
from stepscope.read.chrome_json.document import Document
from stepscope.read.common.source import Capture, open_trace, read_blocks
from stepscope.read.kineto.kineto_facts import KinetoFacts
from stepscope.read.mindspore import mindspore_files as mindspore_cpu_files
from stepscope.read.paddle import paddle_files
from stepscope.read.xplane import xplane_files
from stepscope.trace.losses import LossLedger

#: First bytes of stepscope's own journal.
JOURNAL_MAGIC = b"SSJ1"
#: First bytes of stepscope's own files → their format.
_OWN = {JOURNAL_MAGIC: "journal", b"SSC1": "cupti", b"SSR1": "recorder"}

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True)
class Identity:
    """What a file is.

    Attributes:
        format: ``kineto``, ``journal``, ``cupti``, ``recorder``, ``mindspore``, ``fluid``, ``paddle``, ``paddle_json``,
            ``xplane``, ``pprof`` or ``ascend``.
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
    """Return what a file or directory is; reads first blocks only.

    Raises:
        InputError: It cannot be read, or is no trace that stepscope knows.
    """
    if path.is_dir():
        found = captures(path)
        rank = next(iter(by_rank(path)))
        return Identity(format_of(found[0]), rank=rank) if found[0].is_dir() else identify(found[0])
    if ascend_files.is_part(path):
        return Identity("ascend", rank=ascend_files.rank_of(ascend_files.capture_of(path)))
    own = _own_format(path)
    if own is not None:
        return Identity(own, rank=_rank_in_name(path))
    head = _head(path)
    if xplane_files.is_trace(path, head):
        return Identity("xplane", rank=_rank_in_name(path), host=xplane_files.host_of(path))
    if pprof.is_profile(head):
        return Identity("pprof", rank=_rank_in_name(path))
    of_paddle = paddle_files.format_of(head)
    if of_paddle is not None:
        return Identity(of_paddle, rank=_rank_in_name(path), host=paddle_files.host_of(path))
    document = Document(path, LossLedger(path.name))
    document.read_head(read_blocks(path, document.ledger))
    facts = KinetoFacts(document.metadata)
    rank = facts.rank if facts.rank is not None else _rank_in_name(path)
    return Identity("kineto", rank, facts.world_size, facts.host, facts.base_ns or None)


def format_of(path: Path) -> str:
    """Return the format of a capture, without looking whether it is sound."""
    if path.is_dir():
        return "ascend" if any(capture.root == path for capture in ascend_files.captures(path)) else "mindspore"
    if ascend_files.is_part(path):
        return "ascend"
    own = _own_format(path)
    if own is not None:
        return own
    head = _head(path)
    if xplane_files.is_trace(path, head):
        return "xplane"
    return "pprof" if pprof.is_profile(head) else paddle_files.format_of(head) or "kineto"


def by_rank(path: Path) -> dict[int | None, list[Path]]:
    """Return the captures that a path stands for, by the rank that they say: a file, or all in and below a directory.

    Raises:
        InputError: It cannot be read, or is no trace that stepscope knows.
    """
    if not path.is_dir():
        return {identify(path).rank: [path]}
    hosts = xplane_files.captures(path)
    if hosts:
        return _of_hosts(hosts)
    of_devices = ascend_files.captures(path)
    ranks: dict[int | None, list[Path]] = {}
    for device in of_devices:
        ranks.setdefault(_rank_of(path, ascend_files.rank_of(device)), []).append(device.root)
    for capture in _of_cpus(path, [device.root for device in of_devices]):
        ranks.setdefault(_rank_of(path, mindspore_cpu_files.rank_of(capture)), []).append(capture.root)
    return ranks


def _rank_of(path: Path, said: int | None) -> int | None:
    return _rank_in_name(path) if said is None else said


def _of_cpus(path: Path, of_devices: list[Path]) -> list[Capture]:
    """Return the captures of MindSpore on a CPU, but for what it wrote into those of devices."""
    try:
        found = mindspore_cpu_files.captures(path)
    except NotATraceError:
        if of_devices:
            return []
        raise
    return [capture for capture in found if not any(capture.root.is_relative_to(root) for root in of_devices)]


def _of_hosts(files: list[Path]) -> dict[int | None, list[Path]]:
    """Return the files of hosts that were recorded together by rank, as their names say, else in order of name."""
    if len(files) == 1:
        return {_rank_in_name(files[0]): [*files, *pprof.beside(files[0])]}
    said = {_rank_in_name(path): [path] for path in files}
    if len(said) == len(files) and None not in said:
        return said
    return {rank: [path] for rank, path in enumerate(files)}


def captures(path: Path) -> list[Path]:
    """Return the captures of one rank that a path stands for: a file for itself, a directory for those in it and below.

    Raises:
        InputError: A directory cannot be read, or holds no capture, or those of several ranks.
    """
    if not path.is_dir():
        return [path]
    ranks = by_rank(path)
    if len(ranks) > 1:
        message = f"{path} holds captures of {len(ranks)} ranks."
        raise NotATraceError(message, "Use `stepscope import`, which makes one run of them.")
    return next(iter(ranks.values()))


def files_of(path: Path) -> list[Path]:
    """Return the files of one capture that its reader looks at.

    Raises:
        InputError: A directory cannot be read, or holds no capture.
    """
    if not path.is_dir():
        return ascend_files.capture_of(path).all if ascend_files.is_part(path) else [path]
    for capture in ascend_files.captures(path):
        if capture.root == path:
            return capture.all
    return mindspore_cpu_files.capture_of(path).all


def is_journal(path: Path) -> bool:
    """Return whether a file is stepscope's own journal."""
    return _own_format(path) == "journal"


def _own_format(path: Path) -> str | None:
    with open_trace(path) as file:
        return _OWN.get(file.read(len(JOURNAL_MAGIC)))


def _head(path: Path) -> bytes:
    """Return the first bytes, inflated where the file is gzip."""
    return next(read_blocks(path, LossLedger(path.name)), b"")[: paddle_files.HEAD]


def _rank_in_name(path: Path) -> int | None:
    match = _RANK_IN_NAME.search(path.name)
    return int(match[1]) if match else None
