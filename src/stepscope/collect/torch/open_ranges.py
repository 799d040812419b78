"""User ranges that are open when a torch recording ends.

``torch.autograd.profiler.record_function`` keeps a pointer into the recording it began in. If that recording has ended
and another one runs when the range is left, torch (2.13) writes through the stale pointer, and the process crashes in a
later ``stop``. A training that marks its epochs with a range and records a window now and then hits this. So the ranges
that are open at the end of a window are ended there, and leaving them later is a no-op.
"""

from __future__ import annotations

import functools
import sys
from types import TracebackType
from typing import Any
from weakref import WeakSet

from stepscope.collect.hooks.methods import MethodHooks


class OpenRanges:
    """Tracks the user ranges that are open."""

    def __init__(self) -> None:
        self._hooks = MethodHooks()
        self._entered: WeakSet[Any] = WeakSet()

    def watch(self) -> None:
        """Begin to track the ranges that are entered, on every thread."""
        ranges: Any = sys.modules["torch"].autograd.profiler.record_function
        original_enter, original_exit, entered = ranges.__enter__, ranges.__exit__, self._entered

        @functools.wraps(original_enter)
        def enter(range_: Any) -> Any:  # noqa: ANN401 - torch's own object
            entered.add(range_)
            return original_enter(range_)

        @functools.wraps(original_exit)
        def leave(
            range_: Any,  # noqa: ANN401 - torch's own object
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> Any:  # noqa: ANN401 - what torch returns
            entered.discard(range_)
            return original_exit(range_, kind, error, trace)

        self._hooks.put(ranges, "__enter__", enter)
        self._hooks.put(ranges, "__exit__", leave)

    def end_all(self) -> int:
        """Stop tracking, end the open ranges, and return their number."""
        self._hooks.remove()
        still_open = list(self._entered)
        self._entered.clear()
        for range_ in still_open:
            range_.__exit__(None, None, None)
            range_.run_callbacks_on_exit = False  # torch's own switch: leaving the range later is a no-op
        return len(still_open)
