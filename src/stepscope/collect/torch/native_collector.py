r"""What PyTorch does, recorded by observers of our own in C++ instead of Kineto: ``native/recorder``.

An operator costs the training two time stamps and the copy of three words. Each thread writes into chunks of its own;
the recorder's thread, which never takes the GIL, appends new words to ``capture/recorder.ssr`` twice a second.

The file has blocks as :mod:`stepscope.trace.blocks` describes, with the magic ``SSR1\n``; numbers and structures are
in :mod:`stepscope.trace.recorder_layout`. All integers are little-endian. The first byte of a block is its type:

* ``F``: facts, packed JSON. The first block: ``process, host, torch, clock`` (``tsc``, or ``monotonic``: ticks are ns
  of CLOCK_MONOTONIC), ``chunk`` (words of a full one), ``options`` (those of the profile), ``sample`` (fraction of the
  operators that is recorded on average, 1.0 for all), ``distributed`` (the process groups, as Kineto's
  ``distributedInfo``). The last block: ``closed`` (true), ``threads`` {``threading.get_ident``: name} as Python knows
  them, ``losses`` {name: count}, ``distributed`` again, ``targets`` (of each number of classes that a negative
  log-likelihood had: classes, targets that were looked at, and those among them that it ignores).
* ``C``: the clocks at one moment, at start, before each flush and at stop: ``CLOCK_BLOCK``. Between two of them ticks
  move in a straight line.
* ``R``: of a sample, changes of the fraction that is recorded: ``RATES_HEAD``, and a ``RATE`` for each.
* ``T``: a thread's name: ``THREAD_HEAD`` and UTF-8 text. It may come again when the name has changed.
* ``W``: words of one chunk of one thread: ``WORDS_HEAD`` and words of 8 bytes.

A thread fills one chunk after another, numbered from 0. The blocks of a chunk follow each other in the file, perhaps
with blocks of other threads between them; the index of a block's first word in its chunk shows whether one is missing.
Where a chunk's number is missing, that chunk is. ``dropped`` in the head counts operators that were not recorded
between this chunk and the one before, because the disk was too slow. A block never cuts an event: all words of an
event are in one block; a definition may stand in an earlier block of the same chunk.

A word has a tag in its upper 4 bits and a value in its lower 60:

* ``DEPTH`` the first word of each chunk: how many operators of this thread's stack are open there, those that were
  dropped included. It agrees with the chunk before unless chunks are missing between.
* ``BEGIN`` ticks: an operator begins. The next word is its ``NAME``: scope (4 bits, ``at::RecordScope``, 7 for user
  ranges whatever torch's version; or 15: a call of a Python function named ``file(line): function``, or of a module
  named ``nn.Module: Class_0``) · name (20 bits, a definition) · sequence number + 1 (36 bits; 0: it has none), from the
  upper bits down. Then, where they are known: ``INPUTS`` (a definition) · ``FORWARD`` torch's number of the thread of
  the forward operator · ``IDENTITY`` (see ``END_OF``) · ``LINE`` the line that the Python call around it executes, that
  is, the line that calls it · ``LAUNCH``: communication that it launches, or works for: number of the call of
  torch.distributed in this process (32 bits), and its place among the collectives of its group since the recording
  began, + 1 (28 bits; 0: it has none). A ``c10d::`` operator and what its backend does for it have the same word.
* ``END`` ticks: the innermost open operator of this thread's stack ends. Where a ``LEVEL`` word n comes just before, it
  is the one n levels further out, and those inside it stay open.
* ``END_OF`` ticks, then ``IDENTITY``: an operator ends whose ``BEGIN`` has this identity, perhaps one of another
  thread: the one with the latest such ``BEGIN``. Operators with an identity (user ranges, asynchronous ones) are not on
  the thread's stack. Without such a ``BEGIN`` it was open before the recording, and does not belong to it.
* ``MEMORY`` ticks, then five ``VALUE`` words: address · bytes (negative: freed) · allocated in all · reserved in all ·
  device (``c10::DeviceType`` × 256 + index + 1). The values are signed 60-bit integers.
* ``DEFINE`` type (4 bits) · number (24 bits) · length in bytes (32 bits), then ``RAW`` words with 7 bytes each (the
  lower ones of the word, the lowest first). Numbers are valid within the chunk, from the definition on, and count from
  1 for each type; number 0 means that there were too many.

An operator without an end was open when the recording stopped, or its end was lost. With sampling, operators that were
not sampled leave no words, so nesting shows only the sampled ones.

The definition of a name is UTF-8; one of more than 1,024 bytes is cut, and ends with ``… [length bytes, checksum]``.
The definition of inputs is a list of items up to its end; an item is a byte of kind and what belongs to it. ``u`` is an
unsigned LEB128 number, ``s`` a zigzag LEB128 one:

* ``OTHER``: None, and all but scalars, tensors and their lists; ``UNDEFINED``: a tensor without shape;
* ``TENSOR``: byte ``c10::ScalarType`` · u dimensions n · n × u sizes · byte 1 and n × u strides, or byte 0;
* ``TENSORS``: u count · as many items of kind TENSOR or UNDEFINED;
* ``INTEGER``: s · ``REAL``: 8 bytes IEEE 754 · ``BOOLEAN``: a byte · ``COMPLEX``: two REAL numbers;
* ``LIST``: u count · as many scalar items (INTEGER, REAL, BOOLEAN, COMPLEX, OTHER);
* ``GROUP``: a process group: u rank in it · u ranks · u length, name as UTF-8;
* ``NESTED``: a list of lists of tensors: u count · as many items of kind TENSORS;
* ``CUT``: the rest of the inputs was too long to note.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import random
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.journal.values import text
from stepscope.collect.protocol import StepMarks
from stepscope.collect.torch import native_build, process_groups
from stepscope.collect.torch.kineto_collector import (
    TorchCollector,
    foreign_profiler,
    give_way_to_others,
    recordable,
)
from stepscope.collect.torch.native_calls import PythonWatch
from stepscope.collect.torch.native_choice import reason_for_kineto, unserved_switches
from stepscope.native.recorder import NativeRecording, Noted, RecorderLibrary
from stepscope.trace.blocks import FrameWriter, pack
from stepscope.trace.recorder_layout import FACTS, MAGIC, VERSION

if TYPE_CHECKING:
    from stepscope.collect.protocol import Context

#: Seconds to wait at the end for the disk.
_PATIENCE = 8.0

_LOG = logging.getLogger("stepscope")


class TorchNativeCollector:
    """Records one window into ``capture/recorder.ssr``; falls back to Kineto, with the reason in the manifest.

    Args:
        demanded: Record natively even if an option cannot be served, which the manifest names; otherwise fall back.
    """

    name = "torch"
    framework = "torch"

    def __init__(self, *, demanded: bool = True) -> None:
        self._demanded = demanded
        self._native: _NativeWindow | None = None
        self._kineto: TorchCollector | None = None
        self._description: dict[str, object] = {}

    def available(self) -> str | None:
        """Return why neither recorder can record now, or None."""
        torch = sys.modules.get("torch")
        if torch is None:
            return "the program has not imported torch"
        if native_build.reason_against(native_build.installed(torch)) is None:
            return None
        return TorchCollector().available()

    def prepare(self, context: Context) -> None:
        """Build the recorder if it is missing, and open the file; or prepare Kineto.

        Raises:
            RuntimeError: The options want a sample, which Kineto cannot take; or Kineto cannot record either.
        """
        reason = self._prepare_native(context)
        if reason is None:
            return
        if context.options.sample < 1:
            message = f"a sample of the operators needs the native recorder: {reason}"
            raise RuntimeError(message)
        self._description = {"recorder": "kineto", "native": reason}
        if self._demanded:
            _LOG.warning("stepscope: operators are recorded by Kineto, not natively: %s.", reason)
        kineto = TorchCollector()
        reason = kineto.available()
        if reason is not None:
            raise RuntimeError(reason)
        self._kineto = kineto
        kineto.prepare(context)

    def start(self) -> None:
        """Begin to record."""
        of_recorder = self._native or self._kineto
        if of_recorder is None:
            message = "start() came before prepare()"
            raise RuntimeError(message)
        of_recorder.start()

    @property
    def thread(self) -> int:
        """Identifier of the thread that must stop the recording; 0 for any thread."""
        if self._native is not None:
            return self._native.thread
        return self._kineto.thread if self._kineto is not None else 0

    @property
    def step_marks(self) -> StepMarks | None:
        """Callbacks of Kineto, whose file has the steps, or of a sample, which changes between steps."""
        of_recorder = self._native or self._kineto
        return of_recorder.step_marks if of_recorder is not None else None

    def stop(self) -> list[Path]:
        """Stop recording and return the file; :meth:`settle` waits until it is whole."""
        if self._native is not None:
            return self._native.stop()
        return self._kineto.stop() if self._kineto is not None else []

    def settle(self) -> None:
        """Wait until the file is whole.

        Raises:
            OSError: It cannot be written.
            TimeoutError: The disk hangs.
        """
        if self._native is not None:
            self._native.settle()
        elif self._kineto is not None:
            self._kineto.settle()

    def describe(self) -> dict[str, object]:
        """Return which recorder served, the options it could not serve, and the size of the file."""
        of_recorder = self._native or self._kineto
        return {**self._description, **(of_recorder.describe() if of_recorder is not None else {})}

    def _prepare_native(self, context: Context) -> str | None:
        """Open a native recording; return why that is not possible, or None."""
        torch = sys.modules["torch"]
        reason = None if self._demanded else reason_for_kineto(context.options)
        if reason is not None:
            return reason
        try:
            known = native_build.installed(torch)
            library = native_build.load(native_build.obtain(known))
            self._native = _NativeWindow(library, context, str(torch.__version__))
        except (RuntimeError, OSError, AttributeError, MemoryError) as error:
            return " ".join(f"{error}".split()) or type(error).__name__
        unserved = unserved_switches(context.options)
        self._description = {"recorder": "native", **({"unserved": unserved} if unserved else {})}
        return None


class _NativeWindow:
    """A recording by the native recorder."""

    def __init__(self, library: RecorderLibrary, context: Context, version: str) -> None:
        self._library = library
        self._context = context
        self._process = os.getpid()
        self._path = context.capture / "recorder.ssr"
        self._started = self._settled = False
        self._guard = MethodHooks()
        self._groups: dict[str, Any] = {}
        self._targets: list[tuple[int, int, int]] = []
        self.step_marks: StepMarks | None = None
        options = context.options
        functions, modules = options.with_stack, options.with_modules or options.with_stack
        self._calls = PythonWatch(library, functions=functions, modules=modules)
        self.thread = 0
        _, missing = recordable(sys.modules["torch"], options.activities)
        self._description: dict[str, object] = {
            "version": version,
            "clock": library.clock,
            "threads": "all",
            **({"missing": missing} if missing else {}),
        }
        FrameWriter(self._path, MAGIC, VERSION).close()
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))
        self._recording: NativeRecording | None = NativeRecording(library, file)
        self._recording.append(FACTS + pack(self._facts(version)))
        _OPEN.add(self)

    def start(self) -> None:
        options = self._context.options
        recording = self._recording
        if recording is None:
            message = "the recording is over"
            raise RuntimeError(message)
        memory = options.profile_memory
        if memory and foreign_profiler(sys.modules["torch"]):
            memory = False
            self._description["memory"] = "another torch profiler is recording; torch has room for one"
        inputs = Noted.OF_LAUNCHES if process_groups.initialised() else Noted.NONE
        if options.record_shapes or options.with_flops:  # operations are counted from them, when the file is read
            inputs = Noted.ALL
        recording.begin(inputs=inputs, memory=memory, fraction=options.sample)
        self._started = True
        if options.sample < 1:
            self.step_marks = StepMarks(StepSample(recording, options.sample).begin_step)
        if memory:
            self.thread = threading.get_ident()
            self._guard = give_way_to_others(self._give_way)
        if options.with_stack or options.with_modules:
            note = self._calls.start(recording)
            self._description.update({"python": note} if note else {})

    def stop(self) -> list[Path]:
        recording = self._recording
        if os.getpid() != self._process or recording is None:
            return []
        self._guard.remove()
        if not self._started:
            _OPEN.discard(self)
            self._recording = None
            recording.close()
            self._path.unlink(missing_ok=True)
            return []
        try:
            recording.end()
        finally:
            self._calls.stop()
        # Later, the program may have left its job, or have begun to record again.
        self._groups, self._targets = process_groups.describe(), self._library.targets()
        return [self._path]

    def settle(self) -> None:
        recording = self._recording
        if os.getpid() != self._process or recording is None or self._settled:
            return
        recording.settle(_PATIENCE)
        self._settled = True
        lost, error = recording.lost, recording.error
        self._description.update(bytes=recording.bytes, **({"dropped": lost} if lost else {}))
        names = {thread.ident: text(thread.name) for thread in threading.enumerate() if thread.ident}
        losses = {"operators_dropped": lost} if lost else {}
        try:
            if error is not None:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                self._context.journal.loss("disk_full" if full else "capture_not_written")
                message = f"{self._path} ends early: {'the disk is full' if full else error.strerror}"
                raise OSError(message) from error
            last = {"closed": True, "threads": names, "losses": losses, "distributed": self._groups,
                    "targets": self._targets}  # fmt: skip
            recording.append(FACTS + pack(last))
        finally:
            _OPEN.discard(self)
            self._recording = None
            recording.close()

    def describe(self) -> dict[str, object]:
        return self._description

    def fall_silent(self) -> None:
        """Remove the callbacks in a forked child, which records nothing."""
        self._guard.remove()
        self._calls.stop()
        self._library.forget()

    def _facts(self, version: str) -> dict[str, Any]:
        return {
            "process": os.getpid(),
            "host": text(socket.gethostname()),
            "torch": version,
            "clock": self._library.clock,
            "chunk": self._library.chunk,
            "options": self._context.options.describe(),
            "sample": self._context.options.sample,
            "distributed": process_groups.describe(),
        }

    def _give_way(self) -> None:
        """Stop recording memory: torch reports it to one profiler, and the program starts its own."""
        self._description["memory"] = "ended when the program started its own torch profiler"
        self._context.journal.loss("memory_ended_early")
        self.thread = 0
        if self._recording is not None:
            self._recording.end_memory()


class StepSample:
    """Samples a fraction below 1 of the operators by drawing steps, and passes the choice on to the recorder.

    torch can draw operators itself (``samplingProb`` of a callback), but it draws anew at every node of a backward
    graph: a tenth of a step of small operators, whatever the fraction. In a step of which nothing is recorded it does
    nothing. So each operator of the first 1/√p steps, and of programs that declare none, is drawn with probability p,
    which gives short recordings some operators; from then on whole steps are drawn.
    """

    def __init__(self, recording: NativeRecording, fraction: float) -> None:
        self._recording = recording
        self._fraction = fraction
        self._drawn: bool | None = None  # None: each operator is drawn, not the step
        self._chance = random.Random()  # noqa: S311 - a generator of our own: the program may have seeded Python's
        self._change_at: int | None = None

    def begin_step(self, number: int) -> int:
        """Start or stop recording if a change is due at this step; return the number of the step of the next change."""
        if self._change_at is None:
            self._change_at = number + math.ceil(1 / math.sqrt(self._fraction))
        if number >= self._change_at:
            self._change_at = number + self._change()
        return self._change_at

    def _change(self) -> int:
        """Change; return for how many steps the choice holds, distributed as if each step were drawn by itself."""
        self._drawn = self._chance.random() < self._fraction if self._drawn is None else not self._drawn
        self._recording.listen(float(self._drawn))
        change = 1 - self._fraction if self._drawn else self._fraction
        return 1 + int(math.log1p(-self._chance.random()) / math.log1p(-change))


#: Recordings that are prepared or open.
_OPEN: set[_NativeWindow] = set()


def serves() -> bool:
    """Return whether a native recording is open: CUPTI is then free for the CUPTI collector."""
    return bool(_OPEN)


def _after_fork() -> None:
    try:
        while _OPEN:
            _OPEN.pop().fall_silent()
    except Exception:  # noqa: BLE001 - law 1: the child works on; callbacks that stay do nothing
        _LOG.debug("stepscope: the recorder stays in a forked child", exc_info=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
