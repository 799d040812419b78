"""Every error stepscope raises, as a tree.

::

    StepscopeError                 exit code 5   something in stepscope itself is wrong
    ├── UsageError                 exit code 2   the call cannot be carried out as written
    │   ├── LifecycleError         exit code 2   start, step or stop at the wrong moment
    │   │   └── StateError         exit code 2   the same, where a documented interface promises a RuntimeError
    │   ├── ArgumentError          exit code 2   the same, where one promises TypeError or ValueError
    │   └── OutputError            exit code 2   the output path cannot be used
    └── InputError                 exit code 4   the input cannot be read
        ├── NotATraceError         exit code 4   a file of another kind
        ├── DamagedTraceError      exit code 4   cut, corrupt or not valid JSON
        ├── NotARunError           exit code 4   a directory without a run
        └── FormatVersionError     exit code 4   written by a newer stepscope

Each error is one line: what happened and where, then what to do. The command line prints that line and exits with
the error's code; a traceback is a defect.
"""

from __future__ import annotations


class StepscopeError(Exception):
    """Base of all errors: a message, a remedy and an exit code.

    Args:
        message: What happened, and where (file, step, name).
        remedy: What the user can do about it; empty where nothing can be done.
    """

    exit_code = 5

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.message} {self.remedy}".rstrip()
        return " ".join(text.split())


class UsageError(StepscopeError):
    """The call cannot be carried out as written."""

    exit_code = 2


class LifecycleError(UsageError):
    """``start``, ``step`` or ``stop`` came at a moment when it has no meaning."""


class StateError(LifecycleError, RuntimeError):
    """A call at the wrong moment, of an interface whose documents promise a ``RuntimeError``."""


class ArgumentError(UsageError, TypeError, ValueError):
    """A wrong argument, of an interface whose documents promise a ``TypeError`` or ``ValueError``."""


class OutputError(UsageError):
    """The output path cannot be created, written, or already holds something else."""


class InputError(StepscopeError):
    """The input cannot be read."""

    exit_code = 4


class NotATraceError(InputError):
    """The file is readable, but it is not a trace that stepscope knows."""


class DamagedTraceError(InputError):
    """The file is empty, cut, corrupt or not valid JSON."""


class NotARunError(InputError):
    """The directory holds no stepscope run."""


class FormatVersionError(InputError):
    """The run was written by a newer version of stepscope."""
