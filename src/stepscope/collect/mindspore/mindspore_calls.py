"""Calls of MindSpore's operators, in order: name, thread, time, shapes and types.

MindSpore's own files describe the inputs of only some operators: those that PyNative calls directly (``pyboost_*``)
have neither names nor shapes there. MindSpore 2.10 calls a dispatch mode (``mindspore.utils.MsDispatchMode``) instead
of each such operator, forward and backward; ours records the call and then runs the operator. MindSpore does not call
it for operators without a tensor among their arguments, for functions (as opposed to methods) of tensors that such
operators returned, as in ``ops.relu(ops.cat([x, y]))``, and for indexing. With a mode, MindSpore infers shapes on the
calling thread instead of its own thread: this adds 18 µs per operator to the calling thread, 2 µs of which are ours.

``capture/mindspore/shapes_{rank}.ssj`` is a file of blocks (:mod:`stepscope.trace.blocks`), JSON in columns::

    process, host   of the recording process
    anchors         [[perf_counter_ns, epoch ns, ± ns], …] before and after the block's calls
    names           texts; name, shapes and types below are indices into it
    calls           thread (native id), time (perf_counter_ns), name; shapes, types, values: -1 if not requested
    closed          true in the last block

A row is a call; the calls of one thread are in order. Shapes, types and values are JSON texts of a list with one
element per argument. Shapes: the shape of a tensor, a list of shapes for a list of tensors, ``[]`` for anything else.
Types: a text such as ``Float32``, ``TensorList`` for a list of tensors, ``Scalar`` for anything else. Values: a text
such as ``True`` or ``2`` for a number, an empty text for anything else.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from stepscope.collect.journal.block_file import BlockFile

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal
    from stepscope.collect.protocol import Context

#: Maximum number of calls that wait to be written (about 500 bytes each). Further calls are only counted.
ROOM = 1 << 17
#: Calls in one block: about 2 ms of encoding.
_BLOCK_ROWS = 2048

#: Shape, type and value of every argument.
_Inputs = tuple[tuple[Any, object, str], ...]

_NUMBERS = frozenset((bool, int, float))


class MindSporeShapesCollector:
    """Records operator calls; with shapes if ``record_shapes`` or ``with_flops`` is set."""

    name = "mindspore_shapes"
    framework = "mindspore"

    def __init__(self) -> None:
        self._with_shapes = False
        self._path = Path()
        self._journal: Journal | None = None
        self._file: BlockFile | None = None
        self._calls: deque[tuple[int, int, str, _Inputs | None]] = deque()
        self._mode: Any = None
        self._thread = self._native = 0
        self._written = self._overflow = self._unreadable = 0
        self._note = ""

    def available(self) -> str | None:
        """Return why calls cannot be recorded: no MindSpore, or one without a dispatch mode."""
        mindspore = sys.modules.get("mindspore")
        if mindspore is None:
            return "the program has not imported mindspore"
        if not hasattr(sys.modules.get("mindspore._c_expression"), "_DispatchGuardStack"):
            return f"MindSpore {mindspore.__version__} has no dispatch mode (2.10 has one): no shapes in PyNative mode"
        return None

    def prepare(self, context: Context) -> None:
        """Create the dispatch mode."""
        self._with_shapes = context.options.record_shapes or context.options.with_flops
        self._journal = context.journal
        self._mode = _dispatch_mode()
        self._path = context.capture / "mindspore" / f"shapes_{context.rank}.ssj"

    def start(self) -> None:
        """Put our dispatch mode onto this thread's stack."""
        if self._journal is None:
            return
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._file = BlockFile(self._path, self._next_block, self._journal)
        stack = sys.modules["mindspore._c_expression"]._DispatchGuardStack
        if self._mode.left_in == threading.get_ident():
            self._mode.left_in = 0
        elif stack.depth():
            self._note = "The program uses its own dispatch mode: no shapes and stacks of PyNative operators."
            return
        else:
            stack.push(self._mode)
        self._thread, self._native = threading.get_ident(), threading.get_native_id()
        self._mode.record = self._record

    def stop(self) -> list[Path]:
        """Remove the mode from the stack and close the file."""
        if self._thread:
            self._mode.record = None
            self._leave()
            self._thread = 0
        file, self._file = self._file, None
        if file is None:
            return []
        file.close()
        if self._journal is not None:
            self._journal.loss("operator_calls_overflow", self._overflow)
        return [self._path]

    def _leave(self) -> None:
        """Remove our mode from the stack, which only its own thread can, and only if our mode is on top."""
        stack = sys.modules["mindspore._c_expression"]._DispatchGuardStack
        if threading.get_ident() == self._thread and stack.depth() == 1:
            stack.pop()
        else:
            self._mode.left_in = self._thread
            self._note = "The dispatch mode could not be removed: it stays, and does nothing."

    def describe(self) -> dict[str, object]:
        """Return the number of calls written, and why some are missing."""
        described: dict[str, object] = {"calls": self._written, "unreadable": self._unreadable}
        return {**described, "note": self._note} if self._note else described

    def _record(self, name: str, arguments: tuple[Any, ...]) -> None:
        if len(self._calls) >= ROOM:
            self._overflow += 1
            return
        now, inputs = perf_counter_ns(), None
        if self._with_shapes:
            try:
                inputs = _inputs(arguments)
            except Exception:  # noqa: BLE001 - law 1: the program's arguments may raise anything; counted
                self._unreadable += 1
        self._calls.append((self._native, now, name, inputs))

    def _next_block(self) -> dict[str, Any] | None:
        """Return the next calls as a block.

        It runs on the file's thread while training threads append. Not locked: ``append`` and ``popleft`` of a deque
        are atomic, and only this thread removes calls, so ``popleft`` never fails on the ``len`` calls counted before.
        """
        calls = [self._calls.popleft() for _ in range(min(len(self._calls), _BLOCK_ROWS))]
        if not calls:
            return None
        self._written += len(calls)
        names: dict[str, int] = {}
        thread, time, name, inputs = zip(*calls, strict=True)
        described: dict[_Inputs | None, list[int]] = {None: [-1, -1, -1]}
        for row in set(inputs) - {None}:
            described[row] = [names.setdefault(text, len(names)) for text in _texts(row)]
        columns = {
            "thread": thread,
            "time": time,
            "name": [names.setdefault(value, len(names)) for value in name],
            **{
                key: [described[row][index] for row in inputs]
                for index, key in enumerate(("shapes", "types", "values"))
            },
        }
        return {"names": list(names), "calls": columns}


