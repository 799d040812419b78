"""What goes wrong in or around a training costs the recording as little as possible, and the training nothing.

The same on every framework; what does not depend on one is in tests/faults. Rows: docs/reliability.md.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.frameworks.contract.framework import Framework
from tests.frameworks.contract.test_run import check_updates, steps
from tests.frameworks.torch.programs import forked, forked_run, manifest, runs, script

#: What happens in step 8 → the exit code, and the status in the manifest.
ENDINGS: dict[str, tuple[str, int, str]] = {
    "terminated": ("__import__('os').kill(__import__('os').getpid(), 15)", -signal.SIGTERM, "by SIGTERM"),
    "interrupted": ("__import__('signal').raise_signal(2)", -signal.SIGINT, "interrupted"),
    "raised": ("raise ValueError('of the training')", 1, "failed at step"),
    "left": ("raise SystemExit(3)", 3, "exit code 3"),
    "dropped": ("__import__('os')._exit(5)", 5, "recording"),
}
QUICK = ("terminated", "raised")


def without_numbers(text: str) -> str:
    """Paddle's handler of SIGTERM prints time and process."""
    return re.sub(r"0x[0-9a-f]+|\d+", "", text)


@pytest.mark.parametrize(
    "ending", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in ENDINGS]
)
def test_a_training_that_ends_in_the_window(framework: Framework, tmp_path: Path, output: Path, ending: str) -> None:
    what, code, status = ENDINGS[ending]
    path = script(tmp_path, framework.doing(what, 8))
    arguments = framework.arguments if framework.alone is None else framework.alone
    plain = forked(path, *arguments, cwd=tmp_path)
    done = forked_run(output, *framework.options, path, *arguments, cwd=tmp_path)
    assert (done.returncode, without_numbers(done.stdout)) == (plain.returncode, without_numbers(plain.stdout))
    assert (done.returncode == code) or ending == "interrupted"
    # its own error is the last that it says, without a frame of ours
    if ending == "raised":
        assert "ValueError: of the training" in done.stderr
        assert "stepscope/collect" not in done.stderr
    (run,) = runs(output)
    if ending == "interrupted" and code != plain.returncode:
        status = "by SIGTERM"  # MindSpore ends the process by that signal when it is interrupted
    assert status in manifest(run)["status"]
    if ending != "dropped":  # which loses at most the last second, and this training is shorter
        assert set(steps(run)) >= {5, 6, 7}
        check_updates(framework, run, 4)


BETWEEN = """
import os, subprocess, time, stepscope
schedule = stepscope.schedule(wait=40, warmup=1, active=2, repeat=0)
profile = stepscope.profile(output="runs", analyse="later", schedule=schedule)
profile.start()
for number in range(400):
    first(); profile.step()
    if number == 50: subprocess.run(["kill", "-{signal}", str(os.getpid())])
    if number > 50: time.sleep(0.02)
"""


@pytest.mark.parametrize("name", ["TERM", pytest.param("HUP", marks=pytest.mark.slow)])
def test_a_signal_between_two_windows(framework: Framework, tmp_path: Path, name: str) -> None:
    path = script(tmp_path, framework.two + BETWEEN.replace("{signal}", name))
    done = forked(path, cwd=tmp_path)
    # Then the program does not see it: it may say that steps have ended until it dies of the signal
    assert done.returncode == -signal.Signals[f"SIG{name}"], done.stderr
    assert "LifecycleError" not in done.stderr
    (run,) = runs(tmp_path / "runs")
    assert (manifest(run)["status"], manifest(run)["steps"]["recorded"]) == ("complete", 2)
