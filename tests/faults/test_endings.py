"""However a program ends: it ends as under ``python``, and what was recorded until then is there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import psutil
import pytest

from stepscope.run import Run
from tests.children import children_with
from tests.clocks import wait_until
from tests.frameworks.torch.programs import (
    TRAINING,
    environment,
    forked,
    forked_run,
    manifest,
    python,
    recorded_spans,
    recorded_steps,
    runs,
    stepscope_run,
)
from tests.sizes import first_quick
from tests.unit.collect.reading import read_journal


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "runs"


#: A program without torch (nothing to record) → each must end like this under python.
ENDINGS = {
    "nothing": "pass",
    "sys.exit()": "sys.exit()",
    "sys.exit(3)": "sys.exit(3)",
    "sys.exit('words')": "sys.exit('words')",
    "raise SystemExit": "raise SystemExit(4)",
    "os._exit": "os._exit(7)",
    "exception": "def inner(): raise ValueError('mine')\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    inner()",
    "syntax error": "print('half'",
    "exception group": "raise ExceptionGroup('several', [ValueError(1), KeyError(2)])",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)",
    "terminated, handled": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); os.kill(os.getpid(), signal.SIGTERM)"
    ),
    "interrupted": "raise KeyboardInterrupt",
    "interrupted by signal": "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
    "own excepthook": "sys.excepthook = lambda kind, *_: print('hook', kind.__name__)\nraise KeyError(1)",
    "broken excepthook": "sys.excepthook = lambda *_: 1 / 0\nraise KeyError(1)",
    "broken pipe": "raise BrokenPipeError('mine')",
    "stepscope's own error": "import stepscope\nstepscope.profile(activities=['gpu'])",
    "atexit": "import atexit; atexit.register(print, 'late'); sys.exit(2)",
    "exception in atexit": "import atexit; atexit.register(lambda: 1 / 0)",
}


def without_addresses(text: str) -> str:
    return re.sub("0x[0-9a-f]+", "0x…", text)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_as_under_python(tmp_path: Path, output: Path, ending: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(f"import os, signal, sys, time\nprint('begun', flush=True)\n{ENDINGS[ending]}\n")
    plain, ours = python(path), stepscope_run(output, "-q", path)
    # Then exit code (or signal) and both streams are the same, tracebacks included
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    assert without_addresses(ours.stderr) == without_addresses(plain.stderr)


RECORDING = (
    TRAINING
    + """
import stepscope
for number in range(30):
    with stepscope.span("batch", number=number):
        step()
    if number == 6:
        print("now", flush=True)
        END
