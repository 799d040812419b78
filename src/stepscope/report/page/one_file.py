"""One HTML file with everything in it: opens offline, asks for nothing, and runs no text of a run.

All that comes from a run lies in one gzip stream as base64, in an element that no browser runs: its letters are
``A-Za-z0-9+/=``, so that no name can end it. The page reads it and writes it as text. Its scripts and its style are
allowed by their hashes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import struct
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy.typing as npt

from stepscope.cluster.job_results import JOB_RESULTS
from stepscope.comparison.comparison import Comparison
from stepscope.comparison.gates import Outcome
from stepscope.errors import UsageError
from stepscope.report.page.comparison_content import comparison_content
from stepscope.report.page.content import OF_OVERVIEW, Shown, content, result_columns
from stepscope.report.page.file_timeline import FileTimeline, is_large, number_of_spans, typical_times
from stepscope.report.page.lane_spans import lane_spans
from stepscope.report.safe_text import json_bytes

#: Cells of all results in one file.
_MOST_CELLS = 400_000
_COMPRESSION = 9
#: Pages that begin with figures of the summary.
_OF_SUMMARY = ("operators", "kernels")

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>stepscope report</title>
<style>{style}</style></head>
<body><div id="page" data-first="{first}"></div>
<noscript>This report needs JavaScript. In a terminal: stepscope report RUN</noscript>
<script type="application/x-stepscope-worker" id="worker">{worker}</script>
<script type="application/x-stepscope" id="data">{data}</script><script>{script}</script></body></html>
"""


def html(shown: Shown, *, first: str = "overview") -> bytes:
    """Return the page of a rank as one file.

    Args:
        shown: The rank.
        first: The page that it opens with.

    Raises:
        UsageError: The browser side is not in this installation.
    """
    bundle("page.js")
    times = typical_times(shown.rank)
    spans = lane_spans(shown.rank.shown, times)
    windows = [(begin - spans.origin, end - spans.origin) for begin, end in times]
    head = {**content(shown, spans, windows), "cut": is_large(shown.rank)}
    _add_results(shown, head)
    timeline = FileTimeline(shown, head, spans) if head["timeline"] is not None else None
    return _page(_stream(head, timeline.columns() if timeline is not None else []), first)


def comparison_html(found: Comparison, outcomes: Sequence[Outcome]) -> bytes:
    """Return the page of a comparison, and of what came of its limits, as one file.

    Raises:
        UsageError: The browser side is not in this installation.
    """
    return _page(_with_length(comparison_content(found, outcomes)), "overview")


def _page(stream: bytes, first: str) -> bytes:
    script, worker, style = (bundle(name) for name in ("page.js", "worker.js", "page.css"))
    data = base64.b64encode(gzip.compress(stream, _COMPRESSION, mtime=0)).decode()
    hashes = {name: _hash(text) for name, text in (("script", script), ("style", style))}
    policy = (
        f"default-src 'none'; script-src '{hashes['script']}'; style-src '{hashes['style']}'; worker-src blob:; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
        "trusted-types stepscope"
    )
    return _PAGE.format(first=first, policy=policy, style=style, worker=worker, data=data, script=script).encode()


def bundle(name: str) -> str:
    """Return a file of the browser side.

    Raises:
        UsageError: It is not in this installation.
    """
    try:
        return (resources.files("stepscope.report.page") / "bundle" / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        message = "The browser side of stepscope is not built in this checkout."
        raise UsageError(message, "Run `make page` (it needs Node), or install a wheel, which has it.") from None


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _add_results(shown: Shown, head: dict[str, Any]) -> None:
    """Put the rows of the results into the content, as many as one file may hold; of a large rank, some."""
    for page in head["pages"] if head["cut"] else ():
        names = page["results"]
        page["results"] = [name for name in names if name in OF_OVERVIEW or name in JOB_RESULTS]
        page["leftOut"] = [name for name in names if name not in page["results"]]
        if page["leftOut"] and not page["results"] and not page["absent"] and page["name"] not in _OF_SUMMARY:
            count = f"{number_of_spans(shown.rank):,} spans"
            page["absent"] = f"left out of this file, for the run has {count}: `stepscope view` shows it"
    names = [name for page in head["pages"] for name in page["results"]]
    left = _MOST_CELLS
    for place, name in enumerate(names):
        found = result_columns(shown, name, max(1000, left // (len(names) - place)))
        left -= found["rows"] * len(found["columns"])
        if found["rows"]:
            head["results"][name] = found
    for page in head["pages"]:
        page["results"] = [name for name in page["results"] if name in head["results"]]


def _stream(head: dict[str, Any], columns: list[tuple[str, npt.NDArray[Any]]]) -> bytes:
    """Return the length of the head, the head as JSON, and the columns of the timeline."""
    parts = [column.view("u1").reshape(len(column), column.dtype.itemsize).T.tobytes() for _, column in columns]
    named = zip(columns, parts, strict=True)
    head["columns"] = [[name, column.dtype.itemsize, len(part)] for (name, column), part in named]
    return _with_length(head) + b"".join(parts)


def _with_length(head: dict[str, Any]) -> bytes:
    text = json_bytes(head)
    return struct.pack("<I", len(text)) + text
