"""Operations and bytes of the instructions of a compiled program, counted as XLA's ``HloCostAnalysis`` does.

The rules, and where ours are others, stand in ``docs/definitions.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

from stepscope.read.xplane.hlo import hlo_products
from stepscope.read.xplane.hlo.hlo_program import HloProgram
from stepscope.read.xplane.hlo.hlo_shapes import UNKNOWN, Shape

#: One operation for every element of the result.
ELEMENTWISE = frozenset((
    "abs", "add", "and", "bitcast-convert", "ceil", "clamp", "clz", "compare", "complex", "convert",
    "count-leading-zeros", "divide", "floor", "imag", "is-finite", "maximum", "minimum", "multiply", "negate", "not",
    "or", "popcnt", "real", "reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even", "select",
    "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "stochastic-convert", "subtract", "xor",
))  # fmt: skip
#: One value of a transcendental function for every element of the result.
TRANSCENDENTAL = frozenset((
    "acos", "acosh", "asin", "asinh", "atan2", "atanh", "cbrt", "cosh", "cosine", "erf", "exponential",
    "exponential-minus-one", "log", "log-plus-one", "logistic", "power", "rng", "rsqrt", "sine", "sinh", "sqrt",
    "tan", "tanh",
))  # fmt: skip
#: Neither computes nor touches memory: names for values that are there.
FREE = frozenset((
    "add-dependency", "after-all", "bitcast", "constant", "domain", "get-tuple-element", "opt-barrier", "parameter",
))  # fmt: skip
#: The end of something asynchronous: what it does has counted where it began.
_END = "-done"
_POINTER = 8
#: Constants of a fusion up to this size stand in its code.
_IMMEDIATE = 8
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True)
class Cost:
    """Of one execution: floating-point operations, values of transcendental functions, bytes read and written.

    None is unknown.
    """

    flops: int | None = 0
    transcendentals: int | None = 0
    bytes: int | None = 0

    def times(self, number: int) -> Cost:
        """Return the cost of that many executions."""
        return Cost(*(None if value is None else value * number for value in self.parts))

    @property
    def parts(self) -> tuple[int | None, int | None, int | None]:
        """The three numbers."""
        return self.flops, self.transcendentals, self.bytes


UNTOLD = Cost(None, None, None)


def together(costs: Iterable[Cost]) -> Cost:
    """Return the sum."""
    return _joined(costs, sum)


def costs(program: HloProgram) -> list[Cost]:
    """Return the cost of each instruction; None where it does not fit 64 bits."""
    counted = _Counted(program)
    fitting = [[None if value is not None and value > _LARGEST else value for value in c.parts] for c in counted.all]
    return [Cost(*parts) for parts in fitting]


def _joined(costs: Iterable[Cost], join: Callable[[list[int]], int]) -> Cost:
    columns = zip(*(cost.parts for cost in costs), strict=True)
    joined = [None if None in column else join([v for v in column if v is not None]) for column in columns]
    return Cost(*joined) if joined else Cost()


class _Counted:
    """Costs of a program's instructions in the order of the file, in which callees stand before their callers."""

    def __init__(self, program: HloProgram) -> None:
        self.program = program
        self.products = hlo_products.products(program)
        self.users: dict[int, dict[int, list[int]]] = {}
        self.of_computation: dict[int, Cost] = {}
        self.all: list[Cost] = []
        for members, number in zip(program.members, range(len(program.members)), strict=True):
            own = [self._of(place) for place in members]
            self.all += own
            self.of_computation[number] = together(own)

    def _of(self, place: int) -> Cost:
        program = self.program
        opcode, shape = program.opcodes[place], program.shapes[place]
        if opcode in FREE or opcode.endswith(_END):
            return Cost()
        if shape is UNKNOWN or -1 in program.operands[place]:
            return UNTOLD
        if place in self.products:
            return Cost(self.products[place], 0, self._touched(place))
        special = _SPECIAL.get(opcode)
        if special is not None:
            return special(self, place)
        elements = shape.elements
        flops, transcendentals = elements * (opcode in ELEMENTWISE), elements * (opcode in TRANSCENDENTAL)
        return Cost(flops, transcendentals, self._touched(place))

    def _touched(self, place: int) -> int:
        """Return the bytes of the operands and the result."""
        operands = self.program.operands[place]
        return self.program.shapes[place].bytes + sum(
            self.program.operand(place, n).bytes for n in range(len(operands))
        )

    def _called(self, place: int) -> list[Cost]:
        """Return the costs of the computations that an instruction calls."""
        return [self.of_computation.get(number, UNTOLD) for number in self.program.called[place]]

    def call(self, place: int) -> Cost:
        called = self._called(place)
        return together(called) if called else UNTOLD

    def loop(self, place: int) -> Cost:
        trips = self.program.trips.get(place)
        return UNTOLD if trips is None else self.call(place).times(trips)

    def condition(self, place: int) -> Cost:
        called = self._called(place)
        return _joined(called, max) if called else UNTOLD

    def _applied(self, place: int, number: int) -> Cost:
        """Return the cost of a computation that is applied so often, and of the bytes that the instruction touches."""
        once = self.call(place).times(number)
        return Cost(once.flops, once.transcendentals, self._touched(place))

    def map(self, place: int) -> Cost:
        return self._applied(place, self.program.shapes[place].elements)

    def reduce(self, place: int) -> Cost:
        result = self.program.shapes[place].leaves
        given = self.program.operand(place, 0).elements
        return self._applied(place, max(given - result[0].elements, 0) if result else given)

    def reduce_window(self, place: int) -> Cost:
        result = self.program.shapes[place].leaves
        window = hlo_products.window(self.program, place)
        elements = result[0].elements if result else 0
        size = prod(dimension.size for dimension in window)
        spread = _prefix(self.program.shapes[place], window)
        if spread is not None:
            return self._applied(place, elements // spread + spread - 1 if spread else 0)
        return self._applied(place, max(size - 1, 0) * elements)

    def select_and_scatter(self, place: int) -> Cost:
        called = self._called(place)
        if len(called) != 2:
            return UNTOLD
        source = self.program.operand(place, 1).elements
        size = prod(dimension.size for dimension in hlo_products.window(self.program, place))
        once = together([called[0].times(source * max(size - 1, 0)), called[1].times(source)])
        return Cost(once.flops, once.transcendentals, self._touched(place))

    def scatter(self, place: int) -> Cost:
        inputs = len(self.program.operands[place]) // 2
        updates = [self.program.operand(place, number) for number in range(inputs + 1, 2 * inputs + 1)]
        once = self.call(place).times(updates[0].elements if updates else 0)
        indices = self.program.operand(place, inputs).bytes
        return Cost(once.flops, once.transcendentals, 3 * sum(update.bytes for update in updates) + indices)

    def gather(self, place: int) -> Cost:
        return Cost(bytes=2 * self.program.shapes[place].bytes + self.program.operand(place, 1).bytes)

    def slice(self, place: int) -> Cost:
        return Cost(bytes=2 * self.program.shapes[place].bytes)

    def dynamic_slice(self, place: int) -> Cost:
        return Cost(bytes=2 * self.program.shapes[place].bytes + self.program.operand(place, 1).bytes)

    def dynamic_update_slice(self, place: int) -> Cost:
        return Cost(bytes=2 * self.program.operand(place, 1).bytes + self.program.operand(place, 2).bytes)

    def tuple(self, place: int) -> Cost:
        return Cost(bytes=_POINTER * len(self.program.operands[place]))

    def sort(self, place: int) -> Cost:
        elements = self.program.operand(place, 0).elements
        return Cost(elements * max(elements - 1, 0).bit_length(), 0, self._touched(place))

    def all_reduce(self, place: int) -> Cost:
        """One operation an element, as if two took part: who takes part is not the program's to say."""
        elements = self.program.shapes[place].elements
        started = self.program.opcodes[place] == "all-reduce-start"
        given = sum(self.program.operand(place, n).elements for n in range(len(self.program.operands[place])))
        return Cost(given if started else elements, 0, self._touched(place))

    def rng_bits(self, place: int) -> Cost:
        return Cost(0, self.program.shapes[place].elements, self._touched(place))

    def triangular_solve(self, place: int) -> Cost:
        first, second = self.program.operand(place, 0), self.program.operand(place, 1)
        side = first.dims[-1] if first.dims else 0
        moved = self.program.shapes[place].bytes + first.bytes // 2 + second.bytes
        return Cost(2 * side * second.elements, 0, moved)

    def cholesky(self, place: int) -> Cost:
        given = self.program.operand(place, 0)
        return Cost((given.dims[-1] if given.dims else 0) * given.elements // 3, 0, given.bytes)

    def untold(self, place: int) -> Cost:
        """Code that is not the compiler's: what it does is not said, what goes in and out is."""
        return Cost(None, None, self._touched(place))

    def fusion(self, place: int) -> Cost:
        """What it contains is computed; what goes in and out is read and written, nothing in between."""
        program = self.program
        inside = self.call(place)
        number = program.called[place][0] if program.called[place] else -1
        if number not in self.of_computation:
            return UNTOLD
        members = program.members[number]
        constants = [program.shapes[m] for m in members if program.opcodes[m] == "constant"]
        moved = sum(shape.bytes for shape in constants if shape.elements > _IMMEDIATE)
        moved += sum(self._read(number, m) for m in members if program.opcodes[m] == "parameter")
        return Cost(inside.flops, inside.transcendentals, moved + self._written(place))

    def _written(self, place: int) -> int:
        """Return the bytes that a fusion writes: of a value that is updated in place, the part that changes."""
        program, root = self.program, self.program.root_of(place)
        shape = program.shapes[place]
        if root < 0:
            return shape.bytes
        made = program.operands[root] if program.opcodes[root] == "tuple" else [root]
        parts = shape.parts if shape.dtype == "tuple" else (shape,)
        if len(made) != len(parts):
            return shape.bytes
        return sum(
            program.operand(by, 1).bytes if by >= 0 and program.opcodes[by] == "dynamic-update-slice" else part.bytes
            for by, part in zip(made, parts, strict=True)
        )

    def _read(self, number: int, parameter: int) -> int:
        """Return the bytes of a parameter that the instructions of a fusion read."""
        program, users = self.program, self._users(number)
        if program.shapes[parameter].dtype == "tuple":
            taken = [user for user in users.get(parameter, []) if program.opcodes[user] == "get-tuple-element"]
            return sum(self._read(number, user) for user in taken if user != parameter)
        whole = program.shapes[parameter].bytes
        total, once = 0, False
        for user in users.get(parameter, []):
            read = self._read_by(number, user, parameter)
            if read is None:
                total, once = total + (0 if once else whole), True
            else:
                total += read
        return total

    def _read_by(self, number: int, user: int, parameter: int) -> int | None:
        """Return the bytes of a parameter that one instruction reads by itself; None: all, shared with others."""
        program = self.program
        opcode, operands = program.opcodes[user], program.operands[user]
        if opcode == "fusion" and program.called[user] and 0 <= program.called[user][0] < number:
            inner = program.called[user][0]
            given = [m for m in program.members[inner] if program.opcodes[m] == "parameter"]
            order = hlo_products.parameter_numbers(program, given)
            taken = [m for m, which in zip(given, order, strict=True) if which < len(operands)]
            return sum(self._read(inner, m) for m in taken if operands[order[given.index(m)]] == parameter)
        if opcode == "slice" or (opcode == "dynamic-slice" and operands[0] == parameter):
            return program.shapes[user].bytes
        if opcode == "dynamic-update-slice" and operands[0] == parameter:
            return 0
        return program.shapes[parameter].bytes if opcode in ("broadcast", "reshape") else None

    def _users(self, number: int) -> dict[int, list[int]]:
        """Return the instructions of a computation that take each of its instructions, each once."""
        if number not in self.users:
            users: dict[int, list[int]] = {}
            for place in self.program.members[number]:
                for operand in dict.fromkeys(self.program.operands[place]):
                    users.setdefault(operand, []).append(place)
            self.users[number] = users
        return self.users[number]


def _prefix(shape: Shape, window: list[hlo_products.Dimension]) -> int | None:
    """Return the size of the dimension whose sum over everything stands in every element; None where none does.

    A window that reaches over the whole dimension from each of its elements sums once and spreads the sum.
    """
    wide = [number for number, dimension in enumerate(window) if dimension.size != 1]
    padded = [number for number, dimension in enumerate(window) if dimension.low or dimension.high]
    if len(wide) != 1 or len(padded) != 1 or shape.dtype == "tuple" or wide[0] >= len(shape.dims):
        return None
    one, size = window[wide[0]], shape.dims[wide[0]]
    reaches = one.low and one.low == one.high and one.size == 2 * one.low + 1 and one.low == size - 1
    return size if reaches else None


_SPECIAL: dict[str, Callable[[_Counted, int], Cost]] = {
    "fusion": _Counted.fusion,
    "call": _Counted.call,
    "async-start": _Counted.call,
    "while": _Counted.loop,
    "conditional": _Counted.condition,
    "map": _Counted.map,
    "reduce": _Counted.reduce,
    "reduce-window": _Counted.reduce_window,
    "select-and-scatter": _Counted.select_and_scatter,
    "scatter": _Counted.scatter,
    "gather": _Counted.gather,
    "slice": _Counted.slice,
    "dynamic-slice": _Counted.dynamic_slice,
    "dynamic-update-slice": _Counted.dynamic_update_slice,
    "tuple": _Counted.tuple,
    "sort": _Counted.sort,
    "all-reduce": _Counted.all_reduce,
    "all-reduce-start": _Counted.all_reduce,
    "rng-bit-generator": _Counted.rng_bits,
    "triangular-solve": _Counted.triangular_solve,
    "cholesky": _Counted.cholesky,
    "custom-call": _Counted.untold,
    "ragged-dot": _Counted.untold,
}
