"""Forms of computing that cost more than another: what is told, what it saves, and what looks like it and is needed."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.advise.finding import Finding
from tests.unit.advise.rules.trainings import Training

Call = tuple[str, int, list[list[int]], dict[str, Any]]


def steps_of(*calls: Call, nodes: int = 2_000_000) -> Training:
    """Steps of these calls of the forward, and a node of the backward for each call with its duration in ``more``."""
    training = Training()
    for number, (name, dur, shapes, more) in enumerate(calls):
        training.call(name, dur, shapes, "forward", sequence=number, **more)
    training.call("autograd::engine::evaluate_function: X", nodes, phase="backward", sequence=0)
    return training


def call(name: str, dur: int, *shapes: list[int], **more: Any) -> Call:
    """A call of an operator of ATen, with its duration in ns."""
    return f"aten::{name}", dur, list(shapes), more


def told(training: Training) -> Finding:
    """Return the only finding."""
    [finding] = training.findings()
    assert finding.cause == "costly-form"
    return finding


#: A layer at the edges of a graph, on rows that are gathered from so many.
EDGES, WEIGHTS = [24_000, 96], [[288, 64], [288, 96], [288], [288]]


def edges(nodes: int) -> list[Call]:
    """A layer on both ends of 24,000 edges."""
    taken = call("index", 100_000, [nodes, 96], [])
    joined = call("cat", 100_000, EDGES, EDGES, [])
    return [taken, taken, joined, call("linear", 3_000_000, [24_000, 192], [96, 192], [96])]


def sentences(count: int, batch: int, longer: int = 3) -> list[Call]:
    """A recurrent layer that takes so many batches of sequences, each longer by some, after an embedding of each."""
    made: list[Call] = []
    for length in range(9, 9 + longer * count, longer):
        made += [call("embedding", 50_000, [1000, 64], [batch, length])]
        made += [call("gru", 400_000, [batch, length, 64], [1, batch, 96], *WEIGHTS, [], [])]
    return made


def mixture(experts: int, kept: int = 1, *, masked: bool = True) -> list[Call]:
    """Experts of two layers on all of 512 rows, whose results are masked by the number of the expert."""
    index = [512, kept] if kept > 1 else [512]
    made: list[Call] = []
    for expert in range(experts):
        made += [call("linear", 150_000, [512, 128], [256, 128]), call("gelu", 100_000, [512, 256])]
        made += [
            call("linear", 150_000, [512, 256], [128, 256]),
            call("eq", 100, index, [], concrete=["", str(expert)]),
        ]
        made += [call("unsqueeze", 100, [512], []), call("mul", 100, [512, 128], [512, 1] if masked else [512, 128])]
    return made


ROWS, ONES = [2048, 128], [2048, 1]
#: A layer's normalisation, a softmax, and a GELU, pass by pass; a cell's gates, which are none.
NORMALISES = [
    call("mean", 400_000, ROWS, [], [], []), call("sub", 400_000, ROWS, ONES, []), call("pow", 400_000, ROWS, []),
    call("mean", 400_000, ROWS, [], [], []), call("add", 1000, ONES, [], []), call("sqrt", 1000, ONES),
    call("div", 400_000, ROWS, ONES),
]  # fmt: skip
SOFTMAX = [
    call("max", 400_000, ROWS, [], []), call("sub", 400_000, ROWS, ONES, []), call("exp", 1_200_000, ROWS),
    call("sum", 400_000, ROWS, [], [], []), call("div", 400_000, ROWS, ONES),
]  # fmt: skip
GELU = [
    call("mul", 400_000, ROWS, []), call("pow", 400_000, ROWS, []), call("mul", 400_000, ROWS, []),
    call("add", 400_000, ROWS, ROWS, []), call("mul", 400_000, ROWS, []), call("tanh", 400_000, ROWS),
    call("add", 400_000, ROWS, [], []), call("mul", 400_000, ROWS, ROWS),
]  # fmt: skip
GATES = [
    call("mul", 400_000, ROWS, ROWS), call("tanh", 400_000, ROWS), call("mul", 400_000, ROWS, ROWS),
    call("add", 400_000, ROWS, ROWS, []), call("tanh", 400_000, ROWS), call("mul", 400_000, ROWS, ROWS),
]  # fmt: skip
LINEAR = call("linear", 3_000_000, [512, 256], [1024, 256])
SOLVE = call("linalg_inv", 2_000_000, [400, 400])


@pytest.mark.parametrize(
    ("calls", "part", "says", "remedy"),
    [
        (
            [call("diag", 100_000, [1024], []), call("matmul", 3_900_000, [512, 1024], [1024, 1024])],
            0.95, "1024 × 1024", "x * w",
        ),
        (
            [
                call("matmul", 2_000_000, [8, 512, 64], [8, 64, 512]),
                call("matmul", 1_000_000, [8, 512, 512], [8, 512, 64]),
            ],
            1 - 64 / 512, "8 × 512 × 512", "other order",
        ),
        ([SOLVE, call("matmul", 100_000, [400, 400], [400, 1])], 0.75 * 400 / 401, "400 × 400", "solve"),
        (
            [call("linalg_svdvals", 2_000_000, [256, 128]), call("select", 1000, [128], [], [])],
            0.95, "256 × 128", "power",
        ),
        ([call("linalg_matrix_norm", 2_000_000, [256, 128], [], concrete=["", "2."])], 0.95, "256 × 128", "power"),
        (
            [call("im2col", 1_000_000, [32, 16, 32, 32], []), call("matmul", 1_000_000, [16, 144], [32, 144, 1024])],
            0.7, "32 × 16 × 32 × 32", "conv2d",
        ),
        ([call("quantile", 2_000_000, [100_000], [])], 0.7, "100,000", "kthvalue"),
        ([call("embedding_renorm_", 2_000_000, [50_000, 64], [256, 32])], 0.95, "8,192 rows", "max_norm"),
        (
            [
                call("diag_embed", 50_000, [128, 64], [], [], []),
                call("linalg_cholesky", 1_000_000, [128, 64, 64], []),
                call("linalg_solve_triangular", 1_000_000, [128, 64, 64], [128, 64, 64], [], [], []),
            ],
            0.95, "128 × 64 × 64", "Independent",
        ),
        (
            [call("upsample_bilinear2d", 1_000_000, [4, 160, 16, 16], [], [], []),
             call("conv2d", 1_000_000, [4, 160, 64, 64], [16, 160, 1, 1], [16])],
            (1 - 16 / 160 + 1 - 1 / 16) / 2, "4 × 160 × 64 × 64", "Convolve first",
        ),
        ([call("conv1d", 2_000_000, [16, 1, 17_024], [513, 1, 1024])], 1 - 370 / 513, "1,024 samples", "torch.stft"),
        (sentences(8, 1), 1 - 2 / 8, "8 sequences", "pad_sequence"),
        (NORMALISES, 0.45, "2048 × 128", "layer_norm"),
        (SOFTMAX, 0.8, "2048 × 128", "cross_entropy"),
        (GELU, 0.45, "2048 × 128", "gelu"),
    ],
)  # fmt: skip
def test_a_dearer_form_saves_its_part_of_forward_and_backward(
    calls: list[Call], part: float, says: str, remedy: str
) -> None:
    finding = told(steps_of(*calls))
    time = 2_000_000 + sum(dur for name, dur, *_ in calls if name != "aten::select")
    assert finding.gain_ns == pytest.approx(part * time, rel=1e-3)
    assert says in finding.title
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("calls", "saved"),
    [
        ([call("cat", 2_000_000, [65_536, 64], [128, 64], []), call("slice", 1000, [65_664, 64], [])], 1_900_000),
        (
            [call("repeat", 2_000_000, [1, 256, 128], []), call("add", 50_000, [64, 256, 128], [64, 256, 128])],
            1_900_000,
        ),
        ([call("repeat_interleave", 2_000_000, [8, 64], []), call("mul", 50_000, [512, 64], [512, 64])], 1_900_000),
    ],
)
def test_a_copy_that_is_not_needed_saves_its_forward(calls: list[Call], saved: int) -> None:
    assert told(steps_of(*calls)).gain_ns == pytest.approx(saved)


@pytest.mark.parametrize(
    "calls",
    [
        # diag takes a diagonal out of a matrix; a product that does not take the diagonal matrix
        [call("diag", 2_000_000, [64, 64], []), call("mul", 10_000, [64], [64])],
        [call("diag", 2_000_000, [64], []), call("matmul", 10_000, [32, 16], [16, 8])],
        # a softmax between the products (attention); a product that another call takes, too; the cheaper order
        [
            call("matmul", 2_000_000, [8, 512, 64], [8, 64, 512]),
            call("softmax", 10_000, [8, 512, 512], []),
            call("matmul", 2_000_000, [8, 512, 512], [8, 512, 64]),
        ],
        [
            call("matmul", 2_000_000, [8, 512, 64], [8, 64, 512]),
            call("matmul", 2_000_000, [8, 512, 512], [8, 512, 64]),
            call("sum", 10_000, [8, 512, 512], []),
        ],
        [call("matmul", 2_000_000, [8, 64, 512], [8, 512, 64]), call("matmul", 2_000_000, [8, 64, 64], [8, 64, 512])],
        # two layers: their weights are trained apart
        [LINEAR, call("linear", 3_000_000, [512, 1024], [1024, 1024])],
        # an inverse that the program uses as it is, and one of which all columns are multiplied
        [SOLVE, call("mul", 10_000, [400, 400], [400, 400])],
        [SOLVE, call("matmul", 10_000, [400, 400], [400, 400])],
        # a sum of all singular values; a norm that needs all of them
        [call("linalg_svdvals", 2_000_000, [256, 128]), call("sum", 1000, [128], [])],
        [call("linalg_matrix_norm", 2_000_000, [256, 128], [], concrete=["", "nuc"])],
        # windows that no product takes; nine quantiles; a join of equal parts; a join that is used in whole
        [call("im2col", 2_000_000, [32, 16, 32, 32], []), call("mean", 10_000, [32, 144, 1024], [])],
        [call("quantile", 2_000_000, [100_000], [9])],
        [call("cat", 2_000_000, [6000, 64], [6000, 64], []), call("slice", 1000, [12_000, 64], [])],
        [call("cat", 2_000_000, [65_536, 64], [128, 64], []), call("mean", 1000, [65_664, 64], [])],
        # the gates of a cell; exponentials that are not divided by their sum; numbers divided by their own roots
        GATES,
        [*SOFTMAX[:4], call("mul", 400_000, ONES, [])],
        [call("square", 2_000_000, ROWS), call("sqrt", 400_000, ROWS), call("div", 400_000, ROWS, ROWS)],
        # three experts are too few; a factor that is as large as the rows masks nothing
        mixture(3),
        mixture(8, masked=False),
        # a graph with nearly as many nodes as edges; three sequences; batches of 16; one that grows token by token; a
        # diagonal matrix that is added
        edges(20_000),
        sentences(8, 1, longer=1),
        sentences(3, 1),
        sentences(8, 16),
        [call("diag_embed", 100_000, [128, 64], [], [], []), call("add", 2_000_000, [128, 64, 64], [128, 64, 64])],
        # operators that do not broadcast, or take the repeated tensor alone; a tile
        [call("repeat", 2_000_000, [1, 256, 128], []), call("cat", 50_000, [64, 256, 128], [64, 256, 128])],
        [call("repeat", 2_000_000, [1, 256, 128], []), call("add", 50_000, [64, 256, 128], [])],
        [call("repeat", 2_000_000, [64, 8, 128], []), call("add", 50_000, [64, 256, 128], [64, 256, 128])],
        # spectra of so few samples that products cost no more
        [call("conv1d", 2_000_000, [16, 1, 17_024], [201, 1, 400])],
        # empty tensors
        [call("matmul", 2_000_000, [0, 64], [64, 512]), call("matmul", 2_000_000, [0, 512], [512, 8])],
        [call("linalg_inv", 2_000_000, [0, 0]), call("matmul", 10_000, [0, 0], [0, 1])],
        [call("cat", 2_000_000, [0, 64], [128, 64], []), call("slice", 1000, [128, 64], [])],
        [
            call("index", 2_000_000, [0, 96], []),
            call("cat", 1_000_000, [0, 96], [0, 96], []),
            call("linear", 10_000, [0, 192], [96, 192]),
        ],
        # shapes that are not known
        [call("embedding_renorm_", 2_000_000)],
        [(name, dur, [] if name == "aten::linear" else shapes, more) for name, dur, shapes, more in mixture(4)],
        [call("diag_embed", 100_000, [], []), call("linalg_solve", 2_000_000, [], [])],
        [SOLVE, call("matmul", 10_000, [400, 400])],
        [call("exp", 2_000_000, ROWS), call("sum", 10_000, ROWS), call("div", 10_000, ROWS)],
    ],
)
def test_what_looks_alike_is_needed(calls: list[Call], caplog: pytest.LogCaptureFixture) -> None:
    assert steps_of(*calls).causes() == []
    assert not caplog.records  # a rule that fails finds nothing, too


def test_the_order_of_products_counts_across_a_scale_and_a_transposed_view() -> None:
    scores = call("matmul", 2_000_000, [512, 64], [64, 512])
    scale, mixed = call("mul", 10_000, [512, 512], []), call("mv", 500_000, [512, 512], [512])
    finding = told(steps_of(scores, scale, mixed))
    now, other = 512 * 512 * (64 + 1), 64 * (512 + 512)
    assert finding.gain_ns == pytest.approx((1 - other / now) * 4_500_000, rel=1e-3)


def test_a_layer_on_gathered_rows_saves_what_it_computes_again() -> None:
    finding = told(steps_of(*edges(2000), nodes=0))
    assert "24,000 rows of 2,000" in finding.title
    assert finding.gain_ns == pytest.approx(0.9 * (1 - 2000 / 24_000) * 3_000_000, rel=1e-3)


def generated(*lengths: int, phase: str = "other") -> Training:
    """Steps in which a model goes over sequences of these lengths, and is then trained on the last."""
    training = Training()
    for length in lengths:
        training.call("aten::embedding", 10_000, [[256, 96], [4, length]], phase)
        training.call("aten::linear", 300_000, [[4, length, 96], [96, 96], [96]], phase)
    training.call("aten::embedding", 10_000, [[256, 96], [4, lengths[-1]]], "forward", sequence=1)
    training.call("aten::linear", 900_000, [[4, lengths[-1], 96], [96, 96], [96]], "forward", sequence=2)
    return training


def test_a_sequence_that_grows_token_by_token_saves_most_of_all_passes_but_the_first() -> None:
    finding = told(generated(40, 41, 42, 43, 44))
    assert "40 tokens and more 5 times" in finding.title
    assert finding.gain_ns == pytest.approx(0.7 * (1 - 1 / 5) * 5 * 310_000)


@pytest.mark.parametrize("lengths", [(40, 41, 42), (40, 42, 44, 46, 48), (44, 43, 42, 41, 40), (40, 40, 40, 40, 40)])
def test_passes_that_do_not_grow_by_a_token_are_needed(lengths: tuple[int, ...]) -> None:
    assert generated(*lengths).causes() == []


def test_passes_with_gradients_are_needed() -> None:
    assert generated(40, 41, 42, 43, 44, phase="forward").causes() == []


@pytest.mark.parametrize(("kept", "part"), [(1, 7 / 8), (2, 6 / 8)])
def test_experts_on_all_rows_save_what_their_masks_drop(kept: int, part: float) -> None:
    finding = told(steps_of(*mixture(8, kept), nodes=0))
    assert "8 experts compute all 512 rows, of which a mask keeps few" in finding.title
    assert finding.gain_ns == pytest.approx(part * 8 * 400_000, rel=1e-3)


def test_one_kind_is_told_once_for_all_sizes() -> None:
    norms = [
        each
        for size in (256, 512)
        for each in (call("linalg_svdvals", 1000 * size, [size, size]), call("select", 100, [size], [], []))
    ]
    finding = told(steps_of(*norms, nodes=1_000_000))
    assert "512 × 512" in finding.title
    assert finding.gain_ns == pytest.approx(0.95 * (768_000 + 1_000_000))


def test_a_quantile_of_sorted_numbers_is_one_of_them() -> None:
    training = Training()
    training.call("aten::sort", 2_000_000, [[60_000], [], []], "forward", sequence=1)
    training.call("aten::select", 10_000, [[60_000], [], []], "forward", sequence=2)
    [finding] = training.findings()
    assert finding.cause == "unused-results"
    assert "60,000 numbers are sorted, of which 1 is used" in finding.title
    assert "kthvalue" in finding.remedy
