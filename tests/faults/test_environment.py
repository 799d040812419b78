"""Odd environments: no terminal, no home, closed streams, other locales. Nothing of ours shows in the program's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.torch.programs import (
    LOOP,
    TRAINING,
    environment,
    forked,
    forked_run,
    manifest,
    python,
    recorded_spans,
    runs,
    stepscope_run,
)
from tests.sizes import first_quick


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(LOOP)
    return path


@pytest.mark.parametrize(
    "closed",
    first_quick(["0<&- 1>&- 2>&-", "1>&-", "0<&-", "2>&-", "1>&- 2>&-"]),
)
def test_closed_streams(tmp_path: Path, script: Path, closed: str) -> None:
    # Given a program that trains and prints nothing
    script.write_text(LOOP.replace('print("trained", number + 1)', ""))
    command = f'exec "{sys.executable}" -m stepscope run --later -o "{tmp_path}/runs" "{script}" 12 {closed}'
    done = subprocess.run(["sh", "-c", command], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert manifest(runs(tmp_path / "runs")[0])["status"] == "complete"


@pytest.mark.slow
def test_a_reader_that_goes_away(tmp_path: Path, script: Path) -> None:
    # Given a pipe that nobody reads any more when the program writes
    script.write_text(LOOP.replace("    step()", "    step(); print('x' * 1000, flush=True)"))
    plain = subprocess.run(["sh", "-c", f"'{sys.executable}' {script} 2>&1 >&- | head -c 1"], check=False)
    command = (
        f'set -o pipefail; "{sys.executable}" -m stepscope run -q --later -o "{tmp_path}/runs" "{script}" | head -n 1'
    )
    done = subprocess.run(["bash", "-c", command], env=environment(), capture_output=True, text=True, check=False)
    assert plain.returncode == 0
    # Then it ends as under python: by the program's own BrokenPipeError, or at the last flush
    assert done.returncode in (1, 120)
    assert "Internal error" not in done.stderr


@pytest.mark.slow
def test_no_home_no_locale_no_colour(tmp_path: Path, script: Path) -> None:
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "NO_COLOR": "1"}
    kept = {key: value for key, value in environment(**variables).items() if key not in ("HOME", "USER", "LANG")}
    name = script.with_name("träin 训练.py")
    script.rename(name)
    done = stepscope_run(tmp_path / "runs", name, "12", env=kept, errors="surrogateescape")
    assert (done.returncode, done.stdout) == (0, "trained 12\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    (run,) = runs(tmp_path / "runs")
    assert recorded_spans(run)


@pytest.mark.slow
def test_no_directory_for_temporary_files_can_be_written_to(tmp_path: Path, script: Path) -> None:
    # Given a machine on which /tmp and its like are read-only; of what lies below, /mnt is this test's directory
    read_only = (
        "for place in /tmp /var/tmp /dev/shm; do mount --bind $place $place; mount -o remount,ro,bind $place; done"
    )
    inside = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'set -e; mount --bind {tmp_path} /mnt; {read_only}; cd /mnt; exec "$@"',
        "-",
    ]
    if subprocess.run([*inside, "sh", "-c", "! touch /tmp/file"], capture_output=True, check=False).returncode:
        pytest.skip("cannot mount anything here")
    ours = [sys.executable, "-m", "stepscope"]

    def run(*command: str) -> str:
        done = subprocess.run(
            [*inside, *ours, *command], env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    # When a training is recorded there, reported, exported and asked, then all is as elsewhere
    assert run("run", "--output", "runs", script.name, "12") == "trained 12\n"
    assert recorded_spans(runs(tmp_path / "runs")[0])
    assert "lost         nothing" in run("report", "runs", "--html")
    run("export", "runs", "--to", "all", "--output", "files")
    assert (tmp_path / "files" / "trace.pftrace").stat().st_size


@pytest.mark.slow
def test_the_program_sees_its_own_environment(tmp_path: Path, script: Path) -> None:
    text = (
        "import os, sys, threading, warnings, logging, locale, signal, gc\n"
        "import torch\n"
        "print(sorted(os.environ.items()), os.getcwd(), threading.active_count(), warnings.filters)\n"
        "print(logging.getLogger().handlers, logging.getLogger().level, signal.getsignal(signal.SIGINT))\n"
        "print(signal.getsignal(signal.SIGTERM), sys.flags, sys.getrecursionlimit(), gc.get_threshold())\n"
        "print(sys.excepthook is sys.__excepthook__, sys.stdout, torch.get_num_threads(), os.umask(0))\n"
    )
    script.write_text(text)
    plain, ours = python(script), stepscope_run(tmp_path / "runs", "--skip", "9", script)
    assert plain.returncode == 0
    assert (ours.returncode, ours.stdout) == (0, plain.stdout)


def test_nothing_secret_is_written(tmp_path: Path, script: Path) -> None:
    secret = "xyzzy-secret-token"
    words = ("12", "--hub-token", secret, f"https://me:{secret}@example.org")
    stepscope_run(tmp_path / "runs", script, *words, env=environment(API_TOKEN=secret))
    (run,) = runs(tmp_path / "runs")
    files = [path for path in run.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert not [path for path in files if secret.encode() in path.read_bytes()]
    assert manifest(run)["arguments"][-4:] == ["12", "--hub-token", "<redacted>", "https://<redacted>@example.org"]


@pytest.mark.parametrize("door", ["command", "environment", "code"])
def test_the_command_line_can_be_left_out(tmp_path: Path, script: Path, door: str) -> None:
    output = tmp_path / "runs"
    if door == "command":
        forked_run(output, "--no-argv", script, "12")
    elif door == "code":
        options = f"output={str(output)!r}, argv=False, analyse='later'"
        forked("-c", f"import torch, stepscope\nwith stepscope.profile({options}): pass")
    else:
        said = json.dumps({"start": True, "argv": False, "output": str(output), "analyse": "later"})
        python(script, "12", env=environment(STEPSCOPE_OPTIONS=said))
    (run,) = runs(output)
    assert "arguments" not in manifest(run)
    assert b"train.py" not in (run / "rank0" / "manifest.json").read_bytes()


CLOSES_ALL = """
import os, sys, time
import torch, stepscope
work = torch.ones(64, 64, requires_grad=True)
with stepscope.profile(output=sys.argv[1], quiet=True, collector=sys.argv[2]) as profile:
    for _ in range(4):
        (work @ work).sum().backward()
        profile.step()
    os.closerange(3, 256)
    own = [open(f"{sys.argv[1]}.{number}", "wb", buffering=0) for number in range(40)]
    for _ in range(4):
        (work @ work).sum().backward()
        profile.step()
    time.sleep(1.5)  # the writers wake up
