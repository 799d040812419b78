"""Our places of CUPTI's records against NVIDIA's: the compiler on their headers, and what their library steps over."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.trace.cupti_layout import SIZES, Kind, Layout, cuda_of, layout_of
from tests.cupti_wheels import Cupti, unpack
from tests.unit.cupti_build import record

pytestmark = pytest.mark.slow

#: Our name of a field → the header's, where it is not the same.
FIELD = {
    "copy_kind": "copyKind", "source_kind": "srcKind", "destination_kind": "dstKind", "device": "deviceId",
    "context": "contextId", "stream": "streamId", "cache": "cacheConfig.both", "registers": "registersPerThread",
    "grid_x": "gridX", "grid_y": "gridY", "grid_z": "gridZ", "block_x": "blockX", "block_y": "blockY",
    "block_z": "blockZ", "static_shared": "staticSharedMemory", "dynamic_shared": "dynamicSharedMemory",
    "correlation": "correlationId", "graph_node": "graphNodeId", "graph": "graphId", "callback": "cbid",
    "process": "processId", "thread": "threadId", "result": "returnValue", "source_device": "srcDeviceId",
    "destination_device": "dstDeviceId", "memory_kind": "memoryKind", "null_stream": "nullStreamId",
    "overhead_kind": "overheadKind", "object_kind": "objectKind", "sort": "type", "event": "cudaEventId",
    "external_kind": "externalKind", "external": "externalId", "operation": "memoryOperationType",
}  # fmt: skip
FIELD_OF_KIND: dict[Kind, dict[str, str]] = {
    Kind.OVERHEAD: {"process": "objectId.pt.processId", "thread": "objectId.pt.threadId"},
    Kind.MEMORY2: {"start": "timestamp"},
    Kind.DEVICE: {
        "memory_bytes": "globalMemorySize", "warp_threads": "numThreadsPerWarp",
        "multiprocessors": "numMultiprocessors", "warps": "maxWarpsPerMultiprocessor",
        "blocks": "maxBlocksPerMultiprocessor", "device": "id", "shared_memory": "maxSharedMemoryPerMultiprocessor",
        "registers": "maxRegistersPerMultiprocessor", "registers_per_block": "maxRegistersPerBlock",
        "threads_per_block": "maxThreadsPerBlock", "major": "computeCapabilityMajor", "minor": "computeCapabilityMinor",
    },
}  # fmt: skip

#: The versions, and which CUDA they are.
VERSIONS = {
    ("oldest", 11): 1107, ("newest", 11): 1108, ("oldest", 12): 1200, ("newest", 12): 1209, ("oldest", 13): 1300,
    ("newest", 13): 1305,
}  # fmt: skip

#: From 13.2 on the library needs NVIDIA's driver, even to say its version.
WITHOUT_DRIVER = [version for version, cuda in VERSIONS.items() if cuda < 1302]


def named(version: tuple[str, int]) -> str:
    return "".join(map(str, version))


@pytest.fixture(scope="module", params=VERSIONS, ids=named)
def version(request: pytest.FixtureRequest) -> tuple[str, int]:
    found: tuple[str, int] = request.param
    return found


@pytest.fixture(scope="module")
def cupti(version: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> Cupti:
    return unpack(*version, tmp_path_factory.mktemp("cupti"))


@pytest.fixture
def layout(version: tuple[str, int]) -> Layout:
    return layout_of(VERSIONS[version])


def compiled(cupti: Cupti, directory: Path, numbers: dict[str, str]) -> dict[str, int]:
    """Let the compiler compute expressions over the headers."""
    source, program = directory / "numbers.c", directory / "numbers"
    said = '    printf("%s\\"{}\\": %lld", comma, (long long)({})), comma = ", ";\n'
    lines = "".join(said.format(name, text) for name, text in numbers.items())
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <cupti.h>\n"
        "#define OF(type, field) (((type *)0)->field)\n"
        f'int main(void) {{\n    const char *comma = "{{";\n{lines}    puts("}}");\n}}\n'
    )
    subprocess.run(["cc", *cupti.flags, str(source), "-o", str(program)], check=True)
    found: dict[str, int] = json.loads(subprocess.run([str(program)], capture_output=True, check=True).stdout)
    return found


def test_fields_lie_where_the_compiler_puts_them(cupti: Cupti, layout: Layout, tmp_path: Path) -> None:
    expected, numbers = {}, {}
    structures = cupti.structures()
    for kind, size in layout.sizes.items():
        type_ = structures[kind.name]
        numbers |= {f"{kind.name} kind": f"CUPTI_ACTIVITY_KIND_{kind.name}", f"{kind.name} size": f"sizeof({type_})"}
        expected |= {f"{kind.name} kind": int(kind), f"{kind.name} size": size}
        for name, (offset, form) in layout.fields(kind).items():
            field = {**FIELD, **FIELD_OF_KIND.get(kind, {})}.get(name, name)
            value = f"OF({type_}, {field})"
            signed = "0" if field == "name" else f"(__typeof__({value}))-1 < 0"
            numbers[f"{kind.name}.{name}"] = f"offsetof({type_}, {field}) * 100 + sizeof({value}) * 10 + ({signed})"
            expected[f"{kind.name}.{name}"] = offset * 100 + int(form[1:]) * 10 + (form[0] == "i")
    assert compiled(cupti, tmp_path, numbers) == expected


def test_every_size_is_that_of_a_structure(cupti: Cupti, version: tuple[str, int], tmp_path: Path) -> None:
    """The header keeps the structures of the versions before it; no other record was ever written."""
    structures, families = cupti.structures(), cupti.families()
    for kind, steps in SIZES.items():
        family = families[structures[kind.name].rstrip("0123456789")]
        sizes = compiled(cupti, tmp_path, {name: f"sizeof({name})" for name in family})
        ours = {size for since, size in steps.items() if since <= VERSIONS[version]}
        assert ours <= set(sizes.values()), kind


SAYING = """
import ctypes, sys
found = ctypes.c_uint32()
ctypes.CDLL(sys.argv[1]).cuptiGetVersion(ctypes.byref(found))
print(found.value)
"""


@pytest.mark.parametrize("version", WITHOUT_DRIVER, ids=named, indirect=True)
def test_the_library_says_the_version_of_its_header(cupti: Cupti, version: tuple[str, int], tmp_path: Path) -> None:
    number = compiled(cupti, tmp_path, {"version": "CUPTI_API_VERSION"})["version"]
    expected = {1107: 1106}.get(VERSIONS[version], VERSIONS[version])  # CUDA 11.7 has the CUPTI of 11.6
    assert cuda_of(number, version[1]) == expected
    done = subprocess.run(
        [sys.executable, "-c", SAYING, str(cupti.library)], capture_output=True, text=True, check=True
    )
    assert cuda_of(int(done.stdout), version[1]) == expected  # 13.0 says 130001, its header 130000


STEPPING = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
for name, text in json.load(sys.stdin).items():
    content = bytes.fromhex(text)
    memory, found, places = ctypes.create_string_buffer(content, len(content)), ctypes.c_void_p(), []
    while not library.cuptiActivityGetNextRecord(memory, ctypes.c_size_t(len(content)), ctypes.byref(found)):
        places.append(found.value - ctypes.addressof(memory))
    print(name, *places)
"""


@pytest.mark.parametrize("version", WITHOUT_DRIVER, ids=named, indirect=True)
def test_the_library_steps_over_records_as_we_do(cupti: Cupti, layout: Layout) -> None:
    """``cuptiActivityGetNextRecord`` needs no GPU; it is loaded in a process of its own."""
    last = record(layout, Kind.RUNTIME)
    buffers = {kind.name: (record(layout, kind) * 2 + last).hex() for kind in layout.sizes}
    done = subprocess.run(
        [sys.executable, "-c", STEPPING, str(cupti.library)],
        input=json.dumps(buffers), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = {name: list(map(int, places)) for name, *places in map(str.split, done.stdout.splitlines())}
    assert found == {kind.name: [0, size, 2 * size] for kind, size in layout.sizes.items()}
