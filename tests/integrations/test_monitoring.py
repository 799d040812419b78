"""What ``--metrics`` writes, read by the libraries of Prometheus and OpenTelemetry."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

import stepscope
from stepscope.cli.main import main

#: One step, whose event in the file lasts 3,154 µs.
CAPTURE = Path(__file__).parents[1] / "data" / "kineto" / "cuda_event_sync.json.gz"
STEP_S = 0.003154


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_prometheus_reads_its_file(directory: Path) -> None:
    assert main(["report", str(CAPTURE), "--quiet", "--metrics", "train.prom"]) == 0
    families = {one.name: one for one in text_string_to_metric_families((directory / "train.prom").read_text())}
    assert {one.type for one in families.values()} == {"gauge"}
    assert all(one.documentation for one in families.values())
    (step,) = families["stepscope_step_seconds"].samples
    assert (step.labels, step.value) == ({"rank": "0"}, STEP_S)
    parts = families["stepscope_step_part_seconds"].samples
    assert sum(part.value for part in parts) == pytest.approx(STEP_S)
    assert (directory / "train.prom").stat().st_mode & 0o777 == 0o644


def test_the_gain_of_each_finding_is_a_figure(directory: Path, shared_data: Path) -> None:
    capture = shared_data / "kineto" / "tracelens" / "mi300_bert_small.json.gz"
    assert main(["report", str(capture), "--quiet", "--metrics", "train.prom"]) == 0
    families = {one.name: one for one in text_string_to_metric_families((directory / "train.prom").read_text())}
    gains = families["stepscope_finding_gain_seconds"].samples
    found = stepscope.open(next((directory / "stepscope-runs").iterdir())).findings
    assert [gain.labels["cause"] for gain in gains] == [finding.cause for finding in found] != []


def test_opentelemetry_reads_its_file(directory: Path) -> None:
    assert main(["report", str(CAPTURE), "--quiet", "--metrics", "train.json"]) == 0
    request = json_format.Parse((directory / "train.json").read_text(), ExportMetricsServiceRequest())
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    metrics = {metric.name: metric for metric in scope.metrics}
    (step,) = metrics["stepscope.step_seconds"].gauge.data_points
    assert (metrics["stepscope.step_seconds"].unit, step.as_double) == ("s", STEP_S)
    assert step.time_unix_nano > 0
    parts = metrics["stepscope.step_part_seconds"].gauge.data_points
    assert {attribute.key for part in parts for attribute in part.attributes} == {"rank", "part"}
    assert sum(part.as_double for part in parts) == pytest.approx(STEP_S)
