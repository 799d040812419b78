"""A recording of one collector, read back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepscope.collect.journal.journal import Journal
from stepscope.collect.options import Options
from stepscope.collect.protocol import Collector, Context

from .reading import Read, read_journal


class Recording:
    """A journal, and the context that collectors get."""

    def __init__(self, directory: Path, options: Options) -> None:
        self.journal = Journal(directory / "journal.ssj")
        self.context = Context(rank=0, capture=directory, options=options, journal=self.journal)

    @contextmanager
    def of(self, collector: Collector) -> Iterator[None]:
        """Open a window with this collector alone."""
        assert collector.available() is None
        collector.prepare(self.context)
        collector.start()
        try:
            yield
        finally:
            assert collector.stop() == []

    def read(self) -> Read:
        """End the recording and return what is in it."""
        self.journal.close()
        return read_journal(self.journal.path)


@pytest.fixture
def options() -> Options:
    return Options(counters_hz=50)


@pytest.fixture
def recording(tmp_path: Path, options: Options) -> Iterator[Recording]:
    made = Recording(tmp_path, options)
    yield made
    made.journal.close()
