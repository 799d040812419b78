"""What must be as before after a recording of MindSpore."""

from __future__ import annotations

import ctypes
import locale
import os
import re
import signal
from collections.abc import Iterator

import mindspore
import pytest
from mindspore import _c_expression

from stepscope.collect.surgery.mindspore_runtime import RuntimeFlags, ios_of_cout
from tests.frameworks.left_behind import attribute, nothing_but, open_files, threads
from tests.frameworks.mindspore.programs import HOOKED

#: Logs of MindSpore's own profiler, which it closes when it likes.
MINDSPORES_LOGS = re.compile(r"_ascend_ms|/logs/profiler_\d+_\d+\.log$")


def cout_state() -> tuple[int, int]:
    """Return ``std::cout.rdstate()`` and ``std::cout.exceptions()``."""
    library = ctypes.CDLL("libstdc++.so.6")
    address = ctypes.c_void_p(ios_of_cout(library))
    get = (library[f"_ZNKSt9basic_iosIcSt11char_traitsIcEE{name}Ev"] for name in ("7rdstate", "10exceptions"))
    state, exceptions = (function(address) for function in get)
    return state, exceptions


def _state() -> dict[str, object]:
    return {
        "threads": threads(),
        "files": {path for path in open_files() if not MINDSPORES_LOGS.search(str(path))},
        "the runtime profiler records": RuntimeFlags().enabled,
        "std::cout": cout_state(),
        "environment": {name: value for name, value in os.environ.items() if name.startswith("MS_")},
        "signals": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "locale": locale.setlocale(locale.LC_ALL),
        "directory": os.getcwd(),  # noqa: PTH109 - as a text
        "saved graphs": mindspore.context._context().get_param(_c_expression.ms_ctx_param.save_graphs_path),
        **{f"{module}.{place}": attribute(module, place) for module, place in HOOKED},
    }


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Fail where a test leaves a thread, a file, a hook or a switch of MindSpore's."""
    with nothing_but(_state):
        yield
