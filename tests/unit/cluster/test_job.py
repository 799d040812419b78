"""The job of real captures: what its tables hold is what the captures say."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.cluster.job import Job
from stepscope.cluster.rank_summary import encode
from stepscope.cluster.reduction.rank_reduction import reduce
from stepscope.trace.tables import lazy

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.fixture(scope="module")
def ascend() -> Job:
    if not SHARED.is_dir():
        pytest.skip("the shared captures are not here")
    return stepscope.job(SHARED / "ascend" / "db_level1")


def test_steps_of_an_ascend_pair_are_those_of_its_own_tools(ascend: Job) -> None:
    """Figures of msprof-analyze's cluster_time_summary for step 50, ns."""
    said = ascend.tables.steps.select("rank", "step", "dur", "computing", "communication", "overlapped", "copy")
    assert said.rows() == [
        (0, 50, 151_888_750, 8_903_431, 98_071_947, 4_036_153, 841_618),
        (1, 50, 148_265_420, 8_915_634, 94_556_050, 4_034_140, 762_215),
    ]


def test_collectives_of_an_ascend_pair_have_what_the_source_states(ascend: Job) -> None:
    found = ascend.tables.collectives
    assert found["operation"].unique().to_list() == ["allreduce"]
    assert found.group_by("group", "sequence").len()["len"].to_list() == [2] * 4
    assert found.filter(pl.col("rank") == 0)["transit"].to_list() == [228_565, 1_316_426, 2_144_863, 295_806]
    assert found.filter(pl.col("rank") == 0)["wait"].to_list() == [3_568_891, 60, 120_562, 60]
    assert (found["launch"] < found["ts"]).all(ignore_nulls=False)
    assert (found["exposed"] <= found["dur"]).all(ignore_nulls=False)
    assert found["launched"].all(ignore_nulls=False)
    assert ascend.tables.ranks["device_name"].to_list() == ["Ascend910B"] * 2
    assert ascend.tables.ranks["code"].n_unique() == 1


def test_a_pair_of_mindspore_has_its_collectives() -> None:
    if not SHARED.is_dir():
        pytest.skip("the shared captures are not here")
    job = stepscope.job(SHARED / "mindspore_cpu" / "comm_2rank")
    assert job.tables.ranks.select("rank", "world_size", "framework", "device").rows() == [
        (0, 2, "mindspore", "cpu"),
        (1, 2, "mindspore", "cpu"),
    ]
    assert job.tables.collectives.group_by("rank").len().sort("rank").rows() == [(0, 3), (1, 3)]
    assert job.tables.steps["garbage"].null_count() == 2  # nothing recorded it


def test_what_is_read_in_brief_gives_the_summary_of_the_whole(dlrm: Path) -> None:
    for path in sorted(dlrm.iterdir())[:3]:
        run = stepscope.open(path).ranks[0]
        whole = reduce(lazy(run.read()), run.manifest)
        assert encode(reduce(lazy(run.read(brief=True)), run.manifest)) == encode(whole)


_KINETO = ("ns_resolution_trace", "triton_example", "rank_non_gpu", "cupti_profiler", "call_stack")


@pytest.mark.parametrize(
    "name", [*(f"kineto/hta/{name}" for name in _KINETO), "ascend/db_level0", "ascend/db_level1", "ascend/text_level2"]
)
def test_other_captures_read_in_brief_give_the_same(name: str) -> None:
    if not SHARED.is_dir():
        pytest.skip("the shared captures are not here")
    run = stepscope.open(min((SHARED / name).iterdir())).ranks[0]
    whole, brief = (lazy(run.read(brief=brief)) for brief in (False, True))
    assert encode(reduce(brief, run.manifest)) == encode(reduce(whole, run.manifest))


def test_of_a_database_in_brief_what_no_job_needs_is_not_read() -> None:
    if not SHARED.is_dir():
        pytest.skip("the shared captures are not here")
    run = stepscope.open(SHARED / "ascend" / "db_level1").ranks[0]
    whole, brief = (run.read(brief=brief) for brief in (False, True))
    left_out = {name for name in whole if len(whole[name]) and not len(brief[name])}
    assert {"counters", "allocations", "kernel_counters", "stacks", "links"} <= left_out


def test_a_capture_with_nothing_but_what_is_left_out_is_read_whole(tmp_path: Path) -> None:
    if not SHARED.is_dir():
        pytest.skip("the shared captures are not here")
    name = "rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/communication_matrix.json"
    shutil.copy(SHARED / "ascend" / "text_level2" / name, tmp_path)
    run = stepscope.open(tmp_path).ranks[0]
    whole, brief = (run.read(brief=brief) for brief in (False, True))
    assert len(whole["links"])
    assert all(brief[table].equals(whole[table]) for table in whole)


def test_a_job_imports_no_optional_package() -> None:
    code = "import sys, stepscope; stepscope.job; print({'fsspec', 'distributed', 'dask', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_recording_of_jax_says_its_version() -> None:
    if not SHARED.is_dir():
        pytest.skip("the shared captures are not here")
    ranks = stepscope.job(SHARED / "xplane" / "jax_cpu_mlp.xplane.pb").tables.ranks
    assert ranks.select("framework", "version", "device").rows() == [("jax", "0.10.2", "cpu")]
