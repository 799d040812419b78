"""A manifest with other content than stepscope writes: the run is read, or one line says what is wrong with it."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.cli.main import main
from tests.sizes import Size

#: What is put in the place of each value.
ODD: tuple[Any, ...] = (None, True, -1, 2**70, 1.5, "x", "", "\x1b[31m\n", [], [[]], {}, {"x": {}}, [None], [2**70])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that knows every kind of entry: recorded here, with a collector that failed and losses."""
    output = tmp_path_factory.mktemp("runs")
    with stepscope.profile(output=output, analyse="later") as profile:
        for number in range(3):
            with stepscope.span(f"work {number}"):
                pass
            profile.step()
    profile.recorded[0].wait(30)
    path = profile.recorded[0].path
    manifest = json.loads((path / "rank0" / "manifest.json").read_text())
    manifest["collectors"]["broken"] = {"failed": "RuntimeError: no room"}
    manifest["losses"] = {"collector_failed": 2}
    manifest |= {
        "switches_unavailable": {"data": "no"},
        "left_out": {"a/b": {"loss": "file_unreadable", "reason": "no"}},
    }
    (path / "rank0" / "manifest.json").write_text(json.dumps(manifest))
    assert main(["report", str(path)]) == 0
    return path


def test_check_says_when_a_recording_ended(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = Path(shutil.copytree(run, tmp_path / "run")) / "rank0"
    manifest = json.loads((directory / "manifest.json").read_text())
    why = "the program started its own torch profiler, at 2026-11-24 03:15:31"
    manifest["collectors"]["torch"] = {"recorder": "kineto", "ended_early": why}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    assert main(["check", str(directory.parent)]) == 0
    assert f"ended early: {why}" in capsys.readouterr().out


def test_without_its_manifest_it_is_not_known_how_a_recording_ended(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = Path(shutil.copytree(run, tmp_path / "run")) / "rank0"
    (directory / "manifest.json").unlink()
    assert main(["check", str(directory.parent)]) == 0
    said = {line[:22].strip(): line[22:].strip() for line in capsys.readouterr().out.splitlines()}
    assert said["status"] == "unknown"
    assert "losses" not in said or said["losses"] != "none"


def places(value: object, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield where the values of a document are, inner ones too."""
    if place:
        yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*place, key))


def changed(manifest: dict[str, Any], place: tuple[str | int, ...], value: object) -> dict[str, Any]:
    made = copy.deepcopy(manifest)
    inside: Any = made
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    return made


def test_any_value_in_any_place(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], size: Size) -> None:
    path = run / "rank0" / "manifest.json"
    sound = path.read_bytes()
    manifest = json.loads(sound)
    cases = [(place, value) for place in places(manifest) for value in ODD]
    try:
        for place, value in cases[:: 1 if size.full else 29]:
            path.write_text(json.dumps(changed(manifest, place, value)))
            for command in (["check", str(run)], ["report", str(run)], ["export", str(run), "--to", "trace"]):
                code = main(command)
                said = capsys.readouterr().err
                assert code in ((0, 3, 4) if command[0] == "check" else (0, 4)), (place, value, command)
                assert "Traceback" not in said, (place, value, command)
                # A rank that is not of its job, or not alone in it, is said on standard output: 3.
                assert code in (0, 3) or said.count("\n") == 1, said
    finally:
        path.write_bytes(sound)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe{", "not UTF-8"),
        (b"[]", "not the JSON object"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"format_version": true}', "has format version True"),
        (b'{"format_version": 1, "rank": 1.5}', "'rank' is 1.5"),
        (b'{"format_version": 1, "collectors": {"torch": []}}', "'collectors' is {\"torch\": []}"),
    ],
    ids=["empty", "bytes", "list", "depth", "version", "rank", "collector"],
)
def test_what_is_wrong_is_said(run: Path, content: bytes, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "rank0" / "manifest.json"
    sound = path.read_bytes()
    path.write_bytes(content)
    try:
        assert main(["check", str(run)]) == 4
        assert said in " ".join(capsys.readouterr().err.split())
    finally:
        path.write_bytes(sound)
