"""What ``paddle.jit.to_static`` turns into programs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.hooks.post_import import when_imported
from stepscope.collect.host.compilations import compiled, described, noted, placed

_WHOLE = "paddle.jit.dy2static.program_translator"
_PROGRAMS = "paddle.jit.dy2static.pir_partial_program"
_PARTS = "paddle.jit.sot.opcode_translator.executor.executor_cache"


class PaddleCompilations:
    """Notes a compilation whenever Paddle has made a program of a function, or of parts of it."""

    def __init__(self) -> None:
        self._hooks = MethodHooks()
        self._withdraw: list[Callable[[], None]] = []
        self._last = threading.local()

    def install(self) -> None:
        """Install the hooks."""
        for module, kind, method, around in (
            (_WHOLE, "ProgramCache", "_build_once", self._build),
            (_PROGRAMS, "PartialProgramLayer", "_create_program", self._complete),
            (_PARTS, "OpcodeExecutorCache", "translate", self._translate),
        ):
            self._withdraw.append(when_imported(module, partial(self._hook, module, kind, method, around)))

    def remove(self) -> None:
        """Remove the hooks."""
        while self._withdraw:
            self._withdraw.pop()()
        self._hooks.remove()

    def _hook(self, module: str, kind: str, method: str, around: Callable[..., Any]) -> None:
        self._hooks.around(getattr(sys.modules[module], kind, None), method, around)

    def _build(self, original: Callable[..., Any], cache: Any, key: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        begin = perf_counter_ns()
        result = original(cache, key, *args, **kwargs)
        function = getattr(getattr(key, "function_spec", None), "dygraph_function", None)
        given = getattr(key, "input_args_with_spec", None)
        if function is not None:
            arguments = described(list(given)) if isinstance(given, list | tuple) else None
            facts = compiled(f"compile {function.__name__}", placed(function), begin, arguments=arguments)
            self._last.built = function.__name__, facts
        return result

    def _complete(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - Paddle's
        """Append the backward to a program before its first run, on the thread that made it, and optimise both."""
        begin = perf_counter_ns()
        result = original(*args, **kwargs)
        built: tuple[str, Mapping[str, object]] | None = getattr(self._last, "built", None)
        if built is not None:
            noted(f"differentiate {built[0]}", built[1], begin, perf_counter_ns())
        return result

    def _translate(self, original: Callable[..., Any], cache: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        begin = perf_counter_ns()
        result = original(cache, frame, *args, **kwargs)
        code = frame.f_code
        given = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
        place = f"{code.co_qualname} ({Path(code.co_filename).name}:{code.co_firstlineno})"
        compiled(f"compile {code.co_name}", place, begin, arguments=described(given))
        return result
