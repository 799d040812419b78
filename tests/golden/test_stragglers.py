"""The what-if analysis against the result that Lin et al. (OSDI 2025) published for a job of eight GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.cluster.what_if.pipeline_stragglers import PipelineStragglers, Replaced


@pytest.fixture(scope="module")
def published(shared_data: Path) -> Path:
    return shared_data / "straggler"


@pytest.fixture(scope="module")
def stragglers(published: Path) -> PipelineStragglers:
    return PipelineStragglers(pl.read_parquet(published / "trace-ST.parquet"))


def read(published: Path, name: str) -> Any:
    return json.loads((published / f"{name}-ST.json").read_text(encoding="utf-8"))


def close(value: Any) -> Any:
    return pytest.approx(value, rel=1e-6)


def test_headline(published: Path, stragglers: PipelineStragglers) -> None:
    result = read(published, "result")
    assert stragglers.slowdown == close(result["blocking_slowdown"])
    assert stragglers.launch_slowdown == close(result["launch_slowdown"])
    for name, times in (
        ("step_t_base", stragglers.step_t_base),
        ("step_t_nodelay", stragglers.step_t_nodelay),
        ("step_t_noblk", stragglers.step_t_ideal),
    ):
        assert dict(zip(map(str, stragglers.steps), times, strict=True)) == close(result[name])
    of_steps = dict(zip(map(str, stragglers.steps), stragglers.step_t_nodelay / stragglers.step_t_ideal, strict=True))
    assert of_steps == close(result["blocking_step_slowdown"])


@pytest.mark.parametrize("by", ["optype", "dp_rank", "stage"])
def test_attributions(published: Path, stragglers: PipelineStragglers, by: str) -> None:
    result, attribution = read(published, "result"), stragglers.attribution(by)
    whole = attribution.filter(pl.col("step").is_null())
    assert dict(zip(map(str, whole[by]), whole["slowdown"], strict=True)) == close(
        result[f"blocking_decompose_by_{by}"]
    )
    for (step,), rows in attribution.filter(pl.col("step").is_not_null()).group_by("step"):
        expected = result[f"blocking_decompose_by_{by}_per_step"][str(step)]
        assert dict(zip(map(str, rows[by]), rows["slowdown"], strict=True)) == close(expected)


@pytest.mark.parametrize(("name", "attribute"), [("ms", "last_stage"), ("mw", "worst_workers")])
def test_what_the_last_stage_and_the_worst_workers_explain(
    published: Path, stragglers: PipelineStragglers, name: str, attribute: str
) -> None:
    expected, found = read(published, name), getattr(stragglers, attribute)
    assert isinstance(found, Replaced)
    assert found.without == close(expected["trem"])
    assert found.alone == close(expected["tadd"])
    # Differences of times that the authors keep in single precision.
    assert found.share == pytest.approx(expected["rem"], abs=1e-6)
    assert found.added == pytest.approx(expected["add"], abs=1e-6)


def test_a_step_that_lacks_an_operation_is_named(published: Path) -> None:
    operations = pl.read_parquet(published / "trace-ST.parquet").with_columns(pl.col("optype").cast(pl.String))
    lost = (
        (pl.col("step") == 25) & (pl.col("rank") == 5) & (pl.col("optype") == "forward-recv") & (pl.col("seq_id") == 2)
    )
    with pytest.raises(ValueError, match="step 25 of data-parallel rank 1, stage 2 has no forward-recv 2"):
        PipelineStragglers(operations.filter(~lost))
