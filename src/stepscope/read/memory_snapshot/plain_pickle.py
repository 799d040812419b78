"""Reads a pickle of plain values without the module ``pickle``: no import, no call, no object of another class.

Only the instructions in :data:`ALLOWED` are carried out: they make dictionaries with texts as keys, lists, tuples,
texts, bytes, numbers, truths and None. Any other is refused by name. What an instruction claims about sizes is checked
against the bytes that are there before anything is made. The instructions are those of the standard library's
``pickletools``, protocols 0 to 5.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from struct import unpack_from
from typing import Any, NoReturn

from stepscope.errors import DamagedTraceError, NotATraceError

_OPCODE = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}
_NAME = {code: name for name, code in _OPCODE.items()}
#: The instructions that are carried out.
ALLOWED = (
    "PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET",
    "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8",
    "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST", "APPEND", "APPENDS",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
)  # fmt: skip
#: A container takes so many bytes of a file at least: itself, its content, and how both are put together. One that
#: holds more containers is made to fill the memory of whoever reads it.
_BYTES_PER_CONTAINER = 4
#: Containers that need no such share.
_FREE = 1000
#: Longest name of a function in a message.
_LONGEST = 80


class PlainPickle:
    """The machine: a stack, marks on it, and a memo.

    Args:
        content: The pickle.
        name: What to call it in messages.
    """

    def __init__(self, content: bytes, name: str) -> None:
        self._content = content
        self._name = name
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._containers = _FREE + len(content) // _BYTES_PER_CONTAINER
        self._do: list[Callable[[int], int]] = [self._refused] * 256
        for name_, method in self._methods().items():
            self._do[_OPCODE[name_]] = method

    def value(self) -> Any:  # noqa: ANN401 - whatever the file holds
        """Return the value that the pickle holds.

        Raises:
            NotATraceError: It asks for more than plain values.
            DamagedTraceError: It is cut or damaged.
        """
        content, do, stop, at = self._content, self._do, _OPCODE["STOP"], 0
        try:
            while at < len(content):
                if content[at] == stop:
                    return self._stack.pop()
                at = do[content[at]](at + 1)
        except EOFError:
            pass
        except (LookupError, ValueError, TypeError, OverflowError):
            self._damaged(f"is damaged at byte {at:,}")
        self._damaged(f"ends in the middle, after {len(content):,} bytes")

    def _methods(self) -> dict[str, Callable[[int], int]]:
        constants = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
        numbers = {"BININT1": ("<B", 1), "BININT2": ("<H", 2), "BININT": ("<i", 4), "BINFLOAT": (">d", 8)}
        gets = {"BINGET": ("<B", 1), "LONG_BINGET": ("<I", 4)}
        puts = {"BINPUT": ("<B", 1), "LONG_BINPUT": ("<I", 4)}
        sized: dict[str, tuple[str, int, Callable[[bytes], Any]]] = {
            "SHORT_BINUNICODE": ("<B", 1, _text), "BINUNICODE": ("<I", 4, _text), "BINUNICODE8": ("<Q", 8, _text),
            "SHORT_BINBYTES": ("<B", 1, bytes), "BINBYTES": ("<I", 4, bytes), "BINBYTES8": ("<Q", 8, bytes),
            "LONG1": ("<B", 1, _integer), "LONG4": ("<i", 4, _integer),
        }  # fmt: skip
        lines: dict[str, Callable[[bytes], Any]] = {
            "INT": _truth_or_number, "LONG": lambda text: int(text.rstrip(b"L")), "FLOAT": float,
            "UNICODE": lambda text: text.decode("raw-unicode-escape"),
        }  # fmt: skip
        return {
            "PROTO": lambda at: at + 1, "FRAME": lambda at: at + 8, "MARK": self._mark, "MEMOIZE": self._memoize,
            "EMPTY_DICT": self._empty_dict, "EMPTY_LIST": self._empty_list, "DICT": self._dict, "LIST": self._list,
            "SETITEM": self._set_item, "SETITEMS": self._set_items, "APPEND": self._append, "APPENDS": self._appends,
            "TUPLE": self._tuple, "PUT": self._line(lambda text: self._put(int(text))),
            "GET": self._line(lambda text: self._get(int(text))),
            **{name: self._constant(value) for name, value in constants.items()},
            **{name: self._number(*how) for name, how in numbers.items()},
            **{name: self._indexed(*how, self._get) for name, how in gets.items()},
            **{name: self._indexed(*how, self._put) for name, how in puts.items()},
            **{name: self._sized(*how) for name, how in sized.items()},
            **{name: self._line(self._pushing(make)) for name, make in lines.items()},
            **{f"TUPLE{length}": self._short_tuple(length) for length in (1, 2, 3)},
        }  # fmt: skip

    def _damaged(self, what: str) -> NoReturn:
        message = f"{self._name} {what}."
        raise DamagedTraceError(message, "Copy the file again, or take the snapshot again.")

    def _refused(self, at: int) -> int:
        code = self._content[at - 1]
        if code not in _NAME:
            self._damaged(f"is damaged at byte {at - 1:,}")
        what = _NAME[code]
        named = b""
        if what in ("GLOBAL", "INST"):
            named = b".".join(self._content[at : at + 2 * _LONGEST].split(b"\n")[:2])
        elif what == "STACK_GLOBAL":
            named = ".".join(str(part)[:_LONGEST] for part in self._stack[-2:]).encode(errors="replace")
        shown = "".join(letter for letter in named.decode(errors="replace")[:_LONGEST] if letter.isprintable())
        message = f"{self._name} is refused: it asks for more than plain values ({what}{' ' * bool(shown)}{shown})."
        raise NotATraceError(message, "stepscope runs no code of a pickle. Name what _dump_snapshot wrote.")

    def _mark(self, at: int) -> int:
        self._marks.append(len(self._stack))
        return at

    def _above_mark(self) -> list[Any]:
        begin = self._marks.pop()
        items = self._stack[begin:]
        del self._stack[begin:]
        return items

    def _constant(self, value: object) -> Callable[[int], int]:
        def push(at: int) -> int:
            self._stack.append(value)
            return at

        return push

    def _number(self, form: str, size: int) -> Callable[[int], int]:
        content, push = self._content, self._stack.append

        def number(at: int) -> int:
            if at + size > len(content):
                raise EOFError
            push(unpack_from(form, content, at)[0])
            return at + size

        return number

    def _indexed(self, form: str, size: int, use: Callable[[int], None]) -> Callable[[int], int]:
        content = self._content

        def indexed(at: int) -> int:
            if at + size > len(content):
                raise EOFError
            use(unpack_from(form, content, at)[0])
            return at + size

        return indexed

    def _sized(self, form: str, size: int, make: Callable[[bytes], Any]) -> Callable[[int], int]:
        content, push = self._content, self._stack.append

        def sized(at: int) -> int:
            if at + size > len(content):
                raise EOFError
            length: int = unpack_from(form, content, at)[0]
            end = at + size + length
            if length < 0:
                raise ValueError
            if end > len(content):
                raise EOFError
            push(make(content[at + size : end]))
            return end

        return sized

    def _line(self, use: Callable[[bytes], None]) -> Callable[[int], int]:
        """Return what carries out an instruction whose argument ends with a line break."""

        def line(at: int) -> int:
            end = self._content.find(b"\n", at)
            if end < 0:
                raise EOFError
            use(self._content[at:end])
            return end + 1

        return line

    def _pushing(self, make: Callable[[bytes], Any]) -> Callable[[bytes], None]:
        return lambda text: self._stack.append(make(text))

    def _get(self, index: int) -> None:
        self._stack.append(self._memo[index])

    def _put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _memoize(self, at: int) -> int:
        self._memo[len(self._memo)] = self._stack[-1]
        return at

    def _container(self, made: Any) -> None:  # noqa: ANN401
        self._containers -= 1
        if self._containers < 0:
            self._damaged("holds more containers than a snapshot of its size")
        self._stack.append(made)

    def _empty_dict(self, at: int) -> int:
        self._container({})
        return at

    def _empty_list(self, at: int) -> int:
        self._container([])
        return at

    def _list(self, at: int) -> int:
        self._container(self._above_mark())
        return at

    def _dict(self, at: int) -> int:
        items = self._above_mark()
        self._container(_with({}, items))
        return at

    def _tuple(self, at: int) -> int:
        self._container(tuple(self._above_mark()))
        return at

    def _short_tuple(self, length: int) -> Callable[[int], int]:
        def make(at: int) -> int:
            if len(self._stack) < length:
                raise IndexError
            items = tuple(self._stack[-length:])
            del self._stack[-length:]
            self._container(items)
            return at

        return make

    def _set_item(self, at: int) -> int:
        value, key = self._stack.pop(), self._stack.pop()
        _with(self._stack[-1], [key, value])
        return at

    def _set_items(self, at: int) -> int:
        items = self._above_mark()
        _with(self._stack[-1], items)
        return at

    def _append(self, at: int) -> int:
        item = self._stack.pop()
        _listed(self._stack[-1]).append(item)
        return at

    def _appends(self, at: int) -> int:
        items = self._above_mark()
        _listed(self._stack[-1]).extend(items)
        return at


def _listed(target: Any) -> list[Any]:  # noqa: ANN401
    if type(target) is not list:
        raise TypeError
    return target


def _with(target: Any, items: list[Any]) -> dict[str, Any]:  # noqa: ANN401
    """Put keys and values into a dictionary. Texts are the only keys: numbers could be chosen to collide."""
    keys = items[::2]
    if type(target) is not dict or len(items) % 2 or any(type(key) is not str for key in keys):
        raise TypeError
    target.update(zip(keys, items[1::2], strict=True))
    return target


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _integer(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _truth_or_number(text: bytes) -> int:
    """Return an integer, or one of the truths, which protocol 0 writes as numbers of two digits."""
    return text == b"01" if text in (b"00", b"01") else int(text)
