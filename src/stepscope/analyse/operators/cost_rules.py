"""What one call of an operator costs, by its name and the shapes, types and values of its inputs.

A multiplication with its addition is two operations, as in ``torch.utils.flop_counter``, whose numbers these are for
matrix products, convolutions and attention; other work counts its operations by element (``docs/definitions.md``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

_Shape: TypeAlias = Sequence[int]

#: Families of operators whose operations are those of the model: products of matrices in one form or another.
PRODUCTS = ("matmul", "convolution", "attention")
#: Element types by the names of frameworks → the name that all share, and bytes of an element.
_TYPES = {
    "float": ("float32", 4), "float32": ("float32", 4), "double": ("float64", 8), "float64": ("float64", 8),
    "c10::half": ("float16", 2), "half": ("float16", 2), "float16": ("float16", 2),
    "c10::bfloat16": ("bfloat16", 2), "bfloat16": ("bfloat16", 2), "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16), "c10::float8_e4m3fn": ("float8", 1), "c10::float8_e5m2": ("float8", 1),
    "long int": ("int64", 8), "long": ("int64", 8), "long long": ("int64", 8), "int64": ("int64", 8),
    "int": ("int32", 4), "int32": ("int32", 4), "short int": ("int16", 2), "short": ("int16", 2),
    "signed char": ("int8", 1), "char": ("int8", 1), "unsigned char": ("uint8", 1), "uint8": ("uint8", 1),
    "bool": ("bool", 1),
}  # fmt: skip
#: Numbers of PyTorch's element types, which ``_to_copy`` is given → bytes.
_NUMBERED = {"0": 1, "1": 1, "2": 2, "3": 4, "4": 8, "5": 2, "6": 4, "7": 8, "11": 1, "15": 2}
_NAMESPACE = re.compile(r"^(?:aten::|mkldnn::)|(?: (?:dygraph|static))$")


@dataclass(frozen=True)
class OperatorCost:
    """What one call costs.

    Attributes:
        family: Sort of work: ``matmul``, ``convolution``, ``attention``, ``normalisation``, ``elementwise``,
            ``reduction``, ``embedding`` or ``copy``.
        dtype: Type in which it computes; None if unknown.
        flops: Floating-point operations.
        bytes: Bytes that it must read and write at least; None if unknown.
    """

    family: str
    dtype: str | None
    flops: int
    bytes: int | None


@dataclass(frozen=True)
class OperatorInputs:
    """The inputs of a call.

    Attributes:
        shapes: Shape of each input; of a list of tensors their shapes; empty for a number.
        types: Type of each input as the source names it.
        values: Values of the inputs other than tensors, as text.
    """

    shapes: Sequence[Any]
    types: Sequence[str]
    values: Sequence[str]

    def element(self, place: int) -> tuple[str, int] | None:
        """Return type name and bytes of one element of an input; None for an unknown type, or if it is not a tensor."""
        return _TYPES.get(self.types[place].lower()) if place < len(self.types) else None

    def tensors(self) -> list[tuple[_Shape, int]]:
        """Return shape and bytes of an element of every input that is a tensor of a known type."""
        known = ((shape, self.element(place)) for place, shape in enumerate(self.shapes))
        return [(shape, element[1]) for shape, element in known if element is not None and _is_shape(shape)]

    def moved(self, *written: _Shape, size: int | None = None) -> int | None:
        """Return the bytes of all inputs, and of results of these shapes; None if the types are unknown."""
        tensors = self.tensors()
        if not tensors:
            return None
        return sum(prod(shape) * size for shape, size in tensors) + sum(map(prod, written)) * (size or tensors[0][1])


def _is_shape(shape: Any) -> bool:  # noqa: ANN401 - JSON of a source
    return isinstance(shape, list) and all(type(size) is int for size in shape)


_Rule: TypeAlias = Callable[[OperatorInputs], "tuple[int, int | None]"]


def _product(first: int, second: int) -> _Rule:
    def count(call: OperatorInputs) -> tuple[int, int | None]:
        left, right = call.shapes[first], call.shapes[second]
        if len(right) == 1:  # a vector
            return 2 * prod(left), call.moved(left[:-1])
        if left[-1] != right[-2]:
            raise ValueError
        result = [*left[:-1], right[-1]] if len(left) >= len(right) else [*right[:-2], *left[-2:-1], right[-1]]
        return 2 * prod(result) * left[-1], call.moved(result)

    return count


def _linear(call: OperatorInputs) -> tuple[int, int | None]:
    """X [..., in], weight [out, in]."""
    given, weight = call.shapes[:2]
    if given[-1] != weight[-1]:
        raise ValueError
    return 2 * prod(given) * weight[0], call.moved([*given[:-1], weight[0]])


def _said_product(call: OperatorInputs) -> tuple[int, int | None]:
    """X [..., m, k], y [..., k, n], and of each whether it is transposed."""
    first, second = (
        [*shape[:-2], shape[-1], shape[-2]] if turned == "True" and len(shape) > 1 else list(shape)
        for shape, turned in zip(call.shapes[:2], call.values[2:4], strict=True)
    )
    return _product(0, 1)(OperatorInputs([first, second], call.types, ()))


def _list(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"-?\d+", text)]


def _convolution(call: OperatorInputs) -> tuple[int, int | None]:
    """X [N, C, ...], weight [out, C / groups, ...]; transposed: weight [C, out / groups, ...]."""
    given, weight = call.shapes[:2]
    stride, padding, dilation = (_list(value) for value in call.values[3:6])
    transposed = call.values[6].lower() in ("true", "1")
    output_padding, groups = _list(call.values[7]), int(call.values[8])
    size, kernel = given[2:], weight[2:]

    def each(values: list[int]) -> list[int]:
        return values * len(size) if len(values) == 1 else values

    rows = zip(size, kernel, *map(each, (stride, padding, dilation, output_padding)), strict=True)
    if transposed:
        result = [(x - 1) * s - 2 * p + d * (k - 1) + o + 1 for x, k, s, p, d, o in rows]
        channels, at = weight[1] * groups, size
    else:
        result = [(x + 2 * p - d * (k - 1) - 1) // s + 1 for x, k, s, p, d, _ in rows]
        channels, at = weight[0], result
    return 2 * given[0] * prod(at) * prod(weight), call.moved([given[0], channels, *result])


def _said_convolution(call: OperatorInputs) -> tuple[int, int | None]:
    """Return the cost of a convolution whose values are where PyTorch has those of ``aten::convolution``."""
    if len(call.values) < 9:
        raise ValueError
    return _convolution(call)


def _gradients_of(forward: _Rule) -> _Rule:
    """Return the rule of a backward with the inputs of the forward, behind whose values stands how many gradients."""

    def count(call: OperatorInputs) -> tuple[int, int | None]:
        many, (flops, moved) = int(call.values[-1]), forward(call)
        return many * flops, None if moved is None else many * moved

    return count


def _convolution_backward(call: OperatorInputs) -> tuple[int, int | None]:
    """Gradient of the result, x, weight: each gradient that is asked for costs as much as the forward pass."""
    gradient, given, weight = call.shapes[:3]
    transposed = call.values[7].lower() in ("true", "1")
    asked = [word == "True" for word in re.findall(r"True|False", call.values[10])]
    asked = asked or [word == "1" for word in re.findall(r"\d", call.values[10])]
    at = given[2:] if transposed else gradient[2:]
    results = [shape for shape, wanted in zip((given, weight), asked, strict=False) if wanted]
    return len(results) * 2 * given[0] * prod(at) * prod(weight), call.moved(*results)


def _attention(first: int, products: int) -> _Rule:
    """Return the rule of attention: query, key and value [batch, heads, length, width] from input ``first`` on.

    Args:
        first: Place of the query.
        products: Products of the forward pass (2) or the backward pass (5), the recomputed scores among them.
    """

    def count(call: OperatorInputs) -> tuple[int, int | None]:
        query, key, value = call.shapes[first : first + 3]
        if not len(query) == len(key) == len(value) == 4:
            raise ValueError
        scores = prod(query[:3]) * key[2]
        # Of the products, all but one (two backward) are as wide as the query; those are as wide as the value.
        wide = products // 2
        flops = 2 * scores * (query[3] * (products - wide) + value[3] * wide)
        results = [[*query[:3], value[3]]] if products == 2 else [query, key, value]
        return flops, call.moved(*results)

    return count


def _broadcast(shapes: Sequence[_Shape]) -> list[int]:
    longest = max(map(len, shapes), default=0)
    padded = [[1] * (longest - len(shape)) + list(shape) for shape in shapes]
    return [max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True)]


def _each(operations: int, *, reads: bool = True) -> _Rule:
    """Return the rule of work by element: so many operations for each element of the result."""

    def count(call: OperatorInputs) -> tuple[int, int | None]:
        nested = [shape for shape in call.shapes if shape and not _is_shape(shape)]
        if nested:  # lists of tensors, whose types are not recorded
            return operations * sum(prod(shape) for shape in nested[0]), None
        tensors = call.tensors() or [(shape, 0) for shape in call.shapes if shape]
        result = _broadcast([shape for shape, _ in tensors])
        if not tensors:
            raise ValueError
        written = prod(result) * tensors[0][1]
        return operations * prod(result), (call.moved(result) if reads else written) if call.tensors() else None

    return count


def _to(call: OperatorInputs) -> tuple[int, int | None]:
    shape, (_, size) = call.shapes[0], call.element(0) or ("", 0)
    wanted = _NUMBERED.get(call.values[1], size) if len(call.values) > 1 else size
    return 0, prod(shape) * (size + wanted) if size else None


def _joined(call: OperatorInputs) -> tuple[int, int | None]:
    """Several tensors become one; the types in a list are not recorded."""
    return 0, None if not call.tensors() else 2 * sum(prod(shape) * size for shape, size in call.tensors())


def _unsaid(_: OperatorInputs) -> tuple[int, int | None]:
    """Raise: the inputs do not say which side is transposed, or the stride; the source may count it."""
    raise ValueError


def product_bytes(flops: int, shapes: Sequence[_Shape], types: Sequence[str]) -> tuple[str, int] | None:
    """Return type and bytes of a product whose operations its source counts, whichever side is transposed.

    Of m × k and k × n numbers and 2 m n k operations, m n is known; so is it of batches of such products.
    """
    call = OperatorInputs(shapes[:2], types[:2], ())
    element, both = call.element(0), call.tensors()
    if element is None or len(both) != 2 or flops <= 0 or not all(prod(shape) for shape, _ in both):
        return None
    (left, _), (right, _) = both
    again = prod(left[:-2]) * prod(right[:-2]) / prod(_broadcast([left[:-2], right[:-2]]))
    result = again * flops**2 / (4 * prod(left) * prod(right))
    moved = sum(prod(shape) * size for shape, size in both) + result * element[1]
    return (element[0], round(moved)) if moved < 1 << 63 else None


def _copied(call: OperatorInputs) -> tuple[int, int | None]:
    """What is written to, and what is read."""
    tensors = call.tensors()[:2]
    if not tensors:
        return 0, None
    (shape, size), *source = tensors
    return 0, prod(shape) * (size + (source[0][1] if source else size))


def _over(operations: int, first: int = 0) -> _Rule:
    """Return the rule of work by element of an input, whose result has its shape."""

    def count(call: OperatorInputs) -> tuple[int, int | None]:
        return operations * prod(call.shapes[first]), call.moved(call.shapes[first])

    return count


def _reduced(operations: int) -> _Rule:
    def count(call: OperatorInputs) -> tuple[int, int | None]:
        return operations * prod(call.shapes[0]), call.moved()

    return count


def _embedding(call: OperatorInputs) -> tuple[int, int | None]:
    """Table [rows, width], indices: only the rows that are asked for are read."""
    (_, width), indices = call.shapes[:2]
    element, index = call.element(0), call.element(1)
    known = element is not None and index is not None
    return 0, prod(indices) * (2 * width * element[1] + index[1]) if known else None  # type: ignore[index]


def _embedding_backward(call: OperatorInputs) -> tuple[int, int | None]:
    """Gradient [..., width], indices, rows of the table: the whole gradient of the table is written, then added to."""
    gradient, rows = call.shapes[0], int(call.values[2])
    return prod(gradient), call.moved([rows, gradient[-1]], gradient)


def _named(family: str, rule: _Rule, names: str) -> dict[str, tuple[str, _Rule]]:
    return dict.fromkeys(names.split(), (family, rule))


_ATTENTION = [
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_flash_attention_for_cpu",
]  # fmt: skip
#: Name of an operator, without namespace, in lower case → its family and rule.
_RULES: dict[str, tuple[str, _Rule]] = {
    **_named("matmul", _product(0, 1), "mm bmm mv dot vdot _int_mm _scaled_mm matmul_v2"),
    **_named("matmul", _product(1, 2), "addmm baddbmm addmv addbmm _addmm_activation"),
    **_named("matmul", _linear, "_linear_pointwise"),
    **_named("convolution", _convolution, "convolution _convolution"),
    **_named("convolution", _convolution_backward, "convolution_backward"),
    **_named("matmul", _said_product, "matmul batchmatmul"),
    **_named("matmul", _gradients_of(_said_product), "global_matmulgradnode global_bmmgradnode global_mvgradnode"),
    **_named("convolution", _said_convolution, "conv2d conv3d depthwise_conv2d"),
    **_named(
        "convolution",
        _gradients_of(_said_convolution),
        "global_conv2dgradnode global_conv3dgradnode global_depthwiseconv2dgradnode "
        "global_conv2dgradnodefinal global_conv3dgradnodefinal global_depthwiseconv2dgradnodefinal",
    ),
    **_named("matmul", _unsaid, "rnn"),
    **_named("convolution", _unsaid, "conv2dbackpropinput conv2dbackpropfilter conv2d_transpose conv3d_transpose"),
    **_named("attention", _unsaid, "flashattentionscore flash_attn"),
    **_named("attention", _attention(0, 2), " ".join(_ATTENTION)),
    **_named("attention", _attention(1, 5), " ".join(f"{name}_backward" for name in _ATTENTION)),
    **_named(
        "normalisation",
        _over(5),
        "native_layer_norm native_batch_norm native_group_norm cudnn_batch_norm miopen_batch_norm _fused_rms_norm "
        "_batch_norm_with_update",
    ),
    **_named(
        "normalisation",
        _over(10),
        "native_layer_norm_backward native_batch_norm_backward native_group_norm_backward cudnn_batch_norm_backward "
        "miopen_batch_norm_backward _fused_rms_norm_backward batch_norm_backward",
    ),
    **_named(
        "normalisation",
        _over(3),
        "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data softmax logsoftmax",
    ),
    **_named(
        "elementwise",
        _each(1),
        "add add_ sub sub_ rsub mul mul_ div div_ neg neg_ abs pow pow_ sqrt sqrt_ rsqrt reciprocal exp exp_ log log_ "
        "log1p tanh tanh_ sigmoid sigmoid_ relu relu_ gelu silu silu_ elu leaky_relu leaky_relu_ hardtanh hardtanh_ "
        "hardswish softplus clamp clamp_ clamp_min clamp_max maximum minimum threshold threshold_backward "
        "gelu_backward silu_backward tanh_backward sigmoid_backward elu_backward leaky_relu_backward "
        "hardtanh_backward where eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or "
        "bitwise_not masked_fill masked_fill_ sin cos floor ceil round sign erf fmod remainder bernoulli_ "
        "native_dropout native_dropout_backward tril triu mse_loss mse_loss_backward biasadd relugrad assignadd "
        "_foreach_add _foreach_add_ _foreach_sub _foreach_sub_ _foreach_mul _foreach_mul_ _foreach_div _foreach_div_ "
        "_foreach_neg _foreach_neg_ _foreach_sqrt _foreach_sqrt_",
    ),
    **_named(
        "elementwise",
        _each(3),
        "addcmul addcmul_ addcdiv addcdiv_ lerp lerp_ _foreach_addcmul_ _foreach_addcdiv_ _foreach_lerp_ applymomentum",
    ),
    **_named("elementwise", _each(12), "_fused_adam_ _fused_adamw_ _fused_adam _fused_adamw"),
    **_named("elementwise", _each(4), "_fused_sgd_ _fused_sgd"),
    **_named(
        "reduction",
        _reduced(1),
        "sum mean amax amin max min prod argmax argmin all any cumsum cumprod logsumexp biasaddgrad reducesum",
    ),
    **_named("reduction", _reduced(2), "norm linalg_vector_norm"),
    **_named("reduction", _reduced(4), "var std var_mean std_mean"),
    **_named("embedding", _embedding, "embedding"),
    **_named("embedding", _embedding_backward, "embedding_dense_backward"),
    **_named("copy", _copied, "copy_ clone contiguous"),
    **_named("copy", _to, "_to_copy"),
    **_named("copy", _joined, "cat stack"),
    **_named("copy", _each(0, reads=False), "fill_ zero_"),
}
#: The same names → their families.
FAMILIES = {name: family for name, (family, _) in _RULES.items()}


def known_name(name: str) -> str | None:
    """Return the name under which the cost of an operator is known; None if none is."""
    short = _NAMESPACE.sub("", name).lower()
    return short if short in _RULES else None


def cost(name: str, call: OperatorInputs) -> OperatorCost | None:
    """Return what a call costs; None if its inputs do not say it.

    Args:
        name: What :func:`known_name` returned.
        call: The inputs.
    """
    family, rule = _RULES[name]
    if not all(isinstance(shape, list) for shape in call.shapes):
        return None
    try:
        flops, moved = rule(call)
    except (IndexError, TypeError, ValueError, AttributeError):  # other inputs than those of this operator
        return None
    types = (call.element(place) for place in range(len(call.types)))
    dtype = next((element[0] for element in types if element is not None), None)
    sound = 0 <= flops < 1 << 63 and (moved is None or 0 <= moved < 1 << 63)
    return OperatorCost(family, dtype, flops, moved) if sound else None
