from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from stepscope.errors import DamagedTraceError, InputError, NotATraceError
from stepscope.read.common import source
from stepscope.trace.losses import LossLedger

TEXT = bytes(range(256)) * 4096


def read(path: Path) -> tuple[bytes, dict[str, int]]:
    ledger = LossLedger(path.name)
    content = b"".join(source.read_blocks(path, ledger))
    return content, {loss.what: loss.count for loss in ledger.rows()}


def test_a_plain_file_comes_in_blocks_and_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a file of more than a block
    monkeypatch.setattr(source, "BLOCK", 1000)
    (tmp_path / "a").write_bytes(TEXT[:2500])
    said: list[tuple[int, int]] = []
    # When it is read
    blocks = list(source.read_blocks(tmp_path / "a", LossLedger("a"), lambda done, total: said.append((done, total))))
    # Then it is whole, and progress ends at its size
    assert b"".join(blocks) == TEXT[:2500]
    assert [len(block) for block in blocks] == [1000, 1000, 500]
    assert said == [(1000, 2500), (2000, 2500), (2500, 2500)]


def test_gzip_is_inflated_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(gzip.compress(TEXT))
    assert read(tmp_path / "a.json") == (TEXT, {})


def test_gzip_members_follow_each_other_and_padding_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one") + gzip.compress(b"two") + b"\0" * 1000)
    assert read(tmp_path / "a.gz") == (b"onetwo", {})


@pytest.mark.parametrize("kept", [0.99, 0.5, 0.1])
def test_a_cut_gzip_file_gives_what_is_there(tmp_path: Path, kept: float) -> None:
    # Given random text, which does not compress, cut somewhere
    text = os.urandom(100_000)
    packed = gzip.compress(text)
    (tmp_path / "a.gz").write_bytes(packed[: int(len(packed) * kept)])
    # When it is read
    content, losses = read(tmp_path / "a.gz")
    # Then the beginning is there, nearly as long, and the loss is counted
    assert text.startswith(content)
    assert len(content) > len(text) * kept - 70_000
    assert losses == {"file_cut": 1}


def test_a_damaged_gzip_file_gives_what_is_before_the_damage(tmp_path: Path) -> None:
    text = os.urandom(1_000_000)
    packed = bytearray(gzip.compress(text))
    packed[-4:] = b"xxxx"
    (tmp_path / "a.gz").write_bytes(bytes(packed))
    content, losses = read(tmp_path / "a.gz")
    assert content == text
    assert losses == {"file_corrupt": 1}


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("lines", [300, 30_000])
def test_a_flipped_bit_of_a_gzip_file_costs_what_is_behind_it(lines: int, share: float, tmp_path: Path) -> None:
    # Given text of two members
    text = "\n".join(f"{number * number} {number % 7}" for number in range(lines)).encode()
    packed = bytearray(gzip.compress(text[: len(text) // 2]) + gzip.compress(text[len(text) // 2 :]))
    packed[int(len(packed) * share)] ^= 4
    (tmp_path / "a.gz").write_bytes(bytes(packed))
    # When it is read
    content, losses = read(tmp_path / "a.gz")
    # Then what is before the damage is there; a changed code may stand for a few wrong letters before it shows
    same = next((place for place, (a, b) in enumerate(zip(content, text, strict=False)) if a != b), len(content))
    assert same > (share - 0.1) * len(text)
    assert losses == {"file_corrupt": 1}


def test_a_gzip_file_that_is_damaged_from_the_beginning_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"\x1f\x8b" + b"\xff" * 1000)
    with pytest.raises(DamagedTraceError, match="damaged from its beginning on"):
        read(tmp_path / "a.gz")


def test_a_file_that_expands_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given zeros, which compress a thousand times
    monkeypatch.setattr(source, "RATIO_FREE", 1 << 20)
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"\0" * (50 << 20)))
    # When it is read
    with pytest.raises(DamagedTraceError, match="expands") as refused:
        read(tmp_path / "a.gz")
    # Then it says what to do, on one line
    assert "gunzip" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_empty_file_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(DamagedTraceError, match="is empty"):
        read(tmp_path / "a")


def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(NotATraceError, match="not a regular file"):
            read(path)


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "absent")
    with pytest.raises(InputError, match="is not a path"):
        read(Path("a\0b"))
