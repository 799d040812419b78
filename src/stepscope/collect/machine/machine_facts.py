"""The machine and the interpreter of this process: cores, memory, limits, CPU features, environment.

Everything is read when the collector is prepared, before the window opens; what may change later (traces of Python,
the garbage collector's thresholds) when it opens.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.collect.host.live_objects import source_of
from stepscope.collect.ranks import local_ranks

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal
    from stepscope.collect.protocol import Context

#: Variables of the environment that change how fast a training runs.
_PREFIXES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "ONEDNN_", "DNNL_", "ATEN_"),
    *("MALLOC_", "TCMALLOC_", "JEMALLOC_", "MIMALLOC_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NCCL_", "GLOO_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_"),
    *("XLA_", "JAX_", "FLAGS_"),
)
_NAMES = ("LD_PRELOAD", "GLIBC_TUNABLES", "PYTHONMALLOC", "PYTHONDEVMODE", "PYTHON_GIL", "PYTHONTRACEMALLOC")
#: A variable with one of these in its name is not kept.
_SECRETS = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL")
_LONGEST = 200

#: Features of x86 and ARM processors that decide how fast products of matrices are.
_FEATURES = frozenset(
    (
        *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx_vnni"),
        *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16"),
        *("asimd", "asimdhp", "asimddp", "sve", "sve2", "bf16", "i8mm"),
    )
)
#: Part of the name of a mapped library → what it is.
_ALLOCATORS = {"jemalloc": "jemalloc", "tcmalloc": "tcmalloc", "mimalloc": "mimalloc"}
_OPENMP = {"libgomp": "libgomp", "libiomp5": "libiomp5", "libomp": "libomp"}

_CPUINFO, _MEMINFO, _MAPS = Path("/proc/cpuinfo"), Path("/proc/meminfo"), Path("/proc/self/maps")
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
_CPUS, _NODES = Path("/sys/devices/system/cpu"), Path("/sys/devices/system/node")


class MachineCollector:
    """Writes the facts ``machine`` and ``python``."""

    name = "machine"

    def __init__(self) -> None:
        self._journal: Journal | None = None
        self._machine: dict[str, Any] = {}

    def available(self) -> None:
        """Every machine has facts."""

    def prepare(self, context: Context) -> None:
        """Read what the machine has and allows."""
        self._journal = context.journal
        self._machine = machine()

    def start(self) -> None:
        """Write it, with the state of the interpreter on the thread that trains."""
        if self._journal is not None:
            self._journal.metadata("machine", json.dumps(self._machine))
            self._journal.metadata("python", json.dumps(interpreter()))

    def stop(self) -> list[Path]:
        """Nothing is left to do."""
        return []

    def describe(self) -> dict[str, object]:
        """Return how many facts are known."""
        return {"facts": sum(value is not None for value in self._machine.values())}


def machine() -> dict[str, Any]:
    """Return what the machine has and what it allows this process; what cannot be known is None."""
    maps = _text(_MAPS)
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        **hardware(),
        "cores": affinity,
        "cpu_quota": _cpu_quota(),
        "local_ranks": local_ranks(),
        "memory_limit": _memory_limit(),
        "allocator": next((name for part, name in _ALLOCATORS.items() if part in maps), None),
        "openmp": sorted({name for part, name in _OPENMP.items() if f"/{part}" in maps}),
        "environment": environment(),
    }


@cache
def hardware() -> dict[str, Any]:
    """Return what does not change while the process runs."""
    cpu = _first_processor(_text(_CPUINFO, 1 << 14))
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    return {
        "cpu_model": cpu.get("model name") or platform.processor() or None,
        "architecture": platform.machine(),
        "cpu_features": sorted(flags & _FEATURES) if flags else None,
        "cpus": os.cpu_count(),
        "threads_per_core": _listed(_text(_CPUS / "cpu0/topology/thread_siblings_list")),
        "numa_nodes": len(list(_NODES.glob("node[0-9]*"))) or None,
        "governor": _text(_CPUS / "cpu0/cpufreq/scaling_governor").strip() or None,
        "memory_bytes": _kilobytes(_text(_MEMINFO), "MemTotal"),
        "huge_pages": _chosen(_text(_HUGE_PAGES / "enabled")),
        "huge_pages_defrag": _chosen(_text(_HUGE_PAGES / "defrag")),
        "kernel": platform.release(),
    }


def interpreter() -> dict[str, Any]:
    """Return what is set in the interpreter, on the calling thread."""
    trace, profile = sys.gettrace(), sys.getprofile()
    tracer = sys.modules.get("tracemalloc")
    return {
        "version": platform.python_version(),
        "gc_enabled": gc.isenabled(),
        "gc_threshold": list(gc.get_threshold()),
        "gc_frozen": gc.get_freeze_count(),
        "gc_debug": gc.get_debug(),
        "trace": source_of(trace) if trace is not None else None,
        "profile": source_of(profile) if profile is not None else None,
        "tracemalloc": bool(tracer is not None and tracer.is_tracing()),
        "switch_interval_ns": round(1e9 * sys.getswitchinterval()),
        "dev_mode": sys.flags.dev_mode,
        "optimize": sys.flags.optimize,
    }


def environment() -> dict[str, str]:
    """Return the variables of the environment that change how fast a training runs, without secrets."""
    return {
        name: value[:_LONGEST].encode("utf-8", "backslashreplace").decode()
        for name, value in sorted(os.environ.items())
        if (name.startswith(_PREFIXES) or name in _NAMES) and not any(part in name for part in _SECRETS)
    }


def _text(path: Path, most: int = -1) -> str:
    """Return the beginning of a file of the kernel; empty if it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(most)
    except OSError:
        return ""


