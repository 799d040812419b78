"""Only builds that were verified are operated on: what identifies a build, and what every other file gets."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collect.surgery import verified
from stepscope.collect.surgery.verified import BUILDS, LIBRARIES, Build, Unverified, identify, require

ID = bytes(range(20))


def note(name: bytes, kind: int, content: bytes, aligned: int = 4) -> bytes:
    def padded(text: bytes) -> bytes:
        return text + b"\0" * (-len(text) % aligned)

    return padded(struct.pack("<III", len(name), len(content), kind) + name) + padded(content)


def elf(*notes: bytes, machine: int = 62, aligned: int = 4, rest: bytes = b"") -> bytes:
    """Return a library with one segment for each of ``notes``."""
    header = struct.pack("<16sHHIQQQIHHH", b"\x7fELF\x02\x01\x01", 3, machine, 1, 0, 64, 0, 0, 64, 56, len(notes))
    at, segments = 64 + 56 * len(notes), b""
    for content in notes:
        segments += struct.pack("<IIQQQQQQ", 4, 4, at, at, at, len(content), len(content), aligned)
        at += len(content)
    return header.ljust(64, b"\0") + segments + b"".join(notes) + rest


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return tmp_path / "libphi_core.so"


@pytest.mark.parametrize("aligned", [4, 8])
@pytest.mark.parametrize(("machine", "name"), [(62, "x86_64"), (183, "aarch64"), (8, "ELF machine 8")])
def test_the_build_id_is_found_behind_other_notes(library: Path, aligned: int, machine: int, name: str) -> None:
    other = note(b"GNU\0", 5, b"\0" * 12, aligned) + note(b"stapsdt\0", 3, b"probe", aligned)
    library.write_bytes(elf(other, note(b"GNU\0", 3, ID, aligned), machine=machine, aligned=aligned))
    assert identify(library) == (f"build-id:{ID.hex()}", name)


@pytest.mark.parametrize("notes", [(), (b"",), (note(b"GNU\0", 3, b""),), (note(b"Go\0\0", 3, ID),)])
def test_a_library_without_a_build_id_is_hashed(library: Path, notes: tuple[bytes, ...]) -> None:
    library.write_bytes(elf(*notes, rest=b"code"))
    assert identify(library) == (f"sha256:{hashlib.sha256(library.read_bytes()).hexdigest()}", "x86_64")
    # and another content is another build
    library.write_bytes(elf(*notes, rest=b"edoc"))
    os.utime(library, ns=(1, 1))
    assert identify(library)[0] == f"sha256:{hashlib.sha256(library.read_bytes()).hexdigest()}"


def test_a_library_that_is_too_large_to_hash_is_not_identified(library: Path) -> None:
    with library.open("wb") as file:
        file.write(elf())
        file.truncate(1 << 30)
    with pytest.raises(ValueError, match="too large to hash"):
        identify(library)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"#!/bin/sh\n",
        b"\x7fELF",
        b"\x7fELF\x02\x01" + b"\xff" * 58,
        b"\x7fELF\x01\x01" + b"\0" * 100,  # 32 bits
        b"\x7fELF\x02\x02" + b"\0" * 100,  # big-endian
        elf(note(b"GNU\0", 3, ID))[:100],
        elf(note(b"GNU\0", 3, ID))[:-1],
    ],
)
def test_files_that_are_no_whole_library_are_not_identified(library: Path, content: bytes) -> None:
    library.write_bytes(content)
    with pytest.raises(ValueError, match=r"libphi_core\.so (is not a 64-bit|is cut or damaged)"):
        identify(library)


@given(data=st.data())
def test_damage_never_breaks_the_reading(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = bytearray(elf(note(b"GNU\0", 3, ID), rest=b"code"))
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / f"damaged{data.draw(st.uuids())}.so"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        identity, _ = identify(path)
    except ValueError:
        return
    finally:
        path.unlink()
    assert re.fullmatch(r"build-id:([0-9a-f]{2})+|sha256:[0-9a-f]{64}", identity)


def _libraries() -> list[Path]:
    found = [Path(sys.executable).resolve()]
    for folder in ("/usr/lib", "/lib64"):
        found += sorted(Path(folder).glob("*-linux-gnu/lib*.so.[0-9]"))[:60]
    return [path for path in found if path.is_file()]


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
def test_build_ids_are_those_of_readelf() -> None:
    checked = 0
    for path in _libraries():
        command = ["readelf", "--notes", "--wide", str(path)]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        expected = re.search(r"Build ID: ([0-9a-f]+)", said)
        identity, machine = identify(path)
        assert machine == platform.machine()
        assert identity == f"build-id:{expected[1]}" if expected else identity.startswith("sha256:"), path
        checked += expected is not None
    assert checked > 0


@pytest.fixture
def paddle(library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Paddle whose ``libphi_core.so`` has a build id that was verified; returns the library."""
    (library.parent / "libs").mkdir()
    library = library.parent / "libs" / library.name
    library.write_bytes(elf(note(b"GNU\0", 3, ID)))
    module = SimpleNamespace(__file__=str(library.parents[1] / "__init__.py"), __version__="3.3.1")
    monkeypatch.setitem(sys.modules, "paddle", module)
    row = Build("libphi_core.so", "3.3.1", "x86_64", f"build-id:{ID.hex()}", "this test")
    monkeypatch.setattr(verified, "BUILDS", (row,))
    require("libphi_core.so")
    return library


def test_another_build_id_is_refused(paddle: Path) -> None:
    paddle.write_bytes(elf(note(b"GNU\0", 3, ID[::-1])))
    os.utime(paddle, ns=(1, 1))
    with pytest.raises(Unverified) as refused:
        require("libphi_core.so")
    for part in ("libphi_core.so", "paddle 3.3.1", "x86_64", f"build-id:{ID[::-1].hex()}", "README.md"):
        assert part in str(refused.value)


def test_another_architecture_is_refused(paddle: Path) -> None:
    paddle.write_bytes(elf(note(b"GNU\0", 3, ID), machine=183))
    os.utime(paddle, ns=(1, 1))
    with pytest.raises(Unverified, match="aarch64"):
        require("libphi_core.so")


def test_another_version_of_the_framework_is_refused(paddle: Path) -> None:
    # as when another version was installed after the program had imported this one
    assert paddle.exists()
    sys.modules["paddle"].__version__ = "3.3.2"
    with pytest.raises(Unverified, match=re.escape("paddle 3.3.2")):
        require("libphi_core.so")


def test_a_library_that_cannot_be_read_is_refused(paddle: Path) -> None:
    paddle.unlink()
    with pytest.raises(Unverified, match="cannot be identified"):
        require("libphi_core.so")


def test_the_table_is_sound() -> None:
    assert len({build[:4] for build in BUILDS}) == len(BUILDS)
    for build in BUILDS:
        assert build.library in LIBRARIES
        assert re.fullmatch(r"build-id:[0-9a-f]{16,}|sha256:[0-9a-f]{64}", build.identity)
        assert build.verified


def test_the_command_prints_the_row_of_a_library(library: Path) -> None:
    library.write_bytes(elf(note(b"GNU\0", 3, ID)))
    command = [sys.executable, "-m", "stepscope.collect.surgery.verified", str(library)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    comment, row = printed.splitlines()
    assert comment == f"# {library}: not verified"
    built = eval(row.strip().removesuffix(","), {"Build": Build})
    assert (built.machine, built.identity) == ("x86_64", f"build-id:{ID.hex()}")
    assert "test_threads.py" in built.verified
