"""Enlarge a rank's capture: repeat the files that grow with a recording end to end, with shifted times, ids and steps.

Each repetition begins one second after the previous one; ids that join rows are shifted too, so that each is unique.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

_US, _NS, _NUMBERS = 1_000_000, 1_000_000_000, 10_000_000
_OUTPUT = "ASCEND_PROFILER_OUTPUT"
#: Timestamps in µs, and ids that join events.
_SHIFTED = re.compile(
    r'(?<![\d.])(\d{16})(?=[.,"\t]|\d{3}\b)|"(connection_id|correlation_id|id)": (\d{1,9})\b|(ProfilerStep#|"step)(\d+)'
)
#: Files of a rank that grow with the recording, and whether each line begins with the step.
_GROWING = {
    "trace_view.json": False,
    "communication.json": False,
    "communication_matrix.json": False,
    "kernel_details.csv": True,
    "step_trace_time.csv": True,
    "l2_cache.csv": False,
    "memory_record.csv": False,
    "operator_memory.csv": False,
    "operator_details.csv": False,
    "npu_module_mem.csv": False,
}
_TIMES = {"startNs", "endNs", "timestampNs", "timestamp", "allocationTime", "releaseTime", "activeReleaseTime"}
_JOINING = {"globalTaskId", "connectionId", "opId", "callchainId", "sequenceNumber"}
#: Tables whose ``id`` is a row number, not a reference to a text.
_NUMBERED = {"CONNECTION_IDS", "PYTORCH_CALLCHAINS", "OVERLAP_ANALYSIS"}


def repeat(rank: Path, target: Path, size: int) -> int:
    """Write a rank enlarged to about ``size`` bytes; return the number of repetitions."""
    output = target / _OUTPUT
    output.mkdir(parents=True)
    for path in rank.glob("*.json"):
        shutil.copyfile(path, target / path.name)
    files = sorted((rank / _OUTPUT).iterdir())
    databases = [path for path in files if path.suffix == ".db"]
    growing = databases or [path for path in files if path.name in _GROWING]
    times = max(1, round(size / sum(path.stat().st_size for path in growing)))
    for path in files:
        if path in databases:
            _repeat_database(path, output / path.name, times)
        elif path in growing:
            with (output / path.name).open("w", encoding="utf-8", newline="") as file:
                file.writelines(_repeated(path.name, path.read_text(), times))
        elif path.suffix in (".csv", ".json"):
            shutil.copyfile(path, output / path.name)
    return times


def _repeated(name: str, text: str, times: int) -> Iterator[str]:
    if name.endswith(".json"):
        whole = text.strip()
        head, body, tail, seam = whole[0], whole[1:-1], whole[-1], ", "
    else:
        head, _, body = text.partition("\n")
        head, tail, seam = head + "\n", "", ""
    yield head
    for number in range(times):
        yield (seam if number else "") + (_shift(name, body, number) if number else body)
    yield tail


def _shift(name: str, body: str, number: int) -> str:
    def replace(match: re.Match[str]) -> str:
        stamp, key, identifier, step, of = match.groups()
        if stamp is not None:
            return str(int(stamp) + number * _US)
        if step is not None:
            return f"{step}{int(of) + number}"
        return f'"{key}": {int(identifier) + number * 100_000}'

    shifted = _SHIFTED.sub(replace, body)
    if _GROWING[name]:
        shifted = re.sub(r"^(\d+),", lambda match: f"{int(match[1]) + number},", shifted, flags=re.MULTILINE)
    return shifted


def _repeat_database(source: Path, target: Path, times: int) -> None:
    shutil.copyfile(source, target)
    with closing(sqlite3.connect(target)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            shifted = {column: text for column in columns if (text := _moved(table, column))}
            if shifted:
                connection.execute(f"CREATE TEMP TABLE own AS SELECT * FROM {table}")
                chosen = ", ".join(shifted.get(column, column) for column in columns)
                many = f"INSERT INTO {table} SELECT {chosen} FROM own"
                connection.executemany(many, [{"n": number} for number in range(1, times)])
                connection.execute("DROP TABLE own")
        connection.commit()


def _moved(table: str, column: str) -> str | None:
    """Return the SQL of a column's value in a repetition; None if it does not change."""
    if column in _TIMES:
        return f"{column} + :n * {_NS}"
    if column in _JOINING:
        # 2^32 - 1 means none.
        return f"CASE WHEN {column} < 4294967295 THEN {column} + :n * {_NUMBERS} ELSE {column} END"
    if column == "id" and table in _NUMBERED:
        return f"id + :n * {_NUMBERS}"
    if table == "STEP_TIME" and column == "id":
        return "id + :n"
    if column == "start_timestamp":
        return f"{column} + :n * {_US}"
    if column == "step":
        return "CASE WHEN step GLOB 'step*' THEN 'step' || (CAST(substr(step, 5) AS INTEGER) + :n) ELSE step + :n END"
    return None
