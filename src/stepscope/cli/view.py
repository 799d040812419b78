"""Look at a run, or at what another tool recorded, in the browser: its results and its timeline.

Over SSH, type the printed `ssh -L` line on your own machine, then open the link there. In a terminal of Jupyter, or a
cell that begins with `!`, use --jupyter. Ctrl-C ends the server.
"""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from pathlib import Path

from stepscope.cli import options

HELP = "show a run in the browser: its results, and a timeline of any size; or two side by side"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``view``."""
    parser.add_argument(
        "run",
        type=Path,
        nargs="*",
        help="run; directory of runs, which are listed; or capture of another tool, or directory of such (default: the "
        f"latest run in ./{options.DEFAULT_OUTPUT}); of two, the timelines are side by side, of more there is a list",
    )
    parser.add_argument("--port", type=int, metavar="PORT", help="port to listen on (default: a free one from 8377 on)")
    parser.add_argument("--no-browser", action="store_true", help="print the link, open no browser")
    parser.add_argument(
        "--jupyter",
        action="store_true",
        help="print the link behind the notebook server on this machine, which needs jupyter-server-proxy",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Print the link, open it where there is a browser, and answer until Ctrl-C."""
    from stepscope.run import Run, runs
    from stepscope.trace import run_directory
    from stepscope.view.server import ADDRESS, Server

    paths: list[Path] = arguments.run or [Path(options.DEFAULT_OUTPUT)]
    listed = arguments.run and len(paths) == 1 and not run_directory.ranks(paths[0])
    found = runs(paths[0])[::-1] if listed else []
    with options.reading_progress(quiet=False) as progress:
        shown = found if len(found) > 1 else [Run(path, progress=progress) for path in paths]
    server = Server(shown if len(shown) > 1 else shown[0], port=arguments.port, proxied=arguments.jupyter)
    link = f"{server.link}&beside=0,1" if len(paths) == 2 else server.link
    sys.stdout.write(f"{link}\n")
    remote = os.environ.get("SSH_CONNECTION", "").split()
    if arguments.jupyter:
        if server.link.startswith("/"):
            sys.stdout.write("open it behind the address of your notebook server: https://ADDRESS/…\n")
    elif remote:
        forward = f"{server.port}:{ADDRESS}:{server.port}"
        sys.stdout.write(f"on your own machine: ssh -N -L {forward} {os.environ.get('USER', 'you')}@{remote[2]}\n")
    elif not arguments.no_browser and sys.stdout.isatty():
        webbrowser.open(link)
    sys.stdout.flush()
    server.serve()
    return 0
