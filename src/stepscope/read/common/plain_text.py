"""Text of files and names: valid UTF-8, lines as Polars frames without a Python object for each, JSON objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.errors import InputError
from stepscope.read.common.source import open_trace
from stepscope.trace.losses import LossLedger


def printable(text: str) -> str:
    """Return a text as valid UTF-8: bytes that were not UTF-8, and halves of surrogate pairs, become escapes."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        pass
    else:
        return text
    try:
        source = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        source = text.encode("utf-8", "surrogatepass")
    return source.decode("utf-8", "backslashreplace")


def json_of(source: str | bytes, *, strict: bool = True) -> Any:  # noqa: ANN401 - any JSON
    """Return a JSON document whose texts are :func:`printable`; with ``strict`` they have no newlines.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deep.
    """
    return _printable(json.loads(source, strict=strict))


def _printable(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return {printable(key): _printable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_printable(inner) for inner in value]
    return printable(value) if isinstance(value, str) else value


def text_of(path: Path, ledger: LossLedger) -> str:
    """Return a file's text; bytes that are not UTF-8 are replaced and counted.

    Raises:
        InputError: The file cannot be read.
    """
    with open_trace(path) as file:
        try:
            content = file.readall() if hasattr(file, "readall") else file.read()
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror or error}."
            raise InputError(message, "Check the disk or the network share, and try again.") from None
    text = content.decode("utf-8", "replace").removeprefix("\ufeff")
    ledger.add("text_not_utf8", text.count("\ufffd"))
    return text


def lines_of(path: Path, ledger: LossLedger) -> pl.Series:
    """Return the lines of a file that are not empty; a last line without its end is counted as a cut."""
    text = text_of(path, ledger)
    ledger.add("file_cut", int(bool(text) and not text.endswith("\n")))
    lines = pl.Series("line", [text], dtype=pl.String).str.split("\n").explode()
    return lines.filter(lines.str.strip_chars() != "")


def document_of(path: Path, ledger: LossLedger) -> dict[str, Any]:
    """Return a JSON object; an empty one, and a loss, if the file holds something else."""
    try:
        document = json_of(text_of(path, ledger))
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        return document
    ledger.add("event_damaged")
    return {}
