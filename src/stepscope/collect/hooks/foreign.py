"""Other profilers of torch in the same process: whether one records, and knowing before one begins."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

_LOG = logging.getLogger("stepscope")


class ForeignGuard:
    """Calls ``give_way`` once, just before another profiler of torch prepares or enables itself.

    Without it the one that stops first takes the events of both, and the other has none.
    """

    def __init__(self, give_way: Callable[[], None]) -> None:
        self._module = sys.modules["torch"].autograd.profiler
        self._give_way = give_way
        self._ours: dict[str, Any] = {}
        self._theirs: dict[str, Any] = {}
        for name in ("_prepare_profiler", "_enable_profiler"):
            original = getattr(self._module, name, None)
            if original is not None:
                self._theirs[name], self._ours[name] = original, partial(self._before, original)
                setattr(self._module, name, self._ours[name])

    def remove(self) -> None:
        """Put torch's functions back, unless somebody else has replaced them since."""
        for name, ours in self._ours.items():
            if getattr(self._module, name, None) is ours:
                setattr(self._module, name, self._theirs[name])

    def _before(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own
        if self._ours:
            self.remove()
            self._ours.clear()
            try:
                self._give_way()
            except Exception as error:  # noqa: BLE001 - law 1: the program's profiler goes on; stop() finds ours ended
                _LOG.debug("stepscope: the recording could not be ended for another: %s", error)
        return original(*args, **kwargs)


def foreign_profiler(torch: ModuleType) -> bool:
    """Return whether a torch profiler records."""
    return bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False) or torch.autograd._profiler_enabled())
