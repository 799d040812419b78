"""What one more rank costs, counted in plans of Polars: no matter of the machine, as seconds are."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from stepscope.analyse.results import kinds
from stepscope.cli.import_ import imported
from stepscope.cluster.rank_summary import decode
from stepscope.cluster.reduction.reduce_job import reduce_rank, works_at

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def many_ranks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("many_ranks", ROOT / "benchmarks" / "many_ranks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def files_of_two_ranks(many_ranks: ModuleType, directory: Path) -> list[Path]:
    files = [directory / f"rank{rank}_trace.json" for rank in range(2)]
    for rank, path in enumerate(files):
        many_ranks.write_rank(path, 1000, rank=rank, world_size=2)
        events = path.read_text().count('"ph"')
        assert 900 < events < 1100
    return files


def test_a_rank_of_a_thousand_events_is_read_and_kept_with_eight_plans(many_ranks: ModuleType, tmp_path: Path) -> None:
    files = files_of_two_ranks(many_ranks, tmp_path)
    with imported(files, tmp_path / "run", quiet=True) as run:
        assert len(run.ranks[0].tables["spans"].collect())  # what is made once in a process
        with many_ranks.Plans() as plans:
            assert run.ranks[1].tables
    assert plans.count <= 8


def test_a_rank_of_a_thousand_events_is_imported_with_sixty_plans(many_ranks: ModuleType, tmp_path: Path) -> None:
    files = files_of_two_ranks(many_ranks, tmp_path)
    list(many_ranks.import_ranks(files[:1], tmp_path / "first"))  # what is made once in a process
    with many_ranks.Plans() as plans:
        assert len(list(many_ranks.import_ranks(files, tmp_path / "both"))) == 2
    assert plans.count / 2 <= 60


def test_no_result_of_a_thousand_events_takes_more_than_sixty_plans(many_ranks: ModuleType, tmp_path: Path) -> None:
    taken = {}
    with imported(files_of_two_ranks(many_ranks, tmp_path), tmp_path / "run", quiet=True) as run:
        for rank in run.ranks:  # of the first one, with what is made once in a process
            for name in kinds():
                with many_ranks.Plans() as plans:
                    rank.result(name)
                taken[name] = plans.count
    assert max(taken.values()) <= 60, taken


def test_a_rank_of_a_thousand_events_is_reduced_with_eight_plans(many_ranks: ModuleType, tmp_path: Path) -> None:
    for rank in range(3):
        many_ranks.write_rank(tmp_path / f"rank{rank}_trace.json", 1000, rank=rank, world_size=3)
    works = works_at([str(tmp_path)])
    reduce_rank(works[0])  # what is made once in a process
    with many_ranks.Plans() as plans:
        assert all("fault" not in decode(reduce_rank(work)).facts for work in works[1:])
    assert plans.count / 2 <= 8
