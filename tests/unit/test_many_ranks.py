"""What one more rank costs, counted in plans of Polars: no matter of the machine, as seconds are."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

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


def test_a_rank_of_a_thousand_events_is_imported_with_sixty_plans(many_ranks: ModuleType, tmp_path: Path) -> None:
    files = [tmp_path / f"rank{rank}_trace.json" for rank in range(2)]
    for rank, path in enumerate(files):
        many_ranks.write_rank(path, 1000, rank=rank, world_size=2)
        events = path.read_text().count('"ph"')
        assert 900 < events < 1100
    list(many_ranks.import_ranks(files[:1], tmp_path / "first"))  # what is made once in a process
    with many_ranks.Plans() as plans:
        assert len(list(many_ranks.import_ranks(files, tmp_path / "both"))) == 2
    assert plans.count / 2 <= 60
