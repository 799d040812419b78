"""Names for people: what frameworks add is gone, and a compiled program's work is named by scope and phase."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepscope
from stepscope.analyse.operators.shown_names import readable, scoped

XPLANE = Path(__file__).parents[3] / "data" / "xplane" / "steps.xplane.pb"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("aten::mm", "aten::mm"),
        ("void at::native::(anonymous namespace)::gemm<float>", "gemm<float>"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0 (engine)"),
        ("matmul dygraph", "matmul"),
        ("adam_ dygraph", "adam_"),
        ("elementwise_add static", "elementwise_add"),
        ("Global_MatmulGradNode", "matmul backward"),
        ("Global_CrossEntropyWithSoftmaxGradNode", "cross_entropy_with_softmax backward"),
        ("Global_Conv2dGradNodeFinal", "conv2d backward"),
        ("Global_GradNodeAccumulation", "gradient accumulation"),
        ("Default/network-TrainOneStepCell/fc1-Dense/MatMul-op12", "MatMul"),
        ("input_transpose_fusion.kd", "input_transpose_fusion"),
        ("a kernel that avoid wastes", "a kernel that avoid wastes"),
        ("", ""),
    ],
)
def test_what_frameworks_add_is_gone(name: str, shown: str) -> None:
    assert readable(name) == shown


@pytest.mark.parametrize(
    ("scope", "phase", "shown"),
    [
        ("jit(step)/transpose(jvp(loss))/layer3/dot_general", "backward", "layer3 backward"),
        ("jit(step)/jvp(layer2)/dot_general", "forward", "layer2 forward"),
        ("jit(step)/jvp(layer0)/jit(relu)/max", "forward", "layer0 forward"),
        ("jit(train)/jvp(MLP)/Block_1/Dense_0/dot_general", "forward", "Block_1/Dense_0 forward"),
        ("jit(step)/jvp()/integer_pow", "forward", "integer_pow forward"),
        ("jit(step)/jit(main)/while/body/closed_call/layer1/dot_general", None, "layer1"),
        ("jit(step)/sub", "optimizer", "optimizer"),
        ("jit(step)/add", "other", "add"),
        ("jit(forward_3d_conv)/conv_general_dilated", None, "conv_general_dilated"),
        ("p[1][0]", None, "copy.3"),
        (None, "backward", "copy.3"),
    ],
)
def test_instructions_are_named_by_scope_and_phase(scope: str | None, phase: str | None, shown: str) -> None:
    assert scoped(scope, phase, "copy.3") == shown


def test_a_jax_program_shows_its_layers_with_their_rates() -> None:
    # Given a program of JAX, whose layers are named
    run = stepscope.open(XPLANE)
    summary = run.summary
    # Then no instruction's name is left, and the operations are those of all runs in the steps
    assert summary.operators
    names = {entry.name for entry in summary.operators}
    instructions = set(run.result("instruction_details")["Name"])  # type: ignore[call-overload]
    assert not names & instructions
    assert any(name.endswith((" forward", " backward")) for name in names)
    assert sum(entry.flops or 0 for entry in summary.operators) > 0
