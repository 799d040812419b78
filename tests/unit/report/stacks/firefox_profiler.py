"""Asks Firefox Profiler about a file: its command line tool loads it with the code of profiler.firefox.com."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.golden.trace_processor import require_node

#: Built by ``make page``.
TOOL = Path(__file__).parents[4] / "page" / "node_modules" / "@firefox-devtools" / "profiler-cli" / "dist"
#: Seconds that the tool may take to load a file.
_PATIENCE = 60.0


def times_of_threads(profile: Path, home: Path) -> dict[str, float]:
    """Load a profile and return the time of all stacks of each thread, ms.

    Args:
        profile: The file.
        home: Where the tool keeps its socket and its log.

    Raises:
        AssertionError: The tool refuses the file.
    """
    if not TOOL.is_dir():
        pytest.skip("Firefox Profiler's tool is not installed; `make page` installs it")
    command = [require_node(), str(TOOL / "profiler-cli.js")]
    environment = {**os.environ, "HOME": str(home)}

    def ask(*words: str) -> dict[str, Any] | None:
        asked = [*command, *words, "--session", "test", "--json"]
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    serving = [*command, "--daemon", str(profile), "--session", "test"]
    with subprocess.Popen(serving, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as tool:
        try:
            until, threads = time.monotonic() + _PATIENCE, None
            while threads is None and tool.poll() is None and time.monotonic() < until:
                # Who asks while the tool begins takes its session for one of the past, and removes it.
                if any("loaded successfully" in file.read_text() for file in home.rglob("*.log")):
                    threads = ask("thread", "list")
                time.sleep(0.05)
            assert threads is not None, [file.read_text() for file in home.rglob("*.log")]
            found = {}
            for thread in threads["threads"]:
                tree = ask("thread", "samples-top-down", "--thread", thread["threadHandle"], "--include-idle")
                assert tree is not None
                found[thread["name"]] = tree["regularCallTree"]["totalSamples"]
            return found
        finally:
            tool.terminate()
