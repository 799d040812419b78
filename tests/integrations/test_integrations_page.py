"""Each trainer has a short program in ``docs/integrations.md``; the tests of the trainers run them."""

from __future__ import annotations

from tests.integrations.recorded import PROGRAMS


def test_each_program_has_five_lines() -> None:
    lines = {name: sum(bool(line) for line in program.splitlines()) for name, program in PROGRAMS.items()}
    five = dict.fromkeys(("transformers", "Lightning", "Keras", "MindSpore", "Paddle"), 5)
    assert lines == {**five, "accelerate": 9}  # whose loop is the program's own
