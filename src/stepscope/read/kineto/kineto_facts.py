"""Metadata of a Kineto trace: rank, host, time base, process groups."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from stepscope.read.common.plain_text import printable

#: A file without ``baseTimeNanoseconds`` gives times since the Unix epoch.
_NO_BASE = 0


class KinetoFacts:
    """Metadata of one trace file, from its top-level keys and their values as JSON."""

    def __init__(self, metadata: Mapping[str, str]) -> None:
        #: Top-level key → value as JSON.
        self.metadata = metadata

    def _value(self, key: str) -> Any:  # noqa: ANN401 - any JSON value
        try:
            return json.loads(self.metadata.get(key, "null"), strict=False)
        except (ValueError, RecursionError):
            return None

    @cached_property
    def base_ns(self) -> int:
        """Nanoseconds between the Unix epoch and the file's time zero."""
        value = self._value("baseTimeNanoseconds")
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        return value if isinstance(value, int) and 0 <= value < 1 << 62 else _NO_BASE

    @cached_property
    def distributed(self) -> dict[str, Any]:
        """The block ``distributedInfo``; empty if the file has none."""
        value = self._value("distributedInfo")
        return value if isinstance(value, dict) else {}

    @property
    def rank(self) -> int | None:
        """Rank of the process; None if the file does not say it."""
        return _number(self.distributed.get("rank"))

    @property
    def world_size(self) -> int | None:
        """Number of processes of the job; None if the file does not say it."""
        return _number(self.distributed.get("world_size"))

    @property
    def host(self) -> str | None:
        """Host name; None if the file does not say it."""
        value = self._value("host_name")
        return printable(value) if isinstance(value, str) else None

    @cached_property
    def gpus_of_amd(self) -> list[int] | None:
        """The numbers that the process knows its GPUs by, if they are of AMD; None if not."""
        if not any(key.startswith(("roctracer", "rocprofiler", "hip_")) for key in self.metadata):
            return None
        listed = self._value("deviceProperties")
        devices = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        return sorted(number for one in devices if (number := _number(one.get("id"))) is not None)

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """Process group's name → ranks, for the groups whose ranks the file lists."""
        config = self.distributed.get("pg_config")
        groups = {}
        for group in config if isinstance(config, list) else []:
            if isinstance(group, dict) and isinstance(group.get("ranks"), list):
                groups[printable(str(group.get("pg_name")))] = group["ranks"]
        return groups

    @property
    def backend(self) -> str | None:
        """The communication backend, in lower case; None unless the file names exactly one."""
        value = self.distributed.get("backend")
        names = {part.rpartition(":")[2] for part in value.split(",")} if isinstance(value, str) else set()
        return printable(names.pop().lower()) if len(names) == 1 else None


def _number(value: Any) -> int | None:  # noqa: ANN401 - any JSON value
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else None
