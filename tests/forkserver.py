"""Children that have loaded the framework: a process imports it once and forks a child for each program.

Importing torch, and what its optimizers import later, takes some three CPU seconds in each process; the others take one
or two. A program whose start is not under test runs in such a child instead (:func:`run`). The start is under test
where a test looks at import hooks, at the start-up hook and the environment it reads, or at how the interpreter ends.

The server runs no operator and has one thread, so that a child finds no lock held by a thread it does not have. It ends
when its standard input does: with the process that started it, however that ends.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import Any

#: Frameworks, and what a training imports of each sooner or later. The first that is installed is loaded.
_FRAMEWORKS = {
    "torch": ("torch", "torch._dynamo", "torch.profiler", "torch.utils.data"),
    "mindspore": ("mindspore", "mindspore.dataset"),
    "paddle": ("paddle",),
    "jax": ("jax", "jax.numpy"),
}

#: One thread in libraries that make theirs when they are imported, or at their first operator.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def run(
    *arguments: str | Path,
    env: Mapping[str, str],
    cwd: Path | None = None,
    umask: int = -1,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run what ``python ARGUMENTS`` runs, a script, ``-m MODULE`` or ``-c CODE``, in such a child.

    Args:
        arguments: The arguments of the interpreter; it takes no option but ``-m`` and ``-c``.
        env: The whole environment of the program. What a library reads from it at its import has no effect.
        cwd: Where the program runs; the current directory if None.
        umask: Its mask of file modes; that of this process if negative.
        timeout: Seconds after which the child is killed.

    Raises:
        subprocess.TimeoutExpired: The child was killed.
    """
    command = [str(argument) for argument in arguments]
    with TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        paths = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (stdout, stderr)]
        where = {"env": dict(env), "cwd": str(cwd or Path.cwd()), "umask": umask}
        status = _server().ask({"command": command, "output": paths, **where}, timeout)
        said = [(file.seek(0), file.read())[1] for file in (stdout, stderr)]
    if status is None:
        raise subprocess.TimeoutExpired(command, timeout, *said)
    return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(status), *said)


class _Server:
    """The process that forks, as this process sees it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **_ONE_THREAD},
        )
        atexit.register(self.end)
        self._lock = threading.Lock()

    def ask(self, request: Mapping[str, Any], timeout: float) -> int | None:
        """Run a program to its end; return what ``waitpid`` says, or None if it took too long."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            child = self._answer()
            late = threading.Event()
            timer = threading.Timer(timeout, lambda: (late.set(), os.kill(child, signal.SIGKILL)))
            timer.start()
            status = self._answer()
            timer.cancel()
            timer.join()
            return None if late.is_set() else status

    def end(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            message = f"the fork server has ended with {self._process.wait()}"
            raise RuntimeError(message)
        return int(line)


@cache
def _server() -> _Server:
    return _Server()


def _serve() -> dict[str, Any] | None:
    """Fork for each request. Return the request in the child; in the server, None when no request can follow."""
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            return dict(json.loads(line))
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)
    return None


def _become(request: Mapping[str, Any]) -> None:
    """Make this child what an interpreter is that starts the program."""
    for number, path in enumerate(("/dev/null", *request["output"])):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if request["umask"] >= 0:
        os.umask(request["umask"])


def _execute(command: list[str]) -> None:
    """Run the program as ``__main__``; the interpreter then ends as it always does."""
    sys.orig_argv = [sys.executable, *command]
    if command[0] == "-m":
        sys.argv = command[1:]
        sys.path[0] = os.getcwd()  # noqa: PTH109 - as the interpreter does
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        return
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    if command[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *command[2:]], ""
        code = compile(command[1], "<string>", "exec")
    else:
        sys.argv, sys.path[0] = command, str(Path(command[0]).resolve().parent)
        main.__file__ = command[0]
        code = compile(Path(command[0]).read_bytes(), command[0], "exec")
    exec(code, vars(main))


def _prepare() -> None:
    """Import the framework and what a training imports of it later. No operator runs."""
    framework = next(filter(find_spec, _FRAMEWORKS))
    modules = [import_module(name) for name in _FRAMEWORKS[framework]]
    if framework == "torch":
        modules[0].set_num_threads(1)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        message = "an import has started a thread; a child forked from here could wait for ever for a lock it holds"
        raise RuntimeError(message)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _prepare()
    asked = _serve()
    if asked is not None:
        _become(asked)
        _execute(asked["command"])
