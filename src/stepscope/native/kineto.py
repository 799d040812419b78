"""The C tokenizer of Kineto's JSON: reads events into columns."""

from __future__ import annotations

import ctypes
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope import native
from stepscope.errors import StepscopeError

Column = npt.NDArray[Any]

_TYPES = {"integer": 0, "real": 1, "text": 2, "unsigned": 3}
DTYPES: dict[str, type[np.generic]] = {
    "integer": np.int64,
    "real": np.float64,
    "text": np.int32,
    "unsigned": np.int64,
}
#: Columns of every event, in the order of ``ss_base_column``. ``ts`` and ``dur`` are ns relative to the file's base,
#: texts codes of the pool (−1: none).
BASE: dict[str, type[np.generic]] = {
    "phase": np.uint8,
    "class": np.uint8,
    "category": np.int32,
    "name": np.int32,
    "process": np.int32,
    "thread": np.int32,
    "id": np.int64,
    "ts": np.int64,
    "dur": np.int64,
}
_REASONS = {
    1: "the text ends inside an event",
    2: "not valid JSON",
    3: "not as Kineto writes it",
    4: "nested too deeply",
    5: "out of memory",
    6: "the list of events ended",
}
_quoted: Callable[[str], bytes] = cache(lambda text: json.dumps(text).encode())


class NotTokenized(Exception):
    """The tokenizer rejects a chunk.

    Args:
        code: Number of the reason, see ``ss_error`` in ``kineto.h``.
        position: Offset in the chunk, in bytes.
    """

    def __init__(self, code: int, position: int) -> None:
        super().__init__(f"{_REASONS.get(code, code)} at byte {position}")
        self.code = code
        self.position = position


class ArgumentKey(NamedTuple):
    """An argument: its spelling, the number and type of its column, and the class of events that has the column."""

    spelling: str
    column: int
    type: str
    group: int


@dataclass(frozen=True)
class Description:
    """What the tokenizer reads from the events.

    Attributes:
        categories: Category → class of events.
        keys: Class → its arguments.
        columns: Class → names and types of its columns, in the order of their numbers.
        whole: Class → number of the column for the text of all its arguments.
        none: Class of events without arguments.
        memory: Class of the marks that report memory.
        other: Class of complete events of unknown category, counters and metadata.
        optional: Class of events that have a certain argument, and the number of that argument's column.
        samples: Class of counters and metadata if times may be texts and identifiers are codes of texts, as Ascend's
            tools write them; None for Kineto's form.
    """

    categories: Mapping[str, int]
    keys: Mapping[int, Sequence[ArgumentKey]]
    columns: Mapping[int, Mapping[str, str]]
    whole: Mapping[int, int]
    none: int
    memory: int
    other: int
    optional: tuple[int, int]
    samples: int | None = None


class _TokenizerMemory:
    """A tokenizer's memory as a numpy array; it keeps the tokenizer alive as long as the array."""

    def __init__(self, owner: Tokenizer, address: int, count: int, dtype: type[np.generic]) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (count,),
            "typestr": np.dtype(dtype).str,
            "version": 3,
        }


class Tokenizer:
    """Reads chunks of events into columns; one thread at a time.

    Raises:
        StepscopeError: The library is not available, or memory is exhausted.
    """

    def __init__(self, description: Description) -> None:
        library = native.loaded()
        if library is None:
            message = f"The native library is not available: {native.available()}."
            raise StepscopeError(message)
        self._library = library
        self._description = description
        self._handle = library.ss_new()
        if not self._handle or self._describe():
            message = "The native tokenizer could not be created."
            raise StepscopeError(message, "Set STEPSCOPE_NATIVE=0 to use the fallback in Python.")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.ss_free(self._handle)
            self._handle = None

    def _describe(self) -> bool:
        """Pass the description to the library; return whether that failed."""
        library, handle, given = self._library, self._handle, self._description
        failed = library.ss_special(handle, given.none, given.memory, given.other, given.optional[1], given.optional[0])
        if given.samples is not None:
            failed |= library.ss_quoted(handle, given.samples)
        for category, number in given.categories.items():
            text = category.encode()
            failed |= library.ss_add_category(handle, text, len(text), number)
        for number, keys in given.keys.items():
            for key in keys:
                text = _quoted(key.spelling)
                failed |= library.ss_add_key(handle, number, text, len(text), key.column, _TYPES[key.type], key.group)
        for number, column in given.whole.items():
            failed |= library.ss_keep_whole(handle, number, column)
        return bool(failed)

    def tokenize(self, chunk: bytes | memoryview, *, last: bool = False) -> int:
        """Append the events of a chunk.

        Args:
            chunk: Events separated by commas.
            last: Whether the chunk may contain the end of the list, and further text after it.

        Returns:
            Bytes read, including the end of the list.

        Raises:
            NotTokenized: The chunk does not have Kineto's form; none of its events is appended.
        """
        view = np.frombuffer(chunk, np.uint8)
        read = self._library.ss_tokenize(self._handle, view.ctypes.data, len(view), int(last))
        if read < 0:
            raise NotTokenized(-read, self._library.ss_position(self._handle))
        return int(read)

    @property
    def rows(self) -> int:
        """Number of events so far."""
        return int(self._library.ss_rows(self._handle))

    def class_rows(self, number: int) -> int:
        """Return the number of events of a class so far."""
        return int(self._library.ss_class_rows(self._handle, number))

    def base(self) -> dict[str, Column]:
        """Return the columns that every event has; they are views, valid until the next chunk."""
        return {
            name: self._array(self._library.ss_base(self._handle, index), self.rows, dtype)
            for index, (name, dtype) in enumerate(BASE.items())
        }

    def columns(self, number: int) -> dict[str, Column]:
        """Return the columns of a class, ``event`` first; they are views, valid until the next chunk."""
        count = self.class_rows(number)
        names = {"event": "integer", **self._description.columns[number]}
        return {
            name: self._array(self._library.ss_class_column(self._handle, number, index - 1), count, DTYPES[type_])
            for index, (name, type_) in enumerate(names.items())
        }

    def texts(self) -> list[bytes]:
        """Return the pool: code → JSON value as written."""
        count = int(self._library.ss_texts(self._handle))
        ends = [0, *self._array(self._library.ss_ends(self._handle), count, np.int64).tolist()]
        arena = ctypes.string_at(self._library.ss_arena(self._handle), ends[-1])
        return [arena[begin:end] for begin, end in itertools.pairwise(ends)]

    def _array(self, address: int | None, count: int, dtype: type[np.generic]) -> Column:
        if not count or not address:
            return np.empty(0, dtype)
        return np.asarray(_TokenizerMemory(self, address, count, dtype))
