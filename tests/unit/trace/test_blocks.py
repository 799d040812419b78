"""Whatever happens to a file of blocks: what is sound comes back, what is not is counted."""

from __future__ import annotations

import os
import random
import resource
import signal
import stat
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import FormatVersionError, InputError, NotATraceError
from stepscope.trace import blocks
from stepscope.trace.blocks import FrameWriter, pack, read_frames, unpack
from stepscope.trace.losses import LossLedger
from tests.sizes import SIZE
from tests.unit.collect.reading import descriptor

PAYLOADS = [b"first", b"", b"the third block", bytes(range(40)), b"last"]


def write(path: Path, payloads: list[bytes]) -> None:
    writer = FrameWriter(path)
    for payload in payloads:
        writer.append(payload)
    writer.close()


def read(path: Path) -> tuple[list[bytes], dict[str, int]]:
    ledger = LossLedger("test")
    payloads = list(read_frames(path, ledger))
    return payloads, {loss.what: loss.count for loss in ledger.rows()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "blocks"
    write(path, PAYLOADS)
    return path


def ends_of_blocks(content: bytes, payloads: list[bytes]) -> list[int]:
    end = len(content) - sum(16 + len(payload) for payload in payloads)
    ends = [end]
    for payload in payloads:
        end += 16 + len(payload)
        ends.append(end)
    return ends


def test_layout_is_the_documented_one(file: Path) -> None:
    content = file.read_bytes()
    assert content[:8] == b"SSJ1\n\0\x01\0"
    assert struct.unpack("<I", content[8:12])[0] == zlib.crc32(content[:8])
    marker, number, length, checksum = struct.unpack("<4sIII", content[12:28])
    assert (marker, number, length) == (b"\xf5SB\n", 0, 5)
    assert checksum == zlib.crc32(struct.pack("<II", 0, 5) + b"first")


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_what_was_written_comes_back(tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("frames") / "blocks"
    write(path, payloads)
    assert read(path) == (payloads, {})


def test_payload_may_look_like_a_block(tmp_path: Path, file: Path) -> None:
    path = tmp_path / "nested"
    write(path, [file.read_bytes(), b"after"])
    assert read(path) == ([file.read_bytes(), b"after"], {})


def test_cut_anywhere_keeps_every_whole_block(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    ends = ends_of_blocks(content, PAYLOADS)
    for length in range(len(content)):
        path = tmp_path / "cut"
        path.write_bytes(content[:length])
        whole = sum(end <= length for end in ends[1:])
        losses = {} if length in ends else {"block_cut": 1}
        assert read(path) == (PAYLOADS[:whole], losses), length


def test_every_flipped_bit_is_noticed_and_costs_one_block(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    path = tmp_path / "flipped"
    for position in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            payloads, losses = read(path)
            assert sum(losses.values()) == 1, (position, bit)
            in_header = position < 12
            assert len(payloads) == len(PAYLOADS) - (0 if in_header else 1), (position, bit)
            assert all(payload in PAYLOADS for payload in payloads)


@settings(max_examples=SIZE.examples(300))
@given(st.data())
def test_any_damage_yields_only_sound_blocks(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    # Given: a file with pieces overwritten, removed and inserted
    payloads = [os.urandom(30) for _ in range(8)]
    directory = tmp_path_factory.mktemp("frames")
    write(directory / "sound", payloads)
    content = bytearray((directory / "sound").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        end = min(len(content), start + data.draw(st.integers(0, 60)))
        content[start:end] = data.draw(st.binary(max_size=60))
    (directory / "damaged").write_bytes(content)
    # When, then: blocks come back whole and in order, or the file is refused as ours
    try:
        found, losses = read(directory / "damaged")
    except InputError:
        return
    positions = [payloads.index(payload) for payload in found]
    assert positions == sorted(set(positions))
    assert found == payloads or losses


def test_two_damaged_neighbours_are_counted_as_two(file: Path) -> None:
    content = bytearray(file.read_bytes())
    ends = ends_of_blocks(content, PAYLOADS)
    content[ends[1] + 4] ^= 1
    content[ends[2] + 20] ^= 1
    file.write_bytes(content)
    assert read(file) == ([PAYLOADS[0], *PAYLOADS[3:]], {"block_damaged": 2})


def test_a_file_of_false_markers_is_read_in_no_time(tmp_path: Path) -> None:
    # Given: 4 MB in which every 16 bytes claim a block that reaches far and has the wrong checksum
    path = tmp_path / "hostile"
    block = struct.pack("<4sIII", b"\xf5SB\n", 0, 2 << 20, 0)
    write(path, [b"good"])
    path.write_bytes(path.read_bytes() + block * (1 << 18))
    start = time.perf_counter()
    assert read(path)[0] == [b"good"]
    assert time.perf_counter() - start < 10


def test_files_are_private_new_and_not_inherited(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    before = os.umask(0)
    try:
        writer = FrameWriter(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not os.get_inheritable(descriptor(path))
    with pytest.raises(FileExistsError):
        FrameWriter(path)
    writer.close()
    writer.close()


@pytest.mark.parametrize("content", [b"{}", b"PAR1" * 100, b"\x1f\x8b" + bytes(50)])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(NotATraceError, match="other is not a capture"):
        read(path)


def test_unreadable_paths_are_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotATraceError, match="not a regular file"):
        read(tmp_path / "pipe")
    with pytest.raises(NotATraceError, match="not a regular file"):
        read(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path / "nothing")


def test_newer_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "newer"
    head = blocks.MAGIC + struct.pack("<xH", 7)
    path.write_bytes(head + struct.pack("<I", zlib.crc32(head)))
    with pytest.raises(FormatVersionError, match="format 7; this stepscope reads 1"):
        read(path)


def test_full_disk_leaves_whole_blocks(tmp_path: Path) -> None:
    # Given: a process whose files may have 4096 bytes, which writes until it is refused
    path = tmp_path / "blocks"
    program = (
        "import resource, signal, sys; from pathlib import Path; from stepscope.trace.blocks import FrameWriter\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "writer = FrameWriter(Path(sys.argv[1])); count = 0\n"
        "try:\n"
        "    while True: writer.append(bytes(1000)); count += 1\n"
        "except OSError as error: print(count, error.errno)\n"
    )
    result = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    # Then: the block that did not fit left nothing behind
    assert result.stdout.split()[0] == "4"
    assert read(path) == ([bytes(1000)] * 4, {})


def test_too_long_payload_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_PAYLOAD", 10)
    writer = FrameWriter(tmp_path / "blocks")
    with pytest.raises(ValueError, match="at most 10 bytes"):
        writer.append(bytes(11))
    writer.append(bytes(10))
    writer.close()
    assert read(tmp_path / "blocks") == ([bytes(10)], {})


WRITER = """
import os, sys
from pathlib import Path
from stepscope.trace.blocks import FrameWriter
writer = FrameWriter(Path(sys.argv[1]))
for number in range(10**9):
    writer.append(b"%d " % number * 50)
    os.write(1, b"%d\\n" % number)
"""


@pytest.mark.parametrize("seed", range(4))
def test_killed_writer_leaves_everything_it_had_written(tmp_path: Path, seed: int) -> None:
    # Given: a process that says after every block that it is written, killed at a random moment
    path = tmp_path / "blocks"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(random.Random(seed).uniform(0.001, 0.1))
    process.send_signal(signal.SIGKILL)
    said = process.stdout.read().split()
    process.wait()
    process.stdout.close()
    # Then: every block that it spoke of is there, and nothing is damaged
    payloads, losses = read(path)
    assert payloads == [b"%d " % number * 50 for number in range(len(payloads))]
    assert len(payloads) >= int(said[-1] if said else 0) + 1
    assert losses in ({}, {"block_cut": 1})


def test_pack_and_unpack() -> None:
    content = {"names": ["ü", '\x00\n"'], "spans": {"start": [2**62, -1]}}
    assert unpack(pack(content)) == b'{"names":["\xc3\xbc","\\u0000\\n\\""],"spans":{"start":[4611686018427387904,-1]}}'


def test_pack_refuses_what_json_cannot_hold() -> None:
    with pytest.raises(ValueError, match="JSON"):
        pack({"value": float("nan")})


def test_unpack_inflates_no_bomb() -> None:
    # Given: 200 MB of zeros in 200 kB
    deflater = zlib.compressobj(1)
    bomb = b"".join(deflater.compress(bytes(1 << 20)) for _ in range(200)) + deflater.flush()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="inflates to more than"):
        unpack(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 160 << 10


@pytest.mark.parametrize("payload", [b"", b"plain", zlib.compress(b"cut")[:-3]])
def test_unpack_refuses_what_pack_does_not_make(payload: bytes) -> None:
    with pytest.raises(ValueError, match="block is"):
        unpack(payload)


def test_a_file_of_the_program_under_the_same_number_is_neither_written_to_nor_closed(tmp_path: Path) -> None:
    writer = FrameWriter(tmp_path / "a.ssj")
    writer.append(b"ours")
    number = descriptor(tmp_path / "a.ssj")
    # Given a program that closes all files, and opens one of its own
    os.close(number)
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    assert theirs == number
    # Then stepscope leaves it alone
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.append(b"not theirs")
    writer.close()
    assert os.write(theirs, b"theirs") == 6
    os.close(theirs)
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
    assert list(read_frames(tmp_path / "a.ssj", LossLedger("test"))) == [b"ours"]
