"""Every output format and layout of every real capture: what can be read can be written, and is sound.

Small captures make the quick size; the others are slow.
"""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import stepscope
from stepscope.advise.job_findings import job_findings
from stepscope.errors import NotARunError
from stepscope.report import registry
from stepscope.report.protocol import Source
from stepscope.run import RankRun
from tests.conftest import files_in

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
#: Folder of captures → pattern of those in it, a file or a directory of ranks each.
FOLDERS = {
    "kineto": "**/*.json*",
    "ascend": "*_*",
    "mindspore_cpu": "*",
    "paddle": "**/*.[jp][sb]*",
    "xplane": "*.pb",
    "memory": "*.pkl",
    "rocprof": "*.json.gz",
}
#: What no reader reads → what it is said to be.
REFUSED = {
    "kineto/param/dlrm_kineto.tar.gz": "is a tar archive.",
    "kineto/hta/memory_analysis/memory_timeline.raw.gz": "is a memory timeline of PyTorch",
    "straggler/trace-ST.parquet": "is a table in Parquet, and not a trace.",
    "straggler/meta-ST.yaml": "is not JSON.",
    "straggler/ms-ST.json": "is JSON, but without traceEvents: no trace.",
    "straggler/mw-ST.json": "is JSON, but without traceEvents: no trace.",
    "straggler/result-ST.json": "is JSON, but without traceEvents: no trace.",
    "straggler": "holds no capture; in it",
    "mindspore_cpu/memtracker": "holds no capture; in it",
}
#: What is there for tests, beside captures.
NO_CAPTURES = ("expected", "LICENSE", "README.md")
#: Captures of up to so many bytes are written in the quick size.
SMALL = 13_000
LAYOUTS = tuple(registry.LAYOUTS)


def captures() -> list[object]:
    paths = [path for folder, pattern in FOLDERS.items() for path in sorted((DATA / folder).glob(pattern))]
    words = (*NO_CAPTURES, *REFUSED)
    found = [path for path in paths if not any(word in str(path.relative_to(DATA)) for word in words)]
    slow = [() if sum(one.stat().st_size for one in files_in(path)) <= SMALL else pytest.mark.slow for path in found]
    named = [
        pytest.param(path, id=str(path.relative_to(DATA)), marks=mark) for path, mark in zip(found, slow, strict=True)
    ]
    return named or [DATA]


def check(path: Path) -> None:
    """Check that a file is what its name says."""
    assert path.stat().st_size
    if path.suffix == ".json":
        json.loads(path.read_text(encoding="utf-8"))
    # MindSpore's summary of a pipeline has sections of different columns.
    elif path.suffix == ".csv" and not path.name.startswith("minddata_pipeline_summary"):
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        assert all(len(row) == len(header) for row in rows)
    elif path.suffix == ".db":
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def ranks(path: Path) -> list[tuple[RankRun, Source]]:
    return [(rank, Source(rank.tables, rank.results, rank.manifest)) for rank in stepscope.open(path).ranks]


@pytest.mark.parametrize("path", captures())
@pytest.mark.usefixtures("shared_data")
def test_every_format_of_every_capture(path: Path, tmp_path: Path) -> None:
    for rank, source in ranks(path):
        for name, output in registry.FORMATS.items():
            written = output.write(source, tmp_path / name / str(rank.rank))
            assert written, name
            for file in written:
                check(file)
        for name in LAYOUTS:
            (root,) = registry.layout(name, "text,db").write(source, tmp_path / name)
            names = {file.name for file in files_in(root)}
            assert {"trace_view.json", "profiler_metadata.json"} <= names
            for file in files_in(root):
                check(file)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_capture_is_said_to_be_what_it_is(name: str, shared_data: Path) -> None:
    with pytest.raises(NotARunError, match=re.escape(f"/{name} {REFUSED[name]}")) as error:
        stepscope.open(shared_data / name)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("shared_data")
def test_every_file_belongs_to_a_capture_or_is_refused() -> None:
    folders = [path.values[0] for path in captures() if not isinstance(path, Path)]  # type: ignore[attr-defined]
    known = [*folders, *(DATA / name for name in REFUSED)]
    others = [path for path in files_in(DATA) if not any(path.is_relative_to(one) for one in known)]
    assert [path for path in others if not any(word in str(path) for word in NO_CAPTURES)] == []


@pytest.mark.parametrize("path", [*captures(), *(pytest.param(DATA / one, id=one) for one in FOLDERS)])
@pytest.mark.usefixtures("shared_data")
def test_every_capture_is_reduced_for_the_job(path: Path) -> None:
    """What a job cannot read of a rank is the capture's fault, never ours; results and findings come of any mixture."""
    job = stepscope.job(path)
    faults = job.tables.ranks["fault"].drop_nulls().to_list()
    assert [fault for fault in faults if "Internal error" in fault] == []
    assert [job.results[name] for name in job.results]
    job_findings(job)
