"""Every query of ``docs/cookbook.md`` gives what is computed without SQL, on a recorded training or captured ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.run import RankRun, Run
from tests.frameworks.torch.programs import forked_run, runs

pytest.importorskip("duckdb", reason="the extra `sql` is not installed")

COOKBOOK = Path(__file__).parents[3] / "docs" / "cookbook.md"
QUERIES = dict(re.findall(r"^### (.+?)\n.*?^```sql\n(.+?)^```", COOKBOOK.read_text(), flags=re.M | re.S))

PROGRAM = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 1_000
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.randn(8)

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, batch in enumerate(DataLoader(Slow(), batch_size=4, num_workers=1)):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    if number == 30: break
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("cookbook")
    (folder / "train.py").write_text(PROGRAM)
    done = forked_run(folder / "runs", folder / "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    (run,) = runs(folder / "runs")
    return stepscope.open(run)


@pytest.fixture(scope="module")
def ranks(shared_data: Path) -> Run:
    return stepscope.open(shared_data / "kineto" / "hta" / "trace_filter")


def table(rank: RankRun, name: str) -> pl.DataFrame:
    return rank.tables[name].collect()


def with_spans(rank: RankRun, name: str, by: str = "span") -> pl.DataFrame:
    """A table beside the spans of it, the columns of these with a prefix."""
    spans = table(rank, "spans").select(pl.all().name.prefix("s_"))
    return table(rank, name).join(spans, left_on=by, right_on="s_id", how="left", coalesce=False)


def rows(frame: pl.DataFrame, *columns: str) -> list[tuple[object, ...]]:
    return frame.select(columns).rows()


def steps_vary(run: Run) -> None:
    durations = table(run.ranks[0], "run_steps")["dur"].drop_nulls()
    (row,) = run.query(QUERIES["How long does a step take, and how much does it vary?"]).iter_rows(named=True)
    assert row["steps"] == len(durations)
    assert row["median_ms"] == pytest.approx(durations.median() / 1e6, abs=1e-3)  # type: ignore[operator]
    assert row["p95_ms"] == pytest.approx(durations.quantile(0.95, "linear") / 1e6, abs=1e-3)  # type: ignore[operator]
    assert row["max_ms"] == pytest.approx(durations.max() / 1e6, abs=1e-3)  # type: ignore[operator]


def slowest_steps(run: Run) -> None:
    answer = run.query(QUERIES["Which steps were the slowest, and what else happened in them?"])
    longest = sorted(table(run.ranks[0], "run_steps").drop_nulls("dur").select("dur", "number").rows(), reverse=True)
    assert answer["Step"].to_list() == [number for _, number in longest[:5]]
    assert answer["Duration(us)"].to_list() == pytest.approx([dur / 1e3 for dur, _ in longest[:5]], abs=1e-3)


def consists_of(run: Run) -> None:
    (row,) = run.query(QUERIES["What does a step consist of?"]).iter_rows(named=True)
    assert row["total_us"] == pytest.approx(table(run.ranks[0], "steps")["dur"].mean() / 1e3, rel=1e-6)  # type: ignore[operator]
    parts = ("computing_us", "communication_us", "copy_us", "data_wait_us", "host_us", "idle_us")
    assert sum(row[part] or 0 for part in parts) <= row["total_us"] * 1.000001
    assert row["computing_us"] > 0


def phases(run: Run) -> None:
    answer = run.query(QUERIES["How long are forward, backward and optimizer?"])
    spans = table(run.ranks[0], "spans").filter(pl.col("kind") == "operator")
    top = spans.join(spans.select(parent="id"), on="parent", how="anti").filter(pl.col("step").is_not_null())
    count = table(run.ranks[0], "steps").height
    want = {
        phase: dur / 1e6 / count
        for phase, dur in top.group_by(pl.col("phase").cast(str)).agg(pl.col("dur").sum()).rows()
    }
    assert dict(rows(answer, "phase", "ms_a_step")) == pytest.approx(want)
    assert {"forward", "backward", "optimizer"} <= set(want)


def cores(run: Run) -> None:
    answer = run.query(QUERIES["Does something else take the cores?"])
    steps = table(run.ranks[0], "run_steps").drop_nulls(["dur", "delay"])
    shares = (steps["delay"] / steps["dur"]).sort(descending=True).head(10)
    assert answer["waited_for_a_core_percent"].to_list() == pytest.approx((shares * 100).to_list(), abs=0.06)


def faults(run: Run) -> None:
    (row,) = run.query(QUERIES["Does the allocator fault pages in every step?"]).rows()
    steps = table(run.ranks[0], "run_steps")
    assert row == (0, steps["minor_faults"].median(), steps["minor_faults"].max(), steps["major_faults"].sum())


def waits_for_data(run: Run) -> None:
    (row,) = run.query(QUERIES["How much of the training waits for data?"]).iter_rows(named=True)
    steps = table(run.ranks[0], "run_steps").drop_nulls("dur")
    assert row["waited_ms"] == pytest.approx(steps["data_wait"].sum() / 1e6)
    assert row["percent"] == pytest.approx(100 * steps["data_wait"].sum() / steps["dur"].sum(), abs=0.06)


def workers(run: Run) -> None:
    answer = run.query(QUERIES["What do the workers of the loader do?"])
    samples = table(run.ranks[0], "samples").filter(pl.col("worker").is_not_null())
    want = {
        (worker, state): dur / 1e6
        for worker, state, dur in samples.group_by("worker", pl.col("state").cast(str)).agg(pl.col("dur").sum()).rows()
    }
    assert {(worker, state): ms for worker, state, ms in rows(answer, "worker", "state", "ms")} == pytest.approx(want)


def python_lines(run: Run) -> None:
    answer = run.query(QUERIES["Which lines of my program take the most time?"])
    lines = run.ranks[0].result("python_lines")
    assert isinstance(lines, pl.DataFrame)
    own = lines.group_by("File", "Line", "Function").agg(pl.col("Self(us)").sum() / 1e3)["Self(us)"]
    assert answer["self_ms"].to_list() == pytest.approx(own.sort(descending=True).head(10).to_list())


def own_time(run: Run) -> None:
    answer = run.query(QUERIES["Which operators take the most time of their own?"])
    spans = table(run.ranks[0], "spans")
    inside = spans.filter(pl.col("kind") == "operator").group_by("parent").agg(inner=pl.col("dur").sum())
    operators = spans.filter(pl.col("kind") == "operator").join(inside, left_on="id", right_on="parent", how="left")
    own = operators.select(pl.col("name").cast(str), own=(pl.col("dur") - pl.col("inner").fill_null(0)) / 1e6)
    want = own.group_by("name").agg(pl.len(), pl.col("own").sum())
    found = {name: (calls, ms) for name, calls, ms in rows(answer, "Name", "calls", "self_ms")}
    for name, calls, ms in want.sort("own", descending=True).head(3).rows():
        assert found[name] == (calls, pytest.approx(ms, rel=1e-3))


def shapes(run: Run) -> None:
    answer = run.query(QUERIES["With which shapes is an operator called?"])
    calls = with_spans(run.ranks[0], "operators").filter(pl.col("s_name").cast(str) == "aten::addmm")
    want = dict(calls.group_by(pl.col("shapes").cast(str)).len().rows())
    assert dict(rows(answer, "shapes", "calls")) == want
    assert len(want) == 2  # the two linear layers


def small_operators(run: Run) -> None:
    answer = run.query(QUERIES["Which operators are called so often that calling them costs more than what they do?"])
    spans = table(run.ranks[0], "spans").filter(pl.col("kind") == "operator")
    leaves = spans.join(spans.select(id="parent"), on="id", how="anti").filter(pl.col("step").is_not_null())
    want = leaves.group_by(pl.col("name").cast(str)).agg(pl.len(), mean=pl.col("dur").mean() / 1e3)
    known = {name: (calls, mean) for name, calls, mean in want.filter(pl.col("mean") < 20).rows()}
    assert answer.height == min(10, len(known))
    for name, calls, mean in rows(answer, "name", "calls", "mean_us"):
        assert known[str(name)] == (calls, pytest.approx(mean))


def memory_by_operator(run: Run) -> None:
    answer = run.query(QUERIES["Which operators take the most memory?"])
    taken = with_spans(run.ranks[0], "allocations").filter(pl.col("bytes") > 0).drop_nulls("s_name")
    want = taken.group_by(pl.col("s_name").cast(str)).agg(pl.col("bytes").sum())["bytes"].sort(descending=True)
    assert answer["bytes_taken"].to_list() == want.head(10).to_list()


def memory_peak(run: Run) -> None:
    answer = run.query(QUERIES["What ran when memory was at its peak?"])
    allocated = table(run.ranks[0], "allocations").group_by(pl.col("device").cast(str)).agg(pl.col("allocated").max())
    assert dict(rows(answer, "device", "allocated")) == dict(allocated.drop_nulls().rows())


def kernels(run: Run) -> None:
    answer = run.query(QUERIES["Which kernels take the most time, and which operators launch them?"])
    totals = []
    for rank in run.ranks:
        found = with_spans(rank, "kernels").filter(pl.col("s_kind") == "kernel")
        totals += (
            found.group_by("s_name", "operator_name").agg(pl.col("s_dur").sum() / 1e6)["s_dur"].to_list()
            if (
                found := found.join(
                    table(rank, "spans").select(operator="id", operator_name=pl.col("name").cast(str)),
                    on="operator",
                    how="left",
                )
            ).height
            else []
        )
    assert answer["ms"].to_list() == pytest.approx(sorted(totals, reverse=True)[:10])


def launches(run: Run) -> None:
    answer = run.query(QUERIES["How long do kernels wait between their launch and their start?"])
    for rank, (number, median, p95) in zip(run.ranks, answer.rows(), strict=True):
        found = with_spans(rank, "kernels").filter(pl.col("s_kind") == "kernel")
        calls = table(rank, "spans").select(launch="id", called="ts")
        delays = found.join(calls, on="launch").select(pl.col("s_ts") - pl.col("called")).to_series()
        assert (number, median) == (rank.rank, pytest.approx(delays.median() / 1e3))  # type: ignore[operator]
        assert p95 == pytest.approx(delays.quantile(0.95, "linear") / 1e3)  # type: ignore[operator]


def copies(run: Run) -> None:
    answer = run.query(QUERIES["How much is copied between host and device?"])
    for rank in run.ranks:
        found = with_spans(rank, "kernels").filter(pl.col("s_kind") == "memcpy")
        mine = answer.filter(pl.col("rank") == rank.rank)
        assert mine["copies"].sum() == found.height == 40  # counted in the JSON itself
        assert mine["bytes"].sum() == found["bytes"].sum()


def collectives(run: Run) -> None:
    answer = run.query(QUERIES["Which collectives move how much, and how long do they take?"])
    assert dict(rows(answer.filter(rank=0), "operation", "bytes_in")) == {
        "all_to_all": 850250752,
        "all_reduce": 314195708,
        "_all_gather_base": 33554432,
    }


def slowest_rank(run: Run) -> None:
    answer = run.query(QUERIES["Which rank is the slowest?"])
    means = {rank.rank: table(rank, "steps")["dur"].mean() / 1e6 for rank in run.ranks}  # type: ignore[operator]
    assert dict(rows(answer, "rank", "step_ms")) == pytest.approx(means)
    assert answer["rank"][0] == max(means, key=lambda rank: means[rank])


def losses(run: Run) -> None:
    answer = run.query(QUERIES["What was lost or cut?"])
    want = [row for rank in run.ranks for row in table(rank, "losses").select(pl.col("what").cast(str), "count").rows()]
    assert sorted(rows(answer, "what", "count")) == sorted(want)


OF_A_TRAINING: list[Callable[[Run], None]] = [
    steps_vary, slowest_steps, consists_of, phases, cores, faults, waits_for_data, workers, python_lines, own_time,
    shapes, small_operators, memory_by_operator, memory_peak, losses,
]  # fmt: skip
OF_RANKS = [kernels, launches, copies, collectives, slowest_rank]


@pytest.mark.parametrize("check", OF_A_TRAINING, ids=lambda check: check.__name__)
def test_of_a_recorded_training(check: Callable[[Run], None], trained: Run) -> None:
    check(trained)


@pytest.mark.parametrize("check", OF_RANKS, ids=lambda check: check.__name__)
def test_of_captured_ranks(check: Callable[[Run], None], ranks: Run) -> None:
    check(ranks)


def test_each_question_has_a_check() -> None:
    assert len(QUERIES) == 20
    assert len({*OF_A_TRAINING, *OF_RANKS}) == 20
    text = Path(__file__).read_text()
    assert all(f'QUERIES["{question}"]' in text for question in QUERIES)