"""
)


def start(output: Path, path: Path, end: str, *options: str) -> subprocess.Popen[str]:
    """Start a program that says ``now`` in the middle of a window (steps 5 to 14) and then does ``end``."""
    path.write_text(RECORDING.replace("END", end.replace("\n", "\n        ")))
    command = [sys.executable, "-m", "stepscope", "run", "--later", "--output", str(output), "--active", "10", *options]
    process = subprocess.Popen(
        [*command, str(path)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    return process


def journal_steps(run: Path) -> list[int]:
    return steps_in(run / "rank0" / "capture" / "journal.ssj")


#: Waits until a file says how to go on.
WAIT = "import os, time\nwhile not os.path.exists(sys.argv[0] + '.go'): time.sleep(0.01)\n"


def wait_for_steps(output: Path, steps: list[int]) -> None:
    """Wait until the journal of a program that is being recorded holds these steps."""
    wait_until(lambda: [path for path in output.glob("*/rank0/capture/journal.ssj") if steps_in(path) == steps])


def steps_in(journal: Path) -> list[int]:
    return list(read_journal(journal).frames["steps"]["number"]) if journal.stat().st_size else []


def test_a_killed_program_leaves_what_was_written_until_a_moment_before(tmp_path: Path, output: Path) -> None:
    # Given a program that has been recording for more than the time between two blocks
    path = tmp_path / "train.py"
    process = start(output, path, WAIT)
    wait_for_steps(output, [5, 6])
    # When it is killed
    process.kill()
    process.communicate(timeout=300)
    # Then everything up to the last block is there, and the run says how it ended
    (run,) = runs(output)
    assert manifest(run)["status"] == "recording"
    assert journal_steps(run) == [5, 6]
    assert "ended_abruptly" in Run(run).ranks[0].tables["losses"].collect()["what"].to_list()


def test_a_program_killed_after_its_window_does_not_say_how_many_steps_it_had(tmp_path: Path, output: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{TRAINING}\nfor number in range(40):\n    step()\nimport os\nos.kill(os.getpid(), 9)\n")
    assert stepscope_run(output, "-q", "--skip", "2", "--active", "2", path).returncode == -signal.SIGKILL
    (run,) = runs(output)
    (rank,) = Run(run).ranks
    assert manifest(run)["status"] == "complete"  # of the window, which is whole
    assert rank.tables["losses"].filter(pl.col("what") == "run_end_unknown").collect()["count"].to_list() == [1]
    assert not rank.summary.run.ended


@pytest.mark.parametrize(
    ("end", "status"),
    [("os.kill(os.getpid(), signal.SIGTERM)", "ended by SIGTERM"), ("raise ValueError", "failed")],
)
def test_a_program_that_is_one_step_ends_in_it_however_it_ends(
    tmp_path: Path, output: Path, end: str, status: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{TRAINING}for number in range(8):\n    step()\n{end}\nimport time; time.sleep(60)\n")
    assert forked_run(output, "--steps", "all", path).returncode != 0
    (run,) = runs(output)
    assert manifest(run)["status"] == status
    assert journal_steps(run) == [0]


@pytest.mark.parametrize("number", first_quick([signal.SIGTERM, signal.SIGHUP]), ids=["SIGTERM", "SIGHUP"])
def test_a_terminated_program_keeps_its_recording_and_dies_of_the_signal(
    tmp_path: Path, output: Path, number: signal.Signals
) -> None:
    path = tmp_path / "train.py"
    process = start(output, path, WAIT, "--collector", "native")
    wait_for_steps(output, [5, 6])
    process.send_signal(number)
    process.communicate(timeout=300)
    assert process.returncode == -number
    (run,) = runs(output)
    assert manifest(run)["status"] == f"ended at step 7 by {number.name}"
    assert journal_steps(run) == [5, 6]
    assert recorded_steps(recorded_spans(run))[:2] == [5, 6]
    # and its files are complete
    assert "ended_abruptly" not in Run(run).ranks[0].tables["losses"].collect()["what"].to_list()


#: A training of which a signal of its first argument comes in the second window, or 20 steps after the first.
LATE = (
    TRAINING
    + """
import subprocess, time
from stepscope.collect.session import session as sessions
number, moment, seen = getattr(signal, sys.argv[1]), sys.argv[2], 0
before = signal.getsignal(signal.SIGTERM)
if moment == "handled": signal.signal(number, lambda *_: sys.exit(9))
for step_number in range(400):
    step(); time.sleep(0.002 if step_number < 12 or moment != "in the second" else 0.02)
    recording = sessions.current_session is not None and sessions.current_session.recording
    seen += recording and step_number > 12
    if seen == 3 or (moment != "in the second" and step_number == 30):
        assert signal.getsignal(signal.SIGTERM) is before or moment != "after"
        seen = 4
        if moment == "in a fork":
            child = os.fork()
            if not child: time.sleep(600)
            os.kill(child, number)
            print(os.waitpid(child, 0)[1] == number, flush=True)
        elif moment == "by itself":
            os.kill(os.getpid(), number)
            print("goes on", flush=True)
        else:
            subprocess.run(["sh", "-c", f"kill -{int(number)} {os.getpid()}"])
