"""The native recorder's file, word by word in plain Python: what stepscope's reader is not needed for."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.trace.blocks import read_frames, unpack
from stepscope.trace.losses import Loss, LossLedger
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
    Definition,
    Input,
    Tag,
)

#: c10::ScalarType → what torch.profiler calls it.
TYPES = {0: "unsigned char", 3: "int", 4: "long int", 6: "float", 7: "double", 11: "bool", 15: "c10::BFloat16"}


@dataclass
class Operator:
    name: str
    scope: int
    thread: int
    begin: int
    end: int | None = None
    sequence: int = -1
    forward: int = 0
    identity: int = 0
    inputs: bytes = b""
    line: int = 0
    launch: int = 0
    depth: int = 0


@dataclass
class Thread:
    native: int
    ident: int
    torch: int
    name: str = ""
    operators: list[Operator] = field(default_factory=list)
    open: list[Operator | None] = field(default_factory=list)
    chunk: int = -1
    place: int = 0
    definitions: dict[tuple[int, int], bytes] = field(default_factory=dict)
    dropped: int = 0
    unmatched: int = 0
    memory: list[tuple[int, ...]] = field(default_factory=list)


@dataclass
class Recording:
    facts: dict[str, Any]
    clocks: list[tuple[int, ...]]
    threads: list[Thread]
    losses: list[Loss]
    closed: bool
    rates: list[tuple[int, float]]

    @property
    def operators(self) -> list[Operator]:
        return sorted((o for t in self.threads for o in t.operators), key=lambda operator: operator.begin)

    def nanoseconds(self, ticks: int) -> float:
        """Return CLOCK_MONOTONIC in ns, on the straight line through the first and the last reading of the clocks."""
        (first, start, *_), (last, end, *_) = self.clocks[0], self.clocks[-1]
        return start + (ticks - first) * (end - start) / (last - first)


def read(path: Path) -> Recording:
    ledger = LossLedger(path.name)
    facts: dict[str, Any] = {}
    clocks, threads, names, rates = [], {}, {}, []
    # (ticks, identity, the operator that begins; None at its end), of all threads
    free: list[tuple[int, int, Operator | None]] = []
    for block in read_frames(path, ledger, MAGIC, VERSION):
        if block[:1] == FACTS:
            facts.update(json.loads(unpack(block[1:])))
        elif block[:1] == CLOCK:
            clocks.append(CLOCK_BLOCK.unpack(block)[1:])
        elif block[:1] == THREAD:
            names[THREAD_HEAD.unpack_from(block)[1]] = block[THREAD_HEAD.size :].decode()
        elif block[:1] == RATES:
            rates += list(RATE.iter_unpack(block[RATES_HEAD.size :]))
        else:
            assert block[:1] == WORDS
            _, number, chunk, place, dropped, native, ident, torch_thread = WORDS_HEAD.unpack_from(block)
            thread = threads.setdefault(number, Thread(native, ident, torch_thread))
            if chunk != thread.chunk:
                thread.definitions.clear()
                thread.dropped += dropped
                assert place == 0
            else:
                assert place == thread.place
            words = struct.unpack_from(f"<{(len(block) - WORDS_HEAD.size) // 8}Q", block, WORDS_HEAD.size)
            thread.chunk, thread.place = chunk, place + len(words)
            _read_words(thread, words, free)
    for number, name in names.items():
        if number in threads:
            threads[number].name = name
    begun: dict[int, Operator] = {}
    for ticks, identity, operator in sorted(free, key=lambda mark: mark[0]):
        if operator is not None:
            begun[identity] = operator
        elif identity in begun:
            begun.pop(identity).end = ticks
    return Recording(facts, clocks, list(threads.values()), ledger.rows(), facts.get("closed", False), rates)


def _read_words(thread: Thread, words: tuple[int, ...], free: list[tuple[int, int, Operator | None]]) -> None:
    at, level = 0, 0
    operator: Operator | None = None
    while at < len(words):
        tag, value = Tag(words[at] >> 60), words[at] & (1 << 60) - 1
        at += 1
        if tag is Tag.DEFINE:
            sort, number, length = value >> 56, value >> 32 & 0xFFFFFF, value & 0xFFFFFFFF
            count = (length + 6) // 7
            raw = words[at : at + count]
            assert all(word >> 60 == Tag.RAW for word in raw)
            content = b"".join(struct.pack("<Q", word)[:7] for word in raw)
            thread.definitions[sort, number] = content[:length]
            at += count
        elif tag is Tag.DEPTH:
            if value != len(thread.open):
                thread.open = [None] * value
        elif tag is Tag.BEGIN:
            details = words[at] & (1 << 60) - 1
            assert words[at] >> 60 == Tag.NAME
            at += 1
            name = thread.definitions[Definition.NAME, details >> 36 & 0xFFFFF].decode()
            sequence = (details & (1 << 36) - 1) - 1
            operator = Operator(name, details >> 56, thread.torch, value, sequence=sequence, depth=len(thread.open))
            thread.operators.append(operator)
            thread.open.append(operator)
        elif tag is Tag.INPUTS:
            assert operator is not None
            operator.inputs = thread.definitions[Definition.INPUTS, value]
        elif tag is Tag.FORWARD:
            assert operator is not None
            operator.forward = value
        elif tag is Tag.LINE:
            assert operator is not None
            operator.line = value
        elif tag is Tag.LAUNCH:
            assert operator is not None
            operator.launch = value
        elif tag is Tag.IDENTITY:
            assert operator is not None
            assert thread.open.pop() is operator
            operator.identity = value
            free.append((operator.begin, value, operator))
        elif tag is Tag.LEVEL:
            level = value
        elif tag is Tag.END:
            ended = thread.open.pop(-1 - level)
            level = 0
            if ended is None:
                thread.unmatched += 1
            else:
                ended.end = value
        elif tag is Tag.END_OF:
            assert words[at] >> 60 == Tag.IDENTITY
            free.append((value, words[at] & (1 << 60) - 1, None))
            at += 1
        elif tag is Tag.MEMORY:
            values = words[at : at + 5]
            assert all(word >> 60 == Tag.VALUE for word in values)
            at += 5
            thread.memory.append((value, *((word & (1 << 60) - 1 ^ 1 << 59) - (1 << 59) for word in values)))
        else:
            raise AssertionError(tag)


class _Bytes:
    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def real(self) -> float:
        self.at += 8
        return float(struct.unpack_from("<d", self.content, self.at - 8)[0])


def inputs_of(operator: Operator) -> dict[str, list[Any]]:
    """Return dims, types, strides and concrete values as torch.profiler's file has them."""
    source = _Bytes(operator.inputs)
    rows = []
    while source.at < len(source.content):
        rows.append(_input(source))
    keys = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    return {key: [row[place] for row in rows] for place, key in enumerate(keys)}


