"""Real programs of four frameworks: what is said of each is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_programs.checked import Program, check

_PROGRAMS = (
    Program("nanogpt", "torch", frozenset({"per-parameter-optimizer"})),
    Program("gan", "torch", frozenset({"per-parameter-optimizer"})),
    Program("dlrm", "torch", frozenset({"data-loader-slow"})),
    Program("diffusion", "torch", frozenset({"per-parameter-optimizer", "layout-copies"})),
    Program("gnn", "torch"),
    Program("mindspore_lenet", "mindspore", frozenset({"data-loader-slow"})),
    Program("paddle_lenet", "paddle", frozenset({"data-loader-slow"})),
)


@pytest.mark.slow
@pytest.mark.parametrize("program", _PROGRAMS, ids=lambda program: program.name)
def test_what_is_said_of_a_program_is_true(program: Program, tmp_path: Path) -> None:
    check(program, tmp_path)
