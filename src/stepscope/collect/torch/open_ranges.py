"""User ranges that are still open when a torch recording ends.

``torch.autograd.profiler.record_function`` keeps a pointer into the recording it began in. Where that recording has
ended and another one runs when the range is left, torch (2.13) writes through the stale pointer and the process dies
in some later ``stop``. A training that marks its epochs with a range and records a window now and then does just that.
So the ranges still open at the end of a window are ended there, and leaving them later does nothing.
"""

from __future__ import annotations

import functools
import sys
from types import TracebackType
from typing import Any
from weakref import WeakSet


class OpenRanges:
    """Knows which user ranges were entered while it watches."""

    def __init__(self) -> None:
        self._class: Any = None
        self._enter: Any = None
        self._entered: WeakSet[Any] = WeakSet()
        self._exit: Any = None

    def watch(self) -> None:
        """Begin to note ranges that are entered, on every thread."""
        self._class = sys.modules["torch"].autograd.profiler.record_function
        self._enter, self._exit = self._class.__enter__, self._class.__exit__
        entered = self._entered

        @functools.wraps(self._enter)
        def enter(range_: Any) -> Any:  # noqa: ANN401 - torch's own object
            entered.add(range_)
            return self._enter(range_)

        @functools.wraps(self._exit)
        def leave(
            range_: Any,  # noqa: ANN401 - torch's own object
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> Any:  # noqa: ANN401 - what torch returns
            entered.discard(range_)
            return self._exit(range_, kind, error, trace)

        self._class.__enter__, self._class.__exit__ = enter, leave

    def end_all(self) -> int:
        """Stop watching, end the ranges that are still open, and return how many there were."""
        if self._class is None:
            return 0
        self._class.__enter__, self._class.__exit__ = self._enter, self._exit
        self._class = None
        still_open = list(self._entered)
        for range_ in still_open:
            range_.__exit__(None, None, None)
            range_.run_callbacks_on_exit = False  # torch's own switch: leaving it later does nothing
        return len(still_open)