def _input(source: _Bytes) -> tuple[Any, str, Any, str]:
    kind = Input(source.byte())
    if kind is Input.TENSOR:
        dims, strides, type_ = _tensor(source)
        return dims, TYPES[type_], strides, ""
    if kind is Input.TENSORS:
        count = source.number()
        found = [_tensor(source)[:2] if Input(source.byte()) is Input.TENSOR else ([], []) for _ in range(count)]
        return [dims for dims, _ in found], "TensorList", [strides for _, strides in found], ""
    if kind is Input.LIST:
        values = [_scalar(source, Input(source.byte())) for _ in range(source.number())]
        return [], "ScalarList", [], f"[{', '.join(values)}]"
    if kind is Input.NESTED:
        for _ in range(source.number()):
            assert _input(source)[1] == "TensorList"
        return [], "", [], ""
    if kind is Input.GROUP:
        numbers = [source.number() for _ in range(3)]
        source.at += numbers[-1]
        return [], "", [], ""
    if kind in (Input.OTHER, Input.UNDEFINED):
        return [], "", [], ""
    assert kind is not Input.CUT
    return [], "Scalar", [], _scalar(source, kind)


def _tensor(source: _Bytes) -> tuple[list[int], list[int], int]:
    type_ = source.byte()
    dims = [source.number() for _ in range(source.number())]
    strides = [source.number() for _ in dims] if source.byte() else []
    return dims, strides, type_


def _scalar(source: _Bytes, kind: Input) -> str:
    if kind is Input.INTEGER:
        value = source.number()
        return str(value >> 1 ^ -(value & 1))
    if kind is Input.REAL:
        real = source.real()
        return f"{real:g}." if real == int(real) else f"{real!r}"
    if kind is Input.BOOLEAN:
        return "True" if source.byte() else "False"
    raise AssertionError(kind)