print("trained", flush=True)
"""
)


@pytest.mark.parametrize("number", first_quick([signal.SIGTERM, signal.SIGKILL, signal.SIGHUP]), ids=lambda of: of.name)
def test_a_signal_in_the_second_window_leaves_one_run(tmp_path: Path, output: Path, number: signal.Signals) -> None:
    path = tmp_path / "train.py"
    path.write_text(LATE)
    done = stepscope_run(output, path, number.name, "in the second")
    # Then the window of the run is whole
    assert (done.returncode, done.stdout) == (-number, "")
    (run,) = runs(output)
    assert [folder.name for folder in run.iterdir() if number != signal.SIGKILL or folder.name[0] != "."] == ["rank0"]
    assert len(journal_steps(run)) >= 5
    assert manifest(run)["status"] == "complete"
    assert Run(run).ranks[0].summary.run.ended == (number != signal.SIGKILL)


@pytest.mark.parametrize("number", first_quick([signal.SIGTERM, signal.SIGHUP]), ids=lambda of: of.name)
def test_a_signal_after_the_window_shows_what_was_recorded(
    tmp_path: Path, output: Path, number: signal.Signals
) -> None:
    path = tmp_path / "train.py"
    path.write_text(LATE)
    done = stepscope_run(output, "--steps", "2:3", path, number.name, "after")
    # Then the process dies of the signal, and has said what there is, or how to see it
    assert (done.returncode, done.stdout) == (-number, "")
    assert re.search("whole run|Next: stepscope report", done.stderr), done.stderr
    (run,) = runs(output)
    (rank,) = Run(run).ranks
    assert manifest(run)["status"] == "complete"  # of the window
    assert rank.summary.run.ended
    assert rank.summary.run.count >= 30


@pytest.mark.parametrize(
    ("moment", "code", "said"),
    first_quick([("in a fork", 0, "True\ntrained\n"), ("handled", 9, ""), ("by itself", -signal.SIGTERM, "")], 3),
)
def test_signals_of_others_are_theirs(tmp_path: Path, output: Path, moment: str, code: int, said: str) -> None:
    # Given a program with a handler of its own, one that ends a child that it forked, and one that ends itself
    path = tmp_path / "train.py"
    path.write_text(LATE)
    done = stepscope_run(output, "-q", "--steps", "2:3", path, "SIGTERM", moment)
    assert (done.returncode, done.stdout) == (code, said), done.stderr
    (run,) = runs(output)
    assert Run(run).ranks[0].summary.run.ended == (moment != "by itself")


def test_a_training_that_hangs_dies_of_the_signal(tmp_path: Path, output: Path) -> None:
    # Given a training whose main thread hangs in C, and has the GIL: no Python code runs any more
    path = tmp_path / "train.py"
    path.write_text(
        f"{TRAINING}\nfor number in range(20):\n    step()\n"
        "import ctypes\nprint('now', flush=True)\nctypes.PyDLL(None).sleep(600)\n"
    )
    command = [sys.executable, "-m", "stepscope", "run", "--active", "2", "--output", str(output), str(path)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    process.terminate()
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGTERM
    assert manifest(runs(output)[0])["status"] == "complete"


@pytest.mark.slow
def test_a_program_that_ignores_hangups_is_not_ended_by_one(tmp_path: Path, output: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        + RECORDING.replace("END", "os.kill(os.getpid(), signal.SIGHUP)")
    )
    done = stepscope_run(output, "--active", "10", path)
    assert (done.returncode, done.stdout) == (0, "now\n")
    assert manifest(runs(output)[0])["status"] == "complete"


@pytest.mark.slow
def test_a_handler_that_steps_while_the_profile_stops_opens_no_second_run(tmp_path: Path, output: Path) -> None:
    # Given a program whose handler of a timer calls step(), as one that checkpoints on a signal may
    path = tmp_path / "train.py"
    path.write_text(
        TRAINING + "import stepscope\n"
        f"profile = stepscope.profile(output={str(output)!r}, analyse='later', with_stack=False)\n"
        "handled = []\n"
        "def handler(*_):\n"
        "    handled.append(1)\n"
        "    try: profile.step()\n"
        "    except stepscope.errors.LifecycleError: pass\n"
        "signal.signal(signal.SIGALRM, handler)\n"
        "for _ in range(5):\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)\n"
        "    profile.start(); step(); profile.step(); profile.stop()\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "print(len(profile.recorded), len(handled) > 5)\n"
    )
    done = python(path)
    assert (done.returncode, done.stdout) == (0, "5 True\n"), done.stderr
    assert [manifest(run)["status"] for run in runs(output)] == ["complete"] * 5


@pytest.mark.parametrize("times", first_quick([1, 2]))
def test_an_interrupted_program_keeps_its_recording(tmp_path: Path, output: Path, times: int) -> None:
    path = tmp_path / "train.py"
    process = start(output, path, WAIT)
    wait_for_steps(output, [5, 6])
    for _ in range(times):
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    (run,) = runs(output)
    assert set(journal_steps(run)) >= {5, 6}
    if times == 1:
        assert manifest(run)["status"] == "interrupted at step 7"
        assert recorded_steps(recorded_spans(run))[:2] == [5, 6]


def test_ctrl_c_while_the_results_are_computed_is_one_line(tmp_path: Path, output: Path) -> None:
    # Given a terminal: its Ctrl-C goes to all processes of the group
    path = tmp_path / "train.py"
    path.write_text(RECORDING.replace("END", "pass"))
    command = [sys.executable, "-m", "stepscope", "run", "--output", str(output), str(path)]
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    program = psutil.Process(process.pid)
    wait_until(lambda: children_with("report", program), 120)
    assert os.getpgid(children_with("report", program)[0].pid) != process.pid
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    said = [line for line in errors.splitlines() if "building the recorder" not in line]
    assert len(said) == 1, errors
    assert said[0].startswith("stepscope: Recorded. Next: stepscope report ")


def test_an_exception_in_a_step_closes_the_recording_and_is_the_programs_own(tmp_path: Path, output: Path) -> None:
    path = tmp_path / "train.py"
    process = start(output, path, "raise ValueError('mine')")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    line = path.read_text().splitlines().index("        raise ValueError('mine')") + 1
    trace = errors[errors.index("Traceback") : errors.index("stepscope: ")]
    assert trace.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{path}", line {line}, in <module>',
        "    raise ValueError('mine')",
        "ValueError: mine",
    ]
    (run,) = runs(output)
    found = manifest(run)
    assert (found["status"], found["exception"]) == ("failed at step 7", "ValueError")
    assert recorded_steps(recorded_spans(run))[:2] == [5, 6]
    assert journal_steps(run) == [5, 6]


def test_a_run_that_the_program_removes_is_one_line(tmp_path: Path, output: Path) -> None:
    # Given a program that removes the directory of its runs when its window has closed
    removes = f"""
