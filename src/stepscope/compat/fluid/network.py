"""The names of ``paddle.fluid`` that the samples of the profiler's document use, for today's Paddle.

Paddle 1 ran programs: the first of these calls switches today's Paddle, which runs operators at once, to programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any


def data(
    name: str,
    shape: Sequence[int],
    append_batch_size: bool = True,  # noqa: FBT001, FBT002 - as in Paddle 1
    dtype: str = "float32",
    **other: Any,  # noqa: ANN401 - lod_level, type, stop_gradient
) -> Any:  # noqa: ANN401 - a variable of Paddle
    """Return an input of the program; its batch size is not part of ``shape``, as in Paddle 1."""
    whole = [None, *shape] if append_batch_size else list(shape)
    return _static().data(name, whole, dtype, other.get("lod_level", 0))


def conv2d(
    input: Any,  # noqa: ANN401 - as in Paddle 1
    num_filters: int,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    **other: Any,  # noqa: ANN401 - dilation, groups, param_attr, bias_attr, act; use_cudnn and name have no effect
) -> Any:  # noqa: ANN401 - a variable of Paddle
    """Return the convolution of an input of the form NCHW."""
    layer = _layers().Conv2D(
        input.shape[1],
        num_filters,
        filter_size,
        stride,
        padding,
        other.get("dilation", 1),
        other.get("groups") or 1,
        weight_attr=other.get("param_attr"),
        bias_attr=other.get("bias_attr"),
    )
    return _activated(layer(input), other.get("act"))


def fc(
    input: Any,  # noqa: ANN401 - as in Paddle 1
    size: int,
    num_flatten_dims: int = 1,
    param_attr: Any = None,  # noqa: ANN401
    bias_attr: Any = None,  # noqa: ANN401
    **other: Any,  # noqa: ANN401 - act; name has no effect
) -> Any:  # noqa: ANN401 - a variable of Paddle
    """Return the product with a weight, and a bias; the dimensions from ``num_flatten_dims`` on are one."""
    flat = import_module("paddle").flatten(input, start_axis=num_flatten_dims)
    layer = _layers().Linear(flat.shape[-1], size, weight_attr=param_attr, bias_attr=bias_attr)
    return _activated(layer(flat), other.get("act"))


def _activated(output: Any, act: str | None) -> Any:  # noqa: ANN401 - a variable of Paddle
    return getattr(_layers().functional, act)(output) if act else output


def Executor(place: Any = None) -> Any:  # noqa: ANN401 - a class in Paddle 1
    """Return an executor of programs."""
    return _static().Executor(place)


def default_startup_program() -> Any:  # noqa: ANN401 - a program of Paddle
    """Return the program that sets the parameters."""
    return _static().default_startup_program()


def default_main_program() -> Any:  # noqa: ANN401 - a program of Paddle
    """Return the program that is being written."""
    return _static().default_main_program()


def CPUPlace() -> Any:  # noqa: ANN401 - a class of Paddle
    """Return the CPU."""
    return import_module("paddle").CPUPlace()


def CUDAPlace(number: int) -> Any:  # noqa: ANN401 - a class of Paddle
    """Return a GPU."""
    return import_module("paddle").CUDAPlace(number)


def _static() -> Any:  # noqa: ANN401 - a module of Paddle
    paddle = import_module("paddle")
    if paddle.in_dynamic_mode():
        paddle.enable_static()
    return paddle.static


def _layers() -> Any:  # noqa: ANN401 - a module of Paddle
    _static()
    return import_module("paddle.nn")
