"""Paddle on a CPU: operators, phases, layers, the program's own ranges and memory, recorded by Paddle itself.

Paddle keeps its records in its own memory and writes them when the window ends, as its protobuf file
``capture/paddle_0.pb``; no event becomes a Python object here. If the process is killed, only the journal remains,
which has the steps and the waits for data.

With memory, ending Paddle's recording takes time proportional to the number of operators times the number of memory
events: 0.3 s for 10,000 operators with two events each, 1.4 s for 20,000. So memory is recorded only if the user
requests it explicitly, and only short windows should use it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.collect.hooks.only_place import OnlyPlace
from stepscope.collect.journal.saving import SavedFile, fork_pays, own_memory
from stepscope.collect.paddle.paddle_marks import RangeMarks
from stepscope.collect.protocol import Context
from stepscope.collect.surgery import paddle_tracer
from stepscope.collect.surgery.paddle_tracer import Tracer

_NO_SHAPES = "Paddle records no shapes: only products and convolutions that eager code calls have theirs, by a mark"
_MEMORY_NOT_ASKED_FOR = "Paddle takes long to end a recording with memory; request it explicitly, with --memory"


class PaddleCollector(OnlyPlace):
    """Records one window into ``capture/paddle_0.pb``."""

    name = "paddle"
    framework = "paddle"

    def __init__(self) -> None:
        super().__init__()
        self._tracer: Tracer | None = None
        self._marks: RangeMarks | None = None
        self._file: SavedFile | None = None
        self._path = Path()
        self._memory_before = 0
        self._shapes = False
        self._recording = False

    def available(self) -> str | None:
        """Return why Paddle cannot record: it is not imported, or another profiler of it exists."""
        if "paddle" not in sys.modules:
            return "the program has not imported paddle"
        core = paddle_tracer.core()
        if core.is_profiler_enabled():
            return "Paddle's old profiler is recording; Paddle allows one profiler at a time"
        return None if paddle_tracer.create(core) is not None else paddle_tracer.OCCUPIED

    def prepare(self, context: Context) -> None:
        """Create the only profiler that Paddle allows; give way if the program creates one later."""
        paddle = sys.modules["paddle"]
        options = context.options
        self._path = context.capture / "paddle_0.pb"
        self._journal = context.journal
        memory = options.profile_memory and not options.memory_by_default
        self._tracer = Tracer(memory=memory)
        self._guard.around(sys.modules["paddle.profiler.profiler"].Profiler, "__init__", self._foreign)
        self._shapes = bool(options.record_shapes)
        missing = {"record_shapes": _NO_SHAPES} if self._shapes else {}
        if options.profile_memory and not memory:
            missing["profile_memory"] = _MEMORY_NOT_ASKED_FOR
        self._description = {
            "version": str(paddle.__version__),
            "mode": "eager" if paddle.in_dynamic_mode() else "static",
            **({"missing": missing} if missing else {}),
            **({"note": "; ".join(self._tracer.limits)} if self._tracer.limits else {}),
        }
        if self._tracer.limits:
            context.journal.loss("build_not_verified", len(self._tracer.limits))

    def start(self) -> None:
        """Open the window."""
        if self._tracer is None:
            raise RuntimeError(paddle_tracer.OCCUPIED)
        self._memory_before = own_memory()
        self._tracer.start()
        self._recording = True
        self._marks = RangeMarks(shapes=self._shapes)
        self._marks.install()
        self._opened()

    def settle(self) -> None:
        """Wait until the file is complete; raises ``OSError`` if it cannot be written."""
        try:
            if self._file is not None:
                self._file.settle()
                self._description["saved_by"] = "a forked child" if self._file.forked else "the process"
        finally:
            self._file = None  # frees the events

    def _end(self) -> None:
        if not self._recording or self._tracer is None or os.getpid() != self._process:
            return
        self._recording = False
        self._closed()
        if self._marks is not None:
            self._marks.remove()
        save = partial(paddle_tracer.save, self._tracer.stop())
        # A build with CUDA may use a GPU, whose driver fails in a forked child.
        fork = not paddle_tracer.core().is_compiled_with_cuda() and fork_pays(self._memory_before, own_memory())
        self._file = SavedFile(self._path, save, fork=fork, is_whole=paddle_tracer.is_whole)

    def _written(self) -> list[Path]:
        return [self._path] if self._file is not None else []

    def _release(self) -> None:
        self._guard.remove()
        if self._tracer is not None:
            self._tracer.release()
            self._tracer = None

    def _foreign(self, original: Callable[..., Any], profiler: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """End the recording when the program creates a profiler, unless that one only measures time."""
        if not kwargs.get("timer_only"):
            self._give_way("the program made a paddle.profiler.Profiler")
        original(profiler, *args, **kwargs)

    def _fall_silent(self) -> None:
        """Stop recording in a forked child: its copy would grow until it ends, and nothing reads it."""
        self._guard.remove()
        if self._marks is not None:
            self._marks.remove()
        if self._tracer is not None:
            self._tracer.fall_silent()
