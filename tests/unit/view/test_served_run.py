"""The content of a page is kept with its timeline, for what it was made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepscope
from stepscope.collect.journal.journal import Journal
from stepscope.report.page.content import PARTS
from stepscope.report.safe_text import json_bytes
from stepscope.trace.run_directory import RankDirectory
from stepscope.view.served_run import ServedRun

BEGIN = 1_795_000_000_000_000_000


def recorded(folder: Path, status: str = "complete") -> RankDirectory:
    directory = RankDirectory(folder / "train_20261123-080000" / "rank0")
    directory.create()
    journal = Journal(directory.capture / "journal.ssj")
    for number in range(3):
        start = BEGIN + number * 10**6
        journal.span(f"forward {number}", "annotation", start, start + 600_000, {})
        journal.step(number, start, start + 10**6, "declared")
    journal.close()
    directory.write_manifest({"status": status, "rank": 0, "world_size": 1, "worker": "train"})
    return directory


def content(directory: RankDirectory) -> bytes:
    """Return what a server that has just started answers."""
    served = ServedRun(stepscope.open(directory.path.parent))
    try:
        return json_bytes(served.of(None).content)
    finally:
        served.close()


def test_the_content_is_kept_and_is_the_same(tmp_path: Path) -> None:
    directory = recorded(tmp_path)
    kept = directory.path / "timeline" / "content.json"
    first = content(directory)
    assert json.loads(kept.read_bytes())["parts"] == {"beginning": json.loads(first)}
    # Whoever reads it back reads what is there: the answer comes from the file.
    changed = json.loads(kept.read_bytes())
    changed["parts"]["beginning"]["title"] = "from the file"
    kept.write_text(json.dumps(changed))
    assert json.loads(content(directory))["title"] == "from the file"
    # Damaged, or of another manifest, it is made again.
    kept.write_bytes(kept.read_bytes()[:-9])
    assert content(directory) == first
    directory.write_manifest({**directory.read_manifest(), "worker": "other"})
    assert json.loads(content(directory))["title"] == "other"


def test_the_content_of_a_run_that_is_being_recorded_is_not_kept(tmp_path: Path) -> None:
    directory = recorded(tmp_path, "recording")
    content(directory)
    assert not (directory.path / "timeline" / "content.json").exists()


def test_what_takes_long_is_computed_when_it_is_asked_for_and_then_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str, _: object) -> None:
        raise AssertionError(name)

    directory = recorded(tmp_path)
    served = ServedRun(stepscope.open(directory.path.parent))
    rank = served.of(None)
    with monkeypatch.context() as patch:  # what the page begins with is told by the tables alone
        patch.setattr("stepscope.analyse.results.compute", refused)
        assert rank.content["timeline"]["spans"] == 3
    assert not {"verdict", "findings", "split", "flame"} & rank.content.keys()
    for name in PARTS:
        found = rank.part(name)
        assert {key: rank.content[key] for key in found} == found
    served.close()
    assert {"verdict", "findings", "split", "flame"} <= json.loads(content(directory)).keys()