for file in own:
    file.write(b"of the program")
    file.close()
print("ended", flush=True)
"""


@pytest.mark.parametrize("collector", first_quick(["native", "kineto"]))
def test_a_program_that_closes_all_files_keeps_those_that_it_opens_then(tmp_path: Path, collector: str) -> None:
    """As daemons do: the system gives the numbers of stepscope's files to the program's next ones."""
    program = tmp_path / "program.py"
    program.write_text(CLOSES_ALL)
    done = python(program, tmp_path / "runs", collector)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert {path.read_bytes() for path in tmp_path.glob("runs.*")} == {b"of the program"}
    (run,) = runs(tmp_path / "runs")
    assert manifest(run)["status"].startswith("incomplete")


def test_files_with_the_numbers_of_closed_streams_are_not_written_to(tmp_path: Path, script: Path) -> None:
    # Given a daemon: all files are closed, and the program's next ones get the numbers of its standard streams
    daemon = """
os.closerange(0, 4096)
own = [open(f"{sys.argv[1]}.{number}", "wb", buffering=0) for number in range(4)]
for number in range(30):
    step()
for file in own:
    file.write(b"of the program")
"""
    script.write_text(f"{TRAINING}for number in range(8):\n    step()\n{daemon}")
    # When the recording is cut by it, which is a warning, and the summary follows
    done = python("-m", "stepscope", "run", "--output", tmp_path / "runs", script, tmp_path / "own")
    # Then neither is in a file of the program
    assert done.returncode == 0
    assert {path.read_bytes() for path in tmp_path.glob("own.*")} == {b"of the program"}
    (run,) = runs(tmp_path / "runs")
    assert manifest(run)["status"].startswith("incomplete")
    assert (run / "rank0" / "summary.json").exists()
