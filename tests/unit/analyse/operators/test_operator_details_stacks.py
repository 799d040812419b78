"""Call stacks are one line of text, in the CSV file too, and a frame a line where torch_npu writes one."""

from __future__ import annotations

import csv
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.cli.main import main


def stacks(folder: Path) -> list[str]:
    """Return the stacks in the first ``operator_details.csv`` of a folder."""
    first = min(folder.rglob("operator_details.csv"))
    with first.open(newline="", encoding="utf-8") as file:
        return [row["Call Stack"] for row in csv.DictReader(file) if row["Call Stack"]]


@pytest.mark.parametrize("capture", ["kineto/tracelens/mi300_bert_small.json.gz", "ascend/text_level0"])
def test_a_stack_is_one_line_without_escapes(shared_data: Path, capture: str, tmp_path: Path) -> None:
    # Given a capture with stacks, of PyTorch's profiler and of torch_npu's
    frames = stepscope.open(shared_data / capture).ranks[0].tables["stacks"].collect()["frames"]
    deepest = frames.list.len().max()
    # When its operators are written as CSV, and as torch_npu writes them
    assert main(["export", str(shared_data / capture), "--to", "csv", "-o", str(tmp_path / "csv")]) == 0
    assert main(["export", str(shared_data / capture), "--layout", "ascend", "-o", str(tmp_path / "ascend")]) == 0
    # Then every frame is there, and no character is written as an escape
    found = stacks(tmp_path / "csv")
    assert max(text.count("; ") + 1 for text in found) == deepest
    assert not [text for text in found if "\\x0a" in text or "\n" in text or "(): " in text]
    assert max(text.count(";\n") + 1 for text in stacks(tmp_path / "ascend")) == deepest


def test_a_frame_without_a_file_is_its_function(shared_data: Path) -> None:
    details = stepscope.open(shared_data / "kineto/tracelens/mi300_bert_small.json.gz").result("operator_details")
    assert isinstance(details, pl.DataFrame)
    assert "; nn.Module: BertEmbeddings_0; " in " ".join(details["Call Stack"].drop_nulls().to_list())
