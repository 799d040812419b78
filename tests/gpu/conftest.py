"""Everything here needs an NVIDIA GPU and a torch that sees it; elsewhere it skips and says why."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from stepscope.run import Run


def missing() -> str:
    """Return why there is nothing to test; empty where there is."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    import torch

    if not torch.version.cuda:
        return f"torch {torch.__version__} was built without CUDA"
    return "" if torch.cuda.is_available() else "torch sees no GPU"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this directory; skip it where there is no GPU."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    reason = missing() if here else ""
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


class Window:
    """A recorded window, with the tables that the tests look at."""

    def __init__(self, path: Path) -> None:
        self.run = Run(path)
        self.rank = self.run.ranks[0]

    @property
    def manifest(self) -> dict[str, Any]:
        return self.rank.manifest

    def table(self, name: str) -> pl.DataFrame:
        return self.rank.tables[name].collect()

    def spans(self, *kinds: str) -> pl.DataFrame:
        """Spans of these kinds, with the device, stream and thread of their track; names as text."""
        tracks = self.table("tracks").select("device", "stream", "thread", track="id", track_kind="kind")
        spans = self.table("spans").filter(pl.col("kind").is_in(kinds)).join(tracks, on="track")
        return spans.with_columns(pl.col("name", "device").cast(pl.String)).sort("ts")

    def work(self, *kinds: str) -> pl.DataFrame:
        """Device work of these kinds with its details."""
        details = self.table("kernels").drop("stream", "device")
        return self.spans(*kinds).filter(pl.col("stream").is_not_null()).join(details, left_on="id", right_on="span")


@pytest.fixture(params=["kineto", "native"])
def collector(request: pytest.FixtureRequest) -> str:
    """Who records operators: Kineto, and the GPU as well; or the native recorder, and CUPTI the GPU."""
    return str(request.param)


@pytest.fixture
def record(tmp_path: Path, collector: str) -> Callable[..., Window]:
    """Record one call of a function in a window of its own; the first time outside, so that libraries are loaded."""

    def recorded(work: Callable[[], object], *, warm: bool = True, **options: Any) -> Window:
        import torch

        if warm:
            work()
        torch.cuda.synchronize()
        output = tmp_path / f"runs{len(list(tmp_path.iterdir()))}"
        with stepscope.profile(output=output, analyse="later", collector=collector, **options) as profile:
            work()
            torch.cuda.synchronize()
        (window,) = profile.recorded
        assert window.wait(120)
        found = Window(window.path)
        assert found.manifest["collectors"]["torch"].get("recorder", "kineto") == collector
        return found

    return recorded
