"""Operations and bytes of compiled programs: the same as XLA counts them itself, and each difference is explained.

The other side is XLA's own ``HloCostAnalysis``: of whole programs by ``compiled.cost_analysis()``, of single opcodes by
the same analysis over HLO text. The differences that are meant stand in ``docs/definitions.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import polars as pl
import pytest
from jax import lax
from jaxlib import _hlo, _jax

from stepscope.read.xplane.compiled_programs import instructions
from stepscope.read.xplane.hlo.hlo_collectives import collectives
from stepscope.report.timeline.perfetto.protobuf import block
from stepscope.trace.losses import LossLedger

KEYS = {"flops": "flops", "transcendentals": "transcendentals", "bytes": "bytes accessed"}
ones = jnp.ones


def table(module: Any) -> pl.DataFrame:
    """Return our instructions of a program of XLA's."""
    ledger = LossLedger("program")
    found = instructions(block(1, module.as_serialized_hlo_module_proto()), 7, ledger)
    assert not ledger.rows()
    return found


def top(found: pl.DataFrame) -> pl.DataFrame:
    return found.filter(pl.col("parent").is_null())


def ours(found: pl.DataFrame) -> dict[str, int]:
    return {key: int(found[key].sum()) for key in KEYS}


def compiled(function: Callable[..., Any], *arguments: Any) -> tuple[pl.DataFrame, dict[str, float]]:
    """Return our instructions of a function as XLA compiles it, and XLA's own counts of the program."""
    program = jax.jit(function).lower(*arguments).compile()
    said = program.cost_analysis()
    counts = {key: said.get(name, 0.0) for key, name in KEYS.items()}
    return table(program.runtime_executable().hlo_modules()[0]), counts


def mlp(weights: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    for number, weight in enumerate(weights):
        with jax.named_scope(f"layer{number}"):
            x = jnp.tanh(x @ weight)
    return (x**2).mean()


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) / 8.0) @ v


def normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * scale


