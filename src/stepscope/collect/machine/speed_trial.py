"""Measures how fast this machine is with a framework: ``python -m stepscope.collect.machine.speed_trial NAME THREADS``.

A process of its own, so that the training is not slowed and none of its settings are in the way. It computes for less
than 2 s, the import of the framework aside: what its time does not suffice for stays unknown. The last line on standard
output is a JSON object.

Of each measurement the fastest of some repetitions counts: other processes only make it slower.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

#: Types of the products, by the names that all frameworks share.
DTYPES = ("float32", "float64", "bfloat16", "float16")
#: Seconds for all measurements; each may end late by one product or copy.
BUDGET_S = 1.8
#: Seconds for each product, for the copy, and for the calls.
_PRODUCT, _COPY, _CALLS = 0.15, 0.15, 0.1
#: Part of the time in which the measuring thread waits for a core, from which on the speeds are not the machine's.
_DISTURBED = 0.1
#: Edge of the first and the largest matrix; a product that takes this long is large enough to be at full speed.
_FIRST, _LARGEST, _ENOUGH = 128, 4096, 0.01
#: Bytes that are copied.
_BYTES = 64 << 20
_MANY = 200
#: Bytes of fresh pages that are written.
_FRESH = 8 << 20


class _Framework:
    """What is measured, in the words of one framework.

    Args:
        name: Its package.
        threads: Threads that compute; 0 leaves the framework's choice.
        device: ``cpu`` or ``cuda``.

    Attributes:
        on_caller: Whether it computes on the calling thread if it has one thread: its CPU time is the product's.
    """

    def __init__(self, name: str, threads: int, device: str) -> None:
        self._name = name
        self._module: Any = import_module(name)
        self.version = str(self._module.__version__)
        self._device = device
        self.on_caller = False
        getattr(self, f"_begin_{name}")(threads)

    def _begin_torch(self, threads: int) -> None:
        torch = self._module
        self.on_caller = self._device == "cpu"
        if threads:
            torch.set_num_threads(threads)
        self.ones: Callable[[int, int, str], Any] = lambda rows, columns, dtype: torch.ones(
            rows, columns, dtype=getattr(torch, dtype), device=self._device
        )
        self.wait: Callable[[Any], object] = (
            (lambda _: torch.cuda.synchronize()) if self._device == "cuda" else lambda value: value
        )
        self.copy: Callable[[Any], Any] = lambda value: value.clone()

    def _begin_jax(self, _threads: int) -> None:
        jax = self._module
        jax.config.update("jax_enable_x64", True)  # noqa: FBT003 - JAX's signature
        numpy = jax.numpy
        self.ones = lambda rows, columns, dtype: numpy.ones((rows, columns), dtype)
        self.wait = lambda value: value.block_until_ready()
        self.copy = lambda value: numpy.array(value, copy=True)

    def _begin_paddle(self, _threads: int) -> None:
        paddle = self._module
        self.on_caller = self._device == "cpu"
        self.ones = lambda rows, columns, dtype: paddle.ones([rows, columns], dtype)
        self.wait = lambda value: value
        self.copy = lambda value: value.clone()

    def _begin_mindspore(self, _threads: int) -> None:
        mindspore = self._module
        self.ones = lambda rows, columns, dtype: mindspore.ops.ones((rows, columns), getattr(mindspore, dtype))
        self.wait = lambda value: value.asnumpy()
        self.copy = lambda value: value.copy()


class _Time:
    """The time that is left to measure, without what this thread waits for a core: that is not computing.

    Args:
        seconds: How much there is.
    """

    def __init__(self, seconds: float) -> None:
        self._end = _now() + seconds

    def until(self, seconds: float) -> float:
        """Return when a measurement of so many seconds has to end, by :func:`_now`.

        Raises:
            TimeoutError: All of the time is used.
        """
        now = _now()
        if now >= self._end:
            raise TimeoutError
        return min(now + seconds, self._end)


def measure(name: str, threads: int, device: str = "cpu") -> dict[str, Any]:
    """Return the speeds of a framework on a device.

    Returns:
        ``products``: type → ``flops_per_s`` and ``size``, the edge of the matrices; null for a type that the framework
        cannot multiply here. ``one_core``: the same on one core, by CPU time, which other processes do not disturb; of
        PyTorch and Paddle on a CPU. ``copy_bytes_per_s``: bytes read and written. ``call_ns``: one small operator,
        called from Python. ``fault_ns``: a page that the system gives and takes back, by CPU time. ``disturbed``:
        whether the measuring thread waited for a core, so that all but ``one_core`` and ``fault_ns`` is slower than
        this machine.
        ``all_cores``: where ``threads`` are fewer than the cores, a product in float32 on all of them; null if other
        processes had some.
    """
    framework, left = _Framework(name, threads, device), _Time(BUDGET_S)
    before, start = _delay(), time.perf_counter()
    found = {
        "framework": name,
        "version": framework.version,
        "device": device,
        "threads": threads or None,
        "products": {dtype: _tried(partial(_product, framework, dtype, left)) for dtype in DTYPES},
        "copy_bytes_per_s": _tried(lambda: _copy(framework, left)),
        "call_ns": _tried(lambda: _call(framework, left)),
        "fault_ns": _tried(lambda: _fault(left)),
    }
    took, waited = time.perf_counter() - start, (_delay() - before) / 1e9
    if framework.on_caller:
        framework = _Framework(name, 1, device)
        one = {dtype: _tried(partial(_product, framework, dtype, left, time.thread_time)) for dtype in DTYPES}
        found["one_core"] = one
    if name == "torch" and device == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
        if 0 < threads < cores:
            found["all_cores"] = _tried(partial(_undisturbed, _Framework(name, cores, device), left))
    return {**found, "disturbed": waited > _DISTURBED * took}


def _tried(measured: Callable[[], Any]) -> Any:  # noqa: ANN401 - a number or an object
    try:
        return measured()
    except Exception:  # noqa: BLE001 - the framework cannot do it here, or its time is used: unknown
        return None


def _product(
    framework: _Framework, dtype: str, left: _Time, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    size, took, end = _FIRST, 0.0, left.until(_PRODUCT)
    while True:
        took = _fastest(partial(_multiply, framework, framework.ones(size, size, dtype)), end, clock)
        # The next one takes eight times as long, and is tried at least twice.
        if took >= _ENOUGH or size == _LARGEST or _now() + 20 * took > end:
            return {"flops_per_s": round(2 * size**3 / took), "size": size}
        size *= 2


def _undisturbed(framework: _Framework, left: _Time) -> dict[str, Any] | None:
    """Return the speed of a product in float32; None if the measuring thread waited for a core."""
    before, start = _delay(), time.perf_counter()
    found = _product(framework, "float32", left)
    return found if _delay() - before <= _DISTURBED * 1e9 * (time.perf_counter() - start) else None


def _multiply(framework: _Framework, matrix: Any) -> None:  # noqa: ANN401 - a matrix of the framework
    framework.wait(matrix @ matrix)


def _copy(framework: _Framework, left: _Time) -> int:
    end, value = left.until(_COPY), framework.ones(_BYTES >> 12, 1 << 10, "float32")
    framework.wait(value)
    took = _fastest(lambda: framework.wait(framework.copy(value)), end)
    return round(2 * _BYTES / took)


def _call(framework: _Framework, left: _Time) -> int:
    end, value = left.until(_CALLS), framework.ones(1, 1, "float32")

    def calls() -> None:
        result = value
        for _ in range(_MANY):
            result = result + value
        framework.wait(result)

    return round(1e9 * _fastest(calls, end) / _MANY)


def _fault(left: _Time) -> int | None:
    """Return the CPU time of a fresh page, ns: the fault, what clearing it costs, and giving it back."""
    left.until(0.0)
    return min(filter(None, (_fault_once() for _ in range(5))), default=None)


def _fault_once() -> int | None:
    before, start = _faults(), time.thread_time_ns()
    # Private pages, as allocators take them: a shared one costs nearly twice as much.
    with mmap.mmap(-1, _FRESH, flags=mmap.MAP_PRIVATE) as pages:
        view = (ctypes.c_char * _FRESH).from_buffer(pages)
        ctypes.memset(view, 1, _FRESH)
        faults, fresh = _faults() - before, time.thread_time_ns()
        ctypes.memset(view, 2, _FRESH)  # the same without faults
        written = time.thread_time_ns()
        del view
    took = (fresh - start) - (written - fresh) + (time.thread_time_ns() - written)
    return round(took / faults) if faults else None


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def _fastest(work: Callable[[], object], end: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of the fastest of 1 to 16 calls until ``end`` of :func:`_now`, after a warm-up."""
    work()
    best = float("inf")
    for _ in range(16):
        start = clock()
        work()
        best = min(best, clock() - start)
        if _now() > end:
            break
    return max(best, 1e-9)


def _now() -> float:
    """Return seconds in which this thread was not waiting for a core."""
    return time.perf_counter() - _delay() / 1e9


def _delay() -> int:
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:  # noqa: PTH123 - pathlib adds nothing here
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def main(arguments: list[str]) -> None:
    """Measure the framework that the arguments name, and print the result."""
    print(json.dumps(measure(arguments[0], int(arguments[1]), *arguments[2:3])))  # noqa: T201 - the answer
    sys.stdout.flush()
    os._exit(0)  # some frameworks take seconds to end


if __name__ == "__main__":
    main(sys.argv[1:])
