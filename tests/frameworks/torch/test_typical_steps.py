"""The recorded steps are like the steps that are not recorded."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

import stepscope
from stepscope.collect.cuda import cupti_collector, cupti_library
from stepscope.collect.options import Options
from stepscope.collect.session.rehearsal import rehearse
from tests.frameworks.torch.programs import manifest, runs, stepscope_run
from tests.unit.collect.reading import read_journal

#: A loader that makes a batch in 40 ms, a loop that needs 8 ms for one, and a first step in which the loader makes ten.
LIMITED = """
import json, time, torch
from torch.utils.data import DataLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self): return 10_000
    def __getitem__(self, index):
        time.sleep(0.04)
        return torch.randn(8)

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
begins, ends = [], []
for number, batch in enumerate(DataLoader(Slow(), batch_size=1, num_workers=1, prefetch_factor=10)):
    begins.append(time.perf_counter_ns())
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    time.sleep(0.008 if number else 0.5)
    optimizer.step()
    ends.append(time.perf_counter_ns())
    if number == 60: break
durations, waits = ([after - before for before, after in zip(ends, times[1:])] for times in (ends, begins))
json.dump({"durations": durations, "waits": waits}, open("own.json", "w"))
"""


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_a_loader_near_its_limit_is_recorded_after_its_queue_is_drained(tmp_path: Path, output: Path) -> None:
    (tmp_path / "train.py").write_text(LIMITED)
    done = stepscope_run(output, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # Then one run is left, whose steps last as long as most of the program's; a later window has more than the first
    (run,) = runs(output)
    journal = read_journal(run / "rank0" / "capture" / "journal.ssj")
    recorded = journal.frames["steps"]["dur"].to_list()
    assert 5 < len(recorded) <= 40
    own = {name: median(times) for name, times in json.loads((tmp_path / "own.json").read_text()).items()}
    assert median(recorded) == pytest.approx(own["durations"], rel=0.3)
    # and wait for data as these do: steps 5 to 9 found ten batches in the queue
    waits = [span["dur"] for span in journal.spans if span["kind"] == "data"]
    assert median(waits) > 0.3 * own["waits"]
    # and the manifest says which windows there were
    takes = manifest(run)["takes"]
    assert takes["windows"][0]["median_ns"] < 0.5 * takes["others_median_ns"]
    assert [take["kept"] for take in takes["windows"]].count(True) == 1
    assert all(take["median_ns"] for take in takes["windows"])
    # and all steps were timed, though the run that their file began in is removed
    timed = stepscope.open(run).tables["run_steps"].collect()
    assert (len(timed), timed["recorded"].sum()) == (61, len(recorded))
    # and no step is missing, though the program may have ended in the window
    assert "steps_not_recorded" not in manifest(run)["losses"]

    # and what the thread of the training sleeps saves nothing as long as it waits for the loader
    first, *others = stepscope.open(run).findings
    assert (first.cause, [other.gain_ns for other in others]) == ("data-loader-slow", [None] * len(others))
    assert first.evidence[1].value == pytest.approx(40e6, rel=0.1)


@pytest.mark.slow
def test_steps_that_were_asked_for_are_recorded_once(tmp_path: Path, output: Path) -> None:
    (tmp_path / "train.py").write_text(LIMITED)
    done = stepscope_run(output, "--skip", "5", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    steps = read_journal(run / "rank0" / "capture" / "journal.ssj").frames["steps"]
    assert steps["number"].to_list() == [5, 6, 7, 8, 9]
    assert "takes" not in manifest(run)


def test_a_window_is_rehearsed_once_outside_of_windows_and_when_the_program_uses_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(counters_hz=17.0)
    # Given a machine with a GPU that the program has not initialised
    monkeypatch.setattr(cupti_collector, "DEVICES", (tmp_path,))
    monkeypatch.setattr(cupti_library, "driver", lambda: None)
    assert not rehearse(options)
    # When the program uses it, and no window is open
    monkeypatch.undo()
    with stepscope.profile(output=tmp_path, analyse="later"):
        assert not rehearse(options)
    assert rehearse(options)
    assert not rehearse(options)
