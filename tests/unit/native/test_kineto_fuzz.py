"""No text makes the C code read, write or compute what it must not: sanitizers watch it read damaged captures."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from stepscope import native
from stepscope.native.kineto import Description
from stepscope.read.chrome_json.tokenizer import description
from tests.sizes import Size

_TYPES = ("integer", "real", "text", "unsigned")
_SOURCES = Path(native.__file__).parent
_CAPTURES = (
    "kineto/hta/call_stack/backward_thread.json",
    "kineto/hta/triton_example/triton_example.json.gz",
    "kineto/hta/critical_path/cuda_event_sync/event_sync_trace.json.gz",
    "kineto/tracelens/torch_compile_triton/trace.json.gz",
)


def _described(given: Description) -> str:
    """Return the description as the harness reads it: kind, five numbers, a text."""
    rows = [(0, given.none, given.memory, given.other, given.optional[1], given.optional[0], "-")]
    rows += [(1, number, 0, 0, 0, 0, category) for category, number in given.categories.items()]
    for number, keys in given.keys.items():
        rows += [
            (2, number, key.column, _TYPES.index(key.type), key.group, 0, json.dumps(key.spelling)) for key in keys
        ]
    rows += [(3, number, column, 0, 0, 0, "-") for number, column in given.whole.items()]
    rows += [(4, number, len(columns), 0, 0, 0, "-") for number, columns in given.columns.items()]
    return "".join(" ".join(map(str, (int(x) if not isinstance(x, str) else x for x in row))) + "\n" for row in rows)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    program = tmp_path_factory.mktemp("fuzz") / "fuzz"
    sources = [str(path) for path in sorted(_SOURCES.glob("*.c"))] + [str(Path(__file__).with_name("fuzz.c"))]
    flags = ["-O1", "-g", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{_SOURCES}"]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    built = subprocess.run(
        [compiler, *flags, *sanitizers, *sources, "-o", str(program)], capture_output=True, text=True
    )
    if "cannot find" in built.stderr and "asan" in built.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    return program


def _events(path: Path) -> bytes:
    """Return what the tokenizer gets: everything behind the bracket that opens the list of events."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return content[content.index(b"[", content.index(b'"traceEvents"')) + 1 :]


@pytest.mark.slow
def test_damaged_captures_never_make_it_read_too_far(
    harness: Path, shared_data: Path, tmp_path: Path, size: Size
) -> None:
    # Given chunks of real captures of several dialects
    (tmp_path / "description").write_text(_described(description()))
    chunks = []
    for number, name in enumerate(_CAPTURES):
        chunks.append(tmp_path / f"chunk{number}")
        chunks[-1].write_bytes(_events(shared_data / name)[:20_000])
    # When they are read at every length, and changed at random, by code that sanitizers watch
    command = [str(harness), str(tmp_path / "description"), str(size.many(700)), *map(str, chunks)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    # Then nothing was read, written or computed that must not be, and nothing leaked
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert int(ran.stdout) > 0
