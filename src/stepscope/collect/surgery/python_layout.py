"""Where CPython keeps the stacks of its threads: offsets by version, and the gate of what reads them.

The sampler of Python stacks (``native/sampler.c``) reads the interpreter's memory while other threads change it. It
writes nothing. CPython 3.13 and later state their own offsets (``_Py_DebugOffsets``); those of 3.11 and 3.12, which are
constant within a minor version, stand in :data:`BY_VERSION`. On any other interpreter :func:`refusal` says why not.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import sysconfig
from collections.abc import Callable, Mapping

#: The offsets that the sampler needs, in the order of ``enum ss_offset`` in ``native/sampler.h``.
NAMES = (
    "interpreters", "interp_next", "threads", "runtime_gil", "ceval_gil", "gil_size", "gil_holder", "gil_locked",
    "gc_collecting", "thread_next", "thread_interp", "thread_cframe", "cframe_frame", "thread_frame",
    "thread_tid", "thread_chunk", "thread_top", "frame_size", "frame_previous", "frame_code",
    "frame_instruction", "frame_owner", "code_size", "code_file", "code_qualname", "code_lines", "code_first",
    "code_instructions", "bytes_size", "bytes_data", "text_length", "text_state", "text_ascii", "text_compact",
)  # fmt: skip

#: Offsets that every version has, on 64 bits.
_COMMON = {
    "interp_next": 0, "gil_size": 208, "gil_holder": 8, "gil_locked": 16, "thread_next": 8, "thread_interp": 16,
    "frame_size": 80, "frame_instruction": 56, "code_file": 112, "code_qualname": 128, "code_lines": 136,
    "bytes_size": 16, "bytes_data": 32, "text_length": 16, "text_state": 32,
}  # fmt: skip
#: Made with ``offsetof`` over CPython's ``Include/internal``: ``pycore_{runtime,interp,frame,gil,code}.h``.
BY_VERSION: dict[tuple[int, int], Mapping[str, int]] = {
    (3, 11): {
        **_COMMON, "interpreters": 40, "threads": 16, "runtime_gil": 360, "gc_collecting": 848, "thread_cframe": 56,
        "cframe_frame": 8, "thread_tid": 160, "thread_chunk": 296, "thread_top": 304, "frame_previous": 48,
        "frame_code": 32, "frame_owner": 69, "code_size": 184, "code_first": 72, "code_instructions": 184,
        "text_ascii": 48, "text_compact": 72,
    },
    (3, 12): {
        **_COMMON, "interpreters": 40, "threads": 72, "ceval_gil": 384, "gc_collecting": 312, "thread_cframe": 56,
        "cframe_frame": 0, "thread_tid": 144, "thread_chunk": 232, "thread_top": 240, "frame_previous": 8,
        "frame_code": 0, "frame_owner": 70, "code_size": 192, "code_first": 68, "code_instructions": 192,
        "text_ascii": 40, "text_compact": 56,
    },
}  # fmt: skip
#: Versions that state their offsets, in a layout of each version's own.
_STATED = range(13, 16)
_COOKIE = b"xdebugpy"
#: The words of ``_Py_DebugOffsets`` behind cookie, version and mark of free threading: structure, and its fields.
#: ``14:name`` is there from 3.14 on. From CPython's ``Include/internal/pycore_debug_offsets.h``.
_WORDS = """
runtime: size finalizing interpreters_head
interp: size id next threads_head 14:threads_main gc imports_modules sysdict builtins ceval_gil gil gil_enabled \
gil_locked gil_holder 14:code_generation 14:tlbc_generation
thread: size prev next interp current_frame 15:base_frame 15:last_profiled 15:last_profiled_seq thread_id \
native_thread_id datastack_chunk status 15:holds_gil 15:gil_requested 15:current_exception 15:exc_state
error: 15:exc_value
frame: size previous executable instr_ptr localsplus owner 14:stackpointer 14:tlbc_index
code: size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds code 14:tlbc
object: size ob_type
type: size tp_name tp_repr tp_flags 15:basicsize 15:dictoffset
heap_type: 15:size 15:cached_keys
tuple: size ob_item ob_size
list: size ob_item ob_size
set: 14:size 14:used 14:table 14:mask
dict: size ma_keys ma_values
float: size ob_fval
long: size lv_tag ob_digit
bytes: size ob_size ob_sval
text: size state length ascii 15:compact
gc: size collecting
"""
#: Most bytes that the sampler copies of a structure; it refuses a layout that needs more.
_MOST = {"thread_top": 1000, "thread_tid": 1000, "frame_size": 128, "code_size": 256, "text_compact": 128}


def refusal() -> str | None:
    """Return why the stacks of this interpreter cannot be read, or None."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"Python stacks are sampled on Linux on x86-64 only, not on {sys.platform} on {platform.machine()}"
    if sys.implementation.name != "cpython":
        return f"Python stacks are sampled in CPython only, not in {sys.implementation.name}"
    version = "{}.{}".format(*sys.version_info)
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"Python stacks are not sampled in the free-threaded build of CPython {version}"
    if platform.libc_ver()[0] != "glibc":
        return "Python stacks are sampled with glibc only; that they are with this C library was not verified"
    if offsets() is None:
        return f"where CPython {version} keeps its stacks is not known to this stepscope (known: 3.11 to 3.15)"
    return None


