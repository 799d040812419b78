"""The native recorder is built once, by one process at a time; the reason is reported if it cannot be built."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.collect.torch import native_build, recorder_cache
from stepscope.native.recorder.build import BuildError, Torch, sources, unsupported
from tests.frameworks.torch.programs import LOOP, environment, manifest, python, runs

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def other(version: str, directory: Path | None = None) -> Torch:
    known = native_build.installed(torch)
    return Torch(version, directory or known.directory, known.new_abi)


@pytest.mark.parametrize(
    ("version", "release"),
    [("2.13.0+cpu", (2, 13)), ("2.1.2", (2, 1)), ("2.7.0a0+git123", (2, 7)), ("3", (3, 0)), ("odd", (0, 0))],
)
def test_the_release_is_read_from_the_version(version: str, release: tuple[int, int]) -> None:
    assert other(version).release == release


def test_what_is_not_known_is_not_tried(tmp_path: Path) -> None:
    assert "not 2.0.1" in str(unsupported(other("2.0.1")))
    assert "not 2.99.0" in str(unsupported(other("2.99.0")))
    assert "without its headers" in str(unsupported(other("2.13.0", tmp_path)))
    assert unsupported(other("2.13.0")) is None


def test_builds_of_torch_do_not_share_a_recorder(tmp_path: Path) -> None:
    known = other("2.13.0")
    digests = {known.digest(), other("2.12.0").digest(), Torch("2.13.0", known.directory, not known.new_abi).digest()}
    assert len({*digests, other("2.13.0", tmp_path).digest()}) == 4
    assert other("2.13.0").digest() == known.digest()


OBTAIN = """
import torch
from stepscope.collect.torch import native_build as build
print(build.obtain(build.installed(torch)))
"""


COMPILER = """#!/bin/sh
echo x >> {ran}
while [ $# -gt 0 ]; do
    [ "$1" = -o ] && target="$2"
    [ "$1" = -shared ] && made={made}
    shift
done
sleep 0.2
cp "${{made:-/dev/null}}" "$target"
"""


def copying_compiler(directory: Path) -> tuple[Path, dict[str, str]]:
    """Make a compiler that notes that it ran, and whose work is done already; return its notes and the environment."""
    compiler, ran = directory / "c++", directory / "ran"
    made = native_build.obtain(native_build.installed(torch))
    compiler.write_text(COMPILER.format(ran=ran, made=made))
    compiler.chmod(0o700)
    return ran, environment(XDG_CACHE_HOME=str(directory), CXX=str(compiler))


@pytest.mark.slow
def test_two_processes_that_build_at_once_get_one_library(tmp_path: Path) -> None:
    ran, variables = copying_compiler(tmp_path)
    made = native_build.obtain(native_build.installed(torch))
    command = [sys.executable, "-c", OBTAIN]
    started = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate(timeout=280)[0].strip() for process in started}
    (path,) = paths
    assert Path(path).read_bytes() == made.read_bytes()
    assert sorted(file.suffix for file in (tmp_path / "stepscope").iterdir()) == [".lock", ".sha256", ".so"]
    # one process compiled each file once and linked them, and tried the library
    assert ran.read_text() == "x\n" * (len(sources()) + 1)


@pytest.mark.slow
def test_a_cut_library_is_built_again_and_the_training_goes_on(tmp_path: Path) -> None:
    # Given a library in the cache that is cut where dlopen() still accepts it: its code then dies of SIGBUS
    ran, variables = copying_compiler(tmp_path)
    made = native_build.obtain(native_build.installed(torch))
    cached = tmp_path / "stepscope" / made.name
    cached.parent.mkdir(mode=0o700)
    for file in (made, made.with_suffix(".sha256")):
        shutil.copy(file, cached.parent)
    os.truncate(cached, 0x2000)
    options = ["--quiet", "--output", tmp_path / "runs"]
    done = python("-m", "stepscope", "run", *options, "-c", LOOP, env=variables)
    assert (done.returncode, done.stdout) == (0, "trained 20\n"), done.stderr
    assert cached.read_bytes() == made.read_bytes()
    assert ran.exists()
    (run,) = runs(tmp_path / "runs")
    assert manifest(run)["collectors"]["torch"]["recorder"] == "native"


def test_the_doctor_loads_what_it_praises(tmp_path: Path) -> None:
    # Given a cache with a file that is what was put there, but no library
    made = tmp_path / "made.so"
    made.write_text("no library")
    directory = tmp_path / "stepscope"
    recorder_cache.open_directory(directory)
    recorder_cache.keep(made, directory / native_build.obtain(native_build.installed(torch)).name)
    variables = environment(XDG_CACHE_HOME=str(tmp_path))
    done = python("-m", "stepscope.collect.doctor.probe", "torch", env=variables)
    assert "file too short" in json.loads(done.stdout)["recorder"]["error"]


def test_a_build_that_failed_is_not_tried_again_until_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a compiler that fails and notes that it ran
    compiler, ran = tmp_path / "c++", tmp_path / "ran"
    compiler.write_text(f"#!/bin/sh\necho x >> {ran}\necho 'a.cpp:1: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = native_build.installed(torch)
    assert native_build.reason_against(known) is None
    for _ in range(2):
        with pytest.raises(BuildError, match="no such thing"):
            native_build.obtain(known)
    tried = 2 * len(sources())  # with each standard of C++
    assert ran.read_text() == "x\n" * tried
    assert "no such thing" in str(native_build.reason_against(known))
    with pytest.raises(BuildError, match="no such thing"):
        native_build.obtain(known, again=True)
    assert ran.read_text() == "x\n" * 2 * tried
    # A day later the reason may have gone
    (failed,) = (tmp_path / "cache" / "stepscope").glob("*.failed")
    os.utime(failed, (0, 0))
    assert native_build.reason_against(known) is None


def test_a_cache_that_cannot_be_written_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(BuildError, match="cache"):
        native_build.obtain(native_build.installed(torch))


def test_a_library_that_crashes_ends_the_trial_only(tmp_path: Path) -> None:
    # Given a library whose first function ends the process
    source, made = tmp_path / "bad.c", tmp_path / "bad.so"
    source.write_text("#include <stdlib.h>\n__attribute__((constructor)) static void begin(void) { abort(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    with pytest.raises(BuildError, match="SIGABRT"):
        native_build.try_out(made)
