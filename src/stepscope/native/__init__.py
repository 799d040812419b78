"""C functions for the hot loops, called through ctypes; each has a Python fallback with equal results.

Only ``cupti.c``, ``sampler.c`` and ``termination.c`` have no fallback: they must not wait for the GIL; that of
``own_thread.c`` is a thread of Python's.

The library is built with the package if a C compiler exists. ``STEPSCOPE_NATIVE=0`` switches it off.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

_SWITCH = "STEPSCOPE_NATIVE"


def available() -> str | None:
    """Return why the library cannot be used, or None if it can."""
    if os.environ.get(_SWITCH) == "0":
        return f"switched off by {_SWITCH}=0"
    return _load()[1]


def loaded() -> ctypes.CDLL | None:
    """Return the library; None if :func:`available` returns a reason."""
    return None if available() else _load()[0]


@cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    found = sorted(Path(__file__).parent.glob("_stepscope*.so")) + sorted(Path(__file__).parent.glob("_stepscope*.pyd"))
    if not found:
        return None, "not built: there was no C compiler when stepscope was installed"
    try:
        library = ctypes.CDLL(str(found[0]))
        _declare(library)
    except (OSError, AttributeError) as error:
        return None, f"{found[0].name} cannot be loaded: {error}"
    return library, None


def _declare(library: ctypes.CDLL) -> None:
    """Declare the types of every function; AttributeError if the library has another version and lacks one."""
    pointer, text, int32, int64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64
    functions: dict[str, tuple[object, list[object]]] = {
        "ss_new": (pointer, []),
        "ss_free": (None, [pointer]),
        "ss_add_category": (ctypes.c_int, [pointer, text, int32, int32]),
        "ss_add_key": (ctypes.c_int, [pointer, int32, text, int32, int32, int32, int32]),
        "ss_keep_whole": (ctypes.c_int, [pointer, int32, int32]),
        "ss_special": (ctypes.c_int, [pointer, int32, int32, int32, int32, int32]),
        "ss_quoted": (ctypes.c_int, [pointer, int32]),
        "ss_tokenize": (int64, [pointer, pointer, int64, int32]),
        "ss_position": (int64, [pointer]),
        "ss_rows": (int64, [pointer]),
        "ss_base": (pointer, [pointer, int32]),
        "ss_class_rows": (int64, [pointer, int32]),
        "ss_class_column": (pointer, [pointer, int32, int32]),
        "ss_texts": (int64, [pointer]),
        "ss_arena": (pointer, [pointer]),
        "ss_ends": (pointer, [pointer]),
        "ss_nest": (ctypes.c_int, [int64, *[pointer] * 7]),
        "ss_nearest": (None, [int64, *[pointer] * 3]),
        "ss_inherit": (None, [int64, *[pointer] * 3]),
        "ss_xplane_line": (int64, [pointer, int64, int64, int64, pointer]),
        "ss_xplane_events": (None, [pointer, int64, int64, pointer]),
        "ss_recorder_words": (None, [pointer, int64, pointer, pointer]),
        "ss_recorder_times": (None, [int64, pointer, int64, pointer, pointer]),
        "ss_cupti_requested": (None, [pointer] * 3),
        "ss_cupti_completed": (None, [pointer, ctypes.c_uint32, pointer, ctypes.c_size_t, ctypes.c_size_t]),
        "ss_cupti_open": (None, [ctypes.c_uint64]),
        "ss_cupti_close": (None, []),
        "ss_cupti_take": (pointer, [pointer]),
        "ss_cupti_give_back": (None, [pointer]),
        "ss_cupti_lent": (int64, []),
        "ss_cupti_refused": (ctypes.c_uint64, []),
        "ss_sampler_open": (ctypes.c_int, [pointer, ctypes.c_uint64, ctypes.c_int]),
        "ss_sampler_try": (None, []),
        "ss_sampler_start": (ctypes.c_int, [ctypes.c_double, ctypes.c_uint64, ctypes.c_double]),
        "ss_sampler_stop": (None, []),
        "ss_sampler_close": (None, []),
        "ss_sampler_follow": (ctypes.c_uint32, [ctypes.c_int, ctypes.c_uint64]),
        "ss_sampler_leave": (None, [ctypes.c_uint32]),
        "ss_sampler_take": (int64, [pointer, int64]),
        "ss_sampler_stacks": (int64, [pointer, int64, ctypes.c_uint32, pointer]),
        "ss_sampler_names": (int64, [pointer, int64, ctypes.c_uint32, pointer]),
        "ss_sampler_figures": (None, [pointer]),
        "ss_sampler_threads": (int64, [pointer, int64]),
        "ss_termination_watch": (ctypes.c_int, [ctypes.c_int, ctypes.c_int]),
        "ss_termination_pass": (ctypes.c_int, [ctypes.c_int]),
        "ss_termination_waiting": (ctypes.c_int, []),
        "ss_termination_end": (None, []),
        "ss_termination_abort": (None, [ctypes.c_int, text, ctypes.c_int]),
        "ss_thread_start": (pointer, [pointer, text, ctypes.c_double]),
        "ss_thread_stop": (None, [pointer, ctypes.c_int]),
        "ss_thread_join": (ctypes.c_int, [pointer, ctypes.c_double]),
        "ss_cupti_names": (int64, [pointer, ctypes.c_uint64, pointer, pointer, pointer, ctypes.c_uint64]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
