"""Inputs of Paddle's products of matrices and convolutions in eager mode, of which Paddle itself records no shapes.

A call of such an operator from Python is inside of a range whose name says its inputs as JSON. The reader gives them to
the operator in it, and leaves the range out (:mod:`stepscope.read.paddle.paddle_inputs`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.surgery.paddle_tracer import core
from stepscope.trace.paddle_terms import SAYS_INPUTS

_Arguments: TypeAlias = Sequence[Any]


def _matmul(arguments: _Arguments) -> list[str]:
    transposed = [*arguments[2:4], False, False]
    return ["", "", str(bool(transposed[0])), str(bool(transposed[1]))]


def _linear(_: _Arguments) -> list[str]:
    return ["", "", "False", "False"]


def _linear_v2(arguments: _Arguments) -> list[str]:
    return ["", "", "False", str(bool(arguments[3]))]


def _convolution(arguments: _Arguments) -> list[str]:
    """Return the values at the places where PyTorch's ``aten::convolution`` has them.

    Raises:
        ValueError: The padding is another one on each side, or the channels come last.
    """
    stride, padding, algorithm, first, second, layout = arguments[2:8]
    dilation, groups = (second, first) if isinstance(first, int) else (first, second)  # their order differs by function
    if algorithm != "EXPLICIT" or not str(layout).startswith("NC") or len(padding) != len(arguments[0].shape) - 2:
        raise ValueError
    return ["", "", "", str(stride), str(padding), str(dilation), "False", "[0]", str(groups)]


#: Names of ranges that are kept: making one takes ten times as long as the range.
_MOST_TEXTS = 4096
#: The type to which ``paddle.amp.auto_cast`` casts inputs, where it is off.
_NOT_CAST = "float32"
#: Functions of ``paddle._C_ops`` → the values of their inputs other than tensors. The first two inputs are tensors.
_VALUES: dict[str, Callable[[_Arguments], list[str]]] = {
    **dict.fromkeys(("matmul", "bmm", "mv"), _matmul),
    "linear": _linear,
    "linear_v2": _linear_v2,
    **dict.fromkeys(("conv2d", "conv3d", "depthwise_conv2d"), _convolution),
}


class InputMarks:
    """Marks inputs from :meth:`install` to :meth:`remove`."""

    def __init__(self) -> None:
        self._hooks = MethodHooks()
        self._event, self._type = core()._RecordEvent, core().TracerEventType.PythonUserDefined
        self._tensor = core().eager.Tensor
        self._framework: Any = sys.modules["paddle.base.framework"]
        self._texts: dict[tuple[Any, ...], str | None] = {}

    def install(self) -> None:
        """Begin to mark."""
        for name, values in _VALUES.items():
            self._hooks.around(sys.modules.get("paddle._C_ops"), name, partial(self._marked, values))
        self._hooks.around(self._tensor, "__matmul__", partial(self._marked, _matmul))

    def remove(self) -> None:
        """Stop marking, and restore the originals."""
        self._hooks.remove()

    def _marked(
        self,
        values: Callable[[_Arguments], list[str]],
        original: Callable[..., Any],
        *args: Any,  # noqa: ANN401 - those of the operator
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401 - what it returns
        text = self._inputs(values, args)
        if text is None:
            return original(*args, **kwargs)
        event = self._event(text, self._type)
        try:
            return original(*args, **kwargs)
        finally:
            event.end()

    def _inputs(self, values: Callable[[_Arguments], list[str]], arguments: _Arguments) -> str | None:
        """Return the name of the range; None for what is built into a program, is cast, or has unknown arguments."""
        tracer = self._framework._dygraph_tracer()
        if tracer is None or len(arguments) < 2 or tracer._amp_dtype != _NOT_CAST:
            return None
        first, second = arguments[:2]
        if not (isinstance(first, self._tensor) and isinstance(second, self._tensor)):
            return None
        gradients = (not first.stop_gradient) + (not second.stop_gradient) if tracer._has_grad else 0
        rest = repr([one for one in arguments[2:] if not isinstance(one, self._tensor)]) if len(arguments) > 2 else ""
        # Both have one type, which is one object: its own hash takes as long as the rest of the key.
        key = values, tuple(first.shape), tuple(second.shape), id(second.dtype), gradients, rest
        text = self._texts.get(key, "")
        if text == "":
            if len(self._texts) >= _MOST_TEXTS:
                self._texts.clear()
            text = self._texts[key] = _text(values, arguments, gradients)
        return text


def _text(values: Callable[[_Arguments], list[str]], arguments: _Arguments, gradients: int) -> str | None:
    try:
        said = {
            "shapes": [list(one.shape) for one in arguments[:2]],
            "dtypes": [str(one.dtype).rpartition(".")[2] for one in arguments[:2]],
            "concrete": values(arguments),
            "gradients": gradients,
        }
    except (ValueError, TypeError, IndexError):
        return None
    return SAYS_INPUTS + json.dumps(said, separators=(",", ":"))