import pathlib, shutil, time
folder = pathlib.Path({str(output)!r})
while not any('"complete"' in path.read_text() for path in folder.rglob("manifest.json")):
    time.sleep(0.01)
shutil.rmtree(folder)
"""
    path = tmp_path / "train.py"
    path.write_text(RECORDING.replace("END", "pass") + removes)
    command = [
        sys.executable,
        "-m",
        "stepscope",
        "run",
        "--later",
        "--output",
        str(output),
        "--active",
        "10",
        str(path),
    ]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "No results" in line], done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_the_program_removes_after_its_second_window_is_no_traceback(tmp_path: Path, output: Path) -> None:
    # Given a program whose steps become longer, so that it is recorded twice, and that then removes its runs
    path = tmp_path / "train.py"
    path.write_text(
        f"""{TRAINING}
import pathlib, shutil, time
folder, number = pathlib.Path({str(output)!r}), 0
while number < 600 and sum('"complete"' in path.read_text() for path in folder.rglob("manifest.json")) < 2:
    step(); time.sleep(0.002 if number < 12 else 0.012); number += 1
shutil.rmtree(folder)
for _ in range(20): step(); time.sleep(0.012)
print(number < 600, flush=True)
"""
    )
    done = stepscope_run(output, path)
    assert (done.returncode, done.stdout) == (0, "True\n")
    # (whether the times of all steps were written once more before the end is a matter of chance)
    assert done.stderr.splitlines()[-1].startswith("stepscope: No results: ")
    assert all(line.startswith("stepscope: ") for line in done.stderr.splitlines())


@pytest.mark.slow
def test_a_program_that_leaves_with_a_code_says_so(tmp_path: Path, output: Path) -> None:
    process = start(output, tmp_path / "train.py", "sys.exit(3)")
    process.communicate(timeout=300)
    assert process.returncode == 3
    (run,) = runs(output)
    assert (manifest(run)["status"], manifest(run)["exception"]) == (
        "ended at step 7 with exit code 3",
        "SystemExit",
    )
    assert recorded_steps(recorded_spans(run))[:2] == [5, 6]


@pytest.mark.slow
def test_a_program_that_leaves_without_a_word_is_like_a_killed_one(tmp_path: Path, output: Path) -> None:
    path = tmp_path / "train.py"
    process = start(output, path, f"{WAIT}os._exit(5)")
    wait_for_steps(output, [5, 6])
    path.with_name("train.py.go").touch()
    process.communicate(timeout=300)
    assert process.returncode == 5
    (run,) = runs(output)
    assert manifest(run)["status"] == "recording"
    assert journal_steps(run) == [5, 6]


def test_a_signal_in_the_middle_of_our_own_work_waits_for_it(tmp_path: Path, output: Path) -> None:
    # Given a program whose handler is terminated while the window is being closed
    path = tmp_path / "train.py"
    path.write_text(
        TRAINING + "import stepscope\n"
        "schedule = stepscope.schedule(wait=0, warmup=1, active=2, repeat=1)\n"
        "def ready(recorded): os.kill(os.getpid(), signal.SIGTERM); print('handled', flush=True)\n"
        f"options = dict(output={str(output)!r}, analyse='later')\n"
        "with stepscope.profile(schedule=schedule, on_trace_ready=ready, **options) as profile:\n"
        "    for _ in range(9): step(); profile.step(); print('step', flush=True)\n"
    )
    done = python(path)
    # Then the window is whole, and the signal does what it does as soon as we are done
    assert done.returncode == -signal.SIGTERM
    assert done.stdout.split() == ["step", "step", "handled"]
    (run,) = runs(output)
    assert manifest(run)["status"] == "complete"
    assert recorded_steps(recorded_spans(run)) == [1, 2]


@pytest.mark.parametrize("schedule", ["whole", "lambda n: whole(n) if n < 8 else 1 / 0"], ids=["signal", "schedule"])
def test_a_recording_that_ends_early_lets_the_program_step_on(tmp_path: Path, output: Path, schedule: str) -> None:
    # Given a program that goes on after a signal, as to write a checkpoint at the end of its epoch
    path = tmp_path / "train.py"
    path.write_text(
        f"{TRAINING}import stepscope\narrived = []\nsignal.signal(signal.SIGTERM, lambda *_: arrived.append(1))\n"
        "whole = stepscope.schedule(wait=1, warmup=1, active=20, repeat=1)\n"
        f"with stepscope.profile(output={str(output)!r}, schedule={schedule}, analyse='later') as profile:\n"
        "    for number in range(12):\n        step()\n        profile.step()\n"
        "        if number == 8: os.kill(os.getpid(), signal.SIGTERM)\nprint(len(arrived))\n"
    )
    done = forked(path)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "LifecycleError" not in done.stderr


API = (
    TRAINING
    + """
