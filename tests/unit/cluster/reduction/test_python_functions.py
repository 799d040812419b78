"""In which functions of a program a rank's time goes, of tables whose every number is known."""

from __future__ import annotations

import polars as pl

from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.rank_summary import decode, encode, job_tables, until
from stepscope.cluster.reduction.rank_reduction import reduce
from tests.unit.analyse.build import ORIGIN, Rank
from tests.unit.analyse.stacks.test_python_lines import BACKWARD, LINEAR, RECURSIVE, TOKENIZE, WORKER, Sampled

MS = 1_000_000


def rows(job: JobTables, *, whole: bool = True) -> list[tuple[str, str, int, int | None]]:
    return job.functions.filter(pl.col("whole") == whole).select("thread", "function", "total", "looks").rows()


def reduced(rank: Rank) -> JobTables:
    return job_tables([decode(encode(reduce(rank.tables(), {"rank": 0, "world_size": 2})))])


def test_sampled_functions_have_their_time_a_step_and_the_line_with_most_of_it() -> None:
    sampled = Sampled()
    for number in range(2):
        sampled.rank.add("run_steps", number=number, ts=ORIGIN + number * 100 * MS, dur=100 * MS, recorded=True)
    for at, frames in enumerate([TOKENIZE, TOKENIZE, TOKENIZE, LINEAR, BACKWARD, RECURSIVE]):
        sampled.add(20 * at, frames)
    sampled.add(0, WORKER, thread=7, process=200, worker=1)
    job = reduced(sampled.rank)
    assert rows(job, whole=False)[1:4] == [
        ("training", "train (train.py:12)", 30 * MS, 3),
        ("training", "tokenize (text.py:7)", 30 * MS, 3),
        ("training", "train (train.py:20)", 10 * MS, 1),
    ]
    assert rows(job) == [
        ("training", "<module> (train.py:90)", 60 * MS, 6),
        ("training", "train (train.py:12)", 50 * MS, 5),
        ("training", "tokenize (text.py:7)", 30 * MS, 3),
        ("training", "deep (text.py:9)", 10 * MS, 1),
        ("workers", "Images.__getitem__ (data.py:3)", 10 * MS, 1),
    ]


def test_files_elsewhere_are_named_with_their_directory() -> None:
    sampled = Sampled()
    sampled.rank.add("run_steps", number=0, ts=ORIGIN, dur=100 * MS, recorded=True)
    sampled.add(0, [("/opt/of/mine/load.py", 5, "load"), *TOKENIZE[1:]])
    assert [function for _, function, *_ in rows(reduced(sampled.rank))] == [
        "<module> (train.py:90)",
        "train (train.py:12)",
        "load (mine/load.py:5)",
    ]


def test_called_functions_have_the_time_of_their_calls_in_steps_once() -> None:
    rank = Rank()
    host = rank.thread()
    for number in range(2):
        rank.step(number, number * 1_000, 1_000)
    train, audit = "/home/me/train.py(20): train", "/home/me/train.py(7): audit"
    rank.span(host, "python", 0, 2_000, train)
    rank.span(host, "python", 100, 300, audit)
    rank.span(host, "python", 150, 200, audit)  # it calls itself
    rank.span(host, "python", 1_900, 300, audit)  # the last third of it after the steps
    rank.span(host, "python", 500, 400, "torch/nn/modules/module.py(1789): _call_impl")
    rank.span(rank.thread(2), "python", 0, 50, "/home/me/train.py(30): beside")
    assert rows(reduced(rank))[:2] == [
        ("training", "train (train.py:20)", 1_000, None),
        ("training", "audit (train.py:7)", 200, None),
    ]


def test_a_summary_that_is_cut_keeps_them() -> None:
    sampled = Sampled()
    sampled.rank.add("run_steps", number=0, ts=ORIGIN, dur=100 * MS, recorded=True)
    sampled.add(0, TOKENIZE)
    whole = reduce(sampled.rank.tables(), {"rank": 0})
    assert job_tables([until(whole, ORIGIN)]).functions.equals(job_tables([whole]).functions)
    assert job_tables([whole]).functions.height == 6
