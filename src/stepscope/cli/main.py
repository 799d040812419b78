"""The profiler that shows where every training step goes."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import warnings
from collections.abc import Sequence

from stepscope import native
from stepscope.errors import StepscopeError

#: Verbs in the order of the help; each is a module of this package: HELP, ``add_arguments``, ``execute``.
VERBS = (
    "run", "report", "view", "compare", "import_", "reduce", "merge", "check", "export", "query", "timeline", "doctor"
)  # fmt: skip

EXAMPLES = """\
examples:
  stepscope run train.py --epochs 3      profile five steps of a training; the script is not changed
  stepscope report                       the results of the latest run again, from the raw files
  stepscope import log/                  traces that torch.profiler recorded become a run
  stepscope export RUN --to pftrace      a timeline for ui.perfetto.dev
"""

INTERRUPTED = 130
INTERNAL_ERROR = 5


def build_parser(asked: str = "") -> argparse.ArgumentParser:
    """Return the parser with the verb that is asked for, and no other is imported; with all verbs if it is none."""
    parser = argparse.ArgumentParser(
        prog="stepscope", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-V", "--version", action="store_true", help="print the version and exit")
    subparsers = parser.add_subparsers(dest="verb", metavar="verb")
    for verb in [verb for verb in VERBS if verb.rstrip("_") == asked] or VERBS:
        module = importlib.import_module(f"stepscope.cli.{verb}")
        added = subparsers.add_parser(verb.rstrip("_"), help=module.HELP, description=module.__doc__)
        module.add_arguments(added)
        added.set_defaults(execute=module.execute)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code: 0 done, 2 usage, 4 unreadable input, 5 internal, 130 interrupted.

    ``stepscope run`` returns the exit code of the script; ``stepscope check`` 3 for a job whose ranks do not fit
    together; ``stepscope compare`` 3 if a limit was exceeded, and with ``--strict`` 6 if one cannot be told.
    """
    try:
        return _execute(argv)
    except StepscopeError as error:
        return _say(str(error), error.exit_code)
    except BrokenPipeError:
        # The reader of our output has closed the pipe (`| head`): not an error, and no more can be written there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _say("Interrupted; nothing half-written was left behind.", INTERRUPTED)
    except BaseException as error:
        # Law 4: an error of ours is one line, never a traceback. A panic in Rust derives from BaseException.
        panic = type(error).__name__ == "PanicException"
        if os.environ.get("STEPSCOPE_DEBUG") or not (panic or isinstance(error, Exception)):
            raise
        remedy = _little_memory() or "Set STEPSCOPE_DEBUG=1 for the traceback and report it."
        return _say(" ".join(f"Internal error: {type(error).__name__}: {error}. {remedy}".split()), INTERNAL_ERROR)


def _execute(argv: Sequence[str] | None) -> int:
    words = [*(sys.argv[1:] if argv is None else argv)]
    # Launchers such as DeepSpeed's give a program this as the first argument behind the name of its module.
    if words and re.fullmatch(r"--local[-_]rank=\d+", words[0]):
        words.append(words.pop(0))
    parser = build_parser(*words[:1])
    arguments = parser.parse_args(words)
    if arguments.version:
        from stepscope import __version__

        sys.stdout.write(f"stepscope {__version__}\n")
        return 0
    if arguments.verb is None:
        parser.print_help()
        return 2
    if arguments.verb != "run" and (limit := _little_memory()):
        _announce_abort(limit)
    code: int = arguments.execute(arguments)
    # The output of a program under `run` is its own: Python flushes it, and says what that meets.
    if sys.stdout is not None and arguments.verb != "run":
        sys.stdout.flush()
    return code


def _little_memory() -> str:
    """Return what to do where the memory of this process is limited; empty where it is not."""
    if sys.platform == "win32":
        return ""
    import resource

    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    least = min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=0)
    text = (
        f"This process may use {least / 1e9:.1f} GB of memory (ulimit -v, ulimit -d), which may not suffice: raise it."
    )
    return text if least else ""


def _announce_abort(limit: str) -> None:
    """Have the process end with one line, where a library in Rust that gets no memory writes its stack and aborts."""
    library = native.loaded()
    if library is not None and sys.stderr is not None and os.environ.get("STEPSCOPE_DEBUG") is None:
        stream = os.dup(2)
        sys.stderr = os.fdopen(stream, "w", buffering=1, errors="backslashreplace", closefd=False)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        warnings.simplefilter("ignore")  # such as Polars', that its binary is missing
        library.ss_termination_abort(
            stream, f"stepscope: A library ended the process. {limit}\n".encode(), INTERNAL_ERROR
        )


def _say(line: str, code: int) -> int:
    if sys.stderr is not None:
        sys.stderr.write(f"stepscope: {line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