import stepscope
profile = stepscope.profile(output=OUTPUT, analyse="later")
"""
)


@pytest.mark.parametrize(
    ("program", "code", "status"),
    first_quick(
        [
            ("profile.start(); step(); profile.step(); step()", 0, "complete"),
            ("with profile:\n    step(); profile.step(); raise KeyError(1)", 1, "failed at step 1"),
            ("with profile:\n    step(); raise KeyError(1)", 1, "failed at step 1"),
            ("with profile:\n    step(); profile.step(); sys.exit(0)", 0, "complete"),
            (
                "with profile:\n    step(); profile.step(); sys.exit('no data')",
                1,
                "ended at step 1 with exit code 1",
            ),
            (
                "with profile:\n    step(); profile.step(); os.kill(os.getpid(), signal.SIGTERM)",
                -15,
                "ended at step 1 by SIGTERM",
            ),
            (
                "signal.signal(signal.SIGTERM, lambda *_: sys.exit(8))\n"
                "with profile:\n    step(); profile.step(); os.kill(os.getpid(), signal.SIGTERM)",
                8,
                "ended at step 1 by SIGTERM",
            ),
        ],
        3,
    ),
    ids=[
        "never stopped",
        "exception",
        "exception, steps found",
        "sys.exit",
        "sys.exit with a message",
        "SIGTERM",
        "SIGTERM with a handler",
    ],
)
def test_a_profile_in_the_program_is_closed_however_it_ends(
    tmp_path: Path, output: Path, program: str, code: int, status: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(API.replace("OUTPUT", repr(str(output))) + program)
    done = python(path)
    assert done.returncode == code, done.stderr
    (run,) = runs(output)
    assert manifest(run)["status"] == status
    assert journal_steps(run) == [0]
    assert recorded_steps(recorded_spans(run))[0] == 0
