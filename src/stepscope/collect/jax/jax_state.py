"""The state of a JAX program: switches, caches of compiled programs, and how ``jax.jit`` is called."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.host.live_objects import generators, source_of
from stepscope.collect.host.program_state import ProgramState, flushes_denormals
from stepscope.collect.host.stack_samples import library_roots
from stepscope.collect.journal.values import plain

#: Fact → name in ``jax.config``.
_SWITCHES = {
    "enable_x64": "jax_enable_x64",
    "debug_nans": "jax_debug_nans",
    "debug_infs": "jax_debug_infs",
    "disable_jit": "jax_disable_jit",
    "check_tracer_leaks": "jax_check_tracer_leaks",
    "matmul_precision": "jax_default_matmul_precision",
    "platforms": "jax_platforms",
    "cpu_async_dispatch": "jax_cpu_enable_async_dispatch",
    "compilation_cache": "jax_compilation_cache_dir",
    "most_optimizations_off": "jax_disable_most_optimizations",
    "log_compiles": "jax_log_compiles",
    "transfer_guard": "jax_transfer_guard",
}
#: Fact → cache of C++ in JAX's module of jitted functions.
_CACHES = {"programs": "_cpp_pjit_cache_fun_only", "programs_with_options": "_cpp_pjit_cache_explicit_attributes"}
#: Arguments of ``jax.jit`` that are kept; different functions.
_GIVEN, _MOST = ("donate_argnums", "donate_argnames", "static_argnums", "static_argnames"), 64

#: Name, file and line of a function → how often the program has given it to ``jax.jit``, and the last arguments.
_jitted: Counter[tuple[Any, ...]] = Counter()
_given: dict[tuple[Any, ...], dict[str, Any]] = {}


class JaxUses:
    """Counts the program's calls of ``jax.jit``; JAX's own functions do not go through it."""

    def __init__(self) -> None:
        self._hooks = MethodHooks()

    def install(self) -> None:
        """Put the hook into JAX, which is imported."""
        self._hooks.around(sys.modules["jax"], "jit", _jit)

    def remove(self) -> None:
        """Remove it."""
        self._hooks.remove()


def _jit(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of jax.jit
    function = args[0] if args else kwargs.get("fun")
    if callable(function):
        key = tuple(source_of(function).values())
        if key in _jitted or len(_jitted) < _MOST:
            _jitted[key] += 1
            _given[key] = {name: plain(kwargs[name]) for name in _GIVEN if kwargs.get(name) is not None}
    return original(*args, **kwargs)


def _generators() -> list[dict[str, Any]]:
    return generators(tuple(library_roots()))


class JaxState(ProgramState):
    """Reads the state at the window's start, and at its end what was jitted and compiled since."""

    name = "jax_state"
    framework = "jax"

    def __init__(self) -> None:
        super().__init__()
        self._before: Counter[tuple[Any, ...]] = Counter()
        self._cached: dict[str, int] = {}

    def state(self) -> dict[str, Any]:
        """Return switches, devices and the sizes of caches; no backend is initialised by it."""
        jax: Any = sys.modules["jax"]
        self._before = _jitted.copy()
        found = {
            key: plain(jax.config.values.get(name)) for key, name in _SWITCHES.items() if name in jax.config.values
        }
        bridge: Any = sys.modules.get("jax._src.xla_bridge")
        found |= self.read(
            {
                "version": lambda: str(jax.__version__),
                "backends": lambda: {name: len(backend.devices()) for name, backend in bridge._backends.items()},
                "xla_flags": lambda: os.environ.get("XLA_FLAGS", ""),
                "flush_denormal": flushes_denormals,
                "caches": self._sizes,
                "jit": lambda: self._functions(Counter()),
            }
        )
        self._cached = dict(caches) if isinstance(caches := found.get("caches"), dict) else {}
        return found

    def uses(self) -> dict[str, Any]:
        """Return the functions that were given to ``jax.jit`` since the start, and by how much the caches grew."""
        found = {"jit": self._functions(self._before), **self.read({"generators": _generators})}
        sizes = self.read({"caches": self._sizes}).get("caches", {})
        return {**found, "compiled": {key: size - self._cached.get(key, size) for key, size in sizes.items()}}

    def _functions(self, before: Counter[tuple[Any, ...]]) -> list[dict[str, Any]]:
        since = ((key, count - before[key]) for key, count in _jitted.copy().items())
        return [
            {"function": key[0], "file": key[1], "line": key[2], "calls": count, **_given.get(key, {})}
            for key, count in since
            if count > 0
        ]

    def _sizes(self) -> dict[str, int]:
        module: Any = sys.modules["jax._src.pjit"]
        caches = {key: getattr(module, name, None) for key, name in _CACHES.items()}
        return {key: int(cache.size()) for key, cache in caches.items() if cache is not None}