def _first_processor(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def _listed(text: str) -> int | None:
    """Return how many numbers a list of the kernel names: ``0,64`` or ``0-3``."""
    try:
        ranges = [[int(end) for end in part.split("-")] for part in text.strip().split(",")]
    except ValueError:
        return None
    return sum(ends[-1] - ends[0] + 1 for ends in ranges)


def _chosen(text: str) -> str | None:
    """Return the chosen one of the values of a switch: ``always [madvise] never``."""
    return text.partition("[")[2].partition("]")[0] or None


def _kilobytes(text: str, key: str) -> int | None:
    found = [line.split()[1] for line in text.splitlines() if line.startswith(f"{key}:")]
    return 1024 * int(found[0]) if found else None


def _cpu_quota() -> float | None:
    """Return how many cores the control groups of this process allow it; None without a limit."""
    quotas = []
    for directory in _groups("cpu"):
        with suppress(ValueError, IndexError):
            both = _text(directory / "cpu.max").split() or [
                _text(directory / "cpu.cfs_quota_us"),
                _text(directory / "cpu.cfs_period_us"),
            ]
            quota, period = int(both[0]), int(both[1])
            if quota > 0 and period > 0:
                quotas.append(quota / period)
    return min(quotas, default=None)


def _memory_limit() -> int | None:
    """Return how many bytes the control groups of this process allow it; None without a limit."""
    limits = []
    for directory in _groups("memory"):
        with suppress(ValueError):
            limits.append(int(_text(directory / "memory.max") or _text(directory / "memory.limit_in_bytes")))
    limit = min(limits, default=None)
    return limit if limit is not None and limit < 1 << 60 else None  # version 1 says "no limit" by a large number


def _groups(controller: str) -> list[Path]:
    """Return the directories of the groups that this process is in for a controller, and those around them."""
    found: list[Path] = []
    for line in _text(_OWN_CGROUPS).splitlines():
        number, controllers, own = line.split(":", 2)
        if number == "0":
            root = _CGROUPS
        elif controller in controllers.split(","):
            root = _CGROUPS / controller
        else:
            continue
        inner = root / own.lstrip("/")
        # Inside a container the path may be that of the host; then the root is the container's own group.
        found += [path for path in (inner, *inner.parents) if path.is_relative_to(root) and path.is_dir()]
    return found