def _inputs(arguments: tuple[Any, ...]) -> _Inputs:
    """Return shape, type and value of every argument; all shapes of a list of tensors."""
    if len(arguments) == 3 and type(arguments[1]) is str and type(arguments[2]) is tuple:
        arguments = arguments[2]  # a primitive, its name, and its arguments
    described: list[tuple[Any, object, str]] = []
    for argument in arguments:
        # `_shape` and `_dtype` are attributes of the C class; `shape` and `dtype` are slower functions around them.
        shape = getattr(argument, "_shape", None)
        if shape.__class__ is tuple:
            described.append((shape, argument._dtype, ""))
        elif argument.__class__ in (tuple, list) and any(hasattr(item, "_shape") for item in argument):
            described.append((tuple(item._shape for item in argument if hasattr(item, "_shape")), "TensorList", ""))
        else:
            described.append(((), "Scalar", str(argument) if argument.__class__ in _NUMBERS else ""))
    return tuple(described)


def _texts(inputs: _Inputs) -> tuple[str, str, str]:
    """Return shapes, types and values of the inputs as JSON texts."""
    shapes, types, values = zip(*inputs, strict=True) if inputs else ((), (), ())
    return _json(shapes), _json([str(kind) for kind in types]), _json(values)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


_mode: Any = None


def _dispatch_mode() -> Any:  # noqa: ANN401 - a MsDispatchMode of MindSpore
    """Return the only mode of this process.

    It is never freed: MindSpore releases a thread's modes when the thread ends, and at exit only after Python has been
    finalized. Freeing a Python object then would crash the process.
    """
    global _mode
    if _mode is None:

        class NotingMode(sys.modules["mindspore"].utils.MsDispatchMode):  # type: ignore[misc]
            """Calls ``record`` for every operator and changes nothing."""

            record: Callable[[str, tuple[Any, ...]], None] | None = None
            left_in = 0

            def __ms_dispatch__(self, func: Any, args: tuple[Any, ...], kwargs: Any = None) -> Any:  # noqa: ANN401
                record = self.record
                if record is not None:
                    record(func.name, args)
                return func(*args, **kwargs) if kwargs else func(*args)

        _mode = NotingMode()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_mode))
    return _mode


def _after_fork() -> None:
    if _mode is not None:
        _mode.record = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
