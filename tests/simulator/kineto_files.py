"""Kineto's file of each rank, as PyTorch writes it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from isal import igzip

from tests.simulator.host_clocks import EPOCH, HostClock
from tests.simulator.plans import Exchange, Floats, Inner, Meeting, Op, Plan, Range
from tests.simulator.solve import Times
from tests.simulator.training import ELEMENT, Job

#: What timestamps of newer versions count from: the last multiple of three months (libkineto's ChromeTraceBaseTime).
_TRIMESTER = 7_889_238 * 1_000_000_000
_BASE = EPOCH // _TRIMESTER * _TRIMESTER

_SHORT = '{{"ph": "X", "cat": "{}", "name": {}, "pid": {}, "tid": {}, "ts": {}, "dur": {}, "args": {{{}}}}}'
_TALL = (
    '{{\n    "ph": "X",\n    "cat": "{}",\n    "name": {},\n    "pid": {},\n    "tid": {},\n    "ts": {},\n'
    '    "dur": {}\n    ,\n    "args": {{\n      {}\n    }}\n  }}'
)
_ARROW = '{{"ph": "{}", "id": {}, "pid": {}, "tid": {}, "ts": {}, "cat": "ac2g", "name": "ac2g"{}}}'
_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync")
#: PyTorch writes out this many ranks of a group.
_LISTED_RANKS = 30


@dataclass(frozen=True)
class _Row:
    """One event of each rank of a plan.

    Attributes:
        op: Operation that it begins in.
        low: Its begin, as a fraction of that operation.
        last: Operation that it ends in.
        high: Its end, as a fraction of that operation; negative for an event without duration.
        texts: Its text with places for the times; one for each group of ranks.
        group: Which text, of each rank; empty for the first.
    """

    op: int
    low: float
    last: int
    high: float
    texts: tuple[str, ...]
    group: tuple[int, ...] = ()


@dataclass(frozen=True)
class Defects:
    """What is wrong with a file.

    Attributes:
        steps: How many steps it holds.
        world_size: How many ranks it says that the job has; 0 for the truth.
        other_code: Whether the rank ran another version of the program.
        cut: Whether its end is missing.
        alone: Whether it holds no collectives.
    """

    steps: int = 1 << 30
    world_size: int = 0
    other_code: bool = False
    cut: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Processes:
    """What the operating system calls a rank's process and its threads."""

    process: int
    device: int

    def replace_in(self, text: str) -> str:
        """Return a text with numbers in place of the names of process, device and threads."""
        numbers = {
            "process": self.process,
            "device": self.device,
            "main": self.process,
            "backward": self.process + 213,
            "gloo0": self.process + 5,
            "gloo1": self.process + 7,
        }
        for name, number in numbers.items():
            text = text.replace(f"@{name}@", str(number))
        return text


