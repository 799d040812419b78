"""Which switches of PyTorch the program's code uses inside its steps, where the start of a window shows nothing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.host.live_objects import source_of
from stepscope.collect.journal.values import plain

#: Functions and models whose `torch.compile` is kept; different hooks on tensors.
_MOST = 64

#: How often something was used, since the first hook: a tuple whose first member says what. Two threads that count the
#: same at once may lose one of the counts.
used: Counter[tuple[Any, ...]] = Counter()
#: Arguments of the calls of ``torch.compile``.
compiles: list[dict[str, Any]] = []


class TorchUses:
    """Counts uses of autocast, of anomaly detection and of hooks on tensors, and keeps how ``torch.compile`` is called.

    Each hook costs less than a microsecond.
    """

    def __init__(self) -> None:
        self._hooks = MethodHooks()

    def install(self) -> None:
        """Put the hooks into torch, which is imported."""
        torch: Any = sys.modules["torch"]
        self._hooks.around(torch.amp.autocast_mode.autocast, "__enter__", _enter_autocast)
        anomaly = torch.autograd.anomaly_mode
        self._hooks.around(anomaly.detect_anomaly, "__enter__", _enter_anomaly)
        self._hooks.around(anomaly.set_detect_anomaly, "__enter__", _enter_anomaly)
        self._hooks.around(torch.Tensor, "register_hook", _register)
        self._hooks.around(torch, "compile", _compile)

    def remove(self) -> None:
        """Remove them."""
        self._hooks.remove()


def _enter_autocast(original: Callable[..., Any], context: Any) -> Any:  # noqa: ANN401 - torch's own
    used["autocast", context.device, str(context.fast_dtype), bool(context._enabled)] += 1
    return original(context)


def _enter_anomaly(original: Callable[..., Any], context: Any) -> Any:  # noqa: ANN401
    used["anomaly",] += 1
    return original(context)


def _register(original: Callable[..., Any], tensor: Any, hook: Any) -> Any:  # noqa: ANN401
    where = source_of(hook)
    key = "tensor_hook", where["function"], where["file"], where["line"]
    if key in used or len(used) < _MOST:
        used[key] += 1
    return original(tensor, hook)


def _compile(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    model = args[0] if args else kwargs.get("model")
    if model is not None and len(compiles) < _MOST:  # without a model it returns a decorator, which calls this again
        options = {name: plain(value) for name, value in kwargs.items() if name != "model"}
        options["backend"] = options.get("backend", "inductor")
        of = source_of(model) if not isinstance(model, sys.modules["torch"].nn.Module) else {}
        compiles.append({"of": type(model).__name__, **of, **options})
    return original(*args, **kwargs)
