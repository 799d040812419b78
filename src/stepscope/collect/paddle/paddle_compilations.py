"""What ``paddle.jit.to_static`` turns into programs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.hooks.post_import import when_imported
from stepscope.collect.host.compilations import compiled, described, placed

_WHOLE = "paddle.jit.dy2static.program_translator"
_PARTS = "paddle.jit.sot.opcode_translator.executor.executor_cache"


class PaddleCompilations:
    """Notes a compilation whenever Paddle has made a program of a function, or of parts of it."""

    def __init__(self) -> None:
        self._hooks = MethodHooks()
        self._withdraw: list[Callable[[], None]] = []

    def install(self) -> None:
        """Install the hooks."""
        for module, kind, method, around in (
            (_WHOLE, "ProgramCache", "_build_once", self._build),
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
            compiled(f"compile {function.__name__}", placed(function), begin, arguments=arguments)
        return result

    def _translate(self, original: Callable[..., Any], cache: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        begin = perf_counter_ns()
        result = original(cache, frame, *args, **kwargs)
        code = frame.f_code
        given = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
        place = f"{code.co_qualname} ({Path(code.co_filename).name}:{code.co_firstlineno})"
        compiled(f"compile {code.co_name}", place, begin, arguments=described(given))
        return result