class KinetoFiles:
    """The files of a job's ranks.

    Args:
        job: The job.
        times: When everything happens.
    """

    def __init__(self, job: Job, times: Times) -> None:
        self.job, self.times, self.shape = job, times, job.shape
        self.whole = job.shape.dialect == "2.1"
        self._plan_of = {int(rank): (p, i) for p, plan in enumerate(job.plans) for i, rank in enumerate(plan.ranks)}
        self._rows = [list(_Rows(job, plan).all()) for plan in job.plans]

    def write(self, path: Path, rank: int, clock: HostClock, defects: Defects) -> None:
        """Write the file of a rank, compressed if its name ends in gz.

        Args:
            path: The file.
            rank: The rank.
            clock: Its clock.
            defects: What is wrong with the file.
        """
        p, column = self._plan_of[rank]
        rows, starts, ends = self._rows[p], self.times.starts[p][:, column], self.times.ends[p][:, column]
        ops, finite = self.job.plans[p].ops, np.isfinite(ends).tolist()
        rows = [row for row in rows if finite[row.last] and ops[row.last].place.step < defects.steps]
        if defects.alone:
            talks = {number for i, op in enumerate(ops) if op.meetings for number in (i, op.launched_by)}
            rows = [row for row in rows if row.op not in talks]
        texts = [row.texts[row.group[column] if row.group else 0] for row in rows]
        host = self.shape.host_of(rank)
        here = Processes(1_000 + 211 * (rank % self.shape.ranks_per_host) + host, rank % self.shape.ranks_per_host)
        begin = int(clock.shows(np.array([0.0]))[0]) + EPOCH
        body = here.replace_in(",\n  ".join([*self._metadata(begin), *texts]))
        if defects.other_code:
            body = (
                body.replace("_tn", "_nn")
                .replace("tilesize128x128", "tilesize128x256")
                .replace("fwd_kernel", "fwd_splitkv_kernel")
            )
            body = body.replace("multi_tensor_apply_kernel", "fused_adam_kernel").replace("bn_fw_tr", "bn_fw_inf")
        head = self._head(rank, host, defects.world_size or self.shape.ranks)
        text = head + body % self._values(rows, starts, ends, clock) + self._foot(path, begin)
        data = text.encode()
        data = igzip.compress(data, compresslevel=1) if path.suffix == ".gz" else data
        path.write_bytes(data[: int(0.7 * len(data))] if defects.cut else data)

    def _values(self, rows: list[_Row], starts: Floats, ends: Floats, clock: HostClock) -> tuple[int, ...]:
        """Return the numbers of the events, in order: those of the begin, and of the duration if it has one."""
        op, last = np.array([row.op for row in rows]), np.array([row.last for row in rows])
        low, high = np.array([row.low for row in rows]), np.array([row.high for row in rows])
        lasts = high >= 0
        step, origin = (1_000, EPOCH) if self.whole else (1, EPOCH - _BASE)
        times = (starts[op] + low * (ends[op] - starts[op]), starts[last] + high * (ends[last] - starts[last]))
        begin, end = ((np.floor(clock.shows(time)).astype(np.int64) + origin) // step for time in times)
        end = np.maximum(begin, end)
        if self.whole:
            return tuple(np.stack([begin, end - begin], 1)[np.stack([np.ones_like(lasts), lasts], 1)].tolist())
        numbers = np.stack([*np.divmod(begin, 1_000), *np.divmod(end - begin, 1_000)], 1)
        there = np.ones_like(lasts)
        return tuple(numbers[np.stack([there, there, lasts, lasts], 1)].tolist())

    def _when(self, begin: int) -> str:
        return str(begin // 1_000) if self.whole else f"{(begin - _BASE) // 1_000}.{(begin - _BASE) % 1_000:03d}"

    def _metadata(self, begin: int) -> Iterator[str]:
        when = self._when(begin)
        rows = [
            ("process_name", "@process@", 0, {"name": "python"}),
            ("process_labels", "@process@", 0, {"labels": "CPU"}),
        ]
        if self.shape.device:
            rows.append(("process_name", "@device@", 0, {"name": "python"}))
            rows.append(("process_labels", "@device@", 0, {"labels": "GPU @device@"}))
        for name, process, thread, arguments in rows:
            said = json.dumps(arguments)
            yield f'{{"ph": "M", "name": "{name}", "ts": {when}, "pid": {process}, "tid": {thread}, "args": {said}}}'

    def _head(self, rank: int, host: int, world_size: int) -> str:
        shape = self.shape
        backend = "nccl" if shape.device else "gloo"
        said: dict[str, object] = {"backend": backend, "rank": rank, "world_size": world_size}
        if not self.whole:
            mine = [group for groups in self.job.groups.values() for group in groups if rank in group.ranks]
            config = "cuda:nccl" if shape.device else "cpu:gloo,cuda:gloo"
            said["pg_count"] = len(mine)
            said["pg_config"] = [
                {
                    "pg_name": group.name,
                    "pg_desc": group.description,
                    "backend_config": config,
                    "pg_size": len(group.ranks),
                    "ranks": list(group.ranks),
                }
                for group in mine
            ]
            if shape.device:
                said["nccl_version"] = "2.21.5"
        properties = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017493504, "numSms": 132}]
        document: dict[str, object] = {
            "schemaVersion": 1,
            "deviceProperties": properties if shape.device else [],
            "distributedInfo": said,
        }
        if not self.whole:
            document |= {
                "trace_id": f"{shape.seed:016X}{rank:016X}",
                "host_name": f"node{host:03d}",
                "displayTimeUnit": "ms",
                "baseTimeNanoseconds": _BASE,
            }
        return json.dumps(document)[:-1] + ',\n  "traceEvents": [\n  '

    def _foot(self, path: Path, begin: int) -> str:
        when = self._when(begin)
        mark = (
            f'{{"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", '
            f'"tid": "Trace PyTorch Profiler", "ts": {when}}}'
        )
        return f',\n  {mark}\n  ],\n  "traceName": {json.dumps("./log/" + path.name.removesuffix(".gz"))}\n}}\n'


