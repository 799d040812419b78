"""Processes of our own: the analysis, the build and trial of the recorder, the doctor's probes.

None runs a module that only the working directory or the program's own directory holds: a file `polars.py` there would
otherwise be imported instead of the library.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

#: Directory that holds this package.
_OURS = str(Path(__file__).resolve().parents[2])

#: Where a process works that loads a framework: oneMKL ends a process whose working directory was removed.
WORKING_DIRECTORY = "/"

#: Variables that would have our own process recorded.
_NOT_INHERITED = ("STEPSCOPE_OPTIONS", "MS_PROFILER_OPTIONS")


def own_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of ours.

    Raises:
        OSError: The path of this Python is unknown, because Python is embedded in another program.
    """
    if not sys.executable:
        message = "the path of this Python is unknown: sys.executable is empty"
        raise OSError(message)
    return [sys.executable, "-P", "-m", module, *arguments]


def own_environment(*needed: Path, **changes: str) -> dict[str, str]:
    """Return the environment of such a process: this one's imports, without the directories of the program.

    Args:
        needed: Directories that hold further packages which the process imports; they come last where they are unsafe.
        changes: Variables to set.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    unsafe = {os.path.realpath(Path(main).parent)} if main else set()
    with suppress(FileNotFoundError):  # the working directory was removed
        unsafe.add(str(Path.cwd()))
    safe = [path for path in sys.path if Path(path).is_absolute() and os.path.realpath(path) not in unsafe]
    paths = dict.fromkeys([*safe, _OURS, *map(str, needed)])
    kept = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "STEPSCOPE_STARTUP": "0", **changes}
