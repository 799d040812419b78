"""Files of Ascend's profilers by what they hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.read.ascend.ascend_files import sort_of_content

COLUMNS = b"Name,Start Time(us),Duration(us),Accelerator Core\n"


@pytest.mark.parametrize(
    ("head", "sort"),
    [(COLUMNS, "kernels"), (b"\xef\xbb\xbf" + COLUMNS, "kernels"), (b'{"a": 1, "b": 2}', None), (b"", None)],
)
def test_the_first_line_says_which_file_it_is(head: bytes, sort: str | None) -> None:
    assert sort_of_content(Path("a file"), head) == sort


def test_a_first_line_longer_than_that_of_any_file_is_not_taken_apart() -> None:
    """Of a job of a thousand ranks, each a line of JSON, that was most of what showing it again took."""
    assert sort_of_content(Path("a file"), b"a," * 2_048 + COLUMNS) is None