class _Rows:
    """The events of a plan."""

    def __init__(self, job: Job, plan: Plan) -> None:
        self.job, self.plan, self.shape = job, plan, job.shape
        self.layout = _TALL if job.shape.dialect == "2.13" else _SHORT
        whole = job.shape.dialect == "2.1"
        self.when, self.external, self.frames = ("%d" if whole else "%d.%03d"), 0, 0
        self.launched = {op.launched_by: number for number, op in enumerate(plan.ops) if op.launched_by >= 0}
        self.order: dict[tuple[str, str], int] = defaultdict(int)

    def all(self) -> Iterator[_Row]:
        """Return all events: the host's, then the device's."""
        for span in self.plan.ranges:
            first = next(i for i in range(span.first, len(self.plan.ops)) if self.plan.ops[i].launched_by < 0)
            yield from self._annotation(span, first)
        externals: dict[int, int] = {}
        for number, op in enumerate(self.plan.ops):
            if op.launched_by < 0 and (op.category or op.inner):
                externals[number] = self.external + 1
                yield from self._host(number, op)
        for number, op in enumerate(self.plan.ops):
            if op.launched_by >= 0:
                yield from self._launched(number, op, externals[op.launched_by])

    def _text(self, category: str, name: str, thread: str, arguments: str) -> str:
        process, lane = ("@device@", thread) if thread.isdigit() else ("@process@", f"@{thread}@")
        said = arguments.replace("%", "%%")
        return self.layout.format(category, json.dumps(name), process, lane, self.when, self.when, said)

    def _operator_arguments(self, more: str = "") -> str:
        self.external += 1
        scope = "" if self.layout is _SHORT else '"Record function id": 0, '
        return f'"External id": {self.external}, {more}{scope}"Ev Idx": {self.external - 1}'

    def _annotation(self, span: Range, first: int) -> Iterator[_Row]:
        said = self._operator_arguments()
        if span.category == "python_function":
            self.frames += 1
            said = f'"Python parent id": null, "Python id": {self.frames}, "Python module id": 0, {said}'
        text = self._text(span.category, span.name, "main", said)
        yield _Row(first, 0.0, span.last, 1.0, (text,))

    def _host(self, number: int, op: Op) -> Iterator[_Row]:
        """Return the events of an operation of the host: its own, and those in it."""
        if op.category == "cuda_runtime":
            said = f'"External id": {self.external}, "cbid": 131, "correlation": {_correlation(number)}'
            yield _Row(number, 0.0, number, 1.0, (self._text(op.category, op.name, op.lane, said),))
            return
        if op.category:
            text = self._text(op.category, op.name, op.lane, self._operator_arguments(op.arguments))
            yield _Row(number, 0.0, number, 1.0, (text,))
        kernel = self.launched.get(number, -1)
        for inner in op.inner:
            if inner.category == "cuda_runtime":
                yield from self._launch(number, op, inner, kernel)
                continue
            if inner.name == "record_param_comms" and not self._whole:
                texts = tuple(
                    self._text(inner.category, inner.name, op.lane, self._operator_arguments(f"{said}, "))
                    for said in self._communication(self.plan.ops[kernel].meetings[int(inner.arguments)], host=True)
                )
                group = tuple(self.plan.ops[kernel].meetings[int(inner.arguments)].group.tolist())
                yield _Row(number, inner.low, number, inner.high, texts, group)
                continue
            text = self._text(inner.category, inner.name, op.lane, self._operator_arguments())
            yield _Row(number, inner.low, number, inner.high, (text,))

    def _launch(self, number: int, op: Op, inner: Inner, kernel: int) -> Iterator[_Row]:
        correlation = _correlation(kernel if kernel >= 0 else number)
        said = f'"External id": {self.external}, "cbid": 211, "correlation": {correlation}'
        text = self._text(inner.category, inner.name, op.lane, said)
        yield _Row(number, inner.low, number, inner.high, (text,))
        if self.shape.flows and kernel >= 0:
            arrow = _ARROW.format("s", correlation, "@process@", f"@{op.lane}@", self.when, "")
            yield _Row(number, inner.low, number, -1.0, (arrow,))

    def _launched(self, number: int, op: Op, external: int) -> Iterator[_Row]:
        """Return the event of what the host launched: a kernel, a copy, or a collective on a thread of gloo."""
        if not op.lane.isdigit():
            yield _Row(
                number, 0.0, number, 1.0, (self._text(op.category, op.name, op.lane, self._operator_arguments()),)
            )
            return
        place = f'"device": @device@, "context": 1, "stream": {op.lane}, "correlation": {_correlation(number)}'
        said = f'"External id": {external}, "queued": 0, {place}'
        if op.category == "kernel":
            shape = (
                '"grid": [24, 1, 1], "block": [544, 1, 1]'
                if op.meetings
                else '"grid": [132, 1, 1], "block": [384, 1, 1]'
            )
            said += (
                ', "registers per thread": 96, "shared memory": 82240, "blocks per SM": 1.0, "warps per SM": 12.0, '
                f'{shape}, "est. achieved occupancy %": 19'
            )
        else:
            said = f'"External id": {external}, {place}, "bytes": 4194304, "memory bandwidth (GB/s)": 21.5'
        texts: tuple[str, ...] = (said,)
        group: tuple[int, ...] = ()
        name = op.name
        if op.meetings and not self._whole and not op.batched:
            texts = tuple(f"{said}, {more}" for more in self._communication(op.meetings[0], host=False))
            group = tuple(op.meetings[0].group.tolist())
        elif op.meetings and self._whole:
            name = name.replace("DevKernel", "Kernel").replace(
                "ncclDevKernelArgsStorage<4096ul>", "ncclDevComm*, unsigned long, ncclWork*"
            )
        yield _Row(
            number, 0.0, number, 1.0, tuple(self._text(op.category, name, op.lane, text) for text in texts), group
        )
        if self.shape.flows:
            arrow = _ARROW.format("f", _correlation(number), "@device@", op.lane, self.when, ', "bp": "e"')
            yield _Row(number, 0.0, number, -1.0, (arrow,))

    @property
    def _whole(self) -> bool:
        return self.shape.dialect == "2.1"

    def _communication(self, meeting: Meeting, *, host: bool) -> Iterator[str]:
        """Return what torch.distributed says of a collective, for each of its groups."""
        exchange = self.job.exchanges[meeting.exchange]
        kind = exchange.groups[0].kind
        order = self.order[kind, "host" if host else "device"] = self.order[kind, "host" if host else "device"] + 1
        for group, members in zip(exchange.groups, exchange.members, strict=True):
            ranks = ", ".join(map(str, group.ranks[:_LISTED_RANKS])) + (
                ", ..." if len(group.ranks) > _LISTED_RANKS else ""
            )
            given, got = _elements(exchange, len(group.ranks))
            name, ends = exchange.operation, ""
            if name == "send":
                sends = members[0] in self.plan.ranks
                name = "send" if sends else "recv"
                ends = f', "Src Rank": {members[0]}, "Dst Rank": {members[1]}'
            said = (
                f'"Collective name": "{name}", "In msg nelems": {given}, "Out msg nelems": {got}, '
                f'"Group size": {len(group.ranks)}, "dtype": "BFloat16", '
                f'"In split size": "[]", "Out split size": "[]", '
                f'"Process Group Name": "{group.name}", "Process Group Description": "{group.description}", '
                f'"Process Group Ranks": "[{ranks}]"{ends}'
            )
            if host:
                start, stride = group.ranks[0], group.ranks[1] - group.ranks[0]
                said += f', "Global rank start": {start}, "Global rank stride": {stride}'
            if self.shape.dialect == "2.13":
                said += f', "Seq": {order}'
            yield said


def _correlation(number: int) -> int:
    """Return the correlation of the launch of an operation."""
    return 10_000 + number


def _elements(exchange: Exchange, ranks: int) -> tuple[int, int]:
    """Return the number of elements that a rank gives and gets."""
    count = max(1, exchange.bytes // ELEMENT)
    if exchange.operation == "_allgather_base":
        return count, count * ranks
    if exchange.operation == "_reduce_scatter_base":
        return count // ranks * ranks, max(1, count // ranks)
    return count, count
