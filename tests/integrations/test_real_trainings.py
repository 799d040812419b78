"""Real programs whose loop a trainer or a library of layers runs: what is said of each is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_programs.checked import Program, check

_PROGRAMS = (
    Program("flax_classifier", "trainers"),
    Program("lightning_classifier", "trainers", frozenset({"per-parameter-optimizer"})),
    Program("transformers_trainer", "trainers", frozenset({"unused-results"})),
)


@pytest.mark.slow
@pytest.mark.parametrize("program", _PROGRAMS, ids=lambda program: program.name)
def test_what_is_said_of_a_program_is_true(program: Program, tmp_path: Path) -> None:
    check(program, tmp_path)
