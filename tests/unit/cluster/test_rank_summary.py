"""Summaries of ranks: what they hold comes back as it was, in few bytes, and groups of ranks find each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.cluster.job_tables import JOB_SCHEMA
from stepscope.cluster.rank_summary import LIMIT, NULL, RankSummary, Texts, decode, encode, job_tables

INTEGERS = st.one_of(st.integers(NULL + 1, 2**63 - 1), st.integers(-100, 100), st.just(NULL))


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def long_rank(steps: int, collectives: int, rank: int = 0) -> RankSummary:
    """A rank whose times vary as those of real ranks do."""
    random = np.random.default_rng(rank)
    each = collectives // steps
    dur = 20_000_000 + random.integers(0, 500_000, steps)
    ts = 1_763_000_000_000_000_000 + np.concatenate(([0], np.cumsum(dur)[:-1]))
    start = np.sort(ts[:, None] + random.integers(0, 20_000_000, (steps, each))).ravel()
    lasts = random.integers(10_000, 90_000, len(start))
    return RankSummary(
        rank,
        {"directory": f"rank{rank}", "step_count": steps},
        [{"id": 0, "name": "0", "ranks": [0, 1]}],
        [],
        {
            "steps": {"step": np.arange(steps), "ts": ts, "dur": dur, "computing": dur // 2},
            "collectives": {
                "step": np.repeat(np.arange(steps), each),
                "group": np.zeros(len(start), np.int64),
                "operation": Texts(random.integers(0, 2, len(start)), ("allreduce", "allgather")),
                "sequence": np.arange(len(start)),
                "ts": start,
                "dur": lasts,
                "launch": start - random.integers(5_000, 50_000, len(start)),
                "exposed": lasts // 3,
            },
            "operators": {
                "step": np.arange(steps),
                "kind": Texts(np.zeros(steps, np.int64), ("kernel",)),
                "name": Texts(np.zeros(steps, np.int64), ("gemm",)),
                "count": np.ones(steps, np.int64),
                "total": dur // 4,
            },
        },
    )


@given(st.lists(st.tuples(INTEGERS, INTEGERS, INTEGERS, st.integers(-1, 2)), max_size=40))
def test_columns_come_back_as_they_were(rows: list[tuple[int, int, int, int]]) -> None:
    ts, dur, launch, text = (np.array(column, np.int64) for column in (zip(*rows, strict=True) if rows else [()] * 4))
    ts, dur = np.where(ts == NULL, 0, ts), np.where(dur == NULL, 0, dur)
    columns = {"ts": ts, "dur": dur, "launch": launch, "operation": Texts(text, ("send", "recv", "ünïcode"))}
    back = decode(encode(RankSummary(3, {"host": "a"}, columns={"collectives": columns}))).columns["collectives"]
    for name in ("ts", "dur", "launch"):
        assert back[name].tolist() == columns[name].tolist()  # type: ignore[union-attr]
    said = back["operation"]
    assert isinstance(said, Texts)
    assert [said.pool[code] if code >= 0 else None for code in said.codes] == [
        ("send", "recv", "ünïcode")[code] if code >= 0 else None for code in text
    ]


def test_a_rank_of_a_thousand_collectives_is_kept_whole() -> None:
    content = encode(long_rank(steps=20, collectives=1_000))
    assert len(content) < LIMIT / 5
    tables = job_tables([decode(content)])
    assert tables.collectives.height == 1_000
    assert tables.ranks["kept_until"].null_count() == 1
    assert tables.losses.is_empty()


def test_what_a_summary_has_no_room_for_is_left_out_by_whole_late_steps_and_said() -> None:
    whole = long_rank(steps=500, collectives=50_000)
    content = encode(whole)
    assert len(content) <= LIMIT
    tables = job_tables([decode(content)])
    kept = tables.steps["step"].to_list()
    assert kept == list(range(len(kept)))
    assert 50 < len(kept) < 500
    until = tables.ranks["kept_until"].item()
    assert until == (tables.steps["ts"] + tables.steps["dur"])[-1]
    assert tables.collectives["step"].unique().sort().to_list() == kept
    assert tables.collectives.filter(pl.col("step") == kept[-1]).height == 100
    assert tables.operators["step"].to_list() == kept
    assert tables.losses.rows() == [(0, "summary_cut", 500 - len(kept), "info")]
    assert tables.ranks["step_count"].item() == 500


def test_a_single_step_without_room_is_cut_by_time() -> None:
    content = encode(long_rank(steps=1, collectives=50_000))
    assert len(content) <= LIMIT
    tables = job_tables([decode(content)])
    assert tables.steps.height == 1
    assert 5_000 < tables.collectives.height < 50_000
    assert (tables.collectives["ts"] < tables.ranks["kept_until"].item()).all(ignore_nulls=False)
    assert tables.losses["what"].to_list() == ["summary_cut"]


def group_of(rank: int, **group: object) -> RankSummary:
    columns = {
        "ts": numbers(10 + rank),
        "dur": numbers(5),
        "group": numbers(0),
        "operation": Texts(numbers(0), ("allreduce",)),
    }
    return RankSummary(rank, {"directory": f"rank{rank}"}, [{"id": 0, **group}], (), {"collectives": columns})


def test_groups_of_one_name_and_other_ranks_are_two() -> None:
    job = job_tables([group_of(rank, name="tp", ranks=[rank // 2 * 2, rank // 2 * 2 + 1]) for rank in range(4)])
    assert job.groups["ranks"].to_list() == [[0, 1], [2, 3]]
    assert job.collectives["group"].to_list() == [0, 0, 1, 1]


def test_a_rank_that_does_not_say_the_ranks_of_its_group_means_the_one_it_is_in() -> None:
    said = [group_of(rank, name="tp", ranks=[rank // 2 * 2, rank // 2 * 2 + 1]) for rank in (0, 2)]
    job = job_tables([*said, group_of(1, name="tp"), group_of(3, name="tp", description="mesh_tp")])
    assert job.collectives.select("rank", "group").rows() == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert job.groups["description"].to_list() == [None, "mesh_tp"]


def test_ranks_are_below_each_other_in_order_and_have_every_column() -> None:
    job = job_tables([long_rank(2, 10, rank=rank) for rank in (3, 1, 2)])
    assert job.ranks["rank"].to_list() == [1, 2, 3]
    for name, table in JOB_SCHEMA.items():
        assert getattr(job, name).columns == [column.name for column in table.columns]
    assert job.collectives["rank"].to_list() == [1] * 10 + [2] * 10 + [3] * 10


def test_of_two_directories_of_a_rank_one_counts() -> None:
    """The one that is named after the rank, if it can be read; the other is a row that says so."""
    left, right = long_rank(2, 10, rank=1), long_rank(3, 12, rank=1)
    copy = replace(right, facts={**right.facts, "directory": "a copy", "world_size": 4})
    job = job_tables([copy, left])
    assert job.ranks.select("directory", "world_size", "fault").rows() == [
        ("a copy", 4, "rank1 is rank 1, and counts."),
        ("rank1", None, None),
    ]
    assert (job.steps.height, job.collectives.height) == (2, 10)
    broken = replace(left, facts={**left.facts, "fault": "it is damaged"}, columns={})
    assert job_tables([copy, broken]).steps.height == 3


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"rank": 1}', b"x"])
def test_a_damaged_summary_says_so(damage: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        decode(damage)


def test_a_summary_that_was_cut_says_so() -> None:
    content = encode(long_rank(2, 10))
    broken = content.replace(b'"columns":"', b'"columns":"AAAA')
    with pytest.raises(ValueError, match="damaged"):
        decode(broken)
