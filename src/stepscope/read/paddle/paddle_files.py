"""Which of the formats of Paddle's profilers a file has, by its first bytes, and what its name says."""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.read.paddle import fluid_profile
from stepscope.read.paddle import node_trees as paddle_protobuf

#: So many first bytes tell.
HEAD = 4096
# Only Paddle numbers the recordings of a process before the list of events; the spelling changed.
_JSON = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{[^\[\]]{0,2000}"span_ind(?:ex|x)"\s*:')
#: Names that ``export_chrome_tracing`` and ``export_protobuf`` make: ``host_node7pid_4711_time_…``.
_NAME = re.compile(r"host_(.+)pid_\d+_time_")


def format_of(head: bytes) -> str | None:
    """Return ``fluid``, ``paddle`` or ``paddle_json``; None where a file that begins so is none of them."""
    if _JSON.match(head):
        return "paddle_json"
    if paddle_protobuf.is_trace(head):
        return "paddle"
    return "fluid" if fluid_profile.is_profile(head) else None


def host_of(path: Path) -> str | None:
    """Return the host that the name of a file says; None where it says none."""
    match = _NAME.match(path.name)
    return match[1] if match else None