def runtime() -> int:
    """Return the address of the interpreter's ``_PyRuntime`` in this process."""
    return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))


def offsets() -> Mapping[str, int] | None:
    """Return the offsets of this interpreter by name, None if they are not known; one that it lacks is 0."""
    known = BY_VERSION.get(sys.version_info[:2])
    if known is None and sys.version_info[0] == 3 and sys.version_info[1] in _STATED:
        known = _stated()
    if known is None or any(known.get(name, 0) > most for name, most in _MOST.items()):
        return None
    return {name: known.get(name, 0) for name in NAMES}


def _stated() -> Mapping[str, int] | None:
    """Return the offsets that the interpreter states itself; None if what it states is not of this very version."""
    at = runtime()
    if ctypes.string_at(at, len(_COOKIE)) != _COOKIE:
        return None
    words = iter((ctypes.c_uint64 * 200).from_address(at + len(_COOKIE)))
    if next(words) != sys.hexversion or next(words):
        return None
    said: dict[str, int] = {}
    for line in _WORDS.split("\n")[1:-1]:
        structure, fields = line.split(": ")
        for field in fields.split():
            since, _, name = field.rpartition(":")
            if not since or sys.version_info[1] >= int(since):
                said[f"{structure}.{name}"] = next(words)
    gil = said["interp.gil"]
    return {
        **_COMMON,
        "interpreters": said["runtime.interpreters_head"],
        "interp_next": said["interp.next"],
        "threads": said["interp.threads_head"],
        "ceval_gil": said["interp.ceval_gil"],
        "gil_holder": said["interp.gil_holder"] - gil,
        "gil_locked": said["interp.gil_locked"] - gil,
        "gc_collecting": said["interp.gc"] + said["gc.collecting"],
        "thread_next": said["thread.next"],
        "thread_interp": said["thread.interp"],
        "thread_frame": said["thread.current_frame"],
        "thread_tid": said["thread.native_thread_id"],
        "thread_chunk": said["thread.datastack_chunk"],
        "thread_top": said["thread.datastack_chunk"] + 8,
        "frame_size": said["frame.size"],
        "frame_previous": said["frame.previous"],
        "frame_code": said["frame.executable"],
        "frame_instruction": said["frame.instr_ptr"],
        "frame_owner": said["frame.owner"],
        "code_size": said["code.code"],
        "code_file": said["code.filename"],
        "code_qualname": said["code.qualname"],
        "code_lines": said["code.linetable"],
        "code_first": said["code.firstlineno"],
        "code_instructions": said["code.code"],
        "bytes_size": said["bytes.ob_size"],
        "bytes_data": said["bytes.ob_sval"],
        "text_length": said["text.length"],
        "text_state": said["text.state"],
        "text_ascii": said["text.ascii"],
        "text_compact": said.get("text.compact", said["text.ascii"] + 16),
    }


def runtime_of(process: int) -> int | None:
    """Return the address of ``_PyRuntime`` in another process of this interpreter; None if it runs another, or is gone.

    A forked process has the same addresses; one that was spawned has the same file at another place.
    """
    here = runtime()
    mapped = _mapped("self", lambda begin, end, _file, _offset: begin <= here < end)
    if mapped is None:
        return None
    begin, file, offset = mapped
    there = _mapped(process, lambda _begin, _end, name, at: (name, at) == (file, offset))
    return None if there is None else there[0] + here - begin


def _mapped(process: int | str, wanted: Callable[[int, int, str, int], bool]) -> tuple[int, str, int] | None:
    """Return begin, file and offset of the first mapping of a process that is wanted."""
    try:
        with open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - read by line
            for line in maps:
                fields = line.split(maxsplit=5)
                begin, end = (int(word, 16) for word in fields[0].split("-"))
                name, offset = fields[5].strip() if len(fields) > 5 else "", int(fields[2], 16)
                if wanted(begin, end, name, offset):
                    return begin, name, offset
    except (OSError, ValueError):
        return None
    return None
