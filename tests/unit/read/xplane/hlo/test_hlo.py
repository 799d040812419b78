"""Instructions of compiled programs without JAX: a real program, whole and damaged, and what no compiler writes.

Whether the counts are XLA's own is tested beside JAX, in ``tests/frameworks/jax/test_hlo.py``.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.read.common.protobuf import Messages
from stepscope.read.xplane.compiled_programs import instructions
from stepscope.read.xplane.hlo import hlo_devices, hlo_products
from stepscope.read.xplane.hlo.hlo_collectives import collectives
from stepscope.report.timeline.perfetto.protobuf import block, integer
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import schema
from tests.sizes import SIZE, first_quick

SAMPLE = Path(__file__).resolve().parents[4] / "data" / "xplane" / "mlp_step.hlo.pb"
KEYS = ["flops", "transcendentals", "bytes"]


def read(program: bytes) -> tuple[pl.DataFrame, dict[str, int]]:
    ledger = LossLedger("program")
    found = instructions(program, 7, ledger)
    return found, {loss.what: loss.count for loss in ledger.rows()}


@pytest.fixture(scope="module")
def step() -> pl.DataFrame:
    found, losses = read(SAMPLE.read_bytes())
    assert not losses
    return found


def test_every_instruction_is_a_row_of_the_table(step: pl.DataFrame) -> None:
    assert dict(step.schema) == schema("instructions")
    assert step["id"].to_list() == list(range(len(step)))
    assert step["name"].n_unique() == len(step)
    assert step["program"].unique().to_list() == ["jit_step"]
    assert step["program_id"].unique().to_list() == [7]
    top = step.filter(pl.col("parent").is_null())
    assert top["computation"].n_unique() == 1
    # Those of a computation have one parent, which stands outside it
    inside = step.filter(pl.col("parent").is_not_null())
    callers = inside.group_by("computation").agg(pl.col("parent").unique())["parent"].list.len()
    assert callers.unique().to_list() == [1]
    assert (inside["parent"] > inside["id"]).all()


def test_products_scopes_lines_and_phases_are_those_of_the_source(step: pl.DataFrame) -> None:
    # The program multiplies 16×32 by 32×64, 64×64 and 64×8 forward, and all but the data's gradient backward
    dots = step.filter(pl.col("opcode") == "dot").cast({"scope": pl.String, "phase": pl.String})
    sizes = [32 * 64, 64 * 64, 64 * 8]
    assert sorted(dots["flops"]) == sorted(2 * 16 * size for size in [*sizes, *sizes, *sizes[1:]])
    assert dots["phase"].value_counts().sort("phase").rows() == [("backward", 5), ("forward", 3)]
    assert set(dots["source"]) == {"train.py:9"}
    assert "jit(step)/jvp(layer1)/dot_general" in dots["scope"].to_list()
    product = dots.filter(pl.col("scope") == "jit(step)/jvp(layer1)/dot_general").row(0, named=True)
    assert (product["shape"], product["operands"]) == ("f32[16,64]", "f32[16,64], f32[64,64]")
    assert product["bytes"] == 4 * (16 * 64 + 64 * 64 + 16 * 64)
    phases = step.cast({"phase": pl.String}).filter(pl.col("flops") > 0)
    assert set(phases.filter(pl.col("source") == "train.py:17")["phase"]) == {"optimizer"}


def test_a_fusion_is_the_sum_of_its_parts(step: pl.DataFrame) -> None:
    fusions = step.filter(pl.col("opcode") == "fusion")
    assert len(fusions)
    inside = (
        step.filter(pl.col("parent").is_not_null()).group_by("parent").agg(pl.col("flops", "transcendentals").sum())
    )
    together = fusions.join(inside, left_on="id", right_on="parent", suffix="_inside")
    assert len(together) == len(fusions)
    assert together["flops"].equals(together["flops_inside"])
    assert together["transcendentals"].equals(together["transcendentals_inside"])


def cut(content: bytes, whole: pl.DataFrame, lengths: range) -> None:
    """Check what is read of a program of which only the beginning is there."""
    same = ["name", "opcode", "shape"]
    rows = -1
    for length in lengths:
        found, losses = read(content[:length])
        assert losses.get("program_damaged") == 1, length
        assert len(found) >= rows
        rows = len(found)
        # All but the last instruction are whole, and say what they say in the whole program
        assert found[same][:-1].equals(whole[same][: max(rows - 1, 0)]), length
    assert rows == len(whole)


def test_a_program_cut_anywhere_gives_what_stands_before_and_a_loss(step: pl.DataFrame) -> None:
    content = SAMPLE.read_bytes()
    cut(content, step, range(len(content) // 150, len(content), len(content) // 150))
    inner = computation(1, instruction(1, "parameter", shape(4)), instruction(2, "add", shape(4), 1, 1), root=2)
    small = program(inner, computation(2, instruction(3, "call", shape(4), more=integer(38, 1))))
    cut(small, read(small)[0], range(len(small)))


@pytest.mark.parametrize("seed", first_quick(range(5)))
def test_a_program_with_wrong_bytes_gives_a_table(seed: int) -> None:
    content, chance = SAMPLE.read_bytes(), random.Random(seed)
    for _ in range(100):
        wrong = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 8, 64))):
            wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        found, _ = read(bytes(wrong))
        assert dict(found.schema) == schema("instructions")
        collectives(bytes(wrong), 0, LossLedger("program"))


@settings(max_examples=SIZE.examples(100))
@given(st.binary(max_size=200))
def test_bytes_that_are_no_program_give_a_table(content: bytes) -> None:
    for program in (content, block(1, content), block(1, block(3, content)), block(1, block(3, block(2, content)))):
        found, _ = read(program)
        assert dict(found.schema) == schema("instructions")


def shape(*dims: int, kind: int = 11) -> bytes:
    return integer(2, kind) + b"".join(integer(3, size) for size in dims)


def instruction(number: int, opcode: str, result: bytes, *operands: int, more: bytes = b"") -> bytes:
    numbers = b"".join(integer(36, operand) for operand in operands)
    texts = block(1, f"{opcode}.{number}".encode()) + block(2, opcode.encode())
    return block(2, texts + block(3, result) + integer(35, number) + numbers + more)


def program(*computations: bytes) -> bytes:
    return block(1, block(1, b"jit_made") + b"".join(block(3, one) for one in computations))


def computation(number: int, *made: bytes, root: int = 0) -> bytes:
    return block(1, f"computation{number}".encode()) + b"".join(made) + integer(5, number) + integer(6, root)


def costs(found: pl.DataFrame, name: str) -> tuple[int | None, ...]:
    return found.filter(pl.col("name") == name)[KEYS].row(0)


def test_an_operand_that_is_missing_makes_the_cost_unknown() -> None:
    made = computation(1, instruction(1, "parameter", shape(4)), instruction(2, "add", shape(4), 1, 99))
    found, _ = read(program(made))
    assert costs(found, "add.2") == (None, None, None)
    assert found["operands"].to_list() == ["", "f32[4], ?[]"]


def test_a_computation_that_calls_itself_or_a_later_one_costs_an_unknown_amount() -> None:
    first = computation(1, instruction(1, "call", shape(4), more=integer(38, 1)))
    second = computation(2, instruction(2, "fusion", shape(4), more=integer(38, 3)))
    third = computation(3, instruction(3, "fusion", shape(4), more=integer(38, 2)))
    found, _ = read(program(first, second, third))
    assert costs(found, "call.1") == costs(found, "fusion.2") == (None, None, None)
    assert found["parent"].to_list() == [None, 2, 1]


def test_an_unknown_cost_stays_unknown_in_what_contains_it() -> None:
    inner = computation(1, instruction(1, "custom-call", shape(4)), instruction(2, "add", shape(4), 1, 1), root=2)
    outer = computation(2, instruction(3, "call", shape(4), more=integer(38, 1)))
    found, _ = read(program(inner, outer))
    assert costs(found, "custom-call.1") == (None, None, 16)
    assert costs(found, "call.3") == (None, None, 64)


def test_numbers_beyond_64_bits_are_unknown() -> None:
    huge = shape(1 << 40, 1 << 40)
    made = computation(1, instruction(1, "parameter", huge), instruction(2, "add", huge, 1, 1))
    found, _ = read(program(made))
    assert costs(found, "add.2") == (None, 0, None)


def test_a_loop_runs_as_often_as_the_compiler_says() -> None:
    body = computation(1, instruction(1, "parameter", shape(4)), instruction(2, "add", shape(4), 1, 1), root=2)
    test = computation(2, instruction(3, "parameter", shape(4)), instruction(4, "constant", shape(kind=1)), root=4)
    said = block(43, b'{"known_trip_count":{"n":"12"}}')
    calls = integer(38, 1) + integer(38, 2)
    outer = computation(
        3,
        instruction(5, "parameter", shape(4)),
        instruction(6, "while", shape(4), 5, more=calls + said),
        instruction(7, "while", shape(4), 5, more=calls),
    )
    found, _ = read(program(body, test, outer))
    assert costs(found, "while.6") == (48, 0, 12 * 48)
    assert costs(found, "while.7") == (None, None, None)


def test_a_library_call_that_multiplies_counts_its_product() -> None:
    config = b'{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}'
    call = block(28, b"__cublas$gemm") + block(43, config)
    result = integer(2, 13) + block(4, shape(3, 5)) + block(4, shape(1000, kind=2))
    made = computation(
        1,
        instruction(1, "parameter", shape(3, 4)),
        instruction(2, "parameter", shape(4, 5)),
        instruction(3, "custom-call", result, 1, 2, more=call),
    )
    found, _ = read(program(made))
    assert costs(found, "custom-call.3") == (2 * 3 * 5 * 4, 0, 4 * (12 + 20 + 15) + 1000)
    assert found["shape"].to_list()[-1] == "(f32[3,5], s8[1000])"


def test_a_convolution_of_a_real_gpu_capture_counts_no_padding(shared_data: Path) -> None:
    # Given the program of a 3-d convolution that MIOpen ran: 16×32×60×104 by 5120 kernels of 1×2×2, stride 1, 2, 2
    capture = Messages.whole((shared_data / "xplane" / "jax_mi300_conv.xplane.pb").read_bytes())
    events = capture.fields().within(1)[1].fields().within(4)[1].fields().within(2)[1]
    _, programs = events.fields().within(5)[1].fields().within(6)
    tables = [read(programs.content[start:end])[0] for start, end in zip(programs.start, programs.end, strict=True)]
    found = next(table for table in tables if "jit_forward_3d_conv" in table["program"])
    flops = found.filter(pl.col("opcode") == "custom-call")["flops"].item()
    # Then what counts is pairs of weight and voxel: per dimension those that lie inside
    inside = [
        sum(0 <= stride * at - padding + tap < size for at in range(out) for tap in range(taps))
        for size, out, taps, stride, padding in ((32, 34, 1, 1, 1), (60, 31, 2, 2, 1), (104, 53, 2, 2, 1))
    ]
    assert flops == 2 * 16 * 5120 * inside[0] * inside[1] * inside[2]


DIMENSION = st.builds(
    hlo_products.Dimension,
    size=st.integers(1, 4),
    stride=st.integers(1, 3),
    low=st.integers(-2, 4),
    high=st.integers(0, 3),
    window_dilation=st.integers(1, 3),
    base_dilation=st.integers(1, 3),
)


@settings(max_examples=SIZE.examples(200))
@given(DIMENSION, st.integers(1, 9), st.integers(1, 9))
def test_positions_of_a_window_are_those_of_a_convolution_of_ones(
    one: hlo_products.Dimension, given_size: int, output: int
) -> None:
    # An input of ones with gaps of zeros and padding, met by a kernel of ones with gaps: the sum is the count
    stretched = np.zeros((given_size - 1) * one.base_dilation + 1)
    stretched[:: one.base_dilation] = 1
    total = 0
    for place in range(output):
        for tap in range(one.size):
            at = place * one.stride - one.low + tap * one.window_dilation
            total += int(stretched[at]) if 0 <= at < len(stretched) else 0
    assert hlo_products.window_positions(one, given_size, one.size, output) == total


def test_a_window_that_no_program_has_costs_an_unknown_amount() -> None:
    one = hlo_products.Dimension(1 << 20, 1, 0, 0, 1, 1)
    assert hlo_products.window_positions(one, 10, 1 << 20, 1 << 20) is None


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_groups_along_a_mesh_hold_every_device_once(dims: list[int], data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.sampled_from(range(len(dims))), unique=True))
    groups = hlo_devices.groups_along(dims, [], [(axis, 1, 0) for axis in axes])
    assert sorted(device for group in groups for device in group) == list(range(int(np.prod(dims))))
    assert {len(group) for group in groups} == {int(np.prod([dims[axis] for axis in axes]))}
    # The devices of a group differ only along its axes
    for group in groups:
        places = np.array(np.unravel_index(group, dims))
        assert all(len(set(places[axis])) == 1 for axis in range(len(dims)) if axis not in axes)


def test_groups_that_do_not_fit_their_mesh_are_unknown() -> None:
    assert hlo_devices.groups_along([4], [], [(1, 1, 0)]) == []
    assert hlo_devices.groups_along([4], [], [(0, 3, 2)]) == []
    assert hlo_devices.groups_along([4], [0, 1], [(0, 1, 0)]) == []
    assert hlo_devices.groups_along([4], [], [(0, 1, 0), (0, 1, 0)]) == []
    assert hlo_devices.groups_along([1 << 40], [], [(0, 1, 0)]) == []
    assert hlo_devices.groups_counted(2, 2, [2, 2], [0, 0]) == []
    assert hlo_devices.groups_counted(2, 2, [3], [0]) == []
    assert hlo_devices.groups_counted(2, 2, [2, 2], [1, 0]) == [[0, 2], [1, 3]]