def convolution(
    stride: int, padding: Any, groups: int = 1, window: tuple[int, int] = (1, 1), base: tuple[int, int] = (1, 1)
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    return lambda x, kernel: lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, base, window, ("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )


def gradient(function: Callable[..., jax.Array], number: int) -> Callable[..., Any]:
    return jax.grad(lambda *arguments: function(*arguments).sum(), argnums=tuple(range(number)))


WEIGHTS = [ones((32, 64)), ones((64, 64)), ones((64, 8))]
IMAGE, KERNEL = ones((2, 17, 13, 8)), ones((3, 3, 8, 16))
MATRIX = ones((64, 32))
PROGRAMS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "mlp": (mlp, [WEIGHTS, ones((16, 32))]),
    "mlp and its gradient": (jax.value_and_grad(mlp), [WEIGHTS, ones((16, 32))]),
    "convolution, same": (gradient(convolution(1, "SAME"), 2), [IMAGE, KERNEL]),
    "convolution, valid": (gradient(convolution(1, "VALID"), 2), [IMAGE, KERNEL]),
    "convolution, strides": (gradient(convolution(2, "SAME"), 2), [IMAGE, KERNEL]),
    "convolution, groups": (gradient(convolution(2, "VALID", groups=4), 2), [IMAGE, ones((3, 3, 2, 16))]),
    "convolution, dilated": (gradient(convolution(1, "SAME", window=(2, 3)), 2), [IMAGE, KERNEL]),
    "convolution, transposed": (convolution(1, ((1, 2), (2, 1)), base=(2, 2)), [IMAGE, KERNEL]),
    "batched product": (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), [ones((4, 8, 16)), ones((4, 16, 32))]),
    "softmax": (jax.nn.softmax, [ones((8, 128))]),
    "reductions": (lambda x: (x.sum(0), x.max(1), x.mean(), x.prod(0), jnp.argmax(x, 1)), [MATRIX]),
    "cumulative sum": (lambda x: jnp.cumsum(x, 0), [MATRIX]),
    "max pooling": (
        gradient(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"), 1),
        [ones((2, 16, 16, 4))],
    ),
    "sort": (lambda x: jnp.argsort(x), [ones((10, 100))]),
    "fourier": (lambda x: jnp.fft.rfft2(x), [ones((16, 32))]),
    "embedding": (gradient(lambda x: x[jnp.arange(10)], 1), [ones((100, 16))]),
    "slices": (lambda x, i: (x[3:50, 2:9] * 2, lax.dynamic_slice(x, (i, 0), (5, 16)) + 1), [ones((100, 16)), 3]),
    "update": (lambda x, u, i: lax.dynamic_update_slice(x, u * 2, (i, 0)), [ones((100, 16)), ones((5, 16)), 3]),
    "condition": (lambda b, x: lax.cond(b, lambda x: jnp.tanh(x @ x), lambda x: x + 1, x), [True, ones((16, 16))]),
    "attention": (gradient(attention, 3), [ones((2, 4, 32, 16))] * 3),
    "normalisation": (gradient(normalised, 2), [MATRIX, ones(32)]),
    "half precision": (lambda a, b: a @ b, [MATRIX.astype(jnp.bfloat16), MATRIX.T.astype(jnp.bfloat16)]),
    "small integers": (lambda a: a.astype(jnp.int32) + 1, [ones((6, 8), jnp.int4)]),
    "complex": (lambda a: jnp.abs(a * a) + jnp.angle(a), [ones((5, 8), jnp.complex64)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_counts_as_xla_counts_it(name: str) -> None:
    function, arguments = PROGRAMS[name]
    found, said = compiled(function, *arguments)
    assert top(found)[list(KEYS)].null_count().row(0) == (0, 0, 0)
    assert ours(top(found)) == pytest.approx(said, rel=1e-6)  # XLA adds with 32 bits


#: Opcode → the types of its operands, its result, and what stands behind them in HLO text.
OPCODES: dict[str, tuple[str, str, str]] = {
    **dict.fromkeys(
        ("abs", "ceil", "floor", "negate", "sign", "round-nearest-afz", "round-nearest-even", "copy", "cosine", "cbrt",
         "exponential", "exponential-minus-one", "log", "log-plus-one", "logistic", "rsqrt", "sine", "sqrt", "tan",
         "tanh", "erf", "bitcast-convert", "real"),
        ("f32[4,8]", "f32[4,8]", ""),
    ),
    **dict.fromkeys(
        ("add", "atan2", "divide", "maximum", "minimum", "multiply", "power", "remainder", "subtract"),
        ("f32[4,8] f32[4,8]", "f32[4,8]", ""),
    ),
    **dict.fromkeys(
        ("and", "or", "xor", "shift-left", "shift-right-arithmetic", "shift-right-logical"),
        ("s32[4,8] s32[4,8]", "s32[4,8]", ""),
    ),
    "not": ("s32[8]", "s32[8]", ""),
    "popcnt": ("s32[8]", "s32[8]", ""),
    "count-leading-zeros": ("s32[8]", "s32[8]", ""),
    "is-finite": ("f32[8]", "pred[8]", ""),
    "complex": ("f32[8] f32[8]", "c64[8]", ""),
    "imag": ("c64[8]", "f32[8]", ""),
    "compare": ("f32[8] f32[8]", "pred[8]", ", direction=LT"),
    "select": ("pred[8] f32[8] f32[8]", "f32[8]", ""),
    "clamp": ("f32[] f32[8] f32[]", "f32[8]", ""),
    "convert": ("f32[8]", "bf16[8]", ""),
    "reduce-precision": ("f32[8]", "f32[8]", ", exponent_bits=5, mantissa_bits=10"),
    "broadcast": ("f32[8]", "f32[4,8]", ", dimensions={1}"),
    "transpose": ("f32[4,8]", "f32[8,4]", ", dimensions={1,0}"),
    "reshape": ("f32[4,8]", "f32[32]", ""),
    "reverse": ("f32[4,8]", "f32[4,8]", ", dimensions={1}"),
    "slice": ("f32[4,8]", "f32[4,2]", ", slice={[0:4], [1:3]}"),
    "dynamic-slice": ("f32[4,8] s32[] s32[]", "f32[2,8]", ", dynamic_slice_sizes={2,8}"),
    "dynamic-update-slice": ("f32[4,8] f32[2,8] s32[] s32[]", "f32[4,8]", ""),
    "concatenate": ("f32[4,8] f32[2,8]", "f32[6,8]", ", dimensions={0}"),
    "pad": ("f32[4,8] f32[]", "f32[6,8]", ", padding=1_1x0_0"),
    "dot": ("f32[3,4,8] f32[3,8,5]", "f32[3,4,5]", ", lhs_batch_dims={0}, lhs_contracting_dims={2}, "
            "rhs_batch_dims={0}, rhs_contracting_dims={1}"),
    "convolution": ("f32[2,9,9,8] f32[3,3,4,6]", "f32[2,9,9,6]", ", window={size=3x3 pad=1_1x1_1}, "
                    "dim_labels=b01f_01io->b01f, feature_group_count=2"),
    "fft": ("c64[4,64]", "c64[4,64]", ", fft_type=FFT, fft_length={64}"),
    "cholesky": ("f32[16,16]", "f32[16,16]", ", lower=true"),
    "reduce": ("f32[4,8] f32[]", "f32[4]", ", dimensions={1}, to_apply=sum"),
    "map": ("f32[4,8] f32[4,8]", "f32[4,8]", ", dimensions={0,1}, to_apply=sum"),
    "reduce-window": ("f32[4,8] f32[]", "f32[2,4]", ", window={size=2x2 stride=2x2}, to_apply=sum"),
    "sort": ("f32[100]", "f32[100]", ", dimensions={0}, to_apply=less"),
    "scatter": ("f32[9] s32[2,1] f32[2]", "f32[9]", ", update_window_dims={}, inserted_window_dims={0}, "
                "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum"),
    "gather": ("f32[9,4] s32[2,1]", "f32[2,4]", ", offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
               "index_vector_dim=1, slice_sizes={1,4}"),
    "iota": ("", "s32[8]", ", iota_dimension=0"),
    "tuple": ("f32[4] f32[8]", "(f32[4], f32[8])", ""),
    "rng": ("f32[] f32[]", "f32[8]", ", distribution=rng_uniform"),
    "rng-bit-generator": ("u64[2]", "(u64[2], u32[8])", ", algorithm=rng_default"),
    "select-and-scatter": ("f32[4,8] f32[2,4] f32[]", "f32[4,8]", ", window={size=2x2 stride=2x2}, select=less, "
                           "scatter=sum"),
    "triangular-solve": ("f32[16,16] f32[16,4]", "f32[16,4]", ", left_side=true, lower=true, transpose_a=NO_TRANSPOSE"),
    "partition-id": ("", "u32[]", ""),
    "dynamic-reshape": ("f32[8] s32[]", "f32[8]", ""),
    "stochastic-convert": ("f32[8] u32[8]", "bf16[8]", ""),
    "all-to-all": ("f32[4,8]", "f32[4,8]", ", dimensions={0}, replica_groups={{0,1}}"),
    "all-reduce": ("f32[4,8]", "f32[4,8]", ", to_apply=sum"),
    "all-gather": ("f32[4,8]", "f32[8,8]", ", dimensions={0}, replica_groups={{0,1}}"),
    "reduce-scatter": ("f32[4,8]", "f32[2,8]", ", dimensions={0}, replica_groups={{0,1}}, to_apply=sum"),
    "collective-permute": ("f32[4,8]", "f32[4,8]", ", source_target_pairs={{0,1},{1,0}}"),
}  # fmt: skip

_TEXT = """HloModule m
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
less { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT }
ENTRY main { PARAMETERS
  ROOT made = RESULT OPCODE(NAMES)MORE }
"""


@pytest.fixture(scope="module")
def client() -> Any:
    return jax.devices()[0].client


@pytest.mark.parametrize("opcode", OPCODES)
def test_an_instruction_counts_as_xla_counts_it(opcode: str, client: Any) -> None:
    # Given a program of that one instruction
    operands, result, more = OPCODES[opcode]
    given = [f"p{number} = {kind} parameter({number})" for number, kind in enumerate(operands.split())]
    names = ", ".join(f"p{number}" for number in range(len(given)))
    text = _TEXT.replace("PARAMETERS", "\n".join(given)).replace("RESULT", result).replace("NAMES", names)
    module = _hlo.hlo_module_from_text(text.replace("OPCODE", opcode).replace("MORE", more))
    # Then it costs as much as the compiler says
    said = _jax.hlo_module_cost_analysis(client, module)
    row = table(module).filter(pl.col("name") == "made")
    assert row["opcode"].to_list() == [opcode]
    assert ours(row) == {key: said.get(name, 0.0) for key, name in KEYS.items()}
    assert row["shape"].item() == result
    assert row["operands"].item() == ", ".join(operands.split())


def body(c: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
    return jnp.tanh(c @ c), c.sum()


def test_a_loop_counts_as_often_as_it_runs_which_xla_counts_once() -> None:
    def looped(length: int) -> tuple[pl.DataFrame, dict[str, float]]:
        return compiled(lambda x: lax.scan(body, x, None, length=length), ones((16, 16)))

    found, said = looped(7)
    loop = found.filter(pl.col("opcode") == "while")
    inside = found.filter(pl.col("parent") == loop["id"].item())
    # Everything else counts as XLA counts it, and the loop 7 times what is in it
    assert ours(loop) == {key: 7 * count for key, count in ours(inside).items()}
    rest = ours(top(found).filter(pl.col("opcode") != "while"))
    assert {key: rest[key] + count for key, count in ours(inside).items()} == pytest.approx(said)
    # So 7 rounds more are 7 rounds more, which XLA does not see
    longer, still = looped(14)
    assert ours(longer.filter(pl.col("opcode") == "while"))["flops"] == 2 * ours(loop)["flops"]
    assert still["flops"] == said["flops"]
    # And the product alone is as much as it would be without a loop
    product = found.filter(pl.col("opcode") == "dot")["flops"].sum()
    assert product == 2 * 16 * 16 * 16


def test_a_loop_whose_end_the_compiler_does_not_know_costs_an_unknown_amount() -> None:
    found, _ = compiled(lambda x: lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 1.5, x), ones((16, 16)))
    loop = found.filter(pl.col("opcode") == "while")
    assert loop[list(KEYS)].row(0) == (None, None, None)
    assert found.filter(pl.col("opcode") == "multiply")["flops"].to_list() == [256]


def test_foreign_code_costs_an_unknown_amount_which_xla_counts_as_minus_one() -> None:
    found, said = compiled(lambda x: jnp.linalg.cholesky(x) + 1, jnp.eye(16))
    calls = top(found).filter(pl.col("opcode") == "custom-call")
    assert calls["flops"].to_list() == [None] * len(calls)
    assert len(calls)
    rest = ours(top(found).filter(pl.col("opcode") != "custom-call"))
    assert rest["flops"] - len(calls) == said["flops"]
    assert rest["bytes"] - len(calls) == said["bytes"]


#: A training step in a file of its own, so that its lines are known.
_TRAIN = """
import jax
import jax.numpy as jnp
from jax import lax

def loss(w, x, y):
    for number, one in enumerate(w):
        with jax.named_scope(f"layer{number}"):
            x = jnp.tanh(x @ one)
    return ((x - y) ** 2).mean()

def step(w, m, count, x, y):
    value, gradient = jax.value_and_grad(loss)(w, x, y)
    norm = jnp.sqrt(sum((g ** 2).sum() for g in gradient))
    m = [0.9 * old + g / norm for old, g in zip(m, gradient)]
    rate = 0.1 / (1 + count)
    return [one - rate * moved for one, moved in zip(w, m)], m, count + 1, value

def epoch(w, m, count, x, y):
    return lax.fori_loop(0, 5, lambda _, state: (*step(*state[:3], x, y)[:3],), (w, m, count))
"""


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("train") / "train.py"
    path.write_text(_TRAIN, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(_TRAIN, str(path), "exec"), names)
    names["path"] = path
    return names


STATE = (WEIGHTS, [jnp.zeros_like(weight) for weight in WEIGHTS], 0.0, ones((16, 32)), ones((16, 8)))


def computing(found: pl.DataFrame) -> pl.DataFrame:
    """Return the instructions that compute, with texts as texts."""
    texts = [pl.col(name).cast(pl.String) for name in ("name", "opcode", "scope", "phase")]
    return found.filter((pl.col("flops") > 0) | (pl.col("transcendentals") > 0)).with_columns(texts)


def test_every_part_of_a_training_step_has_its_phase_and_its_line(train: dict[str, Any]) -> None:
    found, _ = compiled(train["step"], *STATE)
    rows = computing(found)
    by_phase = {phase: rows.filter(pl.col("phase") == phase) for phase in ("forward", "backward", "optimizer", "other")}
    assert all(scope.startswith("jit(step)/jvp(") for scope in by_phase["forward"]["scope"].drop_nulls())
    assert all("transpose(jvp(" in scope for scope in by_phase["backward"]["scope"].drop_nulls())
    # The products: three forward, six but one backward (nobody wants the gradient of the data)
    dots = rows.filter(pl.col("opcode") == "dot")
    assert dots["phase"].value_counts().sort("phase").rows() == [("backward", 5), ("forward", 3)]
    # The optimizer takes the gradient: norm, momentum, weights; the learning rate does not
    lines = {
        phase: {line.rsplit(":", 1)[1] for line in part["source"].drop_nulls()} for phase, part in by_phase.items()
    }
    assert lines["forward"] <= {"9", "10"}
    assert lines["backward"] <= {"9", "10"}
    assert lines["optimizer"] >= {"14", "15", "17"}
    assert "16" in lines["optimizer"] | lines["other"]
    assert {line.rsplit(":", 1)[0] for line in rows["source"].drop_nulls()} == {str(train["path"])}
    assert rows.filter(pl.col("scope").str.contains("/"))["phase"].null_count() == 0


def test_a_loop_over_steps_has_the_phases_inside_and_none_itself(train: dict[str, Any]) -> None:
    found, _ = compiled(train["epoch"], *STATE)
    loop = found.filter(pl.col("opcode") == "while")
    assert loop["phase"].to_list() in ([None], ["other"])
    phases = computing(found).filter(pl.col("opcode") == "dot")["phase"].to_list()
    assert sorted(phases) == ["backward"] * 5 + ["forward"] * 3
    assert "optimizer" in computing(found)["phase"].to_list()


def test_inference_has_no_phase() -> None:
    found, _ = compiled(mlp, WEIGHTS, ones((16, 32)))
    assert found["phase"].null_count() == found.height
    assert "jit(mlp)/layer1/dot_general" in found["scope"].cast(pl.String).to_list()


def test_a_fusion_and_its_parts_belong_together() -> None:
    found, _ = compiled(jax.value_and_grad(mlp), WEIGHTS, ones((16, 32)))
    fusions = found.filter(pl.col("opcode") == "fusion")
    assert fusions.height
    for fusion in fusions.iter_rows(named=True):
        parts = found.filter(pl.col("parent") == fusion["id"])
        assert parts.height
        assert parts["flops"].sum() == fusion["flops"]
        assert parts["transcendentals"].sum() == fusion["transcendentals"]


_COLLECTIVE = """HloModule m, replica_count=4
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY main { p = f32[8,4] parameter(0)
  ROOT made = RESULT }
"""


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("f32[8,4] all-reduce(p), to_apply=sum", ("allreduce", None, None, "f32", 128, 128)),
        (
            "f32[8,4] all-reduce(p), replica_groups={{0,2},{1,3}}, to_apply=sum",
            ("allreduce", "[[0,2],[1,3]]", 2, "f32", 128, 128),
        ),
        (
            "f32[16,4] all-gather(p), replica_groups=[2,2]<=[4], dimensions={0}",
            ("allgather", "[[0,1],[2,3]]", 2, "f32", 128, 256),
        ),
        (
            "f32[16,4] all-gather(p), replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}",
            ("allgather", "[[0,2],[1,3]]", 2, "f32", 128, 256),
        ),
        (
            "f32[8,8] all-gather(p), replica_groups=mesh['x'=2,'y'=2] {'y'}, dimensions={1}",
            ("allgather", "[[0,1],[2,3]]", 2, "f32", 128, 256),
        ),
        (
            "f32[8,8] all-gather(p), replica_groups=mesh['x'=4] {'x':(1)2}, dimensions={1}",
            ("allgather", "[[0,2],[1,3]]", 2, "f32", 128, 256),
        ),
        (
            "f32[8,16] all-gather(p), replica_groups=mesh['x'=2,'y'=2] {'y','x'}, dimensions={1}",
            ("allgather", "[[0,2,1,3]]", 4, "f32", 128, 512),
        ),
        (
            "f32[2,4] reduce-scatter(p), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=sum",
            ("reduce_scatter", "[[0,1,2,3]]", 4, "f32", 128, 32),
        ),
        ("f32[8,4] all-to-all(p), dimensions={0}", ("alltoall", None, None, "f32", 128, 128)),
        (
            "f32[8,4] collective-permute(p), source_target_pairs={{0,1},{1,0}}",
            ("permute", "[[0,1],[1,0]]", 2, "f32", 128, 128),
        ),
    ],
)
def test_a_collective_says_who_takes_part_and_how_much(result: str, expected: tuple[Any, ...]) -> None:
    module = _hlo.hlo_module_from_text(_COLLECTIVE.replace("RESULT", result))
    program = block(1, module.as_serialized_hlo_module_proto())
    found = collectives(program, 3, LossLedger("program"))
    rows = instructions(program, 3, LossLedger("program"))
    assert found.drop("instruction").rows() == [expected]
    assert rows["name"].cast(pl.String).to_list()[found["instruction"].item()] == "made"
    assert rows.filter(pl.col("name") == "made")["phase"].to_list() == ["communication"]


def test_the_sample_is_what_jax_makes_today(train: dict[str, Any]) -> None:
    """The program in the samples, which the tests without JAX read, has the shape of one that is compiled now."""
    sample = Path(__file__).resolve().parents[2] / "data" / "xplane" / "mlp_step.hlo.pb"
    then = instructions(sample.read_bytes(), 7, LossLedger("sample"))
    now, _ = compiled(train["step"], *STATE)
    same = ["opcode", "phase", "shape", "operands", "flops", "transcendentals", "bytes"]
    assert then.select(same).equals(now.select(same))
